// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/runtime/builder/var.h>

/// Decoding as functions that append ops. Names and semantics are those of the ops (docs/ops.md).
namespace millrace::build {

struct CrfDecoded {
  Var path;   ///< i64 [rows, 1], with the LoD of the emissions
  Var score;  ///< one for each sequence
};
/// The best tags of each sequence: `emission` [rows, K] with LoD, `transition` [K + 2, K] as in kernels/crf.h. With `label` (i64 or i32
/// [rows] or [rows, 1], the right tags) `path` is 1 where the best tag is the right one and 0 elsewhere.
CrfDecoded crf_decoding(const Var& emission, const Var& transition, const Var& label = {});
/// log p(label | emission) of each sequence.
Var linear_chain_crf(const Var& emission, const Var& transition, const Var& label);

struct CtcDecoded {
  Var labels;  ///< i64 [?, 1], with the levels of the input
  Var score;   ///< one for each sequence
};
/// The labels of frames `x` [rows, K] with LoD, as in kernels/ctc.h. `top` 0: all classes.
CtcDecoded ctc_greedy_decode(const Var& x, std::int64_t blank, bool merge_repeated = true);
CtcDecoded ctc_beam_search_decode(const Var& x, std::int64_t blank, std::int64_t width, std::int64_t top = 0);
/// The `paths` best labellings of each sequence, best first: so many results, each a label list for each sequence.
std::vector<CtcDecoded> ctc_beam_search_paths(const Var& x, std::int64_t blank, std::int64_t width, std::int64_t paths,
                                              std::int64_t top = 0);
/// The labels of frames whose classes are known, i64 or i32 [rows] or [rows, 1] with LoD: repeats merged, blanks dropped.
Var ctc_align(const Var& classes, std::int64_t blank, bool merge_repeated = true);
/// −log p(labels | x) of each sequence, over all alignments: `x` [rows, K] log-probabilities with LoD, `labels` [L] or [L, 1] with LoD.
/// `zero_infinity`: 0 for labels that their frames cannot say.
Var ctc_loss(const Var& x, const Var& labels, std::int64_t blank, bool zero_infinity = false);

/// The first `lengths[n]` rows of each sequence.
Var sequence_trim(const Var& x, const Var& lengths);
/// The number of changes that make each reference of its hypothesis; `normalised`: over the length of the reference.
Var edit_distance(const Var& hypotheses, const Var& references, bool normalised = false, const std::vector<std::int64_t>& ignored = {});

}  // namespace millrace::build
