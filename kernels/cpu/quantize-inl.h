// SPDX-License-Identifier: Apache-2.0
// Bytes of quotients. Included by sources that Highway builds for each instruction set.
#if defined(MILLRACE_KERNELS_CPU_QUANTIZE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_QUANTIZE_INL_H
#undef MILLRACE_KERNELS_CPU_QUANTIZE_INL_H
#else
#define MILLRACE_KERNELS_CPU_QUANTIZE_INL_H
#endif

#include <cmath>
#include <cstdint>
#include <limits>

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

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
