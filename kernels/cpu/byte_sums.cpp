// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/byte_sums.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/kernels/cpu/targets.h>

#define HWY_TARGET_INCLUDE "millrace/kernels/cpu/byte_sums.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The sum of the bytes, whose bits are changed by `flip` first.
std::int64_t SumRow(const std::uint8_t* from, std::size_t count, std::uint8_t flip) {
#if HWY_TARGET == HWY_SCALAR
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += from[i] ^ flip;
  return sum;
#else
  const hn::ScalableTag<std::uint8_t> d;
  const hn::Repartition<std::uint64_t, decltype(d)> wide;
  const std::size_t lanes = hn::Lanes(d);
  const auto flipped = hn::Set(d, flip);
  auto sums = hn::Zero(wide);
  std::size_t at = 0;
  for (; at + lanes <= count; at += lanes) sums = hn::Add(sums, hn::SumsOf8(hn::Xor(hn::LoadU(d, from + at), flipped)));
  if (at < count) {
#if HWY_TARGET <= HWY_AVX3
    const auto some = hn::FirstN(d, count - at);
    sums = hn::Add(sums, hn::SumsOf8(hn::IfThenElseZero(some, hn::Xor(hn::MaskedLoad(some, d, from + at), flipped))));
#else
    HWY_ALIGN std::uint8_t last[hn::MaxLanes(d)];
    std::fill_n(last, lanes, flip);
    std::memcpy(last, from + at, count - at);
    sums = hn::Add(sums, hn::SumsOf8(hn::Xor(hn::Load(d, last), flipped)));
#endif
  }
  return static_cast<std::int64_t>(hn::GetLane(hn::SumOfLanes(wide, sums)));
#endif
}

void SumRows(const std::uint8_t* from, std::int64_t rows, std::int64_t count, std::uint8_t flip, std::int64_t less, float* to) {
  for (std::int64_t row = 0; row < rows; ++row)
    to[row] = static_cast<float>(SumRow(from + row * count, static_cast<std::size_t>(count), flip) - less);
}

}  // namespace millrace::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::cpu {

HWY_EXPORT(SumRows);

void sum_bytes(const Tensor& x, std::int64_t zero, std::int64_t count, const Tensor& out, ThreadTeam& team) {
  // An i8 with its sign turned is an u8 that is 128 more.
  const bool has_sign = x.dtype() == DType::i8;
  const std::int64_t less = count * (zero + (has_sign ? 128 : 0));
  const auto* const from = static_cast<const std::uint8_t*>(x.raw());
  auto* const to = static_cast<float*>(out.raw_mutable());
  team.parallel(out.elements(), std::max<std::int64_t>(1, 4 * grain_light / std::max<std::int64_t>(1, count)),
                [&](std::int64_t begin, std::int64_t end) {
                  HWY_DYNAMIC_DISPATCH(SumRows)(from + begin * count, end - begin, count, has_sign ? 0x80 : 0, less, to + begin);
                });
}

}  // namespace millrace::cpu
#endif
