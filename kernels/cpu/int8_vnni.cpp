// SPDX-License-Identifier: Apache-2.0
// Products of i8 by AVX-512 VNNI. Intrinsics, because Highway's dot products are of i16 here; the functions say themselves what they need,
// so nothing that others share is compiled for a machine that may not be there.
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/cpu/int8_store.h>

#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

namespace millrace::cpu {
namespace {

constexpr std::int64_t lanes = dot_lanes, group = dot_group, width = dot_width;

/// The last ones of a row, fewer than four. Elements behind the end meet zeros.
inline std::uint32_t last_of(const std::uint8_t* a, std::int64_t at, std::int64_t k) {
  std::uint32_t four = 0;
  std::memcpy(&four, a + at, static_cast<std::size_t>(k - at));
  return four;
}

/// Rows times Vectors vectors of columns; vectors 4… belong to a second panel. The instruction multiplies unsigned by signed, so elements with
/// a sign are taken 128 too high: 128 times the sum of a column comes off in front, with what `zero` makes of it.
template <int Rows, int Vectors, bool HasSign>
MILLRACE_VNNI void tile(const Int8Call& call, std::int64_t first, std::int64_t panel) {
  const std::int64_t groups = (call.k + group - 1) / group;
  const std::int64_t stride = width * groups * group;
  const std::int8_t* b = call.b + panel * stride;
  const std::int64_t whole = call.k / group;
  __m512i sum[Rows][Vectors];
  for (int v = 0; v < Vectors; ++v) {
    const __m512i offset =
        _mm512_mullo_epi32(column_sums(call, panel * width + v * lanes), _mm512_set1_epi32((HasSign ? 128 : 0) + call.zero));
    for (int row = 0; row < Rows; ++row) sum[row][v] = _mm512_sub_epi32(_mm512_setzero_si512(), offset);
  }
  const std::uint8_t* from[Rows];
  for (int row = 0; row < Rows; ++row) from[row] = call.a[first + row];
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
  const auto add = [&](auto four) MILLRACE_VNNI {
    __m512i left[Rows];
    for (int row = 0; row < Rows; ++row) {
      left[row] = _mm512_set1_epi32(four(row));
      if constexpr (HasSign) left[row] = _mm512_xor_si512(left[row], flip);
    }
    for (int v = 0; v < Vectors; ++v) {
      const __m512i right = _mm512_loadu_si512(b + (v < panel_vectors ? 0 : stride) + v % panel_vectors * lanes * group);
      for (int row = 0; row < Rows; ++row) sum[row][v] = _mm512_dpbusd_epi32(sum[row][v], left[row], right);
    }
    b += width * group;
  };
  for (std::int64_t at = 0; at < whole; ++at)
    add([&](int row) {
      std::int32_t four;
      std::memcpy(&four, from[row] + at * group, sizeof four);
      return four;
    });
  if (whole < groups) add([&](int row) { return static_cast<std::int32_t>(last_of(from[row], whole * group, call.k)); });
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < Vectors; ++v) store_sums(call, first + row, panel * width + v * lanes, sum[row][v]);
}

template <bool HasSign>
void multiply_rows(const Int8Call& call) {
  for (std::int64_t panel = call.first_panel; panel < call.last_panel;) {
    const bool two = call.rows <= 2 && panel + 2 <= call.last_panel;
    std::int64_t row = 0;
    if (two) {
      call.rows == 1 ? tile<1, 8, HasSign>(call, 0, panel) : tile<2, 8, HasSign>(call, 0, panel);
    } else {
      for (; row + 4 <= call.rows; row += 4) tile<4, 4, HasSign>(call, row, panel);
      for (; row + 2 <= call.rows; row += 2) tile<2, 4, HasSign>(call, row, panel);
      if (row < call.rows) tile<1, 4, HasSign>(call, row, panel);
    }
    panel += two ? 2 : 1;
  }
}

void multiply(const Int8Call& call) { call.has_sign ? multiply_rows<true>(call) : multiply_rows<false>(call); }

template <int Units, int Vectors>
MILLRACE_VNNI void conv_tile(const ConvBytesCall& call) {
  __m512i sum[Units][Vectors];
  for (int unit = 0; unit < Units; ++unit)
    for (int v = 0; v < Vectors; ++v) sum[unit][v] = _mm512_set1_epi32(call.starts[unit]);
  for (std::int64_t step = 0; step < call.steps; ++step) {
    const std::uint8_t* const x = call.x + 4 * call.offsets[step];
    __m512i left[Vectors];
    for (int v = 0; v < Vectors; ++v) left[v] = _mm512_loadu_si512(x + 64 * v);
    for (int unit = 0; unit < Units; ++unit) {
      std::int32_t four;
      std::memcpy(&four, call.weights + unit * call.weights_stride + step * 4, sizeof four);
      const __m512i right = _mm512_set1_epi32(four);
      for (int v = 0; v < Vectors; ++v) sum[unit][v] = _mm512_dpbusd_epi32(sum[unit][v], left[v], right);
    }
  }
  for (int unit = 0; unit < Units; ++unit)
    for (int v = 0; v < Vectors; ++v) _mm512_storeu_si512(call.sums + unit * call.sums_stride + v * lanes, sum[unit][v]);
}

template <int Units>
void conv_units_of(const ConvBytesCall& call) {
  if (call.places > 3 * lanes) return conv_tile<Units, 4>(call);
  if (call.places > 2 * lanes) return conv_tile<Units, 3>(call);
  call.places > lanes ? conv_tile<Units, 2>(call) : conv_tile<Units, 1>(call);
}

void conv(const ConvBytesCall& call) {
  if (call.units == 4) return conv_units_of<4>(call);
  if (call.units == 3) return conv_units_of<3>(call);
  call.units == 2 ? conv_units_of<2>(call) : conv_units_of<1>(call);
}

MILLRACE_VNNI void interleave(const std::uint8_t* const* from, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto some = static_cast<__mmask16>(count - i >= lanes ? 0xffff : (1u << (count - i)) - 1);
    const auto words = [&](int j) MILLRACE_VNNI { return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(some, from[j] + i)); };
    const __m512i low = _mm512_or_si512(words(0), _mm512_slli_epi32(words(1), 8));
    const __m512i high = _mm512_or_si512(_mm512_slli_epi32(words(2), 16), _mm512_slli_epi32(words(3), 24));
    _mm512_mask_storeu_epi32(to + 4 * i, some, _mm512_or_si512(low, high));
  }
}

MILLRACE_VNNI void pick(const std::uint8_t* from, std::int64_t stride, std::uint8_t flip, std::int64_t count, std::uint8_t* to) {
  if (stride > 2) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(from[i * stride] ^ flip);
    return;
  }
  const __m512i flips = _mm512_set1_epi8(static_cast<char>(flip));
  const std::int64_t many = 64 / stride;
  for (std::int64_t i = 0; i < count; i += many) {
    const std::int64_t here = std::min(many, count - i), read = (here - 1) * stride + 1;  // memory behind the last byte is not read
    const __m512i bytes = _mm512_xor_si512(_mm512_maskz_loadu_epi8(~__mmask64{0} >> (64 - read), from + i * stride), flips);
    if (stride == 1)
      _mm512_mask_storeu_epi8(to + i, ~__mmask64{0} >> (64 - here), bytes);
    else
      _mm256_mask_storeu_epi8(to + i, ~__mmask32{0} >> (32 - here), _mm512_cvtepi16_epi8(bytes));
  }
}

MILLRACE_VNNI void depthwise(const DepthwiseBytesCall& call) {
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(call.flip));
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const std::uint8_t* const* const taps = call.taps + row * call.fours * depthwise_taps;
    __m512i sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = _mm512_loadu_si512(call.starts + i * lanes);
    for (std::int64_t four = 0; four < call.fours; ++four) {
      __m512i x[depthwise_taps];
      for (int tap = 0; tap < depthwise_taps; ++tap)
        x[tap] = _mm512_xor_si512(_mm512_loadu_si512(taps[four * depthwise_taps + tap] + call.channel), flip);
      const __m512i low[2] = {_mm512_unpacklo_epi8(x[0], x[1]), _mm512_unpacklo_epi8(x[2], x[3])};
      const __m512i high[2] = {_mm512_unpackhi_epi8(x[0], x[1]), _mm512_unpackhi_epi8(x[2], x[3])};
      const __m512i fours[4] = {_mm512_unpacklo_epi16(low[0], low[1]), _mm512_unpackhi_epi16(low[0], low[1]),
                                _mm512_unpacklo_epi16(high[0], high[1]), _mm512_unpackhi_epi16(high[0], high[1])};
      for (int i = 0; i < 4; ++i)
        sum[i] = _mm512_dpbusd_epi32(sum[i], fours[i], _mm512_loadu_si512(call.weights + (four * 4 + i) * depthwise_channels));
    }
    // Vector v of the channels is lane v of each sum.
    const __m512i low[2] = {_mm512_shuffle_i32x4(sum[0], sum[1], 0x44), _mm512_shuffle_i32x4(sum[2], sum[3], 0x44)};
    const __m512i high[2] = {_mm512_shuffle_i32x4(sum[0], sum[1], 0xee), _mm512_shuffle_i32x4(sum[2], sum[3], 0xee)};
    std::int32_t* const to = call.sums + row * depthwise_channels;
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(low[0], low[1], 0x88));
    _mm512_storeu_si512(to + lanes, _mm512_shuffle_i32x4(low[0], low[1], 0xdd));
    _mm512_storeu_si512(to + 2 * lanes, _mm512_shuffle_i32x4(high[0], high[1], 0x88));
    _mm512_storeu_si512(to + 3 * lanes, _mm512_shuffle_i32x4(high[0], high[1], 0xdd));
  }
}

}  // namespace

const Int8Kernels* vnni_kernels(const Int8Kernels& plain) {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vnni")) return nullptr;
  static const Int8Kernels kernels{lanes,      group, multiply, plain.quantize, plain.range, plain.to_bytes, conv,
                                   interleave, pick,  {},       depthwise};
  return &kernels;
}

}  // namespace millrace::cpu

#else

namespace millrace::cpu {

const Int8Kernels* vnni_kernels(const Int8Kernels&) { return nullptr; }

}  // namespace millrace::cpu

#endif
