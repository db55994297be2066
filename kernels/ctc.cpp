// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/ctc.h>

#include <string>

#include <millrace/kernels/cpu/ctc.h>
#include <millrace/kernels/cuda/decoding.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/sequences.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

void check_frames(const char* op, const Tensor& scores, const LoD& lod, std::int64_t blank) {
  internal::check_floating(op, scores);
  if (scores.rank() != 2 || scores.dim(1) < 1)
    throw ShapeError(std::string(op) + ": expected scores of [rows, classes], found " + scores.to_string());
  if (blank < 0 || blank >= scores.dim(1))
    throw IndexError(std::string(op) + ": expected a blank of " + std::to_string(scores.dim(1)) + " classes, found " +
                     std::to_string(blank));
  internal::check_sequences(op, lod, scores.dim(0));
}

/// Checks frames and their labels; the number of sequences.
std::int64_t check_labelled(const char* op, const Tensor& scores, const LoD& lod, const Tensor& labels, const LoD& label_lod,
                            std::int64_t blank) {
  check_frames(op, scores, lod, blank);
  internal::check_index_dtype(op, labels);
  if (labels.rank() != 1 && !(labels.rank() == 2 && labels.dim(1) == 1))
    throw ShapeError(std::string(op) + ": expected labels of [L] or [L, 1], found " + labels.to_string());
  internal::check_sequences(op, label_lod, labels.dim(0));
  const std::int64_t sequences = lod.sequences(lod.depth() - 1);
  if (label_lod.sequences(label_lod.depth() - 1) != sequences)
    throw LoDError(std::string(op) + ": expected labels for each sequence of frames, found " + lod.brief() + " and " + label_lod.brief());
  return sequences;
}

/// Checks what both searches take, and makes room for what they give.
CtcLabels room_for(const char* op, const Tensor& scores, const LoD& lod, std::int64_t blank, std::int64_t paths, StreamRef stream) {
  check_frames(op, scores, lod, blank);
  internal::check_device_places(op, stream, {&scores});
  const DDim each{lod.sequences(lod.depth() - 1), paths};
  return {Tensor(DType::i64, DDim{scores.dim(0), paths}, stream.memory()), Tensor(DType::i64, each, stream.memory()),
          Tensor(scores.dtype(), each, stream.memory())};
}

constexpr internal::Implementations<const Tensor&, const LoD&, const CtcGreedy&, const CtcLabels&> greedy_kernels{
    "ctc_greedy", {{"cuda", cuda::ctc_greedy}}, cpu::ctc_greedy};
constexpr internal::Implementations<const Tensor&, const LoD&, const CtcBeam&, const CtcLabels&> beam_kernels{
    "ctc_beam_search", {{"cuda", cuda::ctc_beam_search}}, cpu::ctc_beam_search};
constexpr internal::Implementations<const Tensor&, const LoD&, const Tensor&, const LoD&, const CtcLoss&, const Tensor&> loss_kernels{
    "ctc_loss", {{"cuda", cuda::ctc_loss}}, cpu::ctc_loss};
constexpr internal::Implementations<const Tensor&, const LoD&, const Tensor&, const LoD&, const Tensor&, const CtcLoss&, const Tensor&>
    gradient_kernels{"ctc_loss_gradient", {}, cpu::ctc_loss_gradient};

}  // namespace

CtcLabels ctc_greedy(const Tensor& scores, const LoD& lod, const CtcGreedy& options, StreamRef stream) {
  CtcLabels found = room_for("ctc_greedy", scores, lod, options.blank, 1, stream);
  launch(
      TensorRefs<1>{&scores}, TensorRefs<3>{&found.labels, &found.lengths, &found.scores},
      [=](KernelContext& context) { greedy_kernels.run(scores, lod, options, found, context); }, stream);
  return found;
}

CtcLabels ctc_beam_search(const Tensor& log_probabilities, const LoD& lod, const CtcBeam& options, StreamRef stream) {
  if (options.width < 1 || options.top < 0)
    throw ArgumentError("ctc_beam_search: expected a width of 1 or more and a top of 0 or more, found " + std::to_string(options.width) +
                        " and " + std::to_string(options.top));
  if (options.paths < 1 || options.paths > options.width)
    throw ArgumentError("ctc_beam_search: expected 1 to " + std::to_string(options.width) + " paths, the width, found " +
                        std::to_string(options.paths));
  CtcLabels found = room_for("ctc_beam_search", log_probabilities, lod, options.blank, options.paths, stream);
  launch(
      TensorRefs<1>{&log_probabilities}, TensorRefs<3>{&found.labels, &found.lengths, &found.scores},
      [=](KernelContext& context) { beam_kernels.run(log_probabilities, lod, options, found, context); }, stream);
  return found;
}

Tensor ctc_loss(const Tensor& log_probabilities, const LoD& lod, const Tensor& labels, const LoD& label_lod, const CtcLoss& options,
                StreamRef stream) {
  const std::int64_t sequences = check_labelled("ctc_loss", log_probabilities, lod, labels, label_lod, options.blank);
  internal::check_device_places("ctc_loss", stream, {&log_probabilities, &labels});
  Tensor loss(log_probabilities.dtype(), DDim{sequences, 1}, stream.memory());
  launch(
      TensorRefs<2>{&log_probabilities, &labels}, TensorRefs<1>{&loss},
      [=](KernelContext& context) { loss_kernels.run(log_probabilities, lod, labels, label_lod, options, loss, context); }, stream);
  return loss;
}

Tensor ctc_loss_gradient(const Tensor& log_probabilities, const LoD& lod, const Tensor& labels, const LoD& label_lod,
                         const Tensor& gradient, const CtcLoss& options, StreamRef stream) {
  constexpr const char* op = "ctc_loss_gradient";
  const std::int64_t sequences = check_labelled(op, log_probabilities, lod, labels, label_lod, options.blank);
  internal::check_same_dtype(op, log_probabilities, gradient);
  internal::check_dims(op, "gradient", gradient, DDim{sequences, 1});
  internal::check_device_places(op, stream, {&log_probabilities, &labels, &gradient});
  Tensor made(log_probabilities.dtype(), log_probabilities.dims(), stream.memory());
  launch(
      TensorRefs<3>{&log_probabilities, &labels, &gradient}, TensorRefs<1>{&made},
      [=](KernelContext& context) { gradient_kernels.run(log_probabilities, lod, labels, label_lod, gradient, options, made, context); },
      stream);
  return made;
}

}  // namespace millrace
