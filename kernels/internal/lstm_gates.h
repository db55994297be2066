// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <millrace/kernels/cpu/row_plan.h>

namespace millrace::internal {

/// Ops [first, last] of a description that one call of cpu/lstm_gate_kernels.h computes.
struct FoundGates {
  RowPlan::State::Lstm lstm;
  std::size_t first = 0;
  std::size_t last = 0;
};

/// Reads the gates of LSTMs, and the gradients of gates, back out of the ops that spell them, in the order of the ops; none shares an op with another.
/// The pattern is the data flow, in any order of the ops and of the operands of a sum or product, with nothing else between its ops. Another spelling
/// stays in its ops, with the same bits.
std::vector<FoundGates> find_lstm_gates(const RowDesc& desc);

}  // namespace millrace::internal
