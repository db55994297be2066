// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/tensor/lod_tensor.h>
#include <millrace/tensor/stream.h>

namespace millrace {

/// Beam search in steps, as PaddlePaddle Fluid's beam_search and beam_search_decode do it: rows are **prefixes**, and level
/// 0 of their LoD says which **source** each belongs to. How many rows come out depends on what is in them, so both
/// functions decide on the host: their inputs must be ready (NotReadyError; a CUDA device is waited for, and inputs on the host may stay there), and their results are written on
/// `stream`.
struct BeamOptions {
  std::int64_t width = 4;      ///< prefixes kept of each source, ≥ 1
  std::int64_t end_token = 0;  ///< a prefix that ends with it is finished
  double length_penalty = 0;   ///< prefixes are ranked by score / lengthᵃ with this a, in f64
  bool accumulated = false;    ///< candidates' scores hold those of their prefix already
};

/// The prefixes of all sources. Each has an id, the score of all its tokens, and how many those are (an end token counts).
struct Prefixes {
  LoDTensor ids;      ///< i64 or i32 [P, 1], with at least one level of LoD: the last token of each
  LoDTensor scores;   ///< floats [P, 1]
  LoDTensor lengths;  ///< i64 or i32 [P, 1]; 0: the token only starts, and is no end even if it is the end token
};

/// Prefixes at the start: one for each of `tokens` (i64 or i32, [N] or [N, 1]), score 0, length 0.
Prefixes beam_search_start(const Tensor& tokens, DType scores, StreamRef stream);

struct BeamStep {
  Prefixes kept;      ///< with two levels: source → prefix before, prefix before → the rows that go on from it
  Tensor parents;     ///< i64 [S]: the row before that each goes on from, for gathering states
  bool live = false;  ///< whether one of them is unfinished
};
/// One step. `candidates` [P, K] are scores (log-probabilities) of the dtype of the prefixes' scores: of token k, or of
/// `tokens` [P, K] (i64 or i32) where given. A source keeps the `width` best of: for each unfinished prefix its candidates,
/// the score of the prefix added; for each finished one itself, with the end token again. Ranked by the penalised score,
/// then the lower prefix, then the lower column. Scores of −∞ and NaN are no candidates. A source with none, or whose
/// prefixes were all finished before this step, is **pruned**: it has no rows from here on.
/// Rows stand in the order of their prefixes, those of one prefix best first.
/// ShapeError, DTypeError, LoDError, ArgumentError.
BeamStep beam_search_step(const Prefixes& before, const Tensor& candidates, const Tensor* tokens, const BeamOptions& options,
                          StreamRef stream);

/// All that a search found, per source the best first (penalised; ties in the order of rows).
struct Hypotheses {
  LoDTensor tokens;  ///< i64 [M, 1], two levels: source → hypothesis → its tokens, with at most one end token
  LoDTensor scores;  ///< [M, 1], the same levels: the score up to each token
  LoDTensor totals;  ///< [hypotheses, 1], one level: source → hypothesis
};
/// Follows the rows of the last step in which a source has any back to the first. `ids` and `scores` are the steps' kept
/// ones, one behind the other; each step has all sources. The start is not among them. LoDError when the levels of a step do
/// not continue those of the one before.
Hypotheses beam_search_decode(const LoDTensor& ids, const LoDTensor& scores, std::int64_t steps, const BeamOptions& options,
                              StreamRef stream);

}  // namespace millrace
