// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/winograd_kernels.h>

#include <algorithm>

#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/winograd_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <millrace/kernels/cpu/activation-inl.h>
#include <millrace/kernels/cpu/conv_ending-inl.h>
#include <millrace/kernels/cpu/partial-inl.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The transforms are those of the points 0, ±1, ±2 and ∞. Products and sums are rounded one by one, with the same bits for each instruction set.

std::uint32_t Take(const WinogradTake& call) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V two = hn::Set(d, 2.0f), four = hn::Set(d, 4.0f), five = hn::Set(d, 5.0f);
  auto most = hn::Zero(bits);
  for (std::int64_t group = 0; group < call.groups; ++group) {
    const float* rows[winograd_sums];
    for (int j = 0; j < winograd_sums; ++j) {
      const std::int64_t row = call.first_row + group * winograd_rows + j;
      rows[j] = row < 0 || row >= call.rows ? call.zeros : call.x + row * call.row_stride;
    }
    float* const to = call.to + group * call.group_stride;
    for (std::int64_t i = 0; i < call.count; i += lanes) {
      const auto some = static_cast<std::size_t>(std::min(lanes, call.count - i));
      V x[winograd_sums];
      for (int j = 0; j < winograd_sums; ++j) {
        x[j] = LoadSome(d, rows[j] + i, some);
        most = hn::Max(most, hn::BitCast(bits, hn::Abs(x[j])));
      }
      const V a = hn::Sub(x[4], hn::Mul(four, x[2])), b = hn::Sub(x[3], hn::Mul(four, x[1]));
      const V c = hn::Sub(x[4], x[2]), e = hn::Mul(two, hn::Sub(x[3], x[1]));
      const V made[winograd_sums] = {
          hn::Add(hn::Sub(hn::Mul(four, x[0]), hn::Mul(five, x[2])), x[4]), hn::Add(a, b), hn::Sub(a, b), hn::Add(c, e), hn::Sub(c, e),
          hn::Add(hn::Sub(hn::Mul(four, x[1]), hn::Mul(five, x[3])), x[5])};
      for (int j = 0; j < winograd_sums; ++j) StoreSome(d, made[j], to + j * call.sum_stride + i, some);
    }
  }
  std::uint32_t seen[hn::MaxLanes(d)];
  hn::StoreU(most, bits, seen);
  return *std::max_element(seen, seen + lanes);
}

void Give(const WinogradGive& call) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V two = hn::Set(d, 2.0f), four = hn::Set(d, 4.0f), eight = hn::Set(d, 8.0f);
  for (std::int64_t unit = 0; unit < call.units; ++unit) {
    const float* const sums = call.sums + unit * call.panel;
    float* const to = call.to + unit * call.unit_stride;
    const V addend = call.bias == nullptr ? hn::Zero(d) : hn::Set(d, call.bias[unit]);
    for (std::int64_t i = 0; i < call.count; i += lanes) {
      const auto some = static_cast<std::size_t>(std::min(lanes, call.count - i));
      V m[winograd_sums];
      for (int j = 0; j < winograd_sums; ++j) m[j] = LoadSome(d, sums + j * call.sum_stride + i, some);
      const V a = hn::Add(m[1], m[2]), b = hn::Sub(m[1], m[2]), c = hn::Add(m[3], m[4]), e = hn::Sub(m[3], m[4]);
      const V made[winograd_rows] = {hn::Add(hn::Add(m[0], a), c), hn::Add(b, hn::Mul(two, e)), hn::Add(a, hn::Mul(four, c)),
                                     hn::Add(hn::Add(b, hn::Mul(eight, e)), m[5])};
      for (int row = 0; row < winograd_rows && row < call.rows; ++row) {
        V y = hn::Add(made[row], addend);
        y = TakeEnding(d, call.relu, call.ending, y);
        StoreSome(d, y, to + row * call.row_stride + i, some);
      }
    }
  }
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(Take);
HWY_EXPORT(Give);

std::uint32_t winograd_take(const WinogradTake& call) { return HWY_DYNAMIC_DISPATCH(Take)(call); }
void winograd_give(const WinogradGive& call) { HWY_DYNAMIC_DISPATCH(Give)(call); }

}  // namespace millrace::cpu
#endif
