// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/tensor/lod.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Levenshtein's distance of each pair of sequences: the least number of insertions, deletions and substitutions that make
/// the reference of the hypothesis. Tokens are i64 or i32, [rows] or [rows, 1]; sequences are those of the last level of
/// each LoD, as many on both sides. Tokens in `ignored` are taken out of both sides first. Gives f32 [N, 1], exact below
/// 2^24; `normalised` divides by the length of the reference, where 0 / 0 is 0 and k / 0 is infinite.
/// ShapeError, DTypeError, LoDError.
Tensor edit_distance(const Tensor& hypotheses, const LoD& hypothesis_lod, const Tensor& references, const LoD& reference_lod,
                     bool normalised, const std::vector<std::int64_t>& ignored, StreamRef stream);

}  // namespace millrace
