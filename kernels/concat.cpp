// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/concat.h>

#include <algorithm>
#include <cstring>
#include <string>

#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// The extents of all parts together.
DDim concat_dims(const std::vector<Tensor>& parts, int axis) {
  if (parts.empty()) throw ArgumentError("concat: expected at least one part, found none");
  DDim dims = parts.front().dims();
  const int at = internal::checked_axis("concat", axis, dims);
  dims[at] = 0;
  for (const Tensor& part : parts) {
    internal::check_same_dtype("concat", parts.front(), part);
    DDim expected = part.dims();
    if (part.rank() == dims.rank()) expected[at] = dims[at];
    if (expected != dims)
      throw ShapeError("concat: expected extents that agree but for axis " + std::to_string(axis) + ", found " +
                       parts.front().dims().to_string() + " and " + part.dims().to_string());
    dims[at] = checked_add(dims[at], part.dim(at));
  }
  return dims;
}

std::string list_text(const std::vector<std::int64_t>& values) {
  std::string text = "[";
  for (const std::int64_t value : values) text += (text.size() == 1 ? "" : ", ") + std::to_string(value);
  return text + "]";
}

/// Parts whose copies cost less than their launches: row-major, in host memory, few bytes. Null pointers of a launch are skipped.
constexpr std::size_t most_parts = 8;
constexpr std::size_t few_bytes = 16 << 10;

bool is_small(const std::vector<Tensor>& parts, const Tensor& out, StreamRef stream) {
  return stream.place().is_cpu() && parts.size() <= most_parts && out.bytes() <= few_bytes && out.is_contiguous() && out.place().is_cpu() &&
         std::all_of(parts.begin(), parts.end(), [](const Tensor& part) { return part.is_contiguous() && part.place().is_cpu(); });
}

void copy_small(const std::vector<Tensor>& parts, int axis, const Tensor& out, StreamRef stream) {
  TensorRefs<most_parts> reads{};
  std::size_t count = 0;
  for (const Tensor& part : parts)
    if (part.elements() > 0) reads[count++] = &part;
  const auto run = [parts, axis, out](KernelContext&) {
    const std::size_t size = size_of(out.dtype());
    const auto outer = static_cast<std::size_t>(out.dims().slice(0, axis).elements());
    const std::size_t whole = outer == 0 ? 0 : out.bytes() / outer;
    auto* to = static_cast<std::byte*>(out.raw_mutable());
    for (const Tensor& part : parts) {
      const std::size_t bytes = outer == 0 ? 0 : static_cast<std::size_t>(part.elements()) * size / outer;
      const auto* from = static_cast<const std::byte*>(part.raw());
      for (std::size_t i = 0; i < outer && bytes > 0; ++i) std::memcpy(to + i * whole, from + i * bytes, bytes);
      to += bytes;
    }
  };
  launch(reads, TensorRefs<1>{&out}, run, stream);
}

}  // namespace

void concat(const std::vector<Tensor>& parts, int axis, Tensor& out, StreamRef stream) {
  internal::check_dims("concat", "out", out, concat_dims(parts, axis));
  internal::check_same_dtype("concat", parts.front(), out);
  if (is_small(parts, out, stream)) return copy_small(parts, out.dims().checked_axis(axis), out, stream);
  std::int64_t begin = 0;
  for (const Tensor& part : parts) {
    const std::int64_t end = begin + part.dim(axis);
    if (part.elements() > 0) internal::copy_into("concat", part, out.slice(axis, begin, end), stream);
    begin = end;
  }
}

Tensor concat(const std::vector<Tensor>& parts, int axis, StreamRef stream) {
  const DDim dims = concat_dims(parts, axis);
  Tensor out(parts.front().dtype(), dims, stream.memory());
  concat(parts, axis, out, stream);
  return out;
}

std::vector<Tensor> split(const Tensor& x, int axis, const std::vector<std::int64_t>& sizes) {
  const int at = internal::checked_axis("split", axis, x.dims());
  std::int64_t sum = 0;
  bool good = true;
  for (const std::int64_t size : sizes) {
    good = good && size >= 0;
    sum = checked_add(sum, size);
  }
  if (!good || sum != x.dim(at))
    throw ShapeError("split: expected sizes that add up to " + std::to_string(x.dim(at)) + " along axis " + std::to_string(axis) +
                     ", found " + list_text(sizes));
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(x.slice(at, begin, begin + size));
    begin += size;
  }
  return parts;
}

}  // namespace millrace
