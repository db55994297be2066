// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cpu/int8_kernels.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define MILLRACE_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

namespace millrace::cpu {

/// The packed form of weights for products of four.
inline constexpr std::int64_t dot_lanes = 16, dot_group = 4, dot_width = panel_vectors * dot_lanes;

/// The sums of the weights of 16 columns.
MILLRACE_VNNI inline __m512i column_sums(const Int8Call& call, std::int64_t column) {
  return _mm512_maskz_srai_epi32(0xffff, _mm512_loadu_si512(call.offsets + column), 7);  // g++ 12 warns of the form without a mask
}

/// Writes 16 finished sums of a row, those of columns from `column` on, in the form that the call asks for.
MILLRACE_VNNI inline void store_sums(const Int8Call& call, std::int64_t row, std::int64_t column, __m512i sums) {
  const std::int64_t count = call.columns - column;
  __m512 made = _mm512_castsi512_ps(sums);
  if (!call.whole)
    made = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(*call.scales[row])),
                         _mm512_loadu_ps(call.column_scales + column));
  float* to = call.out[row] + column - call.out_column;
  if (count >= dot_lanes)
    _mm512_storeu_ps(to, made);
  else if (count > 0)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), made);
}

}  // namespace millrace::cpu
#endif
