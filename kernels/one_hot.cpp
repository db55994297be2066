// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/one_hot.h>

#include <string>

#include <millrace/kernels/cpu/cast.h>
#include <millrace/kernels/cpu/one_hot.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const Tensor&, int, const Tensor&, const Tensor&> kernels{
    "one_hot", {{"cuda", cuda::one_hot}}, cpu::one_hot};

}  // namespace

Tensor one_hot(const Tensor& index, std::int64_t depth, int axis, double off, double on, DType dtype, StreamRef stream) {
  internal::check_index_dtype("one_hot", index);
  if (depth < 0) throw ArgumentError("one_hot: expected a depth of at least 0, found " + std::to_string(depth));
  const int at = axis < 0 ? axis + index.rank() + 1 : axis;
  if (at < 0 || at > index.rank())
    throw IndexError("one_hot: expected an axis to put into " + index.dims().to_string() + ", found " + std::to_string(axis));
  Tensor out(dtype, index.dims().inserted(at, depth), stream.memory());
  Tensor values(dtype, DDim{2});
  ThreadTeam alone(1);
  cpu::cast(Tensor::from<double>({off, on}), values, alone);
  internal::check_device_places("one_hot", stream, {&index, &out});
  launch(TensorRefs<1>{&index}, TensorRefs<1>{&out}, [=](KernelContext& context) { kernels.run(index, at, values, out, context); }, stream);
  return out;
}

}  // namespace millrace
