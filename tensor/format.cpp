// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/format.h>

namespace millrace {
namespace {

/// Why the host cannot read the elements now, or null.
const char* unreadable(const Tensor& tensor) {
  if (!tensor.host_accessible()) return "not on the host";
  if (tensor.elements() > 0 && !tensor.storage()->written()) return "not written";
  const Point ready = tensor.ready();
  if (ready.error()) return "failed";
  return ready.reached() ? nullptr : "not ready";
}

template <class T>
std::string first_values(const Tensor& tensor) {
  constexpr int shown = 8;
  const T* from = static_cast<const T*>(tensor.raw());
  std::string text;
  int count = 0;
  for (auto index = std::int64_t{0}; index < std::min<std::int64_t>(tensor.elements(), shown); ++index, ++count) {
    std::int64_t rest = index;
    std::int64_t offset = 0;
    for (int axis = tensor.rank() - 1; axis >= 0; --axis) {
      offset += rest % tensor.dim(axis) * tensor.strides()[axis];
      rest /= tensor.dim(axis);
    }
    if (count > 0) text += ", ";
    if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>)
      text += describe(from[offset]);
    else
      text += fmt::format("{}", from[offset]);
  }
  return tensor.elements() > shown ? text + ", …" : text;
}

}  // namespace

std::string describe(const Tensor& tensor) {
  const char* why = unreadable(tensor);
  const std::string values =
      why != nullptr ? why : visit_dtype(tensor.dtype(), [&]<class T>(std::type_identity<T>) { return first_values<T>(tensor); });
  return tensor.to_string() + " {" + values + "}";
}

std::string describe(const LoDTensor& tensor) {
  return tensor.lod().empty() ? describe(tensor.tensor()) : describe(tensor.tensor()) + " with " + tensor.lod().brief();
}

std::string describe(const Point& point) {
  const std::string name = "point " + std::to_string(point.value());
  if (point.reached()) return name + ", reached";
  const std::string at = std::to_string(point.timeline()->reached());
  return name + (point.error() ? " of a timeline that failed at " : " of a timeline at ") + at;
}

}  // namespace millrace
