// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include <millrace/kernels/round_to_bytes.h>

namespace millrace {
namespace {

constexpr int lanes = 16;

/// The least and the greatest of x and 0.
struct Range {
  float low[lanes] = {};
  float high[lanes] = {};
  float odd[lanes] = {};  // NaN where a lane met one

  void take(const float* x, int count) {
    for (int i = 0; i < count; ++i) {
      high[i] = x[i] > high[i] ? x[i] : high[i];
      low[i] = x[i] < low[i] ? x[i] : low[i];
      odd[i] = x[i] == x[i] ? odd[i] : x[i];
    }
  }
  /// Finds both in lane 0; false where there is a NaN.
  bool fold() {
    for (int i = 1; i < lanes; ++i) {
      high[0] = std::max(high[0], high[i]);
      low[0] = std::min(low[0], low[i]);
      odd[0] += odd[i];
    }
    return odd[0] == odd[0];
  }
};

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

void round_to_bytes(const float* x, std::int64_t count, float* out) {
  Range range;
  std::int64_t at = 0;
  for (; at + lanes <= count; at += lanes) range.take(x + at, lanes);
  range.take(x + at, static_cast<int>(count - at));
  if (!range.fold() || !(range.high[0] - range.low[0] <= std::numeric_limits<float>::max())) {
    std::fill_n(out, count, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float span = range.high[0] - range.low[0];
  const float scale = span == 0 ? 1.0f : span / 255.0f;
  const float zero = nearest(limited(-range.low[0] / scale));
  for (std::int64_t i = 0; i < count; ++i) out[i] = (limited(nearest(x[i] / scale) + zero) - zero) * scale;
}

}  // namespace millrace
