// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/cpu/gemm_kernels.h>

namespace millrace::cpu {

/// Some rows times panels [first, last) of packed weights (kernels/int8.h). A panel is four vectors of columns, the last one padded with
/// zeros: [group of k][column][k of the group]. Offsets and scales of columns are padded alike.
struct Int8Call {
  const std::uint8_t* const* a = nullptr;  ///< rows of k elements, less `zero`
  const float* const* scales = nullptr;    ///< of each row
  float* const* out = nullptr;
  std::int64_t rows = 0;  ///< ≤ max_rows
  std::int64_t k = 0;
  const std::int8_t* b = nullptr;
  const std::int32_t* offsets = nullptr;
  const float* column_scales = nullptr;
  std::int64_t columns = 0;
  std::int64_t first_panel = 0;
  std::int64_t last_panel = 0;
  std::int32_t zero = 0;        ///< the 0 of the rows: it comes off each element, exactly
  bool has_sign = true;         ///< elements of rows are i8, else u8
  bool whole = false;           ///< `out` gets the sums as they are, i32
  std::int64_t out_column = 0;  ///< the one that `out` begins with
};

/// Units and places that a convolution of bytes computes at once.
inline constexpr std::int64_t conv_units = 4, conv_places = 64;

/// Some units of a convolution of bytes, four side by side, at some places (kernels/cpu/conv_integer.h): sums[u, p] = starts[u] + Σ over steps and four of x[offset of the step + p]·w.
struct ConvBytesCall {
  const std::uint8_t* x = nullptr;        ///< fours; up to conv_places from the first place on are read
  const std::int64_t* offsets = nullptr;  ///< in fours, of each step
  std::int64_t steps = 0;
  const std::int8_t* weights = nullptr;    ///< [unit][step][4]
  std::int64_t weights_stride = 0;         ///< from unit to unit
  std::int64_t units = 0;                  ///< ≤ conv_units
  std::int64_t places = 0;                 ///< ≤ conv_places
  const std::int32_t* starts = nullptr;    ///< of each unit
  std::int32_t* sums = nullptr;            ///< [unit][sums_stride]
  std::int64_t sums_stride = conv_places;  ///< from unit to unit
  const std::uint8_t* gathered = nullptr;  ///< made by `gather` of x, offsets, steps and places; weights lie in tiles then
};
/// Convolutions that gather take this many units and fours at once. Rows of weights end with zeros up to such a step, and those of a group with such
/// rows up to a multiple of gathered_unit_rows. A tile is [16 units][16 fours] side by side, and the tiles of the same units follow one another: memory is read in its order.
inline constexpr std::int64_t gathered_units = 32, gathered_unit_rows = 16, gathered_steps = 16;
/// Bytes of a step that are gathered for so many places.
inline constexpr std::int64_t gathered_row(std::int64_t places) { return (places + 15) / 16 * 64; }

/// Functions for convolutions of many units, which are faster so; null where they are not.
struct Gathering {
  /// to[step, p] = x[offset of the step + p], gathered_row bytes of each step: then `conv` takes up to gathered_units units.
  void (*gather)(const ConvBytesCall&, std::uint8_t* to) = nullptr;
  void (*open)() = nullptr;   ///< before the first such call of `conv` on a thread
  void (*close)() = nullptr;  ///< behind the last one
};

/// Channels of a depthwise convolution of bytes that are computed at once, and the taps that one product sums.
inline constexpr std::int64_t depthwise_channels = 64, depthwise_taps = 4;

/// 64 channels of a depthwise convolution of bytes at some places: sums[row][c] = starts[c] + Σ over taps of x[c]·w[c], with the sign bit of i8 flipped to make x unsigned.
struct DepthwiseBytesCall {
  const std::uint8_t* const* taps =
      nullptr;  ///< [row][tap]: the first channel of a place of x, behind whose last channel 63 bytes may be read
  std::int64_t rows = 0;
  std::int64_t fours = 0;                ///< of taps in a row
  std::int64_t channel = 0;              ///< the first of the 64
  const std::int8_t* weights = nullptr;  ///< [four][channel, in the order of depthwise_order][tap of the four]
  const std::int32_t* starts = nullptr;  ///< [channel, in that order]
  std::uint8_t flip = 0;
  std::int32_t* sums = nullptr;  ///< [row][64]
};
/// The place of a channel: a product takes the neighbours of four bytes from four lanes of 16.
inline constexpr std::int64_t depthwise_order(std::int64_t channel) { return channel % 16 / 4 * 16 + channel / 16 * 4 + channel % 4; }

/// The kernels of one instruction set.
struct Int8Kernels {
  std::int64_t lanes;  ///< columns of a vector
  std::int64_t group;  ///< k side by side
  void (*multiply)(const Int8Call&);
  void (*quantize)(const float* x, std::int64_t k, std::int8_t* values, float* scale);
  /// The least and the greatest of `count` elements and of `range`; false where an element is no number.
  bool (*range)(const float* x, std::int64_t count, float* range);
  /// x / scale to the nearest whole number, plus `zero`, within 0 … 255; 0 where that is no number.
  void (*to_bytes)(const float* x, std::int64_t count, float scale, float zero, std::uint8_t* bytes);
  void (*conv)(const ConvBytesCall&);
  /// to[4·i + j] = from[j][i].
  void (*interleave)(const std::uint8_t* const* from, std::int64_t count, std::uint8_t* to);
  /// to[i] = from[i·stride] ^ flip.
  void (*pick)(const std::uint8_t* from, std::int64_t stride, std::uint8_t flip, std::int64_t count, std::uint8_t* to);
  Gathering gathering = {};
  void (*depthwise)(const DepthwiseBytesCall&) = nullptr;  ///< null where places in the lanes are faster
};

/// The kernels of the best instruction set of this machine.
const Int8Kernels& int8_kernels();
/// The kernels without instructions of dot products: tests compare the others with them.
const Int8Kernels& plain_int8_kernels();
/// `plain` with products by AVX-512 VNNI; null where the machine has none.
const Int8Kernels* vnni_kernels(const Int8Kernels& plain);
/// `vnni` with products of many rows by AMX; null where the machine has none, or the system does not give it to this process.
const Int8Kernels* amx_kernels(const Int8Kernels& vnni);

/// The packed form of a matrix [k, columns].
struct Int8Layout {
  std::int64_t k = 0;
  std::int64_t columns = 0;
  std::int64_t lanes = 1;
  std::int64_t group = 1;

  std::int64_t width() const { return panel_vectors * lanes; }
  std::int64_t panels() const { return (columns + width() - 1) / width(); }
  std::int64_t groups() const { return (k + group - 1) / group; }
  std::int64_t panel_stride() const { return width() * groups() * group; }
  std::int64_t padded_columns() const { return panels() * width(); }
};

}  // namespace millrace::cpu
