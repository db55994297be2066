// SPDX-License-Identifier: Apache-2.0
// Products of i8 by kernels/int8.h: sums are exact, so their order is free; the roundings are those of that header.
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/cuda/with_cuda/sequences.cuh>

namespace millrace::cuda {
namespace {

/// 127 / m may be beyond f32: both sides of the product are moved by a power of two, which rounds nothing.
MILLRACE_HD inline float moved_by(float scale) { return scale < 0x1p-107f ? 0x1p64f : 1.0f; }

struct RowScale {
  const float* x;
  float *scales, *factors;
  std::int64_t k;
  MILLRACE_HD void operator()(std::int64_t row) const {
    float most = 0;
    bool odd = false;
    for (std::int64_t i = 0; i < k; ++i) {
      const float v = std::fabs(x[row * k + i]);
      odd = odd || v != v;
      most = greatest_of(most, v);
    }
    scales[row] = odd ? std::numeric_limits<float>::quiet_NaN() : most / 127.0f;
    factors[row] = odd || most == 0 ? 0.0f : 127.0f / (most * moved_by(scales[row]));
  }
};

struct Quantize {
  const float *x, *scales, *factors;
  std::int8_t* values;
  std::int64_t k;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t row = i / k;
    const float scaled = x[i] * moved_by(scales[row]) * factors[row];
    const bool known = scaled == scaled && scales[row] == scales[row];
    values[i] = static_cast<std::int8_t>(known ? rounded(least_of(greatest_of(scaled, -127.0f), 127.0f)) : 0.0f);
  }
};

/// `rows_each` rows by one column; neighbours read neighbouring columns of the weights, which lie row-major.
struct Int8Product {
  static constexpr std::int64_t rows_each = 4;
  const std::int8_t *x, *weights;
  const float *row_scales, *column_scales;
  float* out;
  std::int64_t rows, k, n;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t column = i % n;
    const std::int64_t first = i / n * rows_each;
    const std::int64_t count = least_of(rows_each, rows - first);
    std::int32_t sums[rows_each] = {};
    for (std::int64_t at = 0; at < k; ++at) {
      const std::int32_t weight = weights[at * n + column];
      for (std::int64_t r = 0; r < rows_each; ++r)
        if (r < count) sums[r] += x[(first + r) * k + at] * weight;
    }
    for (std::int64_t r = 0; r < count; ++r) {
      const float scaled = static_cast<float>(sums[r]) * row_scales[first + r];
      out[(first + r) * n + column] = scaled * column_scales[column];
    }
  }
};

}  // namespace

void quantize_rows(const Tensor& x, const Tensor& values, const Tensor& scales, KernelContext& context) {
  const Queue& queue = queue_of(context);
  const Tensor factors = scratch(queue, DType::f32, scales.dims());
  const auto* from = static_cast<const float*>(x.raw());
  auto* const room = static_cast<float*>(factors.raw_mutable());
  auto* const to = static_cast<float*>(scales.raw_mutable());
  each_index(queue, scales.elements(), RowScale{from, to, room, x.dim(-1)});
  each_index(queue, x.elements(), Quantize{from, to, room, static_cast<std::int8_t*>(values.raw_mutable()), x.dim(-1)});
}

void matmul_int8(const Tensor& x, const Tensor& row_scales, const Tensor& weights, const Tensor& column_scales, const Tensor& out,
                 KernelContext& context) {
  const std::int64_t n = out.dim(-1);
  const std::int64_t rows = row_scales.elements();
  const std::int64_t tiles = (rows + Int8Product::rows_each - 1) / Int8Product::rows_each;
  each_index(queue_of(context), tiles * n,
             Int8Product{static_cast<const std::int8_t*>(x.raw()), static_cast<const std::int8_t*>(weights.raw()),
                         static_cast<const float*>(row_scales.raw()), static_cast<const float*>(column_scales.raw()),
                         static_cast<float*>(out.raw_mutable()), rows, x.dim(-1), n});
}

}  // namespace millrace::cuda
