// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <millrace/kernels/ctc.h>
#include <millrace/kernels/sample.h>
#include <millrace/kernels/sequence_top_k.h>
#include <millrace/tensor/kernel_context.h>
#include <millrace/tensor/lod.h>
#include <millrace/tensor/tensor.h>

/// Decoding on a CUDA device: one thread for each sequence (row, beam), in the order of arithmetic of cpu/. The logarithms and powers of CTC
/// and of the log-partition are CUDA's own. An error that only values show (a tag, a label, a parent outside) fails the stream.
namespace millrace::cuda {

void ctc_greedy(const Tensor& scores, const LoD& lod, const CtcGreedy& options, const CtcLabels& to, KernelContext& context);
/// ArgumentError where a sequence may have 2^31 prefixes: its frames times the width.
void ctc_beam_search(const Tensor& scores, const LoD& lod, const CtcBeam& options, const CtcLabels& to, KernelContext& context);
void ctc_loss(const Tensor& scores, const LoD& lod, const Tensor& labels, const LoD& label_lod, const CtcLoss& options, const Tensor& to,
              KernelContext& context);

void crf_viterbi(const Tensor& emission, const Tensor& weights, const LoD& lod, const Tensor& tags, const Tensor& scores,
                 KernelContext& context);
/// The score of `tags` (null: 0), less the log-partition if `normalised`; without tags the log-partition itself.
void crf_likelihood(const Tensor& emission, const Tensor& weights, const Tensor* tags, bool normalised, const LoD& lod, const Tensor& out,
                    KernelContext& context);

void edit_distance(const Tensor& hypotheses, const LoD& hypothesis_lod, const Tensor& references, const LoD& reference_lod, bool normalised,
                   const std::vector<std::int64_t>& ignored, const Tensor& out, KernelContext& context);
/// Row-major ids, parents and out.
void gather_tree(const Tensor& ids, const Tensor& parents, const Tensor* lengths, std::optional<std::int64_t> end_token, const Tensor& out,
                 KernelContext& context);
void sample_tokens(const Tensor& scores, const Tensor& keys, const Tensor& step, const SampleOptions& options, const Sampled& to,
                   KernelContext& context);
/// Of row-major elements; `firsts`: the first row of each sequence in `out`.
void sequence_top_k_average(const Tensor& x, const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& firsts,
                            const std::vector<std::int64_t>& columns, const SequenceTopKAverage& options, const Tensor& out,
                            KernelContext& context);

}  // namespace millrace::cuda
