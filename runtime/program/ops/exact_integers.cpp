// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/exact_integers.h>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/fill.h>
#include <millrace/tensor/checked.h>

namespace millrace::ops {
namespace {

constexpr std::int64_t exact_in_f64 = std::int64_t{1} << 53;
constexpr int low_bits = 31;

std::uint64_t distance(std::int64_t from, std::int64_t to) { return static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from); }

}  // namespace

std::optional<std::int64_t> beyond_f64(const Tensor& scalar) {
  if (scalar.dtype() != DType::i64) return std::nullopt;
  const std::int64_t value = scalar.item_int();
  if (value >= -exact_in_f64 && value <= exact_in_f64) return std::nullopt;
  return value;
}

Tensor full_exactly(const DDim& dims, std::int64_t value, StreamRef stream) {
  if (value >= -exact_in_f64 && value <= exact_in_f64) return full(dims, static_cast<double>(value), DType::i64, stream);
  // high · 2^31 + low, 0 ≤ low < 2^31: each of the three fits.
  const std::int64_t low = value & ((std::int64_t{1} << low_bits) - 1);
  const std::int64_t high = (value - low) / (std::int64_t{1} << low_bits);
  const Tensor shifted = binary(Binary::mul, full(dims, static_cast<double>(high), DType::i64, stream),
                                full(DDim{}, static_cast<double>(std::int64_t{1} << low_bits), DType::i64, stream), stream);
  return binary(Binary::add, shifted, full(DDim{}, static_cast<double>(low), DType::i64, stream), stream);
}

std::int64_t range_count(std::int64_t start, std::int64_t limit, std::int64_t step) {
  if (step == 0) throw ArgumentError("range: expected a step other than 0, found 0");
  if (step > 0 ? limit <= start : limit >= start) return 0;
  const std::uint64_t length = step > 0 ? distance(start, limit) : distance(limit, start);
  const std::uint64_t stride = step > 0 ? static_cast<std::uint64_t>(step) : distance(step, 0);
  return checked_cast<std::int64_t>(length / stride + (length % stride != 0 ? 1 : 0));
}

Tensor range_exactly(std::int64_t start, std::int64_t limit, std::int64_t step, StreamRef stream) {
  Tensor made = arange(range_count(start, limit, step), DType::i64, stream);
  if (step != 1) made = binary(Binary::mul, made, full_exactly(DDim{}, step, stream), stream);
  return start == 0 ? made : binary(Binary::add, made, full_exactly(DDim{}, start, stream), stream);
}

}  // namespace millrace::ops
