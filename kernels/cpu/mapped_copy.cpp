// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/mapped_copy.h>

#include <algorithm>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// Where row `row` of the output (all axes but the last) begins in the input, or −1.
std::int64_t row_offset(const Tensor& x, const IndexMaps& maps, std::int64_t row) {
  std::int64_t offset = 0;
  for (int axis = x.rank() - 2; axis >= 0; --axis) {
    const auto& map = maps[static_cast<std::size_t>(axis)];
    const auto extent = static_cast<std::int64_t>(map.size());
    const std::int64_t from = map[static_cast<std::size_t>(row % extent)];
    if (from < 0) return -1;
    offset += from * x.strides()[axis];
    row /= extent;
  }
  return offset;
}

}  // namespace

void mapped_copy(const Tensor& x, const IndexMaps& maps, const Tensor* otherwise, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  const std::vector<std::int64_t> scalar{0};
  const std::vector<std::int64_t>& last = maps.empty() ? scalar : maps.back();
  const auto width = static_cast<std::int64_t>(last.size());
  const std::int64_t step = x.rank() == 0 ? 0 : x.strides()[-1];
  // The longest run of elements that lie side by side in both; padding in front and behind leaves one.
  std::int64_t first = 0, run = 0;
  for (std::int64_t i = 0, begin = 0; i < width && step == 1; ++i) {
    const std::int64_t index = last[static_cast<std::size_t>(i)];
    const std::int64_t before = i == 0 ? -1 : last[static_cast<std::size_t>(i - 1)];
    if (before < 0 || index != before + 1) begin = i;
    if (index >= 0 && i + 1 - begin > run) {
      first = begin;
      run = i + 1 - begin;
    }
  }
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    const U none = otherwise == nullptr ? U{} : *static_cast<const U*>(otherwise->raw());
    const std::int64_t grain = std::max<std::int64_t>(1, grain_light / width);
    team.parallel(out.elements() / width, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        U* target = to + row * width;
        const std::int64_t offset = row_offset(x, maps, row);
        if (offset < 0) {
          std::fill_n(target, width, none);
          continue;
        }
        const auto each = [&](std::int64_t i, std::int64_t behind) {
          for (; i < behind; ++i) {
            const std::int64_t index = last[static_cast<std::size_t>(i)];
            target[i] = index < 0 ? none : from[offset + index * step];
          }
        };
        each(0, first);
        if (run > 0) std::copy_n(from + offset + last[static_cast<std::size_t>(first)], run, target + first);
        each(first + run, width);
      }
    });
  });
}

}  // namespace millrace::cpu
