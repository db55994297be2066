// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/lstm_kernels.h>

#include <type_traits>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/lstm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>
#include <millrace/kernels/cpu/tile-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// The function is called, not inlined: it is large, and used five times.
template <class D, class V = hn::Vec<D>>
HWY_NOINLINE V Apply(D d, const Activation& activation, double clip, V a) {
  using T = hn::TFromD<D>;
  if (clip > 0) {
    const V bound = hn::Set(d, static_cast<T>(clip));
    a = KeepNaN(d, a, hn::Min(hn::Max(a, hn::Neg(bound)), bound));
  }
  if (activation.kind == Unary::sigmoid) return Sigmoid(d, a);
  if (activation.kind == Unary::tanh) return Tanh(d, a);
  return Activate(d, activation.kind, hn::Set(d, static_cast<T>(activation.params.alpha)),
                  hn::Set(d, static_cast<T>(activation.params.beta)), a);
}

/// One block of units of one row, from the two sums of its gates: of the block, `step` apart, or, null, in the rows of `call`.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void Pointwise(D d, const LstmCall<T>& call, const T* recurrent, const T* input, std::int64_t step, std::int64_t block,
                            std::int64_t row) {
  using V = hn::Vec<D>;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  const LstmDesc& desc = *call.desc;
  const std::int64_t unit = block * lanes;
  const auto count = static_cast<std::size_t>(std::min(lanes, desc.hidden - unit));
  V a[4];
  for (int gate = 0; gate < 4; ++gate) {
    a[gate] = LoadSome(d, recurrent != nullptr ? recurrent + gate * step : call.sums[row] + gate * desc.hidden + unit, count);
    if (call.bias != nullptr) a[gate] = hn::Add(a[gate], hn::LoadU(d, call.bias + (block * 4 + gate) * lanes));
    const V in = LoadSome(d, input != nullptr ? input + gate * step : call.projection[row] + gate * desc.hidden + unit, count);
    a[gate] = hn::Add(a[gate], in);
  }
  const V c = LoadSome(d, call.c[row] + unit, count);
  const T* peepholes = call.peepholes == nullptr ? nullptr : call.peepholes + block * 3 * lanes;
  if (peepholes != nullptr) {
    a[0] = hn::Add(a[0], hn::Mul(hn::LoadU(d, peepholes), c));
    a[1] = hn::Add(a[1], hn::Mul(hn::LoadU(d, peepholes + lanes), c));
  }
  const V i = Apply(d, desc.gate, desc.clip, a[0]);
  const V f = desc.couple_input_forget ? hn::Sub(hn::Set(d, T{1}), i) : Apply(d, desc.gate, desc.clip, a[1]);
  const V g = Apply(d, desc.candidate, desc.clip, a[2]);
  const V next = hn::Add(hn::Mul(f, c), hn::Mul(i, g));
  if (peepholes != nullptr) a[3] = hn::Add(a[3], hn::Mul(hn::LoadU(d, peepholes + 2 * lanes), next));
  const V o = Apply(d, desc.gate, desc.clip, a[3]);
  StoreSome(d, next, call.c_out[row] + unit, count);
  StoreSome(d, hn::Mul(o, Apply(d, desc.output, 0, next)), call.h_out[row] + unit, count);
}

/// The gates and activations that most cells have, in f32: nothing to choose, so that the rows of a tile follow each other closely.
template <class T>
bool IsUsual(const LstmDesc& desc) {
  return sizeof(T) == 4 && desc.gate.kind == Unary::sigmoid && desc.candidate.kind == Unary::tanh && desc.output.kind == Unary::tanh &&
         desc.clip == 0 && !desc.couple_input_forget && !desc.peepholes;
}

/// Pointwise of such a cell for `height` rows, whose totals lie `stride` apart and those of a gate `step`; or, null, in the rows of `call`. `Whole`: the block
/// has all its units.
template <bool Whole, class D, class T = hn::TFromD<D>>
HWY_NOINLINE void UsualRows(D d, const LstmCall<T>& call, const T* recurrent, const T* input, std::int64_t stride, std::int64_t step,
                            std::int64_t block, std::int64_t first, int height) {
  using V = hn::Vec<D>;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  const std::int64_t unit = block * lanes;
  const auto count = static_cast<std::size_t>(Whole ? lanes : call.desc->hidden - unit);
  const std::int64_t next_gate = input != nullptr ? step : call.desc->hidden;
  const bool biased = call.bias != nullptr;
  V bias[4];
  for (int gate = 0; gate < 4; ++gate) bias[gate] = biased ? hn::LoadU(d, call.bias + (block * 4 + gate) * lanes) : hn::Zero(d);
  V shown[tile_rows], kept[tile_rows];
  const std::int64_t next_sum = recurrent == nullptr ? call.desc->hidden : Whole ? lanes : step;
  for (int row = 0; row < height; ++row) {
    const T* of_h = recurrent != nullptr ? recurrent + row * stride : call.sums[first + row] + unit;
    const T* in = input != nullptr ? input + row * stride : call.projection[first + row] + unit;
    const auto sum = [&](int gate) HWY_ATTR {
      V a = Whole ? hn::LoadU(d, of_h + gate * next_sum) : LoadSome(d, of_h + gate * next_sum, count);
      if (biased) a = hn::Add(a, bias[gate]);
      return hn::Add(a, Whole ? hn::LoadU(d, in + gate * next_gate) : LoadSome(d, in + gate * next_gate, count));
    };
    const T* c = call.c[first + row] + unit;
    const V old = hn::Mul(Sigmoid(d, sum(1)), Whole ? hn::LoadU(d, c) : LoadSome(d, c, count));
    kept[row] = hn::Add(old, hn::Mul(Sigmoid(d, sum(0)), Tanh(d, sum(2))));
    shown[row] = Sigmoid(d, sum(3));
  }
  // Apart from the gates: one row's chain from them to h is longer than what a processor looks ahead.
  for (int row = 0; row < height; ++row) {
    StoreSome(d, kept[row], call.c_out[first + row] + unit, count);
    StoreSome(d, hn::Mul(shown[row], Tanh(d, kept[row])), call.h_out[first + row] + unit, count);
  }
}

template <class T, class W>
void RunLstm(const LstmCall<T>& call) {
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  constexpr std::int64_t width = 4 * lanes;  // of a block: its gates
  constexpr std::int64_t together = std::is_same_v<T, W> ? 1 : 2;
  const hn::ScalableTag<T> d;
  const std::int64_t c = call.desc->input;
  const std::int64_t h = call.desc->hidden;
  const bool usual = IsUsual<T>(*call.desc);
  const std::int64_t c_stride = width * ((c + together - 1) / together * together);
  const std::int64_t h_stride = width * ((h + together - 1) / together * together);
  const std::int64_t bytes = 4 * h * (h + (call.x != nullptr ? c : 0)) * static_cast<std::int64_t>(sizeof(T));
  const bool pairs = (together > 1 && call.rows <= widest_rows) || VectorsOf(call.rows, bytes) == 8;
  const int at_once = pairs || VectorsOf(call.rows, bytes) != panel_of ? 8 : panel_of;  // vectors of a tile, at most
  constexpr std::int64_t panels = 4 / panel_of;                                         // of a block
  const W* w = static_cast<const W*>(call.input);
  const W* r = static_cast<const W*>(call.recurrent);
  const auto gate_step = [&](std::int64_t block) { return lstm_gate_step(lanes, std::min(lanes, h - block * lanes)); };
  const NextPanel<W> next_r(panels == 1 && !pairs ? call.rows : 0, h, width);
  const NextPanel<W> next_w(panels == 1 && !pairs ? call.rows : 0, c, width);
  const auto run = [&](std::int64_t block, int blocks) HWY_ATTR {
    const std::int64_t after = call.backwards ? block - 1 : block + 1;
    const bool follows = after >= call.first_block && after < call.last_block;
    const std::int64_t step = gate_step(block + blocks - 1);
    const int vectors = step == lanes ? blocks * 4 : static_cast<int>((4 * step + lanes - 1) / lanes);
    const TileRoom<T> recurrent(vectors), input(vectors);
    EachTile(call.rows, TallestOf(call.rows), [&](std::int64_t first, int height) HWY_ATTR {
      const auto multiply = [&](const T* const* a, std::int64_t k, const W* b, std::int64_t panel_stride, T* const* to,
                                const NextPanel<W>& next_panel) HWY_ATTR {
        const Fetched fetched = next_panel.part(follows ? b + (after - block) * panel_stride : nullptr, b, first, height);
        for (int v = 0; v < vectors; v += at_once, b += panel_stride)
          TileFor<T, W>(height, std::min(at_once, vectors - v))(a, k, b, panel_of * lanes * together, panel_stride, to, v * lanes,
                                                                fetched.from, fetched.step);
      };
      multiply(call.h + first, h, r + block * h_stride, h_stride / panels, recurrent.rows, next_r);
      if (call.x != nullptr) multiply(call.x + first, c, w + block * c_stride, c_stride / panels, input.rows, next_w);
      for (int next = 0; next < blocks; ++next) {
        const T* from_h = recurrent.total + next * width;
        const T* from_x = call.x != nullptr ? input.total + next * width : nullptr;
        if constexpr (sizeof(T) == 4) {
          if (usual) {
            const auto rows = (block + next + 1) * lanes <= h ? UsualRows<true, decltype(d), T> : UsualRows<false, decltype(d), T>;
            rows(d, call, from_h, from_x, vectors * lanes, step, block + next, first, height);
            continue;
          }
        }
        for (int row = 0; row < height; ++row) {
          const std::int64_t at = row * vectors * lanes;
          Pointwise(d, call, from_h + at, from_x != nullptr ? from_x + at : nullptr, step, block + next, first + row);
        }
      }
    });
  };
  const std::int64_t stride = pairs ? 2 : 1, strides = (call.last_block - call.first_block + stride - 1) / stride;
  for (std::int64_t made = 0; made < strides; ++made) {
    const std::int64_t block = call.first_block + (call.backwards ? strides - 1 - made : made) * stride;
    if (pairs && block + 2 <= call.last_block && gate_step(block + 1) == lanes) {
      run(block, 2);
      continue;
    }
    for (std::int64_t next = block; next < std::min(block + stride, call.last_block); ++next) run(next, 1);
  }
}

/// Both products are known.
template <class T>
void RunGates(const LstmCall<T>& call) {
  const hn::ScalableTag<T> d;
  if constexpr (sizeof(T) == 4) {
    if (IsUsual<T>(*call.desc)) {
      constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
      const T* const none = nullptr;
      for (std::int64_t block = call.first_block; block < call.last_block; ++block) {
        const auto rows = (block + 1) * lanes <= call.desc->hidden ? UsualRows<true, decltype(d), T> : UsualRows<false, decltype(d), T>;
        EachTile(call.rows, tile_rows, [&](std::int64_t first, int height) { rows(d, call, none, none, 0, 0, block, first, height); });
      }
      return;
    }
  }
  for (std::int64_t row = 0; row < call.rows; ++row)
    for (std::int64_t block = call.first_block; block < call.last_block; ++block)
      Pointwise(d, call, static_cast<const T*>(nullptr), static_cast<const T*>(nullptr), 0, block, row);
}

void RunLstmF32(const LstmCall<float>& call) {
  if (call.sums != nullptr) return RunGates(call);
  call.pairs ? RunLstm<float, std::uint16_t>(call) : RunLstm<float, float>(call);
}
void RunLstmF64(const LstmCall<double>& call) { call.sums != nullptr ? RunGates(call) : RunLstm<double, double>(call); }

const LstmKernels* CellKernels() {
  static constexpr LstmKernels kernels{MaxLanesOf<float>(), MaxLanesOf<double>(), panel_of, RunLstmF32, RunLstmF64};
  return &kernels;
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(CellKernels);

const LstmKernels& lstm_kernels() { return *HWY_DYNAMIC_DISPATCH(CellKernels)(); }

}  // namespace millrace::cpu
#endif
