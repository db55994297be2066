// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/transpose_kernels.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// The packed form of a matrix [k, columns]: panels of `panel` vectors of columns one behind the other, each [k][columns of the
/// panel], the last one as narrow as whole vectors allow and padded with zeros. Narrow elements stand several k side by side,
/// [groups of k][columns of the panel][k of the group], the last group padded with zeros.
struct PackedLayout {
  std::int64_t k = 0;
  std::int64_t columns = 0;
  std::int64_t lanes = 1;
  std::int64_t panel = 1;
  std::int64_t group = 1;  ///< k side by side

  std::int64_t width() const { return panel * lanes; }
  /// `lanes` and `panel` are powers of two: no division, which takes as long as a small product.
  std::int64_t panels() const { return (columns + width() - 1) >> std::countr_zero(static_cast<std::uint64_t>(width())); }
  std::int64_t groups() const { return group == 1 ? k : (k + group - 1) / group; }
  std::int64_t panel_stride() const { return width() * groups() * group; }
  std::int64_t width_of(std::int64_t place) const {
    const std::int64_t rest = columns - place * width();
    return std::min(width(), (rest + lanes - 1) / lanes * lanes);
  }
  std::int64_t elements() const { return (columns + lanes - 1) / lanes * lanes * groups() * group; }
};

/// The layout of a packed matrix that `kernels` read.
template <class T>
PackedLayout layout_for(const GemmKernels& kernels, std::int64_t k, std::int64_t columns, std::int64_t group = 1) {
  return {k, columns, kernels.lanes<T>(), kernels.panel, group};
}

/// Copies elements that lie side by side, a cache line at a time without a call.
template <class T>
void copy_row(const T* from, std::int64_t count, T* to) {
  constexpr std::size_t bytes = 64;
  constexpr auto line = static_cast<std::int64_t>(bytes / sizeof(T));
  for (; count >= line; count -= line, from += line, to += line) std::memcpy(to, from, bytes);
  std::copy_n(from, count, to);
}

/// Packs panel `panel` of from[k·row_stride + column·column_stride].
template <class T>
void pack_panel(const PackedLayout& layout, const T* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t panel, T* to) {
  const std::int64_t column = panel * layout.width();
  const std::int64_t width = layout.width_of(panel);
  const std::int64_t filled = std::min(width, layout.columns - column);
  T* row = to + panel * layout.panel_stride();
  if constexpr (std::is_floating_point_v<T>) {
    // A column at a time would find the next element of each of its columns in another line of one set of the first cache.
    if (layout.group == 1 && row_stride == 1 && column_stride != 1) {
      transpose_rows(bits_of(from + column * column_stride), column_stride, bits_of(row), width, layout.k, filled);
      for (std::int64_t k = 0; k < layout.k && filled < width; ++k) std::fill(row + k * width + filled, row + (k + 1) * width, T{});
      return;
    }
  }
  for (std::int64_t k = 0; k < layout.groups() * layout.group; k += layout.group, row += width * layout.group) {
    if (filled < width || k + layout.group > layout.k) std::fill(row, row + width * layout.group, T{});
    for (std::int64_t g = 0; g < std::min(layout.group, layout.k - k); ++g) {
      const T* source = from + (k + g) * row_stride + column * column_stride;
      if (layout.group == 1 && column_stride == 1) {
        copy_row(source, filled, row);
        continue;
      }
      for (std::int64_t i = 0; i < filled; ++i) row[i * layout.group + g] = source[i * column_stride];
    }
  }
}

/// Packs panels [first, last).
template <class T>
void pack_panels(const PackedLayout& layout, const T* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t first,
                 std::int64_t last, T* to) {
  // Rows of `from` are read two whole panels at a time: their lines lie side by side.
  constexpr std::int64_t beside = 2;
  const std::int64_t width = layout.width();
  while (layout.group == 1 && column_stride == 1 && last - first >= beside && (first + beside) * width <= layout.columns) {
    T* row = to + first * layout.panel_stride();
    for (std::int64_t k = 0; k < layout.k; ++k, row += width)
      for (std::int64_t panel = 0; panel < beside; ++panel)
        copy_row(from + k * row_stride + (first + panel) * width, width, row + panel * layout.panel_stride());
    first += beside;
  }
  for (std::int64_t panel = first; panel < last; ++panel) pack_panel(layout, from, row_stride, column_stride, panel, to);
}

template <class T>
void pack_all(const PackedLayout& layout, const T* from, std::int64_t row_stride, std::int64_t column_stride, T* to, ThreadTeam& team) {
  const std::int64_t grain = std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, layout.panel_stride()));
  team.parallel(layout.panels(), grain,
                [&](std::int64_t first, std::int64_t last) { pack_panels(layout, from, row_stride, column_stride, first, last, to); });
}

}  // namespace millrace::cpu
