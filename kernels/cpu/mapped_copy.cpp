// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/mapped_copy.h>

#include <algorithm>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// Where the rows of the output (all axes but the last) begin in the input, one after the other; −1 where they see no element.
class RowOffsets {
 public:
  RowOffsets(const Tensor& x, const IndexMaps& maps, std::int64_t row)
      : strides_(x.strides().begin()), maps_(maps), axes_(std::max(x.rank() - 1, 0)) {
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      const std::int64_t extent = std::ssize(maps[static_cast<std::size_t>(axis)]);
      places_[axis] = row % extent;
      row /= extent;
    }
    sum_from(0);
  }
  std::int64_t operator*() const { return sums_[axes_]; }
  RowOffsets& operator++() {
    int axis = axes_ - 1;
    for (; axis >= 0 && ++places_[axis] == std::ssize(maps_[static_cast<std::size_t>(axis)]); --axis) places_[axis] = 0;
    sum_from(std::max(axis, 0));
    return *this;
  }

 private:
  void sum_from(int axis) {
    for (; axis < axes_; ++axis) {
      const std::int64_t from = maps_[static_cast<std::size_t>(axis)][static_cast<std::size_t>(places_[axis])];
      sums_[axis + 1] = from < 0 || sums_[axis] < 0 ? -1 : sums_[axis] + from * strides_[axis];
    }
  }

  const std::int64_t* const strides_;
  const IndexMaps& maps_;
  const int axes_;
  std::int64_t places_[max_rank] = {};
  std::int64_t sums_[max_rank + 1] = {};  // of the axes before each one
};

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
      RowOffsets offsets(x, maps, begin);
      for (std::int64_t row = begin; row < end; ++row, ++offsets) {
        U* target = to + row * width;
        const std::int64_t offset = *offsets;
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
