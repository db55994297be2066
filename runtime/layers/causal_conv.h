// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/runtime/layers/recurrent.h>

namespace millrace::layers {

/// A causal convolution of each channel with a kernel of its own, whose state is explicit: the rows before, which stand in front of a language
/// model's recurrences (Mamba, Gated DeltaNet). ONNX 1.23 has it as `CausalConvWithState`.
///
///     y[t, c] = Σ_j w[c, j] · x[t − (K − 1 − j)·dilation, c]  (+ b[c]),  rows before the first are those of the state
///
/// x: rows with LoD [rows, C], or dense [T, N, C]. `weight` [C, K], `bias` [C] or undefined, `initial` [N, C·(K−1)·dilation], the rows before the first
/// of each channel, oldest first; undefined: zeros. `output`: as x. `last[0]`: as `initial`, behind the last step; none where K is 1. It streams with
/// these rows as its state, and has gradients. `conv1d.h` is the same without a state to give or take.
///
/// ProgramError unless the extents of the weight are known and fit x, and the dilation is at least 1 and reaches back 65,536 rows at most.
Unrolled causal_conv(const Sequences& x, const Var& weight, const Var& bias = {}, const Var& initial = {}, std::int64_t dilation = 1);

}  // namespace millrace::layers
