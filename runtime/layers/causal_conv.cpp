// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/causal_conv.h>

#include <string>
#include <vector>

#include <millrace/runtime/builder/ops.h>

namespace millrace::layers {

using namespace build;

namespace {

/// The most rows that a state holds.
constexpr std::int64_t most_before = 65536;

}  // namespace

Unrolled causal_conv(const Sequences& x, const Var& weight, const Var& bias, const Var& initial, std::int64_t dilation) {
  const VarType& w = weight.type();
  const VarType& rows = x.x.type();
  const std::int64_t found = rows.rank() > 0 ? (*rows.shape)[rows.rank() - 1] : DDim::unknown;
  if (w.rank() != 2 || (*w.shape)[0] < 1 || (*w.shape)[1] < 1 || (found >= 0 && found != (*w.shape)[0]))
    throw ProgramError("causal_conv: expected a weight [C, K] of known extents and rows of C channels, found " + w.to_string() + " and " +
                       rows.to_string());
  const std::int64_t channels = (*w.shape)[0], taps_before = (*w.shape)[1] - 1;
  if (dilation < 1 || (taps_before > 0 && dilation > most_before / taps_before))
    throw ProgramError("causal_conv: expected a dilation of at least 1 with which " + std::to_string(taps_before + 1) +
                       " taps reach back " + std::to_string(most_before) + " rows at most, found " + std::to_string(dilation));
  const std::int64_t before = taps_before * dilation;
  // Rows of a window stand one behind the other, so that all ops of a step go along the channels.
  const auto turned = [](const Var& matrices, std::int64_t height, std::int64_t width) {
    return reshape(transpose(reshape(matrices, {0, height, width}), {0, 2, 1}), {0, height * width});
  };
  const Var taps = reshape(transpose(weight, {1, 0}), {channels * (taps_before + 1)});
  const Cell cell = [&](const Var& row, const std::vector<Var>& states) {
    const Var window = before == 0 ? row : concat({states.at(0), row}, 1);
    Var seen = window;
    if (dilation > 1 && taps_before > 0) {
      std::vector<Var> rows_of_taps;
      for (std::int64_t j = 0; j <= before; j += dilation) rows_of_taps.push_back(slice(window, 1, j * channels, (j + 1) * channels));
      seen = concat(rows_of_taps, 1);
    }
    const Var terms = seen * taps;
    Var y = slice(terms, 1, 0, channels);
    for (std::int64_t j = 1; j <= taps_before; ++j) y = y + slice(terms, 1, j * channels, (j + 1) * channels);
    if (bias.defined()) y = y + bias;
    if (before == 0) return CellStep{y, {}};
    return CellStep{y, {slice(window, 1, channels, channels * (before + 1))}};
  };
  if (before == 0) return unroll(cell, x, {});
  Unrolled made = unroll(cell, x, {{channels * before, initial.defined() ? turned(initial, channels, before) : Var()}});
  made.last[0] = turned(made.last[0], before, channels);
  return made;
}

}  // namespace millrace::layers
