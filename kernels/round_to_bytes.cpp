// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/round_to_bytes.h>

#include <string>
#include <vector>

#include <millrace/kernels/activation.h>
#include <millrace/kernels/binary.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/reduce.h>
#include <millrace/kernels/where.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// Kernel by kernel, for devices.
Tensor in_steps(const Tensor& x, int axis, StreamRef stream) {
  std::vector<int> axes;
  for (int i = axis; i < x.rank(); ++i) axes.push_back(i);
  const auto number = [&](double value) { return full(DDim{}, value, DType::f32, stream); };
  const auto both = [&](Binary kind, const Tensor& a, const Tensor& b) { return binary(kind, a, b, stream); };
  const auto rounded = [&](const Tensor& of) { return unary(Unary::round, {}, of, stream); };
  const auto extreme = [&](Reduction kind, Binary with) {
    return both(with, axes.empty() ? x : reduce(kind, x, axes, true, stream), number(0));
  };
  const Tensor high = extreme(Reduction::max, Binary::maximum), low = extreme(Reduction::min, Binary::minimum);
  const Tensor span = both(Binary::sub, high, low);
  const Tensor scale = where(both(Binary::equal, span, number(0)), number(1), both(Binary::div, span, number(255)), stream);
  const Tensor zero = rounded(clip(both(Binary::div, unary(Unary::neg, {}, low, stream), scale), 0, 255, stream));
  const Tensor steps = clip(both(Binary::add, rounded(both(Binary::div, x, scale)), zero), 0, 255, stream);
  return both(Binary::mul, both(Binary::sub, steps, zero), scale);
}

}  // namespace

Tensor round_to_bytes(const Tensor& x, int axis, StreamRef stream) {
  internal::check_device_places("round_to_bytes", stream, {&x});
  internal::check_dtype("round_to_bytes", "x", x, DType::f32);
  if (axis < 0 || axis > x.rank())
    throw IndexError("round_to_bytes: expected an axis of 0 to " + std::to_string(x.rank()) + ", found " + std::to_string(axis) + " for " +
                     x.to_string());
  if (x.elements() == 0) return x;
  if (internal::on_cuda(stream.place())) return in_steps(x, axis, stream);
  const Tensor from = x.is_contiguous() ? x : internal::row_major("round_to_bytes", x, stream);
  Tensor out(DType::f32, x.dims(), stream.memory());
  const std::int64_t count = x.dims().slice(axis, x.rank()).elements();
  launch(
      TensorRefs<1>{&from}, TensorRefs<1>{&out},
      [from, out = out, count](ThreadTeam& team) {
        const auto* in = static_cast<const float*>(from.raw());
        auto* to = static_cast<float*>(out.raw_mutable());
        team.parallel(from.elements() / count, std::max<std::int64_t>(1, 16384 / count), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) round_to_bytes(in + i * count, count, to + i * count);
        });
      },
      stream);
  return out;
}

}  // namespace millrace
