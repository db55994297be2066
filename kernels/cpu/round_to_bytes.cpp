// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/round_to_bytes.h>

#include <algorithm>
#include <limits>

#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/cpu/spans.h>
#include <millrace/kernels/internal/wrapping.h>
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

namespace {

/// Sums of some rows and columns, in the first cache or the second. Long rows are read in fewer steps.
constexpr std::int64_t tile_rows = 32, tile_elements = 8192;

/// Takes what the zeros of columns make too much off sums, which is zero times the sum of the row, and adds what belongs to a column.
void complete(const ByteZeros& zeros, const std::int32_t* row_sums, std::int64_t rows, std::int64_t first, std::int64_t width,
              std::int64_t stride, std::int32_t* sums) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int32_t* const to = sums + row * stride;
    if (zeros.added != nullptr)
      for (std::int64_t i = 0; i < width; ++i) to[i] = internal::wrapping_add(to[i], zeros.added[first + i]);
    if (zeros.of_columns != nullptr)
      for (std::int64_t i = 0; i < width; ++i) to[i] = internal::wrapping_sub(to[i], row_sums[row], zeros.of_columns[first + i]);
  }
}

std::int32_t row_sum(const std::uint8_t* bytes, std::int64_t k, const ByteZeros& zeros) {
  std::int32_t sum = 0;
  if (zeros.has_sign)
    for (std::int64_t i = 0; i < k; ++i) sum += static_cast<std::int8_t>(bytes[i]);
  else
    for (std::int64_t i = 0; i < k; ++i) sum += bytes[i];
  return internal::wrapping_sub(sum, static_cast<std::int32_t>(k), zeros.of_rows);
}

}  // namespace

void sum_bytes(const Int8Plan& plan, const PackedInt8& weights, const std::uint8_t* bytes, std::int64_t rows, const ByteZeros& zeros,
               const SumSteps& steps, void* out, ThreadTeam& team) {
  const std::int64_t k = plan.desc().k, n = plan.desc().n;
  const Int8Layout layout{k, n, plan.kernels().lanes, plan.kernels().group};
  const bool alone = steps.to == DType::i32;
  const std::int64_t together =
      alone ? layout.panels() : std::max<std::int64_t>(1, tile_elements / (std::min(rows, tile_rows) * layout.width()));
  const auto size = static_cast<std::int64_t>(size_of(steps.to));
  ArithmeticCall<float> of_all;
  of_all.steps = steps.steps.data();
  of_all.step_count = std::ssize(steps.steps);
  of_all.input_count = std::ssize(steps.operands) + 1;
  of_all.from = DType::i32;
  of_all.to = steps.to;
  of_all.out_row = n;
  each_span(team, rows, tile_rows, layout.panels(), layout.panel_stride() / 4,
            [&](std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t last) {
              ArithmeticCall<float> call = of_all;
              alignas(64) std::int32_t tile[tile_elements];
              const std::uint8_t* a[tile_rows];
              float* to[tile_rows];
              std::int32_t row_sums[tile_rows];
              for (std::int64_t i = 0; i < count; ++i) {
                a[i] = bytes + (row + i) * k;
                if (zeros.of_columns != nullptr) row_sums[i] = row_sum(a[i], k, zeros);
              }
              for (std::int64_t panel = first; panel < last; panel += together) {
                const std::int64_t end = std::min(last, panel + together), from = panel * layout.width(),
                                   width = std::min(n, end * layout.width()) - from;
                std::int32_t* const sums = alone ? static_cast<std::int32_t*>(out) + row * n + from : tile;
                const std::int64_t stride = alone ? n : together * layout.width();
                for (std::int64_t i = 0; i < count; ++i) to[i] = reinterpret_cast<float*>(sums + i * stride);
                plan.kernels().multiply({a, nullptr, to, count, k, static_cast<const std::int8_t*>(weights.data.raw()),
                                         static_cast<const std::int32_t*>(weights.offsets.raw()), nullptr, n, panel, end, zeros.of_rows,
                                         zeros.has_sign, true, from});
                complete(zeros, row_sums, count, from, width, stride, sums);
                if (alone) continue;
                call.inputs[0] = {reinterpret_cast<const float*>(tile), stride, false};
                for (std::size_t i = 0; i < steps.operands.size(); ++i) {
                  const bool repeats = steps.operands[i].elements() == 1;
                  call.inputs[i + 1] = {static_cast<const float*>(steps.operands[i].raw()) + (repeats ? 0 : from), 0, repeats};
                }
                call.out = reinterpret_cast<float*>(static_cast<std::uint8_t*>(out) + (row * n + from) * size);
                call.rows = count;
                call.count = width;
                arithmetic_rows(call);
              }
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
