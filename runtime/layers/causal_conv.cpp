// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/causal_conv.h>

#include <vector>

#include <millrace/runtime/builder/ops.h>

namespace millrace::layers {

using namespace build;

Unrolled causal_conv(const Sequences& x, const Var& weight, const Var& bias, const Var& initial) {
  const VarType& w = weight.type();
  const VarType& rows = x.x.type();
  const std::int64_t found = rows.rank() > 0 ? (*rows.shape)[rows.rank() - 1] : DDim::unknown;
  if (w.rank() != 2 || (*w.shape)[0] < 1 || (*w.shape)[1] < 1 || (found >= 0 && found != (*w.shape)[0]))
    throw ProgramError("causal_conv: expected a weight [C, K] of known extents and rows of C channels, found " + w.to_string() + " and " +
                       rows.to_string());
  const std::int64_t channels = (*w.shape)[0], before = (*w.shape)[1] - 1;
  const Cell cell = [&](const Var& row, const std::vector<Var>& states) {
    const Var now = reshape(row, {0, channels, 1});
    const Var window = before == 0 ? now : concat({reshape(states.at(0), {0, channels, before}), now}, 2);
    Var y = sum(window * weight, {2});
    if (bias.defined()) y = y + bias;
    if (before == 0) return CellStep{y, {}};
    return CellStep{y, {reshape(slice(window, 2, 1, before + 1), {0, channels * before})}};
  };
  return unroll(cell, x, before == 0 ? std::vector<CellState>{} : std::vector<CellState>{{channels * before, initial}});
}

}  // namespace millrace::layers
