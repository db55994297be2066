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
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <hwy/highway.h>
#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/partial-inl.h>
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
  /// The first `count` ones.
  HWY_INLINE hn::Vec<D> some(std::size_t count) const { return along_ ? LoadSome(D(), from_, count) : set_; }

 private:
  const ArithmeticInput<float>* input_;
  const float* from_ = nullptr;
  hn::Vec<D> set_;
  bool along_;
};

/// Vectors of some rows that wait until they are four. Rows of less than a vector are one each.
template <class N>
class WaitingSums {
  using D = hn::ScalableTag<float>;

 public:
  HWY_INLINE WaitingSums(const FourQuotients<N>& four, std::size_t count) : four_(four), count_(count) {
    for (auto& x : x_) x = hn::Zero(D());
  }
  /// `x`: elements of row `row` from `at` on, whose bytes belong to `to`.
  template <class Redo>
  HWY_INLINE void add(hn::Vec<D> x, std::int64_t row, std::int64_t at, std::uint8_t* to, Redo redo) {
    x_[waiting_] = x;
    of_[waiting_++] = {row, at, to};
    if (waiting_ == 4) give(redo);
  }
  template <class Redo>
  HWY_INLINE void give(Redo redo) {
    const std::size_t lanes = hn::Lanes(D());
    HWY_ALIGN std::uint8_t bytes[4 * hn::MaxLanes(D())];
    bool odd[4] = {};
    four_.run(x_, bytes, [&](int u) HWY_ATTR { odd[u] = true; });
    for (int u = 0; u < waiting_; ++u)
      if (count_ == lanes)
        std::memcpy(of_[u].to, bytes + static_cast<std::size_t>(u) * lanes, hn::MaxLanes(D()));
      else
        std::memcpy(of_[u].to, bytes + static_cast<std::size_t>(u) * lanes, count_);
    for (int u = 0; u < waiting_; ++u)
      if (HWY_UNLIKELY(odd[u])) redo(of_[u].row, of_[u].at);
    waiting_ = 0;
  }

 private:
  struct Of {
    std::int64_t row, at;
    std::uint8_t* to;
  };
  const FourQuotients<N>& four_;
  std::size_t count_;
  hn::Vec<D> x_[4];
  Of of_[4];
  int waiting_ = 0;
};

/// Computes all rows. A bound of x is a bound of its product with the inverse of the divisor, as both are rounded alike. `redo(row, i)` computes the vector
/// at element i of a row, or the whole of a shorter row, whose quotients a product does not decide, or that holds no number.
template <class N, class Redo>
HWY_INLINE void RunScaledSums(const ArithmeticCall<float>& call, const ScaledSums& sums, float divisor, float zero, Redo redo) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> words;
  SumsOperand factor(sums.factor, 1), addend(sums.addend, 0);
  const bool has_addend = sums.addend != nullptr;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d)), together = std::min(lanes, call.count);
  const FourQuotients<N> four(divisor, zero, sums.low, sums.high);
  WaitingSums<N> ends(four, static_cast<std::size_t>(together));
  for (std::int64_t r = 0; r < call.rows; ++r) {
    const std::int32_t* const from = reinterpret_cast<const std::int32_t*>(call.inputs[0].first) + r * call.inputs[0].row;
    auto* const to = reinterpret_cast<std::uint8_t*>(call.out) + r * call.out_row;
    if (r == 0 || sums.factor != nullptr) factor.start(r);
    if (r == 0 || sums.addend != nullptr) addend.start(r);
    if (together < lanes) {
      const auto count = static_cast<std::size_t>(together);
      const auto x = hn::Mul(hn::ConvertTo(d, LoadSome(words, from, count)), factor.some(count));
      ends.add(has_addend ? hn::Add(x, addend.some(count)) : x, r, 0, to, redo);
      continue;
    }
    const auto scaled = [&](std::int64_t i) HWY_ATTR {
      const auto x = hn::Mul(hn::ConvertTo(d, hn::LoadU(words, from + i)), factor.at(i));
      return has_addend ? hn::Add(x, addend.at(i)) : x;
    };
    std::int64_t at = 0;
    for (; at + 4 * lanes <= call.count; at += 4 * lanes) {
      const hn::Vec<decltype(d)> x[4] = {scaled(at), scaled(at + lanes), scaled(at + 2 * lanes), scaled(at + 3 * lanes)};
      four.run(x, to + at, [&](int u) HWY_ATTR { redo(r, at + u * lanes); });
    }
    for (; at < call.count; at += lanes) {
      const std::int64_t i = std::min(at, call.count - lanes);
      ends.add(scaled(i), r, i, to + i, redo);
    }
  }
  ends.give(redo);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
