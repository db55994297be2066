// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/copy.h>

#include <algorithm>
#include <cstring>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/kernels/cpu/transpose_kernels.h>

namespace millrace::cpu {
namespace {

/// Copies where elements lie side by side along the last axis of `to` and along another axis of `from`: each plane of both axes is transposed. False for
/// other strides.
template <class U>
bool copy_turned(const StridedLoop<2>& loop, const U* from, U* to, ThreadTeam& team) {
  const int last = loop.rank() - 1;
  const auto [from_step, to_step] = loop.inner();
  int beside = -1;
  for (int axis = 0; axis < last; ++axis)
    if (loop.steps(axis)[0] == 1) beside = axis;
  constexpr std::int64_t few = 4;
  if (beside < 0 || to_step != 1 || from_step == 1 || loop.extent(beside) < few) return false;
  if (loop.extent(last) < few && (loop.extent(last) < 2 || loop.steps(beside)[1] != loop.extent(last))) return false;
  const std::int64_t rows = loop.extent(beside), columns = loop.extent(last), row_step = loop.steps(beside)[1];
  std::int64_t planes = 1;
  for (int axis = 0; axis < last; ++axis)
    if (axis != beside) planes *= loop.extent(axis);
  constexpr std::int64_t line = 64 / sizeof(U);
  const std::int64_t parts = (rows + line - 1) / line;
  const std::int64_t grain = std::max<std::int64_t>(1, grain_light / (std::min(rows, line) * columns));
  team.parallel(planes * parts, grain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t first = begin % parts * line;
      const std::int64_t some = std::min(end - begin, parts - begin % parts);
      std::int64_t plane = begin / parts, from_offset = first, to_offset = first * row_step;
      for (int axis = last - 1; axis >= 0; --axis) {
        if (axis == beside) continue;
        const std::int64_t index = plane % loop.extent(axis);
        plane /= loop.extent(axis);
        from_offset += index * loop.steps(axis)[0];
        to_offset += index * loop.steps(axis)[1];
      }
      transpose_rows(from + from_offset, from_step, to + to_offset, row_step, std::min(rows - first, some * line), columns);
      begin += some;
    }
  });
  return true;
}

/// Copies whose innermost runs are shorter than the runs of the axis around them: both axes are one plane, walked the other way round. False for other
/// strides.
template <class U>
bool copy_short_runs(const StridedLoop<2>& loop, const U* from, U* to, ThreadTeam& team) {
  const int last = loop.rank() - 1;
  constexpr std::int64_t few = 8;
  if (last < 1 || loop.extent(last) > few || loop.extent(last - 1) <= few) return false;
  const auto [from_step, to_step] = loop.inner();
  loop.parallel_rows(team, grain_light, [&](const auto& offsets, const auto& row_steps, std::int64_t rows, std::int64_t columns) {
    const auto [from_row, to_row] = row_steps;
    for (std::int64_t column = 0; column < columns; ++column) {
      const U* source = from + offsets[0] + column * from_step;
      U* target = to + offsets[1] + column * to_step;
      for (std::int64_t row = 0; row < rows; ++row) target[row * to_row] = source[row * from_row];
    }
  });
  return true;
}

}  // namespace

void copy(const Tensor& x, const Tensor& out, ThreadTeam& team) {
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const StridedLoop<2> loop(x.dims(), {&x.strides(), &out.strides()});
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    if (loop.count() > 0 && (copy_turned(loop, from, to, team) || copy_short_runs(loop, from, to, team))) return;
    const auto [from_step, to_step] = loop.inner();
    loop.parallel(team, grain_light, [&](const auto& offsets, std::int64_t count) {
      const U* source = from + offsets[0];
      U* target = to + offsets[1];
      if (from_step == 1 && to_step == 1) {
        std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(U));
      } else {
        for (std::int64_t i = 0; i < count; ++i) target[i * to_step] = source[i * from_step];
      }
    });
  });
}

}  // namespace millrace::cpu
