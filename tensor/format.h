// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <millrace/tensor/array.h>
#include <millrace/tensor/ddim.h>
#include <millrace/tensor/dtype.h>
#include <millrace/tensor/lod.h>
#include <millrace/tensor/lod_tensor.h>
#include <millrace/tensor/place.h>
#include <millrace/tensor/point.h>
#include <millrace/tensor/sequence_order.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/tensor_list.h>

/// fmt formatters for the values of `tensor/`. They take the format of a string (width, alignment). No public header includes this one.
namespace millrace {

/// "f32[2, 3] on cpu {1, 2, 3, 4, 5, 6}": at most 8 values, then "…"; "{not written}", "{not ready}", "{failed}" or "{not on the host}" in
/// their place when they cannot be read.
std::string describe(const Tensor& tensor);
/// The text of the tensor, followed by the LoD as `LoD::brief`.
std::string describe(const LoDTensor& tensor);
/// "point 3, reached", "point 3 of a timeline at 1", "point 3 of a timeline that failed at 1".
std::string describe(const Point& point);

inline std::string describe(DType dtype) { return std::string(name_of(dtype)); }
inline std::string describe(float16 value) { return fmt::format("{}", static_cast<float>(value)); }
inline std::string describe(bfloat16 value) { return fmt::format("{}", static_cast<float>(value)); }
inline std::string describe(const Place& place) { return place.to_string(); }
inline std::string describe(const CpuPlace& place) { return Place(place).to_string(); }
inline std::string describe(const CudaPlace& place) { return Place(place).to_string(); }
inline std::string describe(const BackendPlace& place) { return Place(place).to_string(); }
inline std::string describe(const DDim& dims) { return dims.to_string(); }
inline std::string describe(const LoD& lod) { return lod.to_string(); }
inline std::string describe(const SequenceOrder& order) { return order.to_string(); }
inline std::string describe(const TensorList& list) { return list.to_string(); }

/// Formats a T as `describe` does.
template <class T>
struct DescribeFormatter : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const T& value, Context& context) const {
    return fmt::formatter<std::string_view>::format(describe(value), context);
  }
};

}  // namespace millrace

#define MILLRACE_FORMATTER(Type) \
  template <>                    \
  struct fmt::formatter<millrace::Type> : millrace::DescribeFormatter<millrace::Type> {}
MILLRACE_FORMATTER(DType);
MILLRACE_FORMATTER(float16);
MILLRACE_FORMATTER(bfloat16);
MILLRACE_FORMATTER(Place);
MILLRACE_FORMATTER(CpuPlace);
MILLRACE_FORMATTER(CudaPlace);
MILLRACE_FORMATTER(BackendPlace);
MILLRACE_FORMATTER(DDim);
MILLRACE_FORMATTER(LoD);
MILLRACE_FORMATTER(SequenceOrder);
MILLRACE_FORMATTER(Tensor);
MILLRACE_FORMATTER(LoDTensor);
MILLRACE_FORMATTER(TensorList);
MILLRACE_FORMATTER(Point);
#undef MILLRACE_FORMATTER

template <int N>
struct fmt::formatter<millrace::Dim<N>> : millrace::DescribeFormatter<millrace::DDim> {};
template <class T, int D>
struct fmt::formatter<millrace::Array<T, D>> : millrace::DescribeFormatter<millrace::Tensor> {};
