// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/ctc.h>

#include <string>

#include <millrace/kernels/cpu/ctc.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/sequences.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// Checks what both searches take, and makes room for what they give.
CtcLabels room_for(const char* op, const Tensor& scores, const LoD& lod, std::int64_t blank, StreamRef stream) {
  internal::check_floating(op, scores);
  if (scores.rank() != 2 || scores.dim(1) < 1)
    throw ShapeError(std::string(op) + ": expected scores of [rows, classes], found " + scores.to_string());
  if (blank < 0 || blank >= scores.dim(1))
    throw IndexError(std::string(op) + ": expected a blank of " + std::to_string(scores.dim(1)) + " classes, found " +
                     std::to_string(blank));
  internal::check_sequences(op, lod, scores.dim(0));
  internal::check_places(op, stream, {&scores});
  const DDim each{lod.sequences(lod.depth() - 1), 1};
  return {Tensor(DType::i64, DDim{scores.dim(0), 1}, stream.memory()), Tensor(DType::i64, each, stream.memory()),
          Tensor(scores.dtype(), each, stream.memory())};
}

}  // namespace

CtcLabels ctc_greedy(const Tensor& scores, const LoD& lod, std::int64_t blank, StreamRef stream) {
  CtcLabels found = room_for("ctc_greedy", scores, lod, blank, stream);
  launch(
      TensorRefs<1>{&scores}, TensorRefs<3>{&found.labels, &found.lengths, &found.scores},
      [=](ThreadTeam& team) { cpu::ctc_greedy(scores, lod, blank, found, team); }, stream);
  return found;
}

CtcLabels ctc_beam_search(const Tensor& log_probabilities, const LoD& lod, const CtcBeam& options, StreamRef stream) {
  if (options.width < 1 || options.top < 0)
    throw ArgumentError("ctc_beam_search: expected a width of 1 or more and a top of 0 or more, found " + std::to_string(options.width) +
                        " and " + std::to_string(options.top));
  CtcLabels found = room_for("ctc_beam_search", log_probabilities, lod, options.blank, stream);
  launch(
      TensorRefs<1>{&log_probabilities}, TensorRefs<3>{&found.labels, &found.lengths, &found.scores},
      [=](ThreadTeam& team) { cpu::ctc_beam_search(log_probabilities, lod, options, found, team); }, stream);
  return found;
}

}  // namespace millrace
