// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/edit_distance.h>

#include <string>

#include <millrace/kernels/cpu/edit_distance.h>
#include <millrace/kernels/cuda/decoding.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/sequences.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// The number of sequences.
std::int64_t check_tokens(const Tensor& tokens, const LoD& lod) {
  internal::check_index_dtype("edit_distance", tokens);
  if (tokens.rank() < 1 || tokens.rank() > 2 || (tokens.rank() == 2 && tokens.dim(1) != 1))
    throw ShapeError("edit_distance: expected tokens of [rows] or [rows, 1], found " + tokens.to_string());
  internal::check_sequences("edit_distance", lod, tokens.dim(0));
  return lod.sequences(lod.depth() - 1);
}

constexpr internal::Implementations<const Tensor&, const LoD&, const Tensor&, const LoD&, bool, const std::vector<std::int64_t>&,
                                    const Tensor&>
    kernels{"edit_distance",
            {{"cuda", cuda::edit_distance}},
            [](const Tensor& hypotheses, const LoD& hypothesis_lod, const Tensor& references, const LoD& reference_lod, bool normalised,
               const std::vector<std::int64_t>& ignored, const Tensor& out, ThreadTeam& team) {
              cpu::edit_distance({hypotheses, hypothesis_lod}, {references, reference_lod}, normalised, ignored, out, team);
            }};

}  // namespace

Tensor edit_distance(const Tensor& hypotheses, const LoD& hypothesis_lod, const Tensor& references, const LoD& reference_lod,
                     bool normalised, const std::vector<std::int64_t>& ignored, StreamRef stream) {
  internal::check_device_places("edit_distance", stream, {&hypotheses, &references});
  const std::int64_t pairs = check_tokens(hypotheses, hypothesis_lod);
  if (check_tokens(references, reference_lod) != pairs)
    throw LoDError("edit_distance: expected as many references as hypotheses, found " + hypothesis_lod.brief() + " and " +
                   reference_lod.brief());
  Tensor out(DType::f32, DDim{pairs, 1}, stream.memory());
  launch(
      TensorRefs<2>{&hypotheses, &references}, TensorRefs<1>{&out},
      [=](KernelContext& context) {
        kernels.run(hypotheses, hypothesis_lod, references, reference_lod, normalised, ignored, out, context);
      },
      stream);
  return out;
}

}  // namespace millrace
