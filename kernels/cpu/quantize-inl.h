// SPDX-License-Identifier: Apache-2.0
// Bytes of quotients. Included by sources that Highway builds for each instruction set.
#if defined(MILLRACE_KERNELS_CPU_QUANTIZE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_QUANTIZE_INL_H
#undef MILLRACE_KERNELS_CPU_QUANTIZE_INL_H
#else
#define MILLRACE_KERNELS_CPU_QUANTIZE_INL_H
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// x / divisor to the nearest whole number (ties to even), plus `zero`, within the range of N, a byte; 0 where that is no number. The bits are those of a rounded
/// quotient. A product with the inverse, which takes a fourth of the time, decides most of them: it is less than 2^-22 of itself away from the quotient, so below
/// 600 both are rounded alike unless the product is within 2^-12 of a half, and those beyond are the end of the range.
template <class N>
class ByteQuotient {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  using Words = hn::Vec<hn::RebindToUnsigned<D>>;

 public:
  using Bytes = hn::Rebind<std::uint8_t, D>;

  HWY_INLINE ByteQuotient(float divisor, float zero)
      : ByteQuotient(divisor, zero, std::numeric_limits<N>::min() - zero, std::numeric_limits<N>::max() - zero) {}
  /// A quotient with other bounds of the rounded value, without zero.
  HWY_INLINE ByteQuotient(float divisor, float zero, float least, float most) {
    const D d;
    const float inverse = 1.0f / divisor;
    // An inverse below the normal numbers has too few bits, and infinity none. NaN decides nothing.
    const bool normal = std::abs(inverse) >= std::numeric_limits<float>::min() && std::abs(inverse) <= std::numeric_limits<float>::max();
    divisor_ = hn::Set(d, divisor);
    inverse_ = hn::Set(d, normal ? inverse : std::numeric_limits<float>::quiet_NaN());
    least_ = hn::Set(d, least);
    most_ = hn::Set(d, most);
    zero_ = hn::Set(hn::RebindToUnsigned<D>(), static_cast<std::uint32_t>(static_cast<std::int32_t>(zero)));
  }
  /// Zeros for which all of this holds.
  static bool takes(float zero) { return std::abs(zero) <= 300 && zero == std::nearbyint(zero); }

  /// The bytes of N as those of u8.
  HWY_INLINE hn::Vec<Bytes> operator()(V x) const {
    const V held = within(hn::Mul(x, inverse_), least_, most_), sum = hn::Add(held, hn::Set(D(), rounding));
    return is_decided(held, sum) ? hn::TruncateTo(Bytes(), whole(sum, zero_)) : divided(x, divisor_, least_, most_, zero_);
  }
  /// Writes the bytes, whether or not the products decide all of them.
  HWY_INLINE bool decide(V x, std::uint8_t* to) const {
    const V held = within(hn::Mul(x, inverse_), least_, most_), sum = hn::Add(held, hn::Set(D(), rounding));
    hn::StoreU(hn::TruncateTo(Bytes(), whole(sum, zero_)), Bytes(), to);
    return is_decided(held, sum);
  }

 private:
  /// A sum with it has no bits behind the point, and the whole number in its last bits.
  static constexpr float rounding = 0x1.8p23f;
  static constexpr std::uint32_t rounding_bits = 0x4b400000;

  static HWY_INLINE bool is_decided(V held, V sum) {
    const D d;
    const V apart = hn::Abs(hn::Sub(held, hn::Sub(sum, hn::Set(d, rounding))));
    return hn::AllTrue(d, hn::Lt(apart, hn::Set(d, 0.5f - 0x1p-12f)));
  }
  /// NaN stays.
  static HWY_INLINE V within(V x, V least, V most) {
    const V held = hn::Max(least, hn::Min(most, x));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
    return held;  // the instructions give their second operand then
#else
    return hn::IfThenElse(hn::Eq(x, x), held, x);
#endif
  }
  /// The whole numbers that a sum with `rounding` holds, plus zero.
  static HWY_INLINE Words whole(V sum, Words zero) {
    const hn::RebindToUnsigned<D> words;
    return hn::Add(hn::Sub(hn::BitCast(words, sum), hn::Set(words, rounding_bits)), zero);
  }
  static HWY_NOINLINE hn::Vec<Bytes> divided(V x, V divisor, V least, V most, Words zero) {
    const D d;
    const V q = hn::Div(x, divisor);
    const auto is_number = hn::Eq(q, q);
    const V sum = hn::Add(within(hn::IfThenElseZero(is_number, q), least, most), hn::Set(d, rounding));
    return hn::TruncateTo(Bytes(), hn::IfThenElseZero(hn::RebindMask(hn::RebindToUnsigned<D>(), is_number), whole(sum, zero)));
  }

  V divisor_, inverse_, least_, most_;
  Words zero_;
};

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#if HWY_TARGET <= HWY_AVX3
#define MILLRACE_WHOLE_VECTOR(NAME) _mm512_##NAME
#elif HWY_TARGET == HWY_AVX2
#define MILLRACE_WHOLE_VECTOR(NAME) _mm256_##NAME
#else
#define MILLRACE_WHOLE_VECTOR(NAME) _mm_##NAME
#endif

/// The bytes of ByteQuotient, four vectors at once. Packing with saturation keeps whole numbers within the range of N, so the quotients need no bounds in front.
/// A product that is no i32 becomes −2^31, which is far from it, and decides nothing.
template <class N>
class FourQuotients {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  using DWords = hn::RebindToSigned<D>;
  using DHalves = hn::ScalableTag<std::int16_t>;
  using DBytes = hn::ScalableTag<N>;
  using DPlaces = hn::RebindToUnsigned<D>;

 public:
  /// `low`, `high`: bounds of x, low first where they cross; of a divisor above 0 if there are any.
  HWY_INLINE FourQuotients(float divisor, float zero, float low = -std::numeric_limits<float>::infinity(),
                           float high = std::numeric_limits<float>::infinity()) {
    const float inverse = 1.0f / divisor;
    const bool normal = std::abs(inverse) >= std::numeric_limits<float>::min() && std::abs(inverse) <= std::numeric_limits<float>::max();
    inverse_ = hn::Set(D(), normal ? inverse : std::numeric_limits<float>::quiet_NaN());
    zero_ = hn::Set(DHalves(), static_cast<std::int16_t>(zero));
    bounded_ = low > -std::numeric_limits<float>::infinity() || high < std::numeric_limits<float>::infinity();
    constexpr float least = std::numeric_limits<N>::min(), most = std::numeric_limits<N>::max();
    const auto byte_of = [&](float bound) {  // rounding keeps the order
      return static_cast<N>(std::min(most, std::max(least, std::nearbyint(bound / divisor) + zero)));
    };
    low_ = hn::Set(DBytes(), bounded_ ? byte_of(low) : std::numeric_limits<N>::min());
    high_ = hn::Set(DBytes(), bounded_ ? byte_of(high) : std::numeric_limits<N>::max());
    // Each block of 16 bytes has four of each vector.
    constexpr std::size_t lanes = hn::MaxLanes(D()), blocks = lanes / 4;
    HWY_ALIGN std::int32_t places[lanes];
    for (std::size_t i = 0; i < lanes; ++i) places[i] = static_cast<std::int32_t>(i % blocks * 4 + i / blocks);
    order_ = hn::SetTableIndices(DPlaces(), places);
  }

  /// Writes the bytes of x[0 … 4), and calls `redo(u)` behind that for each vector with a quotient that the product does not decide.
  template <class Redo>
  HWY_INLINE void run(const V* x, std::uint8_t* to, Redo redo) const {
    const DWords words;
    const D d;
    hn::Vec<DWords> whole[4], apart[4];
    for (int u = 0; u < 4; ++u) {
      const V product = hn::Mul(x[u], inverse_);
      whole[u] = hn::Vec<DWords>{MILLRACE_WHOLE_VECTOR(cvtps_epi32)(product.raw)};
      apart[u] = hn::BitCast(words, hn::Abs(hn::Sub(product, hn::ConvertTo(d, whole[u]))));
    }
    const auto front = pack(whole[0], whole[1]), back = pack(whole[2], whole[3]);
    hn::Vec<DBytes> bytes;
    if constexpr (std::is_same_v<N, std::uint8_t>)
      bytes = hn::Vec<DBytes>{MILLRACE_WHOLE_VECTOR(packus_epi16)(front.raw, back.raw)};
    else
      bytes = hn::Vec<DBytes>{MILLRACE_WHOLE_VECTOR(packs_epi16)(front.raw, back.raw)};
    if (bounded_) bytes = hn::Max(low_, hn::Min(high_, bytes));
    hn::StoreU(hn::BitCast(hn::ScalableTag<std::uint8_t>(), hn::TableLookupLanes(hn::BitCast(DPlaces(), bytes), order_)),
               hn::ScalableTag<std::uint8_t>(), to);
    // The bits of numbers from 0 on have their order, and NaN lies above them.
    const auto near = hn::BitCast(words, hn::Set(d, 0.5f - 0x1p-12f));
    const auto farthest = hn::Max(hn::Max(apart[0], apart[1]), hn::Max(apart[2], apart[3]));
    if (HWY_LIKELY(hn::AllTrue(words, hn::Lt(farthest, near)))) return;
    for (int u = 0; u < 4; ++u)
      if (!hn::AllTrue(words, hn::Lt(apart[u], near))) redo(u);
  }

 private:
  HWY_INLINE hn::Vec<DHalves> pack(hn::Vec<DWords> a, hn::Vec<DWords> b) const {
    return hn::SaturatedAdd(hn::Vec<DHalves>{MILLRACE_WHOLE_VECTOR(packs_epi32)(a.raw, b.raw)}, zero_);
  }

  V inverse_;
  hn::Vec<DHalves> zero_;
  hn::Vec<DBytes> low_, high_;
  decltype(hn::SetTableIndices(DPlaces(), static_cast<const std::int32_t*>(nullptr))) order_;
  bool bounded_;
};
#undef MILLRACE_WHOLE_VECTOR
#else
/// The bytes of ByteQuotient, of four vectors.
template <class N>
class FourQuotients {
  using D = hn::ScalableTag<float>;

 public:
  HWY_INLINE FourQuotients(float divisor, float zero, float low = -std::numeric_limits<float>::infinity(),
                           float high = std::numeric_limits<float>::infinity())
      : quotient_(divisor, zero, bound(low, divisor, least - zero, least - zero, most - zero),
                  bound(high, divisor, most - zero, least - zero, most - zero)) {}
  template <class Redo>
  HWY_INLINE void run(const hn::Vec<D>* x, std::uint8_t* to, Redo redo) const {
    for (int u = 0; u < 4; ++u)
      if (HWY_UNLIKELY(!quotient_.decide(x[u], to + u * static_cast<std::int64_t>(hn::Lanes(D()))))) redo(u);
  }

 private:
  static constexpr float least = std::numeric_limits<N>::min(), most = std::numeric_limits<N>::max();
  static float bound(float x, float divisor, float without, float lowest, float highest) {
    return std::isinf(x) ? without : std::min(highest, std::max(lowest, x / divisor));
  }
  ByteQuotient<N> quotient_;
};
#endif

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
