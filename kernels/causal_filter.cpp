// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/causal_filter.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/cpu/causal_filter.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr const char* name = "causal_filter";

void check(const FilterDesc& desc, const Tensor& x, const Tensor& past, const Tensor& weights, const Tensor* bias) {
  int axes[3] = {desc.sequences, desc.places, desc.channels};
  std::sort(axes, axes + 3);
  if (axes[0] != 0 || axes[1] != 1 || axes[2] != 2) throw ArgumentError(std::string(name) + ": expected each of the axes 0, 1 and 2 once");
  if (desc.delays.empty() || *std::min_element(desc.delays.begin(), desc.delays.end()) < 0)
    throw ArgumentError(std::string(name) + ": expected at least one delay, none below 0");
  if (x.dtype() != DType::f64) internal::check_dtype(name, "x", x, DType::f32);
  internal::check_same_dtype(name, x, past);
  internal::check_same_dtype(name, x, weights);
  if (x.rank() != 3) throw ShapeError(std::string(name) + ": expected x of rank 3, found " + x.to_string());
  const std::int64_t channels = x.dim(desc.channels), reach = *std::max_element(desc.delays.begin(), desc.delays.end());
  internal::check_dims(name, "weights", weights, DDim{static_cast<std::int64_t>(desc.delays.size()), channels});
  if (bias != nullptr) {
    internal::check_same_dtype(name, x, *bias);
    internal::check_dims(name, "bias", *bias, DDim{channels});
  }
  if (past.rank() != 3 || past.dim(desc.sequences) != x.dim(desc.sequences) || past.dim(desc.channels) != channels ||
      past.dim(desc.places) < reach)
    throw ShapeError(std::string(name) + ": expected " + std::to_string(reach) + " places or more in front of " + x.to_string() +
                     ", found " + past.to_string());
}

}  // namespace

Filtered causal_filter(const FilterDesc& desc, const Tensor& x, const Tensor& past, const Tensor& weights, const Tensor* bias,
                       StreamRef stream) {
  internal::check_device_places(name, stream, {&x, &past, &weights, bias});
  internal::check_host(name, stream, x);
  check(desc, x, past, weights, bias);
  if (desc.sequences == 2) {  // vectors lie along places or channels
    const FilterDesc other{1, 0, 2, desc.delays};
    const std::vector<int> order{desc.places, desc.sequences, desc.channels};
    const Filtered made = causal_filter(other, x.permute(order), past.permute(order), weights, bias, stream);
    const std::vector<int> back = desc.places == 0 ? std::vector{0, 2, 1} : std::vector{2, 0, 1};
    return {made.out.permute(back), made.last.permute(back)};
  }
  const auto rows = [&](const Tensor& given) { return given.is_contiguous() ? given : internal::row_major(name, given, stream); };
  const Tensor from = rows(x), before = rows(past), taps = rows(weights), added = bias == nullptr ? Tensor() : rows(*bias);
  Tensor out(x.dtype(), x.dims(), stream.memory()), last(x.dtype(), past.dims(), stream.memory());
  launch(
      TensorRefs<4>{&from, &before, &taps, bias == nullptr ? &taps : &added}, TensorRefs<2>{&out, &last},
      [=](KernelContext& context) { cpu::causal_filter(desc, from, before, taps, added, out, last, context); }, stream);
  return {out, last};
}

}  // namespace millrace
