// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/mapped_copy.h>

#include <algorithm>
#include <limits>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/kernels/cpu/transpose_kernels.h>

namespace millrace::cpu {
namespace {

/// The begin of a row that sees no element. A row of an input that is turned around has a negative begin, too.
constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::min();

/// The begins of the output's rows (all axes but the last) in the input, one after the other, or `nowhere`.
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
      sums_[axis + 1] = from < 0 || sums_[axis] == nowhere ? nowhere : sums_[axis] + from * strides_[axis];
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
  const std::int64_t* const places = last.data();
  const auto width = static_cast<std::int64_t>(last.size());
  const std::int64_t step = x.rank() == 0 ? 0 : x.strides()[-1];
  // The longest run of elements that lie side by side in both; padding in front and behind leaves one.
  std::int64_t first = 0, run = 0;
  for (std::int64_t begin = 0, end = 0; begin < width && step == 1; begin = end) {
    end = begin + 1;
    if (places[begin] < 0) continue;
    while (end < width && places[end] == places[end - 1] + 1) ++end;
    if (end - begin > run) {
      first = begin;
      run = end - begin;
    }
  }
  // The number of times that each element follows itself, where all do alike and stand side by side in x.
  std::int64_t times = 1;
  while (times < width && places[times] == places[0]) ++times;
  bool repeats = step == 1 && times > 1 && width % times == 0 && places[0] >= 0;
  for (std::int64_t i = 0; i < width && repeats; ++i) repeats = places[i] == places[0] + i / times;
  const bool all_there = std::all_of(last.begin(), last.end(), [](std::int64_t place) { return place >= 0; });
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
        if (offset == nowhere) {
          std::fill_n(target, width, none);
          continue;
        }
        const U* source = from + offset;
        if (repeats) {
          transpose_rows(source + places[0], 0, target, times, width / times, times);
          continue;
        }
        const auto each = [&](std::int64_t i, std::int64_t behind) {
          if (all_there) {
            for (; i < behind; ++i) target[i] = source[places[i] * step];
          } else {
            for (; i < behind; ++i) target[i] = places[i] < 0 ? none : source[places[i] * step];
          }
        };
        each(0, first);
        if (run > 0) std::copy_n(source + places[first], run, target + first);
        each(first + run, width);
      }
    });
  });
}

}  // namespace millrace::cpu
