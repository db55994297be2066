// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/broadcast.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/mapped_copy.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

std::int64_t extent_from_end(const DDim& dims, int place) { return place < dims.rank() ? dims.begin()[dims.rank() - 1 - place] : 1; }

// In a loop over sequences the batch gets smaller from iteration to iteration.
constexpr const char* rows_hint =
    ": they differ in rows alone; if one is the state of a batch that shrinks, shrink it to the rows of the step input";

bool only_rows_differ(const DDim& a, const DDim& b) {
  return a.rank() == b.rank() && a.rank() > 0 && a[0] > 0 && b[0] > 0 && a.slice(1, a.rank()) == b.slice(1, b.rank());
}

}  // namespace

DDim broadcast_dims(const DDim& a, const DDim& b) {
  if (a == b) return a;
  DDim made = a.rank() >= b.rank() ? a : b;
  for (int place = 0; place < made.rank(); ++place) {
    const std::int64_t left = extent_from_end(a, place);
    const std::int64_t right = extent_from_end(b, place);
    if (left != right && left != 1 && right != 1)
      throw ShapeError("broadcast: " + a.to_string() + " and " + b.to_string() + " do not fit each other" +
                       (only_rows_differ(a, b) ? rows_hint : ""));
    made[made.rank() - 1 - place] = left == 1 ? right : left;
  }
  return made;
}

Tensor broadcast_view(const Tensor& x, const DDim& dims) {
  if (x.dims() == dims) return x;
  const auto refuse = [&] { return ShapeError("broadcast: " + x.dims().to_string() + " does not stretch to " + dims.to_string()); };
  if (x.rank() > dims.rank()) throw refuse();
  DDim strides = dims;
  for (int axis = 0; axis < dims.rank(); ++axis) {
    const int from = axis - (dims.rank() - x.rank());
    const std::int64_t extent = from < 0 ? 1 : x.dim(from);
    if (extent != 1 && extent != dims[axis]) throw refuse();
    strides[axis] = extent == 1 ? 0 : x.strides()[from];
  }
  const auto first = static_cast<const std::byte*>(x.raw()) - x.storage()->data();
  Tensor view(x.dtype(), dims, strides, first / static_cast<std::int64_t>(size_of(x.dtype())), x.storage());
  return x.is_read_only() ? view.read_only() : view;
}

Tensor broadcast_to(const Tensor& x, const DDim& dims, StreamRef stream) {
  return internal::row_major("broadcast", broadcast_view(x, dims), stream);
}

Tensor expand(const Tensor& x, const DDim& dims, StreamRef stream) { return broadcast_to(x, broadcast_dims(x.dims(), dims), stream); }

Tensor tile(const Tensor& x, const std::vector<std::int64_t>& repeats, StreamRef stream) {
  if (std::cmp_not_equal(repeats.size(), x.rank()))
    throw ShapeError("tile: expected one count for each axis of " + x.dims().to_string() + ", found " + std::to_string(repeats.size()));
  DDim dims = x.dims();
  cpu::IndexMaps maps(repeats.size());
  for (int axis = 0; axis < x.rank(); ++axis) {
    const std::int64_t times = repeats[static_cast<std::size_t>(axis)];
    if (times < 0) throw ArgumentError("tile: expected counts of at least 0, found " + std::to_string(times));
    dims[axis] = checked_mul(dims[axis], times);
  }
  // Before the maps, so that counts which no memory holds end here.
  Tensor out(x.dtype(), dims, stream.memory());
  for (int axis = 0; axis < x.rank() && out.elements() > 0; ++axis)
    for (std::int64_t i = 0; i < dims[axis]; ++i) maps[static_cast<std::size_t>(axis)].push_back(i % x.dim(axis));
  internal::check_device_places("tile", stream, {&x, &out});
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [x, out, maps = std::move(maps)](KernelContext& context) { internal::mapped_copies.run(x, maps, nullptr, out, context); }, stream);
  return out;
}

}  // namespace millrace
