// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sample.h>

#include <string>

#include <millrace/kernels/cpu/sample.h>
#include <millrace/kernels/cuda/decoding.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

void check_sample(const Tensor& scores, const Tensor& keys, const Tensor& step, const SampleOptions& options) {
  internal::check_floating("sample_tokens", scores);
  internal::check_index_dtype("sample_tokens", keys);
  internal::check_index_dtype("sample_tokens", step);
  if (scores.rank() != 2 || scores.dim(1) < 1) throw ShapeError("sample_tokens: expected scores of [rows, K], found " + scores.to_string());
  const std::int64_t rows = scores.dim(0);
  if (keys.dims() != DDim{rows} && keys.dims() != DDim{rows, 1})
    throw ShapeError("sample_tokens: expected a key for each of " + std::to_string(rows) + " rows, found " + keys.to_string());
  if (step.elements() != 1) throw ShapeError("sample_tokens: expected a step of one element, found " + step.to_string());
  if (!(options.temperature > 0) || options.top < 0)
    throw ArgumentError("sample_tokens: expected a temperature above 0 and a top of 0 or more, found " +
                        std::to_string(options.temperature) + " and " + std::to_string(options.top));
}

constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor&, const SampleOptions&, const Sampled&> kernels{
    "sample_tokens", {{"cuda", cuda::sample_tokens}}, cpu::sample_tokens};

}  // namespace

Sampled sample_tokens(const Tensor& scores, const Tensor& keys, const Tensor& step, const SampleOptions& options, StreamRef stream) {
  check_sample(scores, keys, step, options);
  internal::check_device_places("sample_tokens", stream, {&scores, &keys, &step});
  const DDim each{scores.dim(0), 1};
  Sampled out{Tensor(DType::i64, each, stream.memory()), Tensor(scores.dtype(), each, stream.memory())};
  launch(
      TensorRefs<3>{&scores, &keys, &step}, TensorRefs<2>{&out.tokens, &out.scores},
      [=](KernelContext& context) { kernels.run(scores, keys, step, options, out, context); }, stream);
  return out;
}

}  // namespace millrace
