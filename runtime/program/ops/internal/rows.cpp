// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/rows.h>

#include <algorithm>

#include <millrace/runtime/program/ops/internal/inference.h>

namespace millrace::ops {

void refuse_rows(const std::string& reason) { throw UnsupportedError(reason); }

void set_made_for_runs(OpDef& def) {
  def.follow_rows = [](const InferContext&, const std::vector<int>&) -> std::vector<int> { refuse_rows("made for runs of whole inputs"); };
  def.vectorize = [](Vectorizer&, const Op& op) {
    throw UnsupportedError("op " + op.type + ": it is made when a program is compiled, of ops that have a rule for many sequences");
  };
}

RowRule follow_first(std::function<int(const InferContext&, int)> where) {
  return [where = std::move(where)](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    for (std::size_t input = 1; input < axes.size(); ++input)
      if (axes[input] >= 0)
        refuse_rows("rows in input " + std::to_string(input) + ", " + context.describe(input) + ", which holds for all rows");
    if (axes.empty() || axes[0] < 0) return {-1};
    return {where(context, axes[0])};
  };
}

RowRule follow_same() {
  return follow_first([](const InferContext&, int axis) { return axis; });
}

int known_rank(const InferContext& context, std::size_t input) {
  const int rank = context.tensor(input).rank();
  if (rank < 0) throw UnsupportedError("the rank of " + context.describe(input) + " is not known");
  return rank;
}

void check_same_for_each_row(const InferContext& context, std::size_t input, int axis, std::int64_t rows) {
  if (axis < 0) return;
  // An unknown extent may still be as long as the rows: the run checks it.
  const std::int64_t found = extent(context, input, axis);
  if (found != 1 && found != rows && found != DDim::unknown)
    refuse_rows(context.describe(input) + " lies along the rows but is not fed with them");
}

std::vector<int> follow_elementwise(const InferContext& context, const std::vector<int>& axes) {
  if (std::all_of(axes.begin(), axes.end(), [](int axis) { return axis < 0; })) return {-1};
  int rank = 0;
  for (std::size_t input = 0; input < axes.size(); ++input)
    if (context.has(input)) rank = std::max(rank, known_rank(context, input));
  int rows = -1;
  std::int64_t count = DDim::unknown;
  for (std::size_t input = 0; input < axes.size(); ++input) {
    if (axes[input] < 0) continue;
    const int axis = axes[input] + rank - known_rank(context, input);
    if (rows >= 0 && axis != rows) refuse_rows("the rows of its inputs lie on different axes");
    rows = axis;
    count = extent(context, input, axes[input]);
  }
  for (std::size_t input = 0; input < axes.size(); ++input)
    if (context.has(input) && axes[input] < 0) check_same_for_each_row(context, input, rows - (rank - known_rank(context, input)), count);
  return {rows};
}

}  // namespace millrace::ops
