// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/scatter.h>

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <millrace/kernels/cpu/gather.h>
#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/rows_along.h>

namespace millrace::cpu {
namespace {

std::int64_t place_on(const char* op, std::int64_t index, int axis, const DDim& dims) {
  const std::int64_t place = index < 0 ? index + dims[axis] : index;
  if (place < 0 || place >= dims[axis])
    throw IndexError(std::string(op) + ": expected an index within axis " + std::to_string(axis) + " of " + dims.to_string() + ", found " +
                     std::to_string(index));
  return place;
}

/// The block of `dims` that each entry of index [batch…, …, r] names, counted in blocks of the axes behind the first batch_axes + r.
std::vector<std::int64_t> blocks_of(const char* op, const Tensor& index, int batch_axes, const DDim& dims) {
  const std::vector<std::int64_t> values = index_values(index);
  const int places = static_cast<int>(index.dim(index.rank() - 1));
  const std::int64_t entries = index.dims().slice(0, index.rank() - 1).elements();
  const std::int64_t batches = dims.slice(0, batch_axes).elements();
  const std::int64_t each = batches == 0 ? 0 : entries / batches;
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(entries));
  for (std::int64_t i = 0; i < entries; ++i) {
    std::int64_t block = i / each;
    for (int j = 0; j < places; ++j) {
      const int axis = batch_axes + j;
      block = block * dims[axis] + place_on(op, values[static_cast<std::size_t>(i * places + j)], axis, dims);
    }
    blocks[static_cast<std::size_t>(i)] = block;
  }
  return blocks;
}

template <class T>
T reduced(T a, T b, ScatterReduction reduction) {
  if (reduction == ScatterReduction::min) return b < a || b != b ? b : a;
  if (reduction == ScatterReduction::max) return b > a || b != b ? b : a;
  if constexpr (std::is_integral_v<T>) {
    // Wraps.
    const auto left = static_cast<std::uint64_t>(a);
    const auto right = static_cast<std::uint64_t>(b);
    return static_cast<T>(reduction == ScatterReduction::add ? left + right : left * right);
  } else {
    return reduction == ScatterReduction::add ? a + b : a * b;
  }
}

/// Calls f(element, wide) with values of the types that a number is stored in and computed in.
template <class F>
void visit_elements(DType dtype, F&& f) {
  switch (dtype) {
    case DType::i64: return f(std::int64_t{}, std::int64_t{});
    case DType::i32: return f(std::int32_t{}, std::int32_t{});
    case DType::i8: return f(std::int8_t{}, std::int8_t{});
    case DType::u8: return f(std::uint8_t{}, std::uint8_t{});
    default: return visit_floats(dtype, std::forward<F>(f));
  }
}

/// Block i of `updates`, of `block` elements, goes where out's block blocks[i] is. One after the other: two may name one block.
void scatter_blocks(const Tensor& updates, const std::vector<std::int64_t>& blocks, std::int64_t block, ScatterReduction reduction,
                    const Tensor& out) {
  if (updates.elements() == 0) return;
  if (reduction == ScatterReduction::none) {
    const auto bytes = static_cast<std::size_t>(block) * size_of(out.dtype());
    const auto* from = static_cast<const std::byte*>(updates.raw());
    auto* to = static_cast<std::byte*>(out.raw_mutable());
    for (std::size_t i = 0; i < blocks.size(); ++i) std::memcpy(to + static_cast<std::size_t>(blocks[i]) * bytes, from + i * bytes, bytes);
    return;
  }
  visit_elements(out.dtype(), [&](auto element, auto wide) {
    using T = decltype(element);
    using Wide = decltype(wide);
    const T* from = static_cast<const T*>(updates.raw());
    T* to = static_cast<T*>(out.raw_mutable());
    for (const std::int64_t at : blocks)
      for (T* target = to + at * block; target != to + (at + 1) * block; ++target, ++from)
        *target = convert_element<T>(reduced(convert_element<Wide>(*target), convert_element<Wide>(*from), reduction));
  });
}

}  // namespace

void gather_nd(const Tensor& x, const Tensor& index, int batch_axes, const Tensor& out, ThreadTeam& team) {
  if (index.elements() == 0 && out.elements() == 0) return;
  const std::vector<std::int64_t> blocks = blocks_of("gather_nd", index, batch_axes, x.dims());
  if (out.elements() == 0) return;
  const auto count = static_cast<std::int64_t>(blocks.size());
  const std::int64_t block = out.elements() / count;
  gather_rows(x.reshape({x.elements() / block, block}), blocks, out.reshape({count, block}), team);
}

void scatter_nd(const Tensor& updates, const Tensor& index, ScatterReduction reduction, const Tensor& out) {
  if (updates.elements() == 0) return;
  const std::vector<std::int64_t> blocks = blocks_of("scatter_nd", index, 0, out.dims());
  scatter_blocks(updates, blocks, updates.elements() / static_cast<std::int64_t>(blocks.size()), reduction, out);
}

void scatter_elements(const Tensor& updates, const Tensor& index, int axis, ScatterReduction reduction, const Tensor& out) {
  std::vector<std::int64_t> places = index_values(index);
  const DDim& over = index.dims();
  const DDim strides = out.strides();
  // Row-major coordinates, counted up.
  std::vector<std::int64_t> at(static_cast<std::size_t>(over.rank()), 0);
  for (std::int64_t& place : places) {
    std::int64_t offset = place_on("scatter_elements", place, axis, out.dims()) * strides[axis];
    for (int i = 0; i < over.rank(); ++i)
      if (i != axis) offset += at[static_cast<std::size_t>(i)] * strides[i];
    place = offset;
    for (int i = over.rank() - 1; i >= 0 && ++at[static_cast<std::size_t>(i)] == over[i]; --i) at[static_cast<std::size_t>(i)] = 0;
  }
  scatter_blocks(updates, places, 1, reduction, out);
}

}  // namespace millrace::cpu
