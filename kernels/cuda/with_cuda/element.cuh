// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include <millrace/tensor/dtype.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/with_cuda/recording.h>
#include <millrace/tensor/with_cuda/walk.h>
#include <millrace/tensor/with_cuda/each_index.cuh>

/// Elements of tensors as kernels see them: one of three types of arithmetic, whatever the dtype. So a kernel is built three times, not nine.
namespace millrace::cuda {

/// f16 and bf16 with the device's own instructions, which round as ours do.
MILLRACE_HD inline float widened(float16 value) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
#else
  return static_cast<float>(value);
#endif
}
MILLRACE_HD inline float widened(bfloat16 value) { return static_cast<float>(value); }
MILLRACE_HD inline float widened(float value) { return value; }
MILLRACE_HD inline double widened(double value) { return value; }

template <class T>
MILLRACE_HD inline T narrowed(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, float16>) {
      T made;
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made.bits) : "f"(value));
      return made;
    }
#endif
    return T(value);
  }
}

/// The arithmetic of a dtype: float for f32, f16 and bf16, double for f64, int64 for the rest.
template <class Wide>
struct Elements;

template <>
struct Elements<double> {
  void* data = nullptr;
  DType dtype = DType::f64;
  MILLRACE_HD double get(std::int64_t i) const { return static_cast<const double*>(data)[i]; }
  MILLRACE_HD void set(std::int64_t i, double value) const { static_cast<double*>(data)[i] = value; }
};

template <>
struct Elements<float> {
  void* data = nullptr;
  DType dtype = DType::f32;
  MILLRACE_HD float get(std::int64_t i) const {
    if (dtype == DType::f32) return static_cast<const float*>(data)[i];
    if (dtype == DType::bf16) return widened(static_cast<const bfloat16*>(data)[i]);
    return widened(static_cast<const float16*>(data)[i]);
  }
  /// `value` as `get` finds it behind `set`.
  MILLRACE_HD float rounded(float value) const {
    if (dtype == DType::f32) return value;
    return dtype == DType::bf16 ? widened(narrowed<bfloat16>(value)) : widened(narrowed<float16>(value));
  }
  MILLRACE_HD void set(std::int64_t i, float value) const {
    if (dtype == DType::f32) {
      static_cast<float*>(data)[i] = value;
    } else if (dtype == DType::bf16) {
      static_cast<bfloat16*>(data)[i] = narrowed<bfloat16>(value);
    } else {
      static_cast<float16*>(data)[i] = narrowed<float16>(value);
    }
  }
};

template <>
struct Elements<std::int64_t> {
  void* data = nullptr;
  DType dtype = DType::i64;
  MILLRACE_HD std::int64_t get(std::int64_t i) const {
    switch (dtype) {
      case DType::i64: return static_cast<const std::int64_t*>(data)[i];
      case DType::i32: return static_cast<const std::int32_t*>(data)[i];
      case DType::i8: return static_cast<const std::int8_t*>(data)[i];
      default: return static_cast<const std::uint8_t*>(data)[i];
    }
  }
  /// Wraps.
  MILLRACE_HD void set(std::int64_t i, std::int64_t value) const {
    switch (dtype) {
      case DType::i64: static_cast<std::int64_t*>(data)[i] = value; return;
      case DType::i32: static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value); return;
      case DType::i8: static_cast<std::int8_t*>(data)[i] = static_cast<std::int8_t>(value); return;
      case DType::boolean: static_cast<std::uint8_t*>(data)[i] = value != 0 ? 1 : 0; return;
      default: static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(value); return;
    }
  }
};

template <class Wide>
Elements<Wide> elements(const Tensor& x) {
  return {x.raw_mutable(), x.dtype()};
}

/// Calls f(Wide{}) with the arithmetic of `dtype`.
template <class F>
void visit_wide(DType dtype, F&& f) {
  if (dtype == DType::f64) return f(double{});
  if (is_floating(dtype)) return f(float{});
  f(std::int64_t{});
}

/// Integers in the unsigned type, whose wrapping is defined.
MILLRACE_HD inline std::int64_t wrapped(std::uint64_t value) { return static_cast<std::int64_t>(value); }
MILLRACE_HD inline std::uint64_t bits_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

/// Room on the device of the queue; given back, it serves the same stream again.
inline Tensor scratch(const Queue& queue, DType dtype, const DDim& dims) { return Tensor(dtype, dims, *queue.memory); }

/// Numbers of the host on the device.
inline Tensor uploaded(const Queue& queue, const std::vector<std::int64_t>& values) {
  const DDim dims{static_cast<std::int64_t>(values.size())};
  if (queue.recording != nullptr) return queue.recording->constant(values.data(), DType::i64, dims);
  Tensor made = scratch(queue, DType::i64, dims);
  if (!values.empty())
    check(cudaMemcpyAsync(made.raw_mutable(), values.data(), made.bytes(), cudaMemcpyHostToDevice, queue.stream), "cudaMemcpyAsync",
          queue.device);
  return made;
}

inline const std::int64_t* integers(const Tensor& x) { return static_cast<const std::int64_t*>(x.raw()); }

/// f(unit), unit being an unsigned integer of the size of an element: for kernels that only move elements.
template <class F>
void visit_bytes(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 8: return f(std::uint64_t{});
    case 4: return f(std::uint32_t{});
    case 2: return f(std::uint16_t{});
    default: return f(std::uint8_t{});
  }
}

}  // namespace millrace::cuda
