// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/lod.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// Labels of what a network trained with CTC (Graves 2006) says of each frame. `scores` [rows, K] are floats, K ≥ 1;
/// frames belong to the sequences of the last level of `lod`; class `blank` stands for no label, and a label that goes on
/// for several frames is one. ShapeError, DTypeError, LoDError; IndexError for a blank that is no class.
///
/// A sequence is never longer than its frames, so labels stand in its rows from the front and −1 behind them: how many
/// there are is known only when the stream got there.
struct CtcLabels {
  Tensor labels;   ///< i64 [rows, 1]
  Tensor lengths;  ///< i64 [N, 1]
  Tensor scores;   ///< [N, 1], of the dtype of the input
};

struct CtcGreedy {
  CtcGreedy(std::int64_t blank_class = 0, bool merge = true) : blank(blank_class), merge_repeated(merge) {}
  std::int64_t blank;
  bool merge_repeated;  ///< false: a label that goes on for several frames is as many labels (TensorFlow's option)
};
/// The best class of each frame (the lowest of those as good), repeats merged, blanks dropped. The score is the sum of the
/// frames' best, ascending, in f64 for f64 and in f32 otherwise: a log-probability when the input is.
CtcLabels ctc_greedy(const Tensor& scores, const LoD& lod, const CtcGreedy& options, StreamRef stream);

struct CtcBeam {
  std::int64_t blank = 0;
  std::int64_t width = 16;  ///< prefixes kept after each frame, ≥ 1
  /// Classes that may go on a prefix in a frame: so many of the best, the lowest among those as good. 0: all. The blank and
  /// the repeat of a prefix's last label are always tried.
  std::int64_t top = 0;
  /// How many of the best labellings to give, 1 … width. Of P, labels are [rows, P], lengths and scores [N, P], best first;
  /// where there are fewer: no labels with −∞.
  std::int64_t paths = 1;
};
/// Prefix beam search (Graves 2012; Hannun 2014, without a language model): the labels with the greatest sum of the
/// probabilities of all their alignments that stay within the beam. `log_probabilities` are natural logarithms; −∞ is
/// impossible. Prefixes as good are kept in the order of their labels, shorter first. Sums run in f64, whatever the dtype,
/// each as m + log1p(exp(least − m)) with m the greater, over prefixes and classes in ascending order. The score is the
/// logarithm of that sum; −∞ and no labels when nothing is possible.
/// ArgumentError for a width below 1, a negative `top`, or `paths` outside 1 … width. A NaN counts as impossible. A prefix that left the beam
/// and comes back is one with what goes on from it: no labelling comes twice.
CtcLabels ctc_beam_search(const Tensor& log_probabilities, const LoD& lod, const CtcBeam& options, StreamRef stream);

struct CtcLoss {
  std::int64_t blank = 0;
  bool zero_infinity = false;  ///< 0 instead of ∞ for labels that their frames cannot say, as PyTorch has it and Fluid's warpctc does
};
/// −log of the probability of given labels, over all their alignments (Graves 2006): [N, 1] of the dtype of the input. `labels`
/// are i64 or i32, [L] or [L, 1]; sequence n of `label_lod` (its last level) belongs to sequence n of `lod`. The prefixes' sums run
/// in f64, over frames ascending: of the state itself, the one before, and the one before a blank. On the CPU a sum of three is m + log1p(exp(middle − m)
/// + exp(least − m)), by functions within 1.1 ulp; on a CUDA device it is two of those above. No labels in no frames cost 0. A NaN that is met gives NaN.
/// LoDError, naming both, for another number of sequences; a label that is the blank, or no class, is an IndexError that fails
/// the stream and names row and label (on a CUDA device the label alone).
Tensor ctc_loss(const Tensor& log_probabilities, const LoD& lod, const Tensor& labels, const LoD& label_lod, const CtcLoss& options,
                StreamRef stream);

/// The gradient of Σ gradient[n]·loss[n] with respect to the log-probabilities, gradient [N, 1] of their dtype: −gradient[n] times the
/// probability that frame t belongs to class k, given the labels. The sums run in f64, as above, forwards and backwards. In a sequence whose
/// loss is infinite it is NaN, or 0 with zero_infinity. On the CPU alone: UnsupportedError elsewhere.
Tensor ctc_loss_gradient(const Tensor& log_probabilities, const LoD& lod, const Tensor& labels, const LoD& label_lod,
                         const Tensor& gradient, const CtcLoss& options, StreamRef stream);

}  // namespace millrace
