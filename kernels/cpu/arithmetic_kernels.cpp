// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/arithmetic_kernels.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/arithmetic_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>
#include <millrace/kernels/cpu/binary-inl.h>
#include <millrace/kernels/cpu/elementary-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>
#include <millrace/kernels/cpu/quantize-inl.h>
#include <millrace/kernels/cpu/scaled_sums-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A function of many instructions on some vectors, one after another: its code is there once.
template <class T>
HWY_NOINLINE void TakeFunction(ArithmeticStep step, T* values, std::size_t vectors) {
  const hn::ScalableTag<T> d;
  const auto each = [&](auto f) HWY_ATTR {
    for (std::size_t i = 0; i < vectors * hn::Lanes(d); i += hn::Lanes(d)) hn::Store(f(hn::Load(d, values + i)), d, values + i);
  };
  switch (step) {
    case ArithmeticStep::exp: return each([d](auto x) HWY_ATTR { return Exp(d, x); });
    case ArithmeticStep::tanh: return each([d](auto x) HWY_ATTR { return Tanh(d, x); });
    case ArithmeticStep::sigmoid: return each([d](auto x) HWY_ATTR { return Sigmoid(d, x); });
    case ArithmeticStep::gelu: return each([d](auto x) HWY_ATTR { return Gelu(d, x); });
    case ArithmeticStep::gelu_tanh: return each([d](auto x) HWY_ATTR { return GeluTanh(d, x); });
    case ArithmeticStep::mish: return each([d](auto x) HWY_ATTR { return Mish(d, x); });
    case ArithmeticStep::softplus: return each([d](auto x) HWY_ATTR { return Softplus(d, x); });
    default: return each([d](auto x) HWY_ATTR { return Erf(d, x); });
  }
}

/// `elu`, the one function of many instructions that has an operand.
template <class T>
HWY_NOINLINE void TakeElu(const T* operands, T* values, std::size_t vectors) {
  const hn::ScalableTag<T> d;
  for (std::size_t i = 0; i < vectors * hn::Lanes(d); i += hn::Lanes(d))
    hn::Store(Elu(d, hn::Load(d, values + i), hn::Load(d, operands + i), hn::Set(d, T{1})), d, values + i);
}

/// v[u] = f(v[u], a[u]) for `Vectors` vectors: the choice of f is made once for all.
template <int Vectors, class D, class V = hn::Vec<D>>
HWY_INLINE void TakeStep(D d, ArithmeticStep step, const V* a, V* v) {
  const auto each = [&](auto f) HWY_ATTR {
    for (int u = 0; u < Vectors; ++u) v[u] = f(v[u], a[u]);
  };
  const auto alone = [&](auto f) HWY_ATTR {
    for (int u = 0; u < Vectors; ++u) v[u] = f(v[u]);
  };
  switch (step) {
    case ArithmeticStep::add: return each([](V x, V y) HWY_ATTR { return hn::Add(x, y); });
    case ArithmeticStep::sub: return each([](V x, V y) HWY_ATTR { return hn::Sub(x, y); });
    case ArithmeticStep::from: return each([](V x, V y) HWY_ATTR { return hn::Sub(y, x); });
    case ArithmeticStep::mul: return each([](V x, V y) HWY_ATTR { return hn::Mul(x, y); });
    case ArithmeticStep::div: return each([](V x, V y) HWY_ATTR { return hn::Div(x, y); });
    case ArithmeticStep::into: return each([](V x, V y) HWY_ATTR { return hn::Div(y, x); });
    case ArithmeticStep::minimum: return each([](V x, V y) HWY_ATTR { return Minimum(x, y); });
    case ArithmeticStep::before_minimum: return each([](V x, V y) HWY_ATTR { return Minimum(y, x); });
    case ArithmeticStep::maximum: return each([](V x, V y) HWY_ATTR { return Maximum(x, y); });
    case ArithmeticStep::before_maximum: return each([](V x, V y) HWY_ATTR { return Maximum(y, x); });
    case ArithmeticStep::prelu: return each([d](V x, V y) HWY_ATTR { return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(y, x), x); });
    case ArithmeticStep::elu: {
      HWY_ALIGN hn::TFromD<D> operands[static_cast<std::size_t>(Vectors) * hn::MaxLanes(d)];
      HWY_ALIGN hn::TFromD<D> room[static_cast<std::size_t>(Vectors) * hn::MaxLanes(d)];
      for (int u = 0; u < Vectors; ++u) {
        hn::Store(a[u], d, operands + static_cast<std::size_t>(u) * hn::Lanes(d));
        hn::Store(v[u], d, room + static_cast<std::size_t>(u) * hn::Lanes(d));
      }
      TakeElu(operands, room, Vectors);
      for (int u = 0; u < Vectors; ++u) v[u] = hn::Load(d, room + static_cast<std::size_t>(u) * hn::Lanes(d));
      return;
    }
    case ArithmeticStep::square: return alone([](V x) HWY_ATTR { return hn::Mul(x, x); });
    case ArithmeticStep::relu: return alone([d](V x) HWY_ATTR { return KeepNaN(d, x, hn::Max(x, hn::Zero(d))); });
    case ArithmeticStep::sqrt: return alone([](V x) HWY_ATTR { return hn::Sqrt(x); });
    case ArithmeticStep::neg: return alone([](V x) HWY_ATTR { return hn::Neg(x); });
    case ArithmeticStep::abs: return alone([](V x) HWY_ATTR { return hn::Abs(x); });
    case ArithmeticStep::round: return alone([](V x) HWY_ATTR { return hn::CopySign(hn::Round(x), x); });
    case ArithmeticStep::reciprocal: return alone([d](V x) HWY_ATTR { return hn::Div(hn::Set(d, hn::TFromD<D>{1}), x); });
    case ArithmeticStep::hard_swish: return alone([d](V x) HWY_ATTR { return HardSwish(d, x); });
    case ArithmeticStep::exp:
    case ArithmeticStep::tanh:
    case ArithmeticStep::sigmoid:
    case ArithmeticStep::erf:
    case ArithmeticStep::gelu:
    case ArithmeticStep::gelu_tanh:
    case ArithmeticStep::mish:
    case ArithmeticStep::softplus: {
      HWY_ALIGN hn::TFromD<D> room[static_cast<std::size_t>(Vectors) * hn::MaxLanes(d)];
      for (int u = 0; u < Vectors; ++u) hn::Store(v[u], d, room + static_cast<std::size_t>(u) * hn::Lanes(d));
      TakeFunction(step, room, Vectors);
      for (int u = 0; u < Vectors; ++u) v[u] = hn::Load(d, room + static_cast<std::size_t>(u) * hn::Lanes(d));
      return;
    }
  }
}

/// `Vectors` vectors of whole numbers as floats.
template <int Vectors, class N, class D>
HWY_INLINE void LoadWhole(D d, const void* from, const std::int64_t* places, hn::Vec<D>* to) {
  const hn::RebindToSigned<D> words;
  for (int u = 0; u < Vectors; ++u) {
    const N* const at = static_cast<const N*>(from) + places[u];
    if constexpr (sizeof(N) == sizeof(float))
      to[u] = hn::ConvertTo(d, hn::LoadU(words, at));
    else
      to[u] = hn::ConvertTo(d, hn::PromoteTo(words, hn::LoadU(hn::Rebind<N, D>(), at)));
  }
}
template <int Vectors, class D>
HWY_INLINE void LoadAs(D d, DType dtype, const void* from, const std::int64_t* places, hn::Vec<D>* to) {
  if (dtype == DType::u8) return LoadWhole<Vectors, std::uint8_t>(d, from, places, to);
  if (dtype == DType::i8) return LoadWhole<Vectors, std::int8_t>(d, from, places, to);
  LoadWhole<Vectors, std::int32_t>(d, from, places, to);
}

/// Toward zero, within the range of N; NaN is 0.
template <int Vectors, class N, class D>
HWY_INLINE void StoreBytes(D d, const hn::Vec<D>* v, const std::int64_t* places, void* out) {
  const hn::Rebind<N, D> bytes;
  const auto least = hn::Set(d, static_cast<float>(std::numeric_limits<N>::min())),
             most = hn::Set(d, static_cast<float>(std::numeric_limits<N>::max()));
  for (int u = 0; u < Vectors; ++u) {
    const auto held = hn::IfThenElseZero(hn::Eq(v[u], v[u]), hn::Min(hn::Max(v[u], least), most));
    hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(hn::RebindToSigned<D>(), held)), bytes, static_cast<N*>(out) + places[u]);
  }
}
template <int Vectors, class D>
HWY_INLINE void StoreAs(D d, DType dtype, const hn::Vec<D>* v, const std::int64_t* places, void* out) {
  dtype == DType::u8 ? StoreBytes<Vectors, std::uint8_t>(d, v, places, out) : StoreBytes<Vectors, std::int8_t>(d, v, places, out);
}

/// The steps of a call that make bytes of floats, behind `count` others.
struct ByteSteps {
  std::int64_t count = 0;
  std::int64_t inputs = 0;   ///< of those others, and the divisor
  bool quotient = false;     ///< `div`, `round`, `add`: kernels/cpu/quantize-inl.h
  std::int64_t divisor = 0;  ///< the input
  float zero = 0;
};

/// Numbers that are the same for all elements.
HWY_INLINE bool IsOneNumber(const ArithmeticInput<float>& input) { return input.repeats && input.row == 0; }

/// Whether this step keeps elements within the range of a byte or a wider one, as a store does.
HWY_INLINE bool IsBound(ArithmeticStep step, const ArithmeticInput<float>& bound, DType to) {
  if (!IsOneNumber(bound)) return false;
  const float least = to == DType::u8 ? 0 : -128;
  if (step == ArithmeticStep::minimum || step == ArithmeticStep::before_minimum) return *bound.first >= least + 255;
  return (step == ArithmeticStep::maximum || step == ArithmeticStep::before_maximum) && *bound.first <= least;
}

HWY_INLINE ByteSteps StepsOfBytes(const ArithmeticCall<float>& call) {
  std::int64_t end = call.step_count, operand = call.input_count - 1;
  for (; end > 0 && has_operand(call.steps[end - 1]) && IsBound(call.steps[end - 1], call.inputs[operand], call.to); --operand) --end;
  ByteSteps made{end, operand + 1};
  if (end > 0 && call.steps[end - 1] == ArithmeticStep::add && IsOneNumber(call.inputs[operand]) &&
      ByteQuotient<std::uint8_t>::takes(*call.inputs[operand].first)) {
    made.zero = *call.inputs[operand].first;
    --end;
    --operand;
  }
  made.quotient =
      end > 1 && call.steps[end - 1] == ArithmeticStep::round && call.steps[end - 2] == ArithmeticStep::div && call.inputs[operand].repeats;
  if (!made.quotient) return made;
  made.count = end - 2;
  made.inputs = operand + 1;
  made.divisor = operand;
  return made;
}

template <class Quotient>
struct FourOf {
  using type = bool;
};
template <class N>
struct FourOf<ByteQuotient<N>> {
  using type = FourQuotients<N>;
};

/// One row. `sets` has a vector of the one element of each input that repeats. `Quotient`: a ByteQuotient, which stands for the last steps, or void.
template <class T, class Quotient>
struct Row {
  static constexpr bool has_quotient = !std::is_void_v<Quotient>;
  const hn::ScalableTag<T> d;
  using V = hn::Vec<hn::ScalableTag<T>>;
  static constexpr std::size_t most_lanes = hn::MaxLanes(hn::ScalableTag<T>());
  const ArithmeticCall<T>& call;
  const T* from[most_operands + 1];
  V sets[most_operands + 1];

  HWY_INLINE explicit Row(const ArithmeticCall<T>& whole, const ByteSteps& ends = {}) : call(whole), steps(ends) {}
  HWY_INLINE void start(std::int64_t row) {
    for (std::int64_t k = is_whole() ? 1 : 0; k < call.input_count; ++k) {
      if (row > 0 && call.inputs[k].row == 0) continue;
      from[k] = call.inputs[k].first + row * call.inputs[k].row;
      if (call.inputs[k].repeats) sets[k] = hn::Set(d, *from[k]);
    }
    if constexpr (has_quotient)
      if (row == 0 || call.inputs[steps.divisor].row != 0) {
        quotient = Quotient(*from[steps.divisor], steps.zero);
        four = Four(*from[steps.divisor], steps.zero);
      }
    if constexpr (std::is_same_v<T, float>) {
      if (!is_whole()) return;
      x = reinterpret_cast<const std::uint8_t*>(call.inputs[0].first) +
          row * call.inputs[0].row * static_cast<std::int64_t>(size_of(call.from));
      if (call.inputs[0].repeats) {
        std::uint8_t lanes[most_lanes * sizeof(float)] = {};
        std::memcpy(lanes, x, size_of(call.from));
        const std::int64_t first = 0;
        LoadAs<1>(d, call.from, lanes, &first, sets);
        sets[0] = hn::Set(d, hn::GetLane(sets[0]));
      }
    }
  }
  template <int Vectors, class Load>
  HWY_INLINE void run(V* v, Load load) const {
    load(0, v);
    V a[Vectors];
    for (int u = 0; u < Vectors; ++u) a[u] = hn::Zero(d);
    int next = 0;
    for (std::int64_t s = 0; s < call.step_count; ++s) {
      if (has_operand(call.steps[s])) load(++next, a);
      TakeStep<Vectors>(d, call.steps[s], a, v);
    }
  }
  /// `Vectors` whole vectors from element `i` on. Unless all of them are `Inside` the row, the last begins at element `last` at most, and overlaps the one
  /// before it.
  template <int Vectors, bool Inside>
  HWY_INLINE void whole(std::int64_t i, std::int64_t last, void* out) const {
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    std::int64_t places[Vectors];
    for (int u = 0; u < Vectors; ++u) places[u] = Inside ? i + u * lanes : std::min(i + u * lanes, last);
    V v[Vectors];
    run<Vectors>(v, [&](int k, V* to) HWY_ATTR {
      if (call.inputs[k].repeats) {
        for (int u = 0; u < Vectors; ++u) to[u] = sets[k];
        return;
      }
      if constexpr (std::is_same_v<T, float>)
        if (k == 0 && is_whole()) return LoadAs<Vectors>(d, call.from, x, places, to);
      for (int u = 0; u < Vectors; ++u) to[u] = hn::LoadU(d, from[k] + places[u]);
    });
    if constexpr (std::is_same_v<T, float>)
      if (call.to != DType::f32) return store<Vectors, Inside>(v, places, out);
    for (int u = 0; u < Vectors; ++u) hn::StoreU(v[u], d, static_cast<T*>(out) + places[u]);
  }
  /// `count` elements from element `begin` on, less than a vector.
  HWY_INLINE void some(std::int64_t begin, std::size_t count, void* out) const {
    constexpr std::int64_t first = 0;
    V v[1];
    run<1>(v, [&](int k, V* to) HWY_ATTR {
      if (call.inputs[k].repeats) {
        *to = sets[k];
        return;
      }
      if constexpr (std::is_same_v<T, float>)
        if (k == 0 && is_whole()) {
          std::uint8_t bytes[most_lanes * sizeof(float)] = {};
          std::memcpy(bytes, x + static_cast<std::size_t>(begin) * size_of(call.from), count * size_of(call.from));
          return LoadAs<1>(d, call.from, bytes, &first, to);
        }
      *to = LoadSome(d, from[k] + begin, count);
    });
    if constexpr (std::is_same_v<T, float>)
      if (call.to != DType::f32) {
        std::uint8_t bytes[most_lanes];
        store<1, true>(v, &first, bytes);
        std::memcpy(out, bytes, count);
        return;
      }
    StoreSome(d, v[0], static_cast<T*>(out), count);
  }

 private:
  template <int Vectors, bool Inside>
  HWY_INLINE void store(const V* v, const std::int64_t* places, void* out) const {
    if constexpr (has_quotient) {
      const typename Quotient::Bytes bytes;
      if constexpr (Inside && Vectors % 4 == 0) {
        for (int u = 0; u < Vectors; u += 4)
          four.run(v + u, static_cast<std::uint8_t*>(out) + places[u],
                   [&](int i) HWY_ATTR { hn::StoreU(quotient(v[u + i]), bytes, static_cast<std::uint8_t*>(out) + places[u + i]); });
        return;
      }
      for (int u = 0; u < Vectors; ++u) hn::StoreU(quotient(v[u]), bytes, static_cast<std::uint8_t*>(out) + places[u]);
    } else {
      StoreAs<Vectors>(d, call.to, v, places, out);
    }
  }
  HWY_INLINE bool is_whole() const { return call.from != dtype_of<T>; }
  const std::uint8_t* x = nullptr;  ///< whole numbers
  ByteSteps steps;                  ///< those that Quotient stands for
  std::conditional_t<has_quotient, Quotient, bool> quotient = none<Quotient>();
  using Four = typename FourOf<Quotient>::type;
  Four four = none<Four>();
  template <class Of>
  static HWY_INLINE auto none() {
    if constexpr (has_quotient)
      return Of(1, 0);
    else
      return false;
  }
};

template <class Quotient, class T>
HWY_INLINE void RunRows(const ArithmeticCall<T>& call, const ByteSteps& steps = {}) {
  constexpr int many = 8, some = 4;
  Row<T, Quotient> row(call, steps);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(row.d));
  // In its own place an element is read once: no vector overlaps another.
  const std::int64_t apart = call.in_place ? call.count % lanes : call.count < lanes ? call.count : 0;
  const std::int64_t whole = call.count - apart;
  for (std::int64_t r = 0; r < call.rows; ++r) {
    auto* const out = reinterpret_cast<std::uint8_t*>(call.out) + r * call.out_row * static_cast<std::int64_t>(size_of(call.to));
    row.start(r);
    if (apart > 0) row.some(whole, static_cast<std::size_t>(apart), out + whole * static_cast<std::int64_t>(size_of(call.to)));
    if (whole == 0) continue;
    const std::int64_t last = whole - lanes;
    std::int64_t i = 0;
    for (; i + many * lanes <= whole; i += many * lanes) row.template whole<many, true>(i, last, out);
    for (; i + some * lanes <= whole; i += some * lanes) row.template whole<some, true>(i, last, out);
    if (i >= whole) continue;
    if (i + 3 * lanes < whole)
      row.template whole<4, false>(i, last, out);
    else if (i + 2 * lanes < whole)
      row.template whole<3, false>(i, last, out);
    else if (i + lanes < whole)
      row.template whole<2, false>(i, last, out);
    else
      row.template whole<1, false>(i, last, out);
  }
}

template <class N>
HWY_NOINLINE void RedoQuotients(const ArithmeticCall<float>& call, const ByteSteps& steps, std::int64_t r, std::int64_t i) {
  Row<float, ByteQuotient<N>> row(call, steps);
  row.start(0);
  if (r > 0) row.start(r);
  auto* const out = reinterpret_cast<std::uint8_t*>(call.out) + r * call.out_row;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(row.d));
  call.count < lanes ? row.some(0, static_cast<std::size_t>(call.count), out) : row.template whole<1, true>(i, i, out);
}

template <class N>
HWY_NOINLINE void RunQuotients(const ArithmeticCall<float>& call, const ByteSteps& steps) {
  const ArithmeticInput<float>& divisor = call.inputs[steps.divisor];
  const ScaledSums sums(call, divisor);
  if (!sums.fits) return RunRows<ByteQuotient<N>>(call, steps);
  RunScaledSums<N>(call, sums, *divisor.first, steps.zero,
                   [&](std::int64_t r, std::int64_t i) HWY_ATTR { RedoQuotients<N>(call, steps, r, i); });
}

void RunRowsF32(const ArithmeticCall<float>& call) {
  if (call.to == DType::f32) return RunRows<void>(call);
  const ByteSteps steps = StepsOfBytes(call);
  ArithmeticCall<float> others = call;
  others.step_count = steps.count;
  others.input_count = steps.inputs;
  if (!steps.quotient) return RunRows<void>(others);
  call.to == DType::u8 ? RunQuotients<std::uint8_t>(others, steps) : RunQuotients<std::int8_t>(others, steps);
}
void RunRowsF64(const ArithmeticCall<double>& call) { RunRows<void>(call); }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(RunRowsF32);
HWY_EXPORT(RunRowsF64);

void arithmetic_rows(const ArithmeticCall<float>& call) { HWY_DYNAMIC_DISPATCH(RunRowsF32)(call); }
void arithmetic_rows(const ArithmeticCall<double>& call) { HWY_DYNAMIC_DISPATCH(RunRowsF64)(call); }

}  // namespace millrace::cpu
#endif
