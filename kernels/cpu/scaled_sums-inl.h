// SPDX-License-Identifier: Apache-2.0
// Bytes of scaled sums. Included by sources that Highway builds for each instruction set.
#if defined(MILLRACE_KERNELS_CPU_SCALED_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_SCALED_SUMS_INL_H
#undef MILLRACE_KERNELS_CPU_SCALED_SUMS_INL_H
#else
#define MILLRACE_KERNELS_CPU_SCALED_SUMS_INL_H
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>
#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/quantize-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The steps behind sums of bytes in front of a ByteQuotient: a product, a sum and bounds, of i32.
struct ScaledSums {
  bool fits = false;
  const ArithmeticInput<float>* factor = nullptr;
  const ArithmeticInput<float>* addend = nullptr;
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();

  /// Reads the steps of `call`, which ends in front of the steps of the quotient; `divisor` is the quotient's.
  HWY_INLINE ScaledSums(const ArithmeticCall<float>& call, const ArithmeticInput<float>& divisor) {
    const auto is_one = [](const ArithmeticInput<float>& input) { return input.repeats && input.row == 0; };
    if (call.from != DType::i32 || call.in_place || call.inputs[0].repeats || !is_one(divisor)) return;
    const float inverse = 1.0f / *divisor.first;
    if (!(inverse >= std::numeric_limits<float>::min() && inverse <= std::numeric_limits<float>::max())) return;
    std::int64_t step = 0, operand = 1;
    if (step < call.step_count && call.steps[step] == ArithmeticStep::mul) ++step, factor = &call.inputs[operand++];
    if (step < call.step_count && call.steps[step] == ArithmeticStep::add) ++step, addend = &call.inputs[operand++];
    for (; step < call.step_count; ++step) {
      const bool relu = call.steps[step] == ArithmeticStep::relu, most = call.steps[step] == ArithmeticStep::minimum;
      if (!relu && !most && call.steps[step] != ArithmeticStep::maximum) return;
      if (!relu && !is_one(call.inputs[operand])) return;
      const float bound = relu ? 0.0f : *call.inputs[operand++].first;
      if (std::isnan(bound)) return;
      low = most ? std::min(low, bound) : std::max(low, bound);
      high = most ? std::min(high, bound) : std::max(high, bound);
    }
    fits = true;
  }
};

/// A factor or an addend at some elements of a row.
class SumsOperand {
  using D = hn::ScalableTag<float>;

 public:
  HWY_INLINE SumsOperand(const ArithmeticInput<float>* input, float otherwise)
      : input_(input), set_(hn::Set(D(), otherwise)), along_(input != nullptr && !input->repeats) {}
  HWY_INLINE void start(std::int64_t row) {
    if (input_ == nullptr) return;
    from_ = input_->first + row * input_->row;
    if (!along_) set_ = hn::Set(D(), *from_);
  }
  HWY_INLINE hn::Vec<D> at(std::int64_t i) const { return along_ ? hn::LoadU(D(), from_ + i) : set_; }

 private:
  const ArithmeticInput<float>* input_;
  const float* from_ = nullptr;
  hn::Vec<D> set_;
  bool along_;
};

/// Computes all rows, of a vector or more. A bound of x is a bound of its product with the inverse of the divisor, as both are rounded alike. `redo(row, i)` computes the vector
/// at element i of a row whose quotients a product does not decide, or that holds no number.
template <class N, class Redo>
HWY_INLINE void RunScaledSums(const ArithmeticCall<float>& call, const ScaledSums& sums, float divisor, float zero, Redo redo) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> words;
  const float inverse = 1.0f / divisor;
  const float least = std::numeric_limits<N>::min() - zero, most = std::numeric_limits<N>::max() - zero;
  const ByteQuotient<N> quotient(divisor, zero, std::clamp(sums.low * inverse, least, most), std::clamp(sums.high * inverse, least, most));
  SumsOperand factor(sums.factor, 1), addend(sums.addend, 0);
  const bool has_addend = sums.addend != nullptr;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t r = 0; r < call.rows; ++r) {
    const std::int32_t* const from = reinterpret_cast<const std::int32_t*>(call.inputs[0].first) + r * call.inputs[0].row;
    auto* const to = reinterpret_cast<std::uint8_t*>(call.out) + r * call.out_row;
    if (r == 0 || sums.factor != nullptr) factor.start(r);
    if (r == 0 || sums.addend != nullptr) addend.start(r);
    for (std::int64_t at = 0; at < call.count; at += lanes) {
      const std::int64_t i = std::min(at, call.count - lanes);
      auto x = hn::Mul(hn::ConvertTo(d, hn::LoadU(words, from + i)), factor.at(i));
      if (has_addend) x = hn::Add(x, addend.at(i));
      if (HWY_UNLIKELY(!quotient.decide(x, to + i))) redo(r, i);
    }
  }
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
