// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/transpose_kernels.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/transpose_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Rows [row, row_end) and columns [column, column_end), an element at a time.
template <class U>
HWY_INLINE void TurnElements(const U* from, std::int64_t from_step, U* to, std::int64_t to_step, std::int64_t row, std::int64_t row_end,
                             std::int64_t column, std::int64_t column_end) {
  for (std::int64_t c = column; c < column_end; ++c)
    for (std::int64_t r = row; r < row_end; ++r) to[r * to_step + c] = from[c * from_step + r];
}

#if HWY_TARGET != HWY_SCALAR
/// A vector of 16 bytes from `from` on in block 0, and from as many times `apart` elements behind it in each block behind.
template <class D, class U = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const U* from, [[maybe_unused]] std::int64_t apart) {
  constexpr std::size_t blocks = sizeof(U) * hn::MaxLanes(d) / 16;
  if constexpr (blocks > 1) {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, from + static_cast<std::int64_t>(blocks / 2) * apart, apart), LoadBlocks(half, from, apart));
  } else {
    return hn::LoadU(d, from);
  }
}

/// Stores the rows of `count` vectors, element r of each block of which belongs to row r: neighbours of two vectors become one element twice as wide.
template <std::size_t count, class U, class D>
HWY_INLINE void StoreRows(D d, const hn::Vec<D>* from, U* to, std::int64_t to_step) {
  constexpr std::size_t half = count / 2;
  hn::Vec<D> lower[half], upper[half];
  for (std::size_t i = 0; i < half; ++i) {
    lower[i] = hn::InterleaveLower(d, from[2 * i], from[2 * i + 1]);
    upper[i] = hn::InterleaveUpper(d, from[2 * i], from[2 * i + 1]);
  }
  if constexpr (half == 1) {
    const hn::Repartition<U, D> rows;
    hn::StoreU(hn::BitCast(rows, lower[0]), rows, to);
    hn::StoreU(hn::BitCast(rows, upper[0]), rows, to + to_step);
  } else {
    const hn::RepartitionToWide<D> wide;
    hn::Vec<decltype(wide)> wide_lower[half], wide_upper[half];
    for (std::size_t i = 0; i < half; ++i) {
      wide_lower[i] = hn::BitCast(wide, lower[i]);
      wide_upper[i] = hn::BitCast(wide, upper[i]);
    }
    StoreRows<half>(wide, wide_lower, to, to_step);
    StoreRows<half>(wide, wide_upper, to + static_cast<std::int64_t>(half) * to_step, to_step);
  }
}

/// As many rows as 16 bytes hold, as many columns as a vector has lanes.
template <class D, class U = hn::TFromD<D>>
HWY_INLINE void TurnBlock(D d, const U* from, std::int64_t from_step, U* to, std::int64_t to_step) {
  constexpr std::size_t rows = 16 / sizeof(U);
  hn::Vec<D> columns[rows];
  for (std::size_t i = 0; i < rows; ++i, from += from_step) columns[i] = LoadBlocks(d, from, static_cast<std::int64_t>(rows) * from_step);
  StoreRows<rows>(d, columns, to, to_step);
}
#endif

#if HWY_TARGET != HWY_SCALAR
/// Rows [row, row_end) in blocks of columns from `column` on, as many as a vector has lanes. The last block of rows overlaps the one before it. A function
/// of its own: the addresses of many loops would be kept in memory.
template <class D, class U = hn::TFromD<D>>
HWY_NOINLINE void TurnColumns(D d, const U* from, std::int64_t from_step, U* to, std::int64_t to_step, std::int64_t row,
                              std::int64_t row_end, std::int64_t column) {
  constexpr auto few = static_cast<std::int64_t>(16 / sizeof(U)), lanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  const auto block = [&](std::int64_t r)
                         HWY_ATTR { TurnBlock(d, from + column * from_step + r, from_step, to + r * to_step + column, to_step); };
  if (row_end - row < few) return TurnElements(from, from_step, to, to_step, row, row_end, column, column + lanes);
  std::int64_t r = row;
  for (; r + few <= row_end; r += few) block(r);
  if (r < row_end) block(row_end - few);
}
#endif

/// Bytes of a line of the caches.
constexpr std::int64_t line_bytes = 64;

/// Eight cache lines of `from` at a time: the fetch of lines ahead follows a column for a while.
template <class U>
HWY_INLINE void TurnDirect(const U* from, std::int64_t from_step, U* to, std::int64_t to_step, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t some = 512 / sizeof(U);
  for (std::int64_t row = 0; row < rows; row += some) {
    const std::int64_t end = std::min(rows, row + some);
    std::int64_t column = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::CappedTag<U, line_bytes / sizeof(U)> large;
    const hn::CappedTag<U, 32 / sizeof(U)> d;
    const hn::CappedTag<U, 16 / sizeof(U)> small;
    constexpr auto most = static_cast<std::int64_t>(hn::MaxLanes(large)), lanes = static_cast<std::int64_t>(hn::MaxLanes(d)),
                   fewer = static_cast<std::int64_t>(hn::MaxLanes(small));
    for (; column + most <= columns; column += most) TurnColumns(large, from, from_step, to, to_step, row, end, column);
    for (; column + lanes <= columns; column += lanes) TurnColumns(d, from, from_step, to, to_step, row, end, column);
    for (; column + fewer <= columns; column += fewer) TurnColumns(small, from, from_step, to, to_step, row, end, column);
    if (column == columns) continue;
    if (columns >= fewer) {  // overlaps the columns before
      TurnColumns(small, from, from_step, to, to_step, row, end, columns - fewer);
      continue;
    }
#endif
    TurnElements(from, from_step, to, to_step, row, end, column, columns);
  }
}

/// Two or three columns whose rows lie side by side in `to`.
template <class U>
HWY_INLINE void Interleave(const U* from, std::int64_t from_step, U* to, std::int64_t rows, std::int64_t columns) {
  const hn::ScalableTag<U> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t row = 0;
  for (; row + lanes <= rows; row += lanes) {
    const auto first = hn::LoadU(d, from + row), second = hn::LoadU(d, from + from_step + row);
    if (columns == 2)
      hn::StoreInterleaved2(first, second, d, to + 2 * row);
    else
      hn::StoreInterleaved3(first, second, hn::LoadU(d, from + 2 * from_step + row), d, to + 3 * row);
  }
  TurnElements(from, from_step, to, columns, row, rows, 0, columns);
}

/// Whether rows that lie `step` elements apart share few places of the first cache: then it loses a line of `to` before the next columns reach it.
template <class U>
HWY_INLINE bool ShareLines(std::int64_t step) {
  constexpr std::int64_t apart = 1024, near = 16;
  const std::int64_t behind = step * static_cast<std::int64_t>(sizeof(U)) % apart;
  return behind < near || behind > apart - near;
}

/// Whether each vector that is stored is a whole line, which none behind it waits for.
template <class U>
HWY_INLINE bool StoresLines(const U* to, std::int64_t to_step, std::int64_t columns) {
  const hn::CappedTag<U, line_bytes / sizeof(U)> d;
  const auto lanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  return lanes * static_cast<std::int64_t>(sizeof(U)) == line_bytes && columns % lanes == 0 && to_step % lanes == 0 &&
         reinterpret_cast<std::uintptr_t>(to) % line_bytes == 0;
}

template <class U>
HWY_INLINE void Turn(const U* from, std::int64_t from_step, U* to, std::int64_t to_step, std::int64_t rows, std::int64_t columns) {
  // A block of some rows of four lines each is transposed by itself, and written to `to` a row at a time.
  if (to_step == columns && (columns == 2 || columns == 3)) return Interleave(from, from_step, to, rows, columns);
  constexpr std::int64_t some_rows = 32, some_columns = 256 / sizeof(U);
  if (rows <= 4 || columns < some_columns || !ShareLines<U>(to_step) || StoresLines(to, to_step, columns))
    return TurnDirect(from, from_step, to, to_step, rows, columns);
  HWY_ALIGN U room[some_rows * some_columns];
  for (std::int64_t column = 0; column < columns; column += some_columns) {
    const std::int64_t width = std::min(some_columns, columns - column);
    for (std::int64_t row = 0; row < rows; row += some_rows) {
      const std::int64_t height = std::min(some_rows, rows - row);
      TurnDirect(from + column * from_step + row, from_step, room, some_columns, height, width);
      for (std::int64_t r = 0; r < height; ++r)
        std::memcpy(to + (row + r) * to_step + column, room + r * some_columns, static_cast<std::size_t>(width) * sizeof(U));
    }
  }
}

void Turn32(const std::uint32_t* from, std::int64_t from_step, std::uint32_t* to, std::int64_t to_step, std::int64_t rows,
            std::int64_t columns) {
  Turn(from, from_step, to, to_step, rows, columns);
}
void Turn64(const std::uint64_t* from, std::int64_t from_step, std::uint64_t* to, std::int64_t to_step, std::int64_t rows,
            std::int64_t columns) {
  Turn(from, from_step, to, to_step, rows, columns);
}
void Turn16(const std::uint16_t* from, std::int64_t from_step, std::uint16_t* to, std::int64_t to_step, std::int64_t rows,
            std::int64_t columns) {
  Turn(from, from_step, to, to_step, rows, columns);
}
void Turn8(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step, std::int64_t rows,
           std::int64_t columns) {
  Turn(from, from_step, to, to_step, rows, columns);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(Turn8);
HWY_EXPORT(Turn16);
HWY_EXPORT(Turn32);
HWY_EXPORT(Turn64);

void transpose_rows(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(Turn8)(from, from_step, to, to_step, rows, columns);
}
void transpose_rows(const std::uint16_t* from, std::int64_t from_step, std::uint16_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(Turn16)(from, from_step, to, to_step, rows, columns);
}
void transpose_rows(const std::uint32_t* from, std::int64_t from_step, std::uint32_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(Turn32)(from, from_step, to, to_step, rows, columns);
}
void transpose_rows(const std::uint64_t* from, std::int64_t from_step, std::uint64_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(Turn64)(from, from_step, to, to_step, rows, columns);
}

}  // namespace millrace::cpu
#endif
