// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/round_to_bytes.h>

#include <algorithm>
#include <limits>

#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/cpu/spans.h>
#include <millrace/kernels/round_to_bytes.h>

namespace millrace {
namespace {

/// To nearest, ties to even, for |x| below 2²²: what is added has no bits behind the point.
float nearest(float x) {
  constexpr float large = 12582912.0f;
  return (x + large) - large;
}

/// NaN stays.
float limited(float x) {
  const float above = x < 0 ? 0.0f : x;
  return above > 255 ? 255.0f : above;
}

}  // namespace

namespace cpu {

ByteRange byte_range(const float* x, std::int64_t count) { return byte_range({const_cast<float*>(x), count}, 1, count); }

ByteRange byte_range(const RowView& x, std::int64_t rows, std::int64_t count) {
  const Int8Kernels& kernels = int8_kernels();
  float range[2] = {0, 0};
  bool numbers = true;
  for (std::int64_t row = 0; row < rows; ++row) numbers = kernels.range(x.row<const float>(row), count, range) && numbers;
  const float span = range[1] - range[0];
  if (!numbers || !(span <= std::numeric_limits<float>::max())) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const float steps = span / 255.0f, scale = steps == 0 ? 1.0f : steps;
  return {scale, nearest(limited(-range[0] / scale))};
}

void take_bytes(const float* x, std::int64_t count, const ByteRange& range, std::uint8_t* bytes) {
  if (range.odd()) {
    std::fill_n(bytes, count, std::uint8_t{0});
    return;
  }
  int8_kernels().to_bytes(x, count, range.scale, range.zero, bytes);
}

void multiply_bytes(const Int8Plan& plan, const PackedInt8& weights, const ByteRange& range, const std::uint8_t* bytes, std::int64_t rows,
                    const RowView& out, std::int64_t first_panel, std::int64_t last_panel) {
  const std::int64_t k = plan.desc().k, n = plan.desc().n;
  const std::uint8_t* a[max_rows];
  const float* scales[max_rows];
  float* to[max_rows];
  for (std::int64_t i = 0; i < rows; ++i) {
    a[i] = bytes + i * k;
    scales[i] = &range.scale;
    to[i] = out.row<float>(i);
  }
  plan.kernels().multiply({a, scales, to, rows, k, static_cast<const std::int8_t*>(weights.data.raw()),
                           static_cast<const std::int32_t*>(weights.offsets.raw()), static_cast<const float*>(weights.scales.raw()), n,
                           first_panel, last_panel, static_cast<std::int32_t>(range.zero), false});
}

void matmul_bytes(const Int8Plan& plan, const PackedInt8& weights, const float* x, std::int64_t rows, std::uint8_t* bytes, float* out,
                  ThreadTeam& team) {
  const std::int64_t k = plan.desc().k, n = plan.desc().n;
  const Int8Layout layout{k, n, plan.kernels().lanes, plan.kernels().group};
  const ByteRange range = byte_range(x, rows * k);
  team.parallel(rows, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, k)),
                [&](std::int64_t begin, std::int64_t end) { take_bytes(x + begin * k, (end - begin) * k, range, bytes + begin * k); });
  each_span(team, rows, max_rows, layout.panels(), layout.panel_stride() / 4,
            [&](std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t last) {
              multiply_bytes(plan, weights, range, bytes + row * k, count, {out + row * n, n}, first, last);
            });
}

void sum_bytes(const Int8Plan& plan, const PackedInt8& weights, const std::uint8_t* bytes, std::int64_t rows, bool has_sign,
               std::int32_t zero, std::int32_t* out, ThreadTeam& team) {
  const std::int64_t k = plan.desc().k, n = plan.desc().n;
  const Int8Layout layout{k, n, plan.kernels().lanes, plan.kernels().group};
  each_span(team, rows, max_rows, layout.panels(), layout.panel_stride() / 4,
            [&](std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t last) {
              const std::uint8_t* a[max_rows];
              float* to[max_rows];
              for (std::int64_t i = 0; i < count; ++i) {
                a[i] = bytes + (row + i) * k;
                to[i] = reinterpret_cast<float*>(out + (row + i) * n);
              }
              plan.kernels().multiply({a, nullptr, to, count, k, static_cast<const std::int8_t*>(weights.data.raw()),
                                       static_cast<const std::int32_t*>(weights.offsets.raw()), nullptr, n, first, last, zero, has_sign, true});
            });
}

}  // namespace cpu

void round_to_bytes(const RowView& x, std::int64_t rows, std::int64_t count, const RowView& out) {
  const cpu::ByteRange range = cpu::byte_range(x, rows, count);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = x.row<const float>(row);
    float* to = out.row<float>(row);
    if (range.odd())
      std::fill_n(to, count, range.scale);
    else
      for (std::int64_t i = 0; i < count; ++i) to[i] = (limited(nearest(from[i] / range.scale) + range.zero) - range.zero) * range.scale;
  }
}

void matmul_bytes(const Int8Plan& plan, const PackedInt8& weights, const RowView& x, std::int64_t rows, std::span<std::uint8_t> bytes,
                  const RowView& out) {
  const std::int64_t k = plan.desc().k;
  const cpu::ByteRange range = cpu::byte_range(x, rows, k);
  const cpu::Int8Layout layout{k, plan.desc().n, plan.kernels().lanes, plan.kernels().group};
  const std::int64_t most = std::clamp<std::int64_t>(std::ssize(bytes) / std::max<std::int64_t>(1, k), 1, cpu::max_rows);
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    for (std::int64_t i = 0; i < count; ++i) cpu::take_bytes(x.row<const float>(first + i), k, range, bytes.data() + i * k);
    cpu::multiply_bytes(plan, weights, range, bytes.data(), count, {out.row<float>(first), out.stride}, 0, layout.panels());
  }
}

}  // namespace millrace
