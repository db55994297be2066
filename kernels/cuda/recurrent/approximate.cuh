// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/recurrent/elementary.cuh>

/// **Sigmoid and tanh by the function unit** of a CUDA device: arithmetic id `pointwise.approx`, of LSTM cells in f16 and bf16 (lstm_functions.cuh).
/// Two operations of the unit each, where the exact functions of elementary.cuh take five and three. With a unit that is off by 2^-22 of exp2 and of
/// a reciprocal, sigmoid is off by 2^-17 of itself (at −87; 2^-20 where f16 can hold it) and tanh by 2^-17: far less than f16 (2^-11) and bf16 (2^-9)
/// round. `tanh.approx` would be off by 2^-11, as much as f16 rounds, for one operation less.
namespace millrace::cuda {

/// A host has its own functions, whose errors are of the same class.
struct FunctionUnit {
  MILLRACE_HD static float exp2(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return ::exp2f(x);
#endif
  }
  MILLRACE_HD static float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
  }
};

/// 0 below −88. NaN stays one here and below: both operations of the unit keep it.
template <class Unit = FunctionUnit>
MILLRACE_HD float approximate_sigmoid(float x) {
  return Unit::reciprocal(1.0f + Unit::exp2(x * -1.44269504088896340736f));
}

/// 1 − 2 / (1 + e^2|x|), which near 0 is a difference of almost equal numbers: there x − x³/3.
template <class Unit = FunctionUnit>
MILLRACE_HD float approximate_tanh(float x) {
  const float small = x * mul_add(x * x, -1.0f / 3.0f, 1.0f);
  const float e = Unit::exp2(magnitude(x) * 2.88539008177792681472f);
  const float y = signed_as(mul_add(Unit::reciprocal(1.0f + e), -2.0f, 1.0f), x);
  return magnitude(x) < 0.0625f ? small : y;
}

}  // namespace millrace::cuda
