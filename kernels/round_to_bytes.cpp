// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/round_to_bytes.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <millrace/kernels/activation.h>
#include <millrace/kernels/binary.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/cpu/round_to_bytes.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/matmul.h>
#include <millrace/kernels/reduce.h>
#include <millrace/kernels/where.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// The bytes of x less their zero, in f32, and their scale.
struct Steps {
  Tensor bytes;
  Tensor scale;
  Tensor zero;
};

/// Kernel by kernel, for devices.
Steps in_steps(const Tensor& x, int axis, StreamRef stream) {
  std::vector<int> axes;
  for (int i = axis; i < x.rank(); ++i) axes.push_back(i);
  const auto number = [&](double value) { return full(DDim{}, value, DType::f32, stream); };
  const auto both = [&](Binary kind, const Tensor& a, const Tensor& b) { return binary(kind, a, b, stream); };
  const auto rounded = [&](const Tensor& of) { return unary(Unary::round, {}, of, stream); };
  const auto extreme = [&](Reduction kind, Binary with) {
    return both(with, axes.empty() ? x : reduce(kind, x, axes, true, stream), number(0));
  };
  const Tensor high = extreme(Reduction::max, Binary::maximum), low = extreme(Reduction::min, Binary::minimum);
  const Tensor step = both(Binary::div, both(Binary::sub, high, low), number(255));
  const Tensor scale = where(both(Binary::equal, step, number(0)), number(1), step, stream);
  const Tensor zero = rounded(clip(both(Binary::div, unary(Unary::neg, {}, low, stream), scale), 0, 255, stream));
  const Tensor steps = clip(both(Binary::add, rounded(both(Binary::div, x, scale)), zero), 0, 255, stream);
  return {both(Binary::sub, steps, zero), scale, zero};
}

}  // namespace

Tensor round_to_bytes(const Tensor& x, int axis, StreamRef stream) {
  internal::check_device_places("round_to_bytes", stream, {&x});
  internal::check_dtype("round_to_bytes", "x", x, DType::f32);
  if (axis < 0 || axis > x.rank())
    throw IndexError("round_to_bytes: expected an axis of 0 to " + std::to_string(x.rank()) + ", found " + std::to_string(axis) + " for " +
                     x.to_string());
  if (x.elements() == 0) return x;
  if (internal::on_cuda(stream.place())) {
    const Steps made = in_steps(x, axis, stream);
    return binary(Binary::mul, made.bytes, made.scale, stream);
  }
  const Tensor from = x.is_contiguous() ? x : internal::row_major("round_to_bytes", x, stream);
  Tensor out(DType::f32, x.dims(), stream.memory());
  const std::int64_t count = x.dims().slice(axis, x.rank()).elements();
  launch(
      TensorRefs<1>{&from}, TensorRefs<1>{&out},
      [from, out = out, count](ThreadTeam& team) {
        const auto* in = static_cast<const float*>(from.raw());
        auto* to = static_cast<float*>(out.raw_mutable());
        team.parallel(from.elements() / count, std::max<std::int64_t>(1, 16384 / count), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i)
            round_to_bytes({const_cast<float*>(in) + i * count, count}, 1, count, {to + i * count, count});
        });
      },
      stream);
  return out;
}

namespace {

/// The most products of a byte less its zero and an i8 that sum up exactly in f32.
constexpr std::int64_t most_in_f32 = 512;

/// Sums in a dtype in which they are exact.
Tensor multiplied_in_steps(const PackedInt8& weights, const Tensor& x, int axis, StreamRef stream) {
  const Steps made = in_steps(x, axis, stream);
  const DType exact = x.dim(-1) <= most_in_f32 ? DType::f32 : DType::f64;
  const auto in = [&](const Tensor& of, DType dtype) { return of.dtype() == dtype ? of : cast(of, dtype, stream); };
  const Tensor sums = matmul(in(made.bytes, exact), in(weights.data, exact), stream);
  return binary(Binary::mul, binary(Binary::mul, in(sums, DType::f32), made.scale, stream), weights.scales, stream);
}

}  // namespace

Tensor matmul_bytes(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, int axis, StreamRef stream) {
  internal::check_device_places("matmul_bytes", stream, {&x, &weights.data, &weights.scales});
  internal::check_dtype("matmul_bytes", "x", x, DType::f32);
  const std::int64_t k = plan.desc().k;
  if (x.rank() < 1 || x.dim(-1) != k)
    throw ShapeError("matmul_bytes: expected rows of " + std::to_string(k) + " elements, found " + x.to_string());
  if (k > most_bytes_k)
    throw ArgumentError("matmul_bytes: expected k of at most " + std::to_string(most_bytes_k) + ", found " + std::to_string(k));
  if (axis < 0 || axis >= x.rank())
    throw IndexError("matmul_bytes: expected an axis of 0 to " + std::to_string(x.rank() - 1) + ", found " + std::to_string(axis));
  DDim dims = x.dims();
  dims[-1] = plan.desc().n;
  if (x.elements() == 0 || dims.elements() == 0) return zeros(dims, DType::f32, stream);
  if (internal::on_cuda(stream.place())) return multiplied_in_steps(weights, x, axis, stream);
  const Tensor from = x.is_contiguous() ? x : internal::row_major("matmul_bytes", x, stream);
  const Tensor bytes(DType::u8, x.dims(), stream.memory());
  Tensor out(DType::f32, dims, stream.memory());
  const std::int64_t rows = x.dims().slice(axis, x.rank()).elements() / k;
  launch(
      TensorRefs<4>{&from, &weights.data, &weights.offsets, &weights.scales}, TensorRefs<2>{&bytes, &out},
      [=, out = out](ThreadTeam& team) {
        const auto* in = static_cast<const float*>(from.raw());
        for (std::int64_t row = 0; row < from.elements() / k; row += rows)
          cpu::matmul_bytes(plan, weights, in + row * k, rows, static_cast<std::uint8_t*>(bytes.raw_mutable()) + row * k,
                            static_cast<float*>(out.raw_mutable()) + row * plan.desc().n, team);
      },
      stream);
  return out;
}

namespace {

std::int32_t zero_at(const Tensor& zero, std::int64_t place) {
  if (zero.dtype() == DType::i8) return static_cast<const std::int8_t*>(zero.raw())[place];
  return static_cast<const std::uint8_t*>(zero.raw())[place];
}

Tensor summed_in_steps(const PackedInt8& weights, const Tensor& x, const Tensor& zero, const ByteColumns& columns, StreamRef stream) {
  const DType exact = x.dim(-1) <= most_in_f32 / (columns.zero == nullptr ? 1 : 2) ? DType::f32 : DType::f64;
  DDim apart = zero.dims();
  while (apart.rank() < x.rank()) apart = apart.inserted(apart.rank(), 1);
  const Tensor centred = binary(Binary::sub, cast(x, exact, stream), cast(zero, exact, stream).reshape(apart), stream);
  Tensor w = cast(weights.data, exact, stream);
  if (columns.zero != nullptr) w = binary(Binary::sub, w, cast(*columns.zero, exact, stream), stream);
  const Tensor sums = cast(matmul(centred, w, stream), DType::i32, stream);
  return columns.added == nullptr ? sums : binary(Binary::add, sums, *columns.added, stream);
}

}  // namespace

ByteTensor quantize_bytes(const Tensor& x, int axis, StreamRef stream) {
  internal::check_device_places("quantize_bytes", stream, {&x});
  internal::check_dtype("quantize_bytes", "x", x, DType::f32);
  if (axis < 0 || axis > x.rank())
    throw IndexError("quantize_bytes: expected an axis of 0 to " + std::to_string(x.rank()) + ", found " + std::to_string(axis) + " for " +
                     x.to_string());
  const DDim front = x.dims().slice(0, axis);
  if (x.elements() == 0) return {zeros(x.dims(), DType::u8, stream), ones(front, DType::f32, stream), zeros(front, DType::u8, stream)};
  if (internal::on_cuda(stream.place())) {
    const Steps made = in_steps(x, axis, stream);
    const Tensor bytes = binary(Binary::add, made.bytes, made.zero, stream);
    return {cast(bytes, DType::u8, stream), made.scale.reshape(front), cast(made.zero, DType::u8, stream).reshape(front)};
  }
  const Tensor from = x.is_contiguous() ? x : internal::row_major("quantize_bytes", x, stream);
  ByteTensor made{Tensor(DType::u8, x.dims(), stream.memory()), Tensor(DType::f32, front, stream.memory()),
                  Tensor(DType::u8, front, stream.memory())};
  launch(
      TensorRefs<1>{&from}, TensorRefs<3>{&made.bytes, &made.scale, &made.zero},
      [from, made, pieces = front.elements()](ThreadTeam& team) {
        const std::int64_t count = from.elements() / pieces;
        const auto* in = static_cast<const float*>(from.raw());
        auto* bytes = static_cast<std::uint8_t*>(made.bytes.raw_mutable());
        team.parallel(pieces, std::max<std::int64_t>(1, 16384 / count), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const cpu::ByteRange range = cpu::byte_range(in + i * count, count);
            static_cast<float*>(made.scale.raw_mutable())[i] = range.scale;
            static_cast<std::uint8_t*>(made.zero.raw_mutable())[i] = static_cast<std::uint8_t>(range.zero);
            cpu::take_bytes(in + i * count, count, range, bytes + i * count);
          }
        });
      },
      stream);
  return made;
}

namespace {

void check_product(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& zero, const ByteColumns& columns,
                   StreamRef stream) {
  internal::check_device_places("matmul_integer", stream, {&x, &zero, &weights.data});
  if (x.dtype() != DType::u8) internal::check_dtype("matmul_integer", "x", x, DType::i8);
  internal::check_dtype("matmul_integer", "the zeros of x", zero, x.dtype());
  const std::int64_t k = plan.desc().k;
  if (x.rank() < 1 || x.dim(-1) != k)
    throw ShapeError("matmul_integer: expected rows of " + std::to_string(k) + " elements, found " + x.to_string());
  if (k > most_bytes_k)
    throw ArgumentError("matmul_integer: expected k of at most " + std::to_string(most_bytes_k) + ", found " + std::to_string(k));
  for (const Tensor* const of_columns : {columns.zero, columns.added}) {
    if (of_columns == nullptr) continue;
    internal::check_device_places("matmul_integer", stream, {of_columns});
    internal::check_dtype("matmul_integer", "what belongs to columns", *of_columns, DType::i32);
    internal::check_dims("matmul_integer", "what belongs to columns", *of_columns, DDim{plan.desc().n});
    internal::check_contiguous("matmul_integer", "what belongs to columns", *of_columns);
  }
}

/// Works out sums in host memory, and `steps` on them.
Tensor sum_of_bytes(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& zero, const ByteColumns& columns,
                    const cpu::SumSteps& steps, StreamRef stream) {
  DDim dims = x.dims();
  dims[-1] = plan.desc().n;
  Tensor out(steps.to, dims, stream.memory());
  if (dims.elements() == 0) return out;
  const Tensor from = x.is_contiguous() ? x : internal::row_major("matmul_integer", x, stream);
  const Tensor off = zero.is_contiguous() ? zero : internal::row_major("matmul_integer", zero, stream);
  const auto held = [](const Tensor* of) { return of == nullptr ? std::nullopt : std::optional(*of); };
  const std::optional<Tensor> column_zeros = held(columns.zero), added = held(columns.added);
  TensorRefs<most_operands + 6> read{};
  read[0] = &from;
  read[1] = &off;
  read[2] = &weights.data;
  read[3] = &weights.offsets;
  read[4] = columns.zero;
  read[5] = columns.added;
  for (std::size_t i = 0; i < steps.operands.size(); ++i) read[i + 6] = &steps.operands[i];
  launch(
      read, TensorRefs<1>{&out},
      [=, out = out](ThreadTeam& team) {
        const auto numbers = [](const std::optional<Tensor>& of) { return of ? static_cast<const std::int32_t*>(of->raw()) : nullptr; };
        const auto* bytes = static_cast<const std::uint8_t*>(from.raw());
        auto* to = static_cast<std::uint8_t*>(out.raw_mutable());
        const std::int64_t k = plan.desc().k, pieces = off.elements(), rows = out.elements() / plan.desc().n / pieces;
        const auto size = static_cast<std::int64_t>(size_of(out.dtype()));
        for (std::int64_t i = 0; i < pieces; ++i)
          cpu::sum_bytes(plan, weights, bytes + i * rows * k, rows,
                         {from.dtype() == DType::i8, zero_at(off, i), numbers(column_zeros), numbers(added)}, steps,
                         to + i * rows * plan.desc().n * size, team);
      },
      stream);
  return out;
}

}  // namespace

Tensor matmul_integer(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& zero, const ByteColumns& columns,
                      StreamRef stream) {
  check_product(plan, weights, x, zero, columns, stream);
  if (zero.rank() >= x.rank() || zero.dims() != x.dims().slice(0, zero.rank()))
    throw ShapeError("matmul_integer: expected zeros of the first extents of " + x.to_string() + ", found " + zero.to_string());
  DDim dims = x.dims();
  dims[-1] = plan.desc().n;
  if (dims.elements() == 0) return zeros(dims, DType::i32, stream);
  if (x.elements() == 0) {
    const Tensor nothing = zeros(dims, DType::i32, stream);
    return columns.added == nullptr ? nothing : binary(Binary::add, nothing, *columns.added, stream);
  }
  if (internal::on_cuda(stream.place())) return summed_in_steps(weights, x, zero, columns, stream);
  return sum_of_bytes(plan, weights, x, zero, columns, {}, stream);
}

Tensor matmul_integer(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& zero, const ByteColumns& columns,
                      const std::vector<ArithmeticStep>& steps, std::span<const Tensor* const> operands, DType to, StreamRef stream) {
  internal::check_host("matmul_integer with steps", stream, x);
  check_product(plan, weights, x, zero, columns, stream);
  internal::check_dims("matmul_integer", "the zero of x", zero, DDim{});
  if (to != DType::f32 && to != DType::u8) internal::check_dtype("matmul_integer", "the result", Tensor(to, DDim{}), DType::i8);
  const auto taken = static_cast<std::size_t>(std::count_if(steps.begin(), steps.end(), has_operand));
  if (taken != operands.size() || taken > most_operands)
    throw ArgumentError("matmul_integer: expected " + std::to_string(taken) + " operands, at most " + std::to_string(most_operands) +
                        ", found " + std::to_string(operands.size()));
  cpu::SumSteps made{steps, {}, to};
  for (const Tensor* const operand : operands) {
    internal::check_device_places("matmul_integer", stream, {operand});
    internal::check_dtype("matmul_integer", "an operand", *operand, DType::f32);
    if (operand->elements() != 1) internal::check_dims("matmul_integer", "an operand", *operand, DDim{plan.desc().n});
    made.operands.push_back(operand->is_contiguous() ? *operand : internal::row_major("matmul_integer", *operand, stream));
  }
  return sum_of_bytes(plan, weights, x, zero, columns, made, stream);
}

}  // namespace millrace
