// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/int8_kernels.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/int8_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/quantize-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t Lanes() { return static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<float>())); }

#if HWY_TARGET == HWY_SCALAR  // has no halves of a lane

void MultiplyInt8(const Int8Call& call) {
  const std::int64_t stride = panel_vectors * ((call.k + 1) / 2 * 2);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    for (std::int64_t column = call.first_panel * panel_vectors; column < std::min(call.columns, call.last_panel * panel_vectors);
         ++column) {
      const std::int8_t* b = call.b + column / panel_vectors * stride + column % panel_vectors * 2;
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < call.k; ++k) {
        const std::uint8_t given = call.a[row][k];
        sum += (call.has_sign ? static_cast<std::int8_t>(given) : std::int32_t{given}) * b[k / 2 * panel_vectors * 2 + k % 2];
      }
      if (call.zero != 0) sum -= call.offsets[column] / 128 * call.zero;
      if (call.whole) {
        std::memcpy(call.out[row] + column - call.out_column, &sum, sizeof sum);
        continue;
      }
      const float scaled = static_cast<float>(sum) * *call.scales[row];
      call.out[row][column - call.out_column] = scaled * call.column_scales[column];
    }
  }
}

#else

template <class D>
HWY_INLINE void StoreColumns(D d, hn::Vec<D> value, float* to, std::int64_t count) {
  if (count >= Lanes()) return hn::StoreU(value, d, to);
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(value, d, lanes);
  if (count > 0) std::memcpy(to, lanes, static_cast<std::size_t>(count) * sizeof(float));
}

/// Two of a row as the two halves of each lane of 32 bits; the second is 0 behind the end.
HWY_INLINE std::int32_t PairOf(const Int8Call& call, std::int64_t row, std::int64_t at) {
  const auto half = [&](std::int64_t place) {
    const std::uint8_t given = call.a[row][place];
    return call.has_sign ? static_cast<std::uint16_t>(static_cast<std::int8_t>(given)) : std::uint16_t{given};
  };
  const std::uint16_t low = half(at), high = at + 1 < call.k ? half(at + 1) : std::uint16_t{0};
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(high) << 16 | low);
}

/// Pairs of the rows of a call that lie on the stack, made once for all panels.
constexpr std::int64_t most_pairs = 1 << 13;

/// Rows times one panel. Products of pairs in i16 are added in i32: exact. `pairs`: those of row `first` and the rows behind it, or, where not `Paired`,
/// null.
template <int Rows, bool Paired>
HWY_NOINLINE void Int8Tile(const Int8Call& call, std::int64_t first, std::int64_t panel, const std::int32_t* pairs) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> words;
  const hn::Repartition<std::int16_t, decltype(d)> halves;
  const hn::Rebind<std::int8_t, decltype(halves)> bytes;
  using V = hn::Vec<decltype(words)>;
  constexpr std::int64_t width = panel_vectors * Lanes();
  const std::int8_t* b = call.b + panel * width * ((call.k + 1) / 2 * 2);
  V sum[Rows][panel_vectors];
  V other[Rows][panel_vectors];
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < panel_vectors; ++v) sum[row][v] = other[row][v] = hn::Zero(words);
  const std::int64_t count = (call.k + 1) / 2;
  for (std::int64_t at = 0; at < count; ++at, b += 2 * width) {
    for (int v = 0; v < panel_vectors; ++v) {
      const auto right = hn::PromoteTo(halves, hn::LoadU(bytes, b + 2 * v * Lanes()));
      for (int row = 0; row < Rows; ++row) {
        const std::int32_t pair = Paired ? pairs[row * count + at] : PairOf(call, first + row, 2 * at);
        const auto left = hn::BitCast(halves, hn::Set(words, pair));
        sum[row][v] = hn::ReorderWidenMulAccumulate(words, left, right, sum[row][v], other[row][v]);
      }
    }
  }
  for (int row = 0; row < Rows; ++row) {
    const auto scale = hn::Set(d, call.whole ? 1.0f : *call.scales[first + row]);
    for (int v = 0; v < panel_vectors; ++v) {
      const std::int64_t column = panel * width + v * Lanes();
      auto whole = hn::RearrangeToOddPlusEven(sum[row][v], other[row][v]);
      if (call.zero != 0) {
        const auto sums = hn::ShiftRight<7>(hn::LoadU(words, call.offsets + column));
        whole = hn::Sub(whole, hn::Mul(sums, hn::Set(words, call.zero)));
      }
      auto made = hn::BitCast(d, whole);
      if (!call.whole) made = hn::Mul(hn::Mul(hn::ConvertTo(d, whole), scale), hn::LoadU(d, call.column_scales + column));
      StoreColumns(d, made, call.out[first + row] + column - call.out_column, call.columns - column);
    }
  }
}

template <bool Paired>
void MultiplyRows(const Int8Call& call, std::int64_t first, std::int64_t last, const std::int32_t* pairs) {
  const std::int64_t count = (call.k + 1) / 2;
  for (std::int64_t panel = call.first_panel; panel < call.last_panel; ++panel) {
    std::int64_t row = first;
    for (; row + 2 <= last; row += 2) Int8Tile<2, Paired>(call, row, panel, Paired ? pairs + (row - first) * count : nullptr);
    if (row < last) Int8Tile<1, Paired>(call, row, panel, Paired ? pairs + (row - first) * count : nullptr);
  }
}

void MultiplyInt8(const Int8Call& call) {
  const std::int64_t count = (call.k + 1) / 2;
  if (count == 0 || count > most_pairs) return MultiplyRows<false>(call, 0, call.rows, nullptr);
  std::int32_t pairs[most_pairs];
  const std::int64_t together = most_pairs / count;
  for (std::int64_t first = 0; first < call.rows; first += together) {
    const std::int64_t last = std::min(call.rows, first + together);
    std::int32_t* to = pairs;
    for (std::int64_t row = first; row < last; ++row)
      for (std::int64_t at = 0; at < call.k; at += 2) *to++ = PairOf(call, row, at);
    MultiplyRows<true>(call, first, last, pairs);
  }
}

#endif

/// `count` elements, the other lanes zero.
template <class D>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const float* from, std::int64_t count) {
  if (count >= Lanes()) return hn::LoadU(d, from);
  HWY_ALIGN float lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, from, static_cast<std::size_t>(count) * sizeof(float));
  return hn::Load(d, lanes);
}

void QuantizeRow(const float* x, std::int64_t k, std::int8_t* values, float* scale) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::int8_t, decltype(d)> bytes;
  auto most = hn::Zero(d);
  auto odd = hn::Zero(d);  // NaN where a lane met one
  for (std::int64_t i = 0; i < k; i += Lanes()) {
    const auto v = LoadFirst(d, x + i, k - i);
    most = hn::Max(hn::Abs(v), most);
    odd = hn::IfThenElse(hn::Eq(v, v), odd, v);
  }
  const float m = hn::GetLane(hn::MaxOfLanes(d, most));
  const float nan = hn::GetLane(hn::SumOfLanes(d, odd));
  if (nan != nan) {
    *scale = nan;
    std::fill_n(values, k, std::int8_t{0});
    return;
  }
  *scale = m / 127.0f;
  // 127 / m may be beyond f32: both sides of the product are moved by a power of two, which rounds nothing.
  const float moved = *scale < 0x1p-107f ? 0x1p64f : 1.0f;
  const auto shift = hn::Set(d, moved);
  const auto factor = hn::Set(d, *scale == 0 ? 0.0f : 127.0f / (m * moved));  // the row of a scale that becomes 0 is zeros
  const auto limit = hn::Set(d, 127.0f);
  for (std::int64_t i = 0; i < k; i += Lanes()) {
    const auto scaled = hn::Mul(hn::Mul(LoadFirst(d, x + i, k - i), shift), factor);
    const auto held = hn::IfThenElseZero(hn::Eq(scaled, scaled), hn::Min(hn::Max(scaled, hn::Neg(limit)), limit));
    const auto narrow = hn::DemoteTo(bytes, hn::NearestInt(held));
    if (k - i >= Lanes()) {
      hn::StoreU(narrow, bytes, values + i);
      continue;
    }
    HWY_ALIGN std::int8_t lanes[hn::MaxLanes(d)];
    hn::Store(narrow, bytes, lanes);
    std::memcpy(values + i, lanes, static_cast<std::size_t>(k - i));
  }
}

bool Range(const float* x, std::int64_t count, float* range) {
  const hn::ScalableTag<float> d;
  constexpr int many = 4;
  auto low = hn::Set(d, range[0]), high = hn::Set(d, range[1]);
  auto lows = low, highs = high;
  auto odd = hn::Zero(d), odds = odd;  // NaN where a lane met one
  std::int64_t i = 0;
  const auto take = [&](auto v, auto& least, auto& most, auto& nan) HWY_ATTR {
    least = hn::Min(v, least);
    most = hn::Max(v, most);
    nan = hn::IfThenElse(hn::Eq(v, v), nan, v);
  };
  for (; i + many * Lanes() <= count; i += many * Lanes()) {
    take(hn::LoadU(d, x + i), low, high, odd);
    take(hn::LoadU(d, x + i + Lanes()), lows, highs, odds);
    take(hn::LoadU(d, x + i + 2 * Lanes()), low, high, odd);
    take(hn::LoadU(d, x + i + 3 * Lanes()), lows, highs, odds);
  }
  for (; i < count; i += Lanes()) take(LoadFirst(d, x + i, count - i), low, high, odd);
  range[0] = hn::GetLane(hn::MinOfLanes(d, hn::Min(low, lows)));
  range[1] = hn::GetLane(hn::MaxOfLanes(d, hn::Max(high, highs)));
  const float nan = hn::GetLane(hn::SumOfLanes(d, hn::Add(odd, odds)));
  return nan == nan;
}

void ToBytes(const float* x, std::int64_t count, float scale, float zero, std::uint8_t* bytes) {
  const hn::ScalableTag<float> d;
  const ByteQuotient<std::uint8_t> quotient(scale, zero);
  const ByteQuotient<std::uint8_t>::Bytes narrow;
  std::int64_t i = 0;
  for (; i + Lanes() <= count; i += Lanes()) hn::StoreU(quotient(hn::LoadU(d, x + i)), narrow, bytes + i);
  if (i >= count) return;
  HWY_ALIGN std::uint8_t lanes[hn::MaxLanes(d)];
  hn::Store(quotient(LoadFirst(d, x + i, count - i)), narrow, lanes);
  std::memcpy(bytes + i, lanes, static_cast<std::size_t>(count - i));
}

/// Loops that a compiler makes vectors of. A program takes this convolution where there are instructions for it (kernels/conv_integer.h).
void ConvBytes(const ConvBytesCall& call) {
  for (std::int64_t unit = 0; unit < call.units; ++unit) {
    std::int32_t* const sums = call.sums + unit * call.sums_stride;
    std::fill_n(sums, call.places, call.starts[unit]);
    for (std::int64_t step = 0; step < call.steps; ++step) {
      const std::int8_t* const w = call.weights + unit * call.weights_stride + step * 4;
      const std::uint8_t* const x = call.x + 4 * call.offsets[step];
      for (std::int64_t at = 0; at < call.places; ++at)
        sums[at] += x[4 * at] * w[0] + x[4 * at + 1] * w[1] + x[4 * at + 2] * w[2] + x[4 * at + 3] * w[3];
    }
  }
}

void Interleave(const std::uint8_t* const* from, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < 4; ++j) to[4 * i + j] = from[j][i];
}

void Pick(const std::uint8_t* from, std::int64_t stride, std::uint8_t flip, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(from[i * stride] ^ flip);
}

const Int8Kernels* PlainKernels() {
  static constexpr Int8Kernels kernels{Lanes(), 2, MultiplyInt8, QuantizeRow, Range, ToBytes, ConvBytes, Interleave, Pick};
  return &kernels;
}

/// With the best products that a machine of this instruction set may have beside.
const Int8Kernels* BestKernels() {
#if HWY_TARGET == HWY_AVX3
  static const Int8Kernels* const vnni = vnni_kernels(*PlainKernels());
  static const Int8Kernels* const amx = vnni != nullptr ? amx_kernels(*vnni) : nullptr;
  if (amx != nullptr) return amx;
  if (vnni != nullptr) return vnni;
#endif
  return PlainKernels();
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(PlainKernels);
HWY_EXPORT(BestKernels);

const Int8Kernels& int8_kernels() { return *HWY_DYNAMIC_DISPATCH(BestKernels)(); }
const Int8Kernels& plain_int8_kernels() { return *HWY_DYNAMIC_DISPATCH(PlainKernels)(); }

}  // namespace millrace::cpu
#endif
