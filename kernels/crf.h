// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/lod.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The linear-chain conditional random field over tags, with the weights of PaddlePaddle Fluid (linear_chain_crf_op.h):
/// `weights` [K + 2, K]: row 0 scores of starting with a tag, row 1 of ending with it, row 2 + i of going from tag i to
/// each. `emission` [rows, K], K ≥ 1, and `weights` are floats of one dtype; a sequence is one of the last level of
/// `lod`, which has at least one. With N sequences, what is one number for each is [N, 1] of that dtype. A sequence
/// without rows has the one path without tags: score, log-partition and log-likelihood are 0.
///
/// Order of arithmetic, in f64 for f64 and in f32 otherwise, narrowed at the end:
/// a path scores ((start + e_0) + transition) + e_1 … + end, each sum rounded. Each sequence is computed alone.
/// ShapeError, DTypeError, LoDError name what was expected and what was found.

/// The best path of each sequence.
struct CrfPath {
  Tensor tags;    ///< i64 [rows, 1]
  Tensor scores;  ///< [N, 1]: the bits that `crf_score` gives for that path
};
/// Viterbi's: where several tags are as good, the lowest, from the last step backwards. A NaN is greater than any
/// number.
CrfPath crf_viterbi(const Tensor& emission, const Tensor& weights, const LoD& lod, StreamRef stream);

/// The score of given paths: `tags` i64 or i32, [rows] or [rows, 1]. A tag outside [0, K) is an IndexError that fails the
/// stream and names row and tag (on a CUDA device the tag alone).
Tensor crf_score(const Tensor& emission, const Tensor& weights, const Tensor& tags, const LoD& lod, StreamRef stream);

/// log Σ exp(score) over all paths: a_0 = start + e_0, a_t[j] = (m + log Σ_i exp((a[i] + transition[i, j]) − m)) + e_t[j]
/// with m the greatest of the terms, ascending i in the order of reduce.h; in the end the same over a + end.
Tensor crf_log_partition(const Tensor& emission, const Tensor& weights, const LoD& lod, StreamRef stream);

/// log p(tags | emission) = score − log-partition. (Fluid's op hands out its negative.)
Tensor crf_log_likelihood(const Tensor& emission, const Tensor& weights, const Tensor& tags, const LoD& lod, StreamRef stream);

/// The gradient of Σ gradient[n]·log-likelihood[n], both [N, 1] of the dtype of the emissions: of `emission`, gradient[n]·(1 where the tag is
/// the row's, else 0, less its probability); of a weight, the number of times that the tags use it less the number expected. In f64. A step forwards
/// multiplies the exponentials below the greatest alpha with those of the weights below the greatest that leads to the same tag; a sum below 2^-900 is
/// taken as log_partition takes it, so that scores may lie apart as far as they like. Backwards, a tag's probability is shared among the terms of its
/// sum; shares below 2^-122 may be lost. The sums over tags and over steps are dot products in the order of gemm.h; the sequences' shares of the
/// weights' gradient are added in order. On the CPU alone: UnsupportedError elsewhere.
struct CrfGradient {
  Tensor emission;  ///< [rows, K]
  Tensor weights;   ///< [K + 2, K]
};
CrfGradient crf_log_likelihood_gradient(const Tensor& emission, const Tensor& weights, const Tensor& tags, const Tensor& gradient,
                                        const LoD& lod, StreamRef stream);

}  // namespace millrace
