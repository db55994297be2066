// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/crf.h>

#include <string>

#include <millrace/kernels/cpu/crf.h>
#include <millrace/kernels/cuda/decoding.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/sequences.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

void check_crf(const char* op, const Tensor& emission, const Tensor& weights, const LoD& lod) {
  internal::check_floating(op, emission);
  internal::check_same_dtype(op, emission, weights);
  if (emission.rank() != 2 || emission.dim(1) < 1)
    throw ShapeError(std::string(op) + ": expected emissions of [rows, tags], found " + emission.to_string());
  const std::int64_t tags = emission.dim(1);
  internal::check_dims(op, "weights", weights, DDim{tags + 2, tags});
  internal::check_sequences(op, lod, emission.dim(0));
}

void check_tags(const char* op, const Tensor& tags, std::int64_t rows) {
  internal::check_index_dtype(op, tags);
  if (tags.dims() != DDim{rows} && tags.dims() != DDim{rows, 1})
    throw ShapeError(std::string(op) + ": expected one tag for each of " + std::to_string(rows) + " rows, found " + tags.to_string());
}

Tensor one_each(const Tensor& emission, const LoD& lod, StreamRef stream) {
  return Tensor(emission.dtype(), DDim{lod.sequences(lod.depth() - 1), 1}, stream.memory());
}

// Errors of the reference name the op.
constexpr internal::Implementations<const char*, const Tensor&, const Tensor&, const Tensor*, bool, const LoD&, const Tensor&>
    likelihood_kernels{
        "crf_log_likelihood",
        {{"cuda",
          [](const char*, const Tensor& emission, const Tensor& weights, const Tensor* tags, bool normalised, const LoD& lod,
             const Tensor& out, KernelContext& context) { cuda::crf_likelihood(emission, weights, tags, normalised, lod, out, context); }}},
        cpu::crf_likelihood};
constexpr internal::Implementations<const Tensor&, const Tensor&, const LoD&, const Tensor&, const Tensor&> viterbi_kernels{
    "crf_viterbi", {{"cuda", cuda::crf_viterbi}}, cpu::crf_viterbi};
constexpr internal::Implementations<const char*, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const LoD&, const CrfGradient&>
    gradient_kernels{"crf_log_likelihood_gradient", {}, cpu::crf_gradient};

}  // namespace

CrfPath crf_viterbi(const Tensor& emission, const Tensor& weights, const LoD& lod, StreamRef stream) {
  check_crf("crf_viterbi", emission, weights, lod);
  internal::check_device_places("crf_viterbi", stream, {&emission, &weights});
  CrfPath path{Tensor(DType::i64, DDim{emission.dim(0), 1}, stream.memory()), one_each(emission, lod, stream)};
  launch(
      TensorRefs<2>{&emission, &weights}, TensorRefs<2>{&path.tags, &path.scores},
      [=](KernelContext& context) { viterbi_kernels.run(emission, weights, lod, path.tags, path.scores, context); }, stream);
  return path;
}

Tensor crf_score(const Tensor& emission, const Tensor& weights, const Tensor& tags, const LoD& lod, StreamRef stream) {
  check_crf("crf_score", emission, weights, lod);
  check_tags("crf_score", tags, emission.dim(0));
  internal::check_device_places("crf_score", stream, {&emission, &weights, &tags});
  Tensor out = one_each(emission, lod, stream);
  launch(
      TensorRefs<3>{&emission, &weights, &tags}, TensorRefs<1>{&out},
      [=](KernelContext& context) { likelihood_kernels.run("crf_score", emission, weights, &tags, false, lod, out, context); }, stream);
  return out;
}

Tensor crf_log_partition(const Tensor& emission, const Tensor& weights, const LoD& lod, StreamRef stream) {
  check_crf("crf_log_partition", emission, weights, lod);
  internal::check_device_places("crf_log_partition", stream, {&emission, &weights});
  Tensor out = one_each(emission, lod, stream);
  launch(
      TensorRefs<2>{&emission, &weights}, TensorRefs<1>{&out},
      [=](KernelContext& context) { likelihood_kernels.run("crf_log_partition", emission, weights, nullptr, true, lod, out, context); },
      stream);
  return out;
}

Tensor crf_log_likelihood(const Tensor& emission, const Tensor& weights, const Tensor& tags, const LoD& lod, StreamRef stream) {
  check_crf("crf_log_likelihood", emission, weights, lod);
  check_tags("crf_log_likelihood", tags, emission.dim(0));
  internal::check_device_places("crf_log_likelihood", stream, {&emission, &weights, &tags});
  Tensor out = one_each(emission, lod, stream);
  launch(
      TensorRefs<3>{&emission, &weights, &tags}, TensorRefs<1>{&out},
      [=](KernelContext& context) { likelihood_kernels.run("crf_log_likelihood", emission, weights, &tags, true, lod, out, context); },
      stream);
  return out;
}

CrfGradient crf_log_likelihood_gradient(const Tensor& emission, const Tensor& weights, const Tensor& tags, const Tensor& gradient,
                                        const LoD& lod, StreamRef stream) {
  constexpr const char* op = "crf_log_likelihood_gradient";
  check_crf(op, emission, weights, lod);
  check_tags(op, tags, emission.dim(0));
  internal::check_same_dtype(op, emission, gradient);
  internal::check_dims(op, "gradient", gradient, DDim{lod.sequences(lod.depth() - 1), 1});
  internal::check_device_places(op, stream, {&emission, &weights, &tags, &gradient});
  CrfGradient made{Tensor(emission.dtype(), emission.dims(), stream.memory()), Tensor(weights.dtype(), weights.dims(), stream.memory())};
  launch(
      TensorRefs<4>{&emission, &weights, &tags, &gradient}, TensorRefs<2>{&made.emission, &made.weights},
      [=](KernelContext& context) { gradient_kernels.run(op, emission, weights, tags, gradient, lod, made, context); }, stream);
  return made;
}

}  // namespace millrace
