// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/decoding.h>

#include <string>

#include <millrace/tensor/error.h>

namespace millrace::cuda {
namespace {

[[noreturn]] void absent(const char* op) {
  throw UnsupportedError(std::string(op) + ": this build has no CUDA kernels: build with MILLRACE_CUDA=ON and the CUDA Toolkit");
}

}  // namespace

void ctc_greedy(const Tensor&, const LoD&, const CtcGreedy&, const CtcLabels&, KernelContext&) { absent("ctc_greedy"); }
void ctc_beam_search(const Tensor&, const LoD&, const CtcBeam&, const CtcLabels&, KernelContext&) { absent("ctc_beam_search"); }
void ctc_loss(const Tensor&, const LoD&, const Tensor&, const LoD&, const CtcLoss&, const Tensor&, KernelContext&) { absent("ctc_loss"); }
void crf_viterbi(const Tensor&, const Tensor&, const LoD&, const Tensor&, const Tensor&, KernelContext&) { absent("crf_viterbi"); }
void crf_likelihood(const Tensor&, const Tensor&, const Tensor*, bool, const LoD&, const Tensor&, KernelContext&) {
  absent("crf_likelihood");
}
void edit_distance(const Tensor&, const LoD&, const Tensor&, const LoD&, bool, const std::vector<std::int64_t>&, const Tensor&,
                   KernelContext&) {
  absent("edit_distance");
}
void gather_tree(const Tensor&, const Tensor&, const Tensor*, std::optional<std::int64_t>, const Tensor&, KernelContext&) {
  absent("gather_tree");
}
void sample_tokens(const Tensor&, const Tensor&, const Tensor&, const SampleOptions&, const Sampled&, KernelContext&) {
  absent("sample_tokens");
}
void sequence_top_k_average(const Tensor&, const std::vector<std::int64_t>&, const std::vector<std::int64_t>&,
                            const std::vector<std::int64_t>&, const SequenceTopKAverage&, const Tensor&, KernelContext&) {
  absent("sequence_top_k_average");
}

}  // namespace millrace::cuda
