// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <millrace/runtime/layers/recurrent.h>

namespace millrace::layers {

/// The rule by which a step of linear attention changes its state S (a matrix of keys by values for each head):
///
///     linear        S' = S + k ⊗ v
///     gated         S' = exp(g)·S + k ⊗ v
///     delta         S' = S + k ⊗ β·(v − Sᵀk)
///     gated_delta   S' = exp(g)·S + k ⊗ β·(v − (exp(g)·S)ᵀk)
///
/// and each head of q reads  scale · S'ᵀq.  Katharopoulos et al. 2020, arXiv:2006.16236; Yang et al. 2023, arXiv:2312.06635 (gated); Yang et al.
/// 2024, arXiv:2406.06484 (delta), arXiv:2412.06464 (gated delta). ONNX 1.23 has the four as `LinearAttention`.
enum class StateUpdate { linear, gated, delta, gated_delta };
/// Whether an update has a use for g, and for β.
constexpr bool reads_decay(StateUpdate update) { return update == StateUpdate::gated || update == StateUpdate::gated_delta; }
constexpr bool reads_rate(StateUpdate update) { return update == StateUpdate::delta || update == StateUpdate::gated_delta; }

/// Inputs of each step, all rows with LoD or all dense [T, N, …], of one dtype. Heads stand side by side in the last axis. Q heads of queries
/// share H heads of states, Q a multiple of H: head j of q reads state j / (Q / H).
struct LinearAttentionInputs {
  Var query;  ///< [.., Q·D]
  Var key;    ///< [.., H·D]
  Var value;  ///< [.., H·E]
  Var decay;  ///< g, for gated and gated_delta: [.., H] or [.., H·D]
  Var rate;   ///< β, for delta and gated_delta: [.., H] or [.., 1]
};

struct LinearAttentionOptions {
  std::int64_t query_heads = 1;
  std::int64_t heads = 1;
  StateUpdate update = StateUpdate::gated_delta;
  std::optional<double> scale = {};  ///< 1 / √D
};

/// `output`: [.., Q·E]. `last[0]`: the state behind the last step of each sequence, [N, H·D·E]: S of each head, keys by values.
/// `initial`, [N, H·D·E]: undefined is zeros. A loop like any other: it streams with S as its state, and has gradients.
///
/// ProgramError: heads that do not fit the widths, a decay or a rate that the update has no use for, or lacks.
Unrolled linear_attention(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options, const Var& initial = {});

}  // namespace millrace::layers
