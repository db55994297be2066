// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/lstm_gate_kernels.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/lstm_gate_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/elementary-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The results of a vector of units: as many as a row of operands has outputs, of which some may be left as they are.
template <class D, std::size_t Outputs>
struct Results {
  hn::Vec<D> of[Outputs];
};

/// Results f(load) of all units of all rows, where load(operand) gives a vector of a row's operand. The last vector of a row overlaps the one before it. It
/// is computed first, because an output may be an operand, and stored last.
template <std::size_t First, class T, std::size_t Operands, class F>
HWY_INLINE void EachVector(const GateRows<T, Operands>& of, F f) {
  const hn::ScalableTag<T> d;
  const std::int64_t hidden = of.hidden, lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t row = 0; row < of.rows; ++row) {
    T* at[Operands];
    for (std::size_t k = 0; k < Operands; ++k) at[k] = of.at[k] + row * of.stride[k];
    const auto store = [&](const auto& results, auto put) HWY_ATTR {
      for (std::size_t k = First; k < Operands; ++k)
        if (of.at[k] != nullptr) put(results.of[k - First], at[k]);
    };
    if (hidden < lanes) {
      const auto count = static_cast<std::size_t>(hidden);
      store(f([&](std::size_t k) HWY_ATTR { return LoadSome(d, at[k], count); }),
            [&](auto value, T* to) HWY_ATTR { StoreSome(d, value, to, count); });
      continue;
    }
    const auto from = [&](std::int64_t unit) HWY_ATTR { return f([&](std::size_t k) HWY_ATTR { return hn::LoadU(d, at[k] + unit); }); };
    const auto put_at = [&](const auto& results, std::int64_t unit)
                            HWY_ATTR { store(results, [&](auto value, T* to) HWY_ATTR { hn::StoreU(value, d, to + unit); }); };
    const std::int64_t rest = hidden - lanes;
    const auto last = from(rest);
    for (std::int64_t unit = 0; unit < rest; unit += lanes) put_at(from(unit), unit);
    put_at(last, rest);
  }
}

/// The gates that a call has.
enum class Gates : std::uint8_t { cell, all, output };  // without o; with o; with what o is multiplied with, too

/// The forms of a call are parameters, so that no vector asks for them.
template <class T, int Terms, Gates Form>
HWY_INLINE void GatesOf(const LstmGates<T>& gates) {
  using namespace lstm_gates;
  const hn::ScalableTag<T> d;
  using D = std::remove_const_t<decltype(d)>;
  EachVector<outputs>(gates, [&](auto of) HWY_ATTR {
    const auto pre = [&](std::size_t k) HWY_ATTR {
      auto value = of(sum + k);
      if constexpr (Terms > 0) value = hn::Add(value, of(first + k));
      if constexpr (Terms > 1) value = hn::Add(value, of(second + k));
      return value;
    };
    Results<D, count - outputs> made;
    const auto i = Sigmoid(d, pre(0)), f = Sigmoid(d, pre(1)), g = Tanh(d, pre(2));
    const auto next = hn::Add(hn::Mul(f, of(c)), hn::Mul(i, g));
    made.of[activation + 0 - outputs] = i;
    made.of[activation + 1 - outputs] = f;
    made.of[activation + 2 - outputs] = g;
    made.of[c_out - outputs] = next;
    auto o = hn::Zero(d), a = hn::Zero(d);
    if constexpr (Form != Gates::cell) o = Sigmoid(d, pre(3));
    if constexpr (Form == Gates::output) a = Tanh(d, next);
    made.of[activation + 3 - outputs] = o;
    made.of[cell_activation - outputs] = a;
    made.of[h_out - outputs] = hn::Mul(o, a);
    return made;
  });
}

template <class T, int Terms>
void RunGatesOf(const LstmGates<T>& gates) {
  if (gates.at[lstm_gates::sum + 3] == nullptr) return GatesOf<T, Terms, Gates::cell>(gates);
  const bool output = gates.at[lstm_gates::cell_activation] != nullptr || gates.at[lstm_gates::h_out] != nullptr;
  output ? GatesOf<T, Terms, Gates::output>(gates) : GatesOf<T, Terms, Gates::all>(gates);
}

template <class T>
void RunGates(const LstmGates<T>& gates) {
  if (gates.at[lstm_gates::second] != nullptr) return RunGatesOf<T, 2>(gates);
  if (gates.at[lstm_gates::first] != nullptr) return RunGatesOf<T, 1>(gates);
  RunGatesOf<T, 0>(gates);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V SigmoidGradient(D d, V gradient, V y) {
  return hn::Mul(gradient, hn::Mul(y, hn::Sub(hn::Set(d, hn::TFromD<D>{1}), y)));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhGradient(D d, V gradient, V y) {
  return hn::Mul(gradient, hn::Sub(hn::Set(d, hn::TFromD<D>{1}), hn::Mul(y, y)));
}

template <class T, bool Output, bool Cell>
HWY_INLINE void GradientsOf(const LstmGateGradients<T>& gradients) {
  namespace gate = lstm_gate_gradients;
  const hn::ScalableTag<T> d;
  using D = std::remove_const_t<decltype(d)>;
  EachVector<gate::outputs>(gradients, [&](auto of) HWY_ATTR {
    Results<D, gate::count - gate::outputs> made;
    for (auto& absent : made.of) absent = hn::Zero(d);
    auto cell = hn::Zero(d);
    if constexpr (Output) {
      const auto dh = of(gate::dh), o = of(gate::o), a = of(gate::a);
      cell = TanhGradient(d, hn::Mul(dh, o), a);
      made.of[gate::d_o - gate::outputs] = SigmoidGradient(d, hn::Mul(dh, a), o);
      if constexpr (Cell)
        cell = hn::Add(of(gate::dc), cell);
      else
        made.of[gate::d_a - gate::outputs] = cell;
    } else {
      cell = of(gate::d);
    }
    if constexpr (Cell) {
      const auto i = of(gate::i), g = of(gate::g), f = of(gate::f);
      made.of[gate::d_i - gate::outputs] = SigmoidGradient(d, hn::Mul(cell, g), i);
      made.of[gate::d_g - gate::outputs] = TanhGradient(d, hn::Mul(cell, i), g);
      made.of[gate::d_f - gate::outputs] = SigmoidGradient(d, hn::Mul(cell, of(gate::c)), f);
      made.of[gate::dc_out - gate::outputs] = hn::Mul(cell, f);
    }
    return made;
  });
}

template <class T>
void RunGradients(const LstmGateGradients<T>& gradients) {
  const bool output = gradients.at[lstm_gate_gradients::dh] != nullptr, cell = gradients.at[lstm_gate_gradients::i] != nullptr;
  if (output && cell) return GradientsOf<T, true, true>(gradients);
  if (output) return GradientsOf<T, true, false>(gradients);
  GradientsOf<T, false, true>(gradients);
}

LstmGateFunctions<float> GateFunctionsF32() { return {&RunGates<float>, &RunGradients<float>}; }
LstmGateFunctions<double> GateFunctionsF64() { return {&RunGates<double>, &RunGradients<double>}; }

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(GateFunctionsF32);
HWY_EXPORT(GateFunctionsF64);

template <>
LstmGateFunctions<float> lstm_gate_functions<float>() {
  return HWY_DYNAMIC_DISPATCH(GateFunctionsF32)();
}
template <>
LstmGateFunctions<double> lstm_gate_functions<double>() {
  return HWY_DYNAMIC_DISPATCH(GateFunctionsF64)();
}

}  // namespace millrace::cpu
#endif
