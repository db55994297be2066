// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/lstm_kernels.h>

#include <cstring>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/lstm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>
#include <millrace/kernels/cpu/tile-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {

/// `count` elements, the other lanes zero.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadSome(D d, const T* from, std::size_t count) {
  if (count == hn::Lanes(d)) return hn::LoadU(d, from);
  HWY_ALIGN T lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return hn::Load(d, lanes);
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void StoreSome(D d, hn::Vec<D> value, T* to, std::size_t count) {
  if (count == hn::Lanes(d)) return hn::StoreU(value, d, to);
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(value, d, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Apply(D d, const Activation& activation, double clip, V a) {
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

/// One block of units of one row, from the two sums of its gates.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void Pointwise(D d, const LstmCall<T>& call, const T* recurrent, const T* input, std::int64_t block, std::int64_t row) {
  using V = hn::Vec<D>;
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  const LstmDesc& desc = *call.desc;
  const std::int64_t unit = block * lanes;
  const auto count = static_cast<std::size_t>(std::min(lanes, desc.hidden - unit));
  V a[4];
  for (int gate = 0; gate < 4; ++gate) {
    a[gate] = hn::Load(d, recurrent + gate * lanes);
    if (call.bias != nullptr) a[gate] = hn::Add(a[gate], hn::LoadU(d, call.bias + (block * 4 + gate) * lanes));
    const V in =
        input != nullptr ? hn::Load(d, input + gate * lanes) : LoadSome(d, call.projection[row] + gate * desc.hidden + unit, count);
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

template <class T>
void RunLstm(const LstmCall<T>& call) {
  constexpr auto lanes = static_cast<std::int64_t>(MaxLanesOf<T>());
  constexpr std::int64_t width = panel_vectors * lanes;
  const hn::ScalableTag<T> d;
  const std::int64_t c = call.desc->input;
  const std::int64_t h = call.desc->hidden;
  HWY_ALIGN T recurrent[tile_room<T>];
  HWY_ALIGN T input[tile_room<T>];
  for (std::int64_t block = call.first_block; block < call.last_block;) {
    const int blocks = call.rows <= pair_rows && block + 2 <= call.last_block ? 2 : 1;
    const int vectors = blocks * panel_vectors;
    EachTile(call.rows, [&](std::int64_t first, int height) HWY_ATTR {
      const auto tile = TileFor<T>(height, vectors);
      tile(call.h + first, h, call.recurrent + block * width * h, width, width * h, recurrent);
      if (call.x != nullptr) tile(call.x + first, c, call.input + block * width * c, width, width * c, input);
      for (int row = 0; row < height; ++row)
        for (int next = 0; next < blocks; ++next) {
          const std::int64_t at = (row * blocks + next) * width;
          Pointwise(d, call, recurrent + at, call.x != nullptr ? input + at : nullptr, block + next, first + row);
        }
    });
    block += blocks;
  }
}

void RunLstmF32(const LstmCall<float>& call) { RunLstm(call); }
void RunLstmF64(const LstmCall<double>& call) { RunLstm(call); }

const LstmKernels* CellKernels() {
  static constexpr LstmKernels kernels{MaxLanesOf<float>(), MaxLanesOf<double>(), RunLstmF32, RunLstmF64};
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
