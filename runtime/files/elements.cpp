// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/internal/elements.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include <millrace/tensor/checked.h>

namespace millrace::internal {

static_assert(std::endian::native == std::endian::little, "elements are copied between files and memory as they are");

DDim file_dims(const std::vector<std::int64_t>& extents, const std::string& where) {
  if (extents.size() > static_cast<std::size_t>(max_rank))
    throw ParseError(where + ": expected at most " + std::to_string(max_rank) + " axes, found " + std::to_string(extents.size()));
  // Zeros must not hide the overflow of what stands beside them: strides are products too.
  std::int64_t product = 1;
  for (const std::int64_t extent : extents) {
    if (extent < 0) throw ParseError(where + ": expected extents of 0 or more, found " + std::to_string(extent));
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product) ||
        product > std::numeric_limits<std::int64_t>::max() / 16)
      throw ParseError(where + ": expected a shape whose size fits 64 bits, found an extent of " + std::to_string(extent) + " too many");
  }
  return make_ddim(extents);
}

void check_bytes(DType dtype, const DDim& dims, std::uint64_t found, const std::string& where) {
  const std::int64_t needed = checked_mul(dims.elements(), static_cast<std::int64_t>(size_of(dtype)));
  if (std::cmp_not_equal(needed, found))
    throw ParseError(where + ": expected " + std::to_string(needed) + " bytes for " + std::string(name_of(dtype)) + dims.to_string() +
                     ", found " + std::to_string(found));
}

Tensor from_bytes(DType dtype, const DDim& dims, std::string_view bytes, const std::string& where) {
  check_bytes(dtype, dims, bytes.size(), where);
  if (dtype == DType::boolean && std::any_of(bytes.begin(), bytes.end(), [](char byte) { return byte != 0 && byte != 1; }))
    throw ParseError(where + ": expected bools of 0 or 1, found another byte");
  Tensor made(dtype, dims);
  made.storage()->mark_written();
  if (!bytes.empty()) std::memcpy(made.raw_mutable(), bytes.data(), bytes.size());
  return made;
}

std::string_view to_bytes(const Tensor& contiguous) { return {static_cast<const char*>(contiguous.raw()), contiguous.bytes()}; }

void swap_bytes(Tensor& tensor) {
  const std::size_t size = size_of(tensor.dtype());
  char* bytes = static_cast<char*>(tensor.raw_mutable());
  for (std::size_t at = 0; at < tensor.bytes(); at += size) std::reverse(bytes + at, bytes + at + size);
}

DType stored_as(FileInteger from) {
  if (from == FileInteger::u64) return DType::i64;
  return from == FileInteger::u32 ? DType::i32 : DType::f16;
}

namespace {

template <class From, class To>
Tensor each_widened(const Tensor& stored, const std::string& where) {
  Tensor made(dtype_of<To>, stored.dims());
  To* to = made.mutable_data<To>();
  const auto* bytes = static_cast<const char*>(stored.raw());
  for (std::int64_t i = 0; i < stored.elements(); ++i) {
    From value;
    std::memcpy(&value, bytes + static_cast<std::size_t>(i) * sizeof(From), sizeof(From));
    if (!std::in_range<To>(value))
      throw OverflowError(where + ": expected integers that fit " + std::string(name_of(made.dtype())) + ", found " +
                          std::to_string(value));
    to[i] = static_cast<To>(value);
  }
  return made;
}

}  // namespace

Tensor widened(const Tensor& stored, FileInteger from, const std::string& where) {
  switch (from) {
    case FileInteger::i16: return each_widened<std::int16_t, std::int32_t>(stored, where);
    case FileInteger::u16: return each_widened<std::uint16_t, std::int32_t>(stored, where);
    case FileInteger::u32: return each_widened<std::uint32_t, std::int64_t>(stored, where);
    default: return each_widened<std::uint64_t, std::int64_t>(stored, where);
  }
}

}  // namespace millrace::internal
