// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/pad.h>

#include <algorithm>
#include <string>
#include <utility>

#include <millrace/kernels/cpu/cast.h>
#include <millrace/kernels/cpu/pad.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/mapped_copy.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// The elements that are left of an extent once it was cut.
std::int64_t kept_of(std::int64_t extent, std::int64_t before, std::int64_t after) {
  return checked_add(extent, checked_add(std::min<std::int64_t>(before, 0), std::min<std::int64_t>(after, 0)));
}

/// The extent of one axis after cutting and padding.
std::int64_t axis_size(int axis, std::int64_t extent, std::int64_t before, std::int64_t after, PadMode mode) {
  const auto where = [&] {
    return "pad: axis " + std::to_string(axis) + " of " + std::to_string(extent) + " elements, " + std::to_string(before) + " before and " +
           std::to_string(after) + " after: ";
  };
  const std::int64_t size = checked_add(extent, checked_add(before, after));
  const std::int64_t kept = kept_of(extent, before, after);
  if (size < 0 || (kept < 0 && mode != PadMode::constant)) throw ShapeError(where() + "expected elements that are left");
  const std::int64_t most = std::max(before, after);
  if (mode == PadMode::reflect && most > 0 && most >= kept) throw ArgumentError(where() + "a reflection needs fewer than there are");
  if (mode != PadMode::constant && most > 0 && kept == 0) throw ArgumentError(where() + "expected an axis with elements");
  return size;
}

/// The elements of one axis after cutting and padding, `size` of them.
std::vector<std::int64_t> axis_map(std::int64_t size, std::int64_t extent, std::int64_t before, std::int64_t after, PadMode mode) {
  const std::int64_t kept = kept_of(extent, before, after);
  const std::int64_t cut_before = before < 0 ? -before : 0;
  const std::int64_t first = before > 0 ? before : 0;
  std::vector<std::int64_t> map(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t from = cpu::padding_source(i - first, kept, mode);
    map[static_cast<std::size_t>(i)] = from < 0 ? -1 : from + cut_before;
  }
  return map;
}

/// x less what is cut, and how many constants stand in front of it, by axis.
std::pair<Tensor, std::vector<std::int64_t>> kept_part(const Tensor& x, const std::vector<std::int64_t>& before,
                                                       const std::vector<std::int64_t>& after) {
  Tensor kept = x;
  std::vector<std::int64_t> front;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    // A shift by more than there is leaves constants alone.
    const std::int64_t first = std::clamp<std::int64_t>(-before[i], 0, x.dim(axis));
    const std::int64_t count = std::max<std::int64_t>(kept_of(x.dim(axis), before[i], after[i]), 0);
    if (before[i] < 0 || after[i] < 0) kept = kept.slice(axis, first, first + count);
    front.push_back(std::max<std::int64_t>(before[i], 0));
  }
  return {std::move(kept), std::move(front)};
}

}  // namespace

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& before, const std::vector<std::int64_t>& after, PadMode mode, double value,
           StreamRef stream) {
  if (std::cmp_not_equal(before.size(), x.rank()) || before.size() != after.size())
    throw ShapeError("pad: expected counts for each axis of " + x.dims().to_string() + ", found " + std::to_string(before.size()) +
                     " and " + std::to_string(after.size()));
  DDim dims = x.dims();
  for (int axis = 0; axis < x.rank(); ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    dims[axis] = axis_size(axis, x.dim(axis), before[i], after[i], mode);
  }
  // Before the maps, so that counts which no memory holds end here.
  Tensor out(x.dtype(), dims, stream.memory());
  Tensor element(x.dtype(), DDim{});
  ThreadTeam alone(1);
  cpu::cast(Tensor::scalar(value), element, alone);
  internal::check_device_places("pad", stream, {&x, &out});
  if (!internal::on_cuda(stream.place())) {
    launch(
        TensorRefs<1>{&x}, TensorRefs<1>{&out},
        [part = kept_part(x, before, after), mode, element, out](ThreadTeam& team) {
          cpu::surround(part.first, part.second, mode, element, out, team);
        },
        stream);
    return out;
  }
  cpu::IndexMaps maps;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    maps.push_back(out.elements() == 0 ? std::vector<std::int64_t>() : axis_map(dims[axis], x.dim(axis), before[i], after[i], mode));
  }
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [x, out, element, maps = std::move(maps)](KernelContext& context) { internal::mapped_copies.run(x, maps, &element, out, context); },
      stream);
  return out;
}

}  // namespace millrace
