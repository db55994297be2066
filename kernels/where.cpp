// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/where.h>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/where.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor&, const Tensor&> kernels{
    "where", {{"cuda", cuda::where}}, cpu::where};

}  // namespace

void where(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& out, StreamRef stream) {
  internal::check_device_places("where", stream, {&condition, &a, &b, &out});
  internal::check_dtype("where", "condition", condition, DType::boolean);
  internal::check_same_dtype("where", a, b);
  internal::check_dtype("where", "out", out, a.dtype());
  const DDim dims = broadcast_dims(condition.dims(), broadcast_dims(a.dims(), b.dims()));
  internal::check_dims("where", "out", out, dims);
  launch(
      TensorRefs<3>{&condition, &a, &b}, TensorRefs<1>{&out},
      [choice = broadcast_view(condition, dims), left = broadcast_view(a, dims), right = broadcast_view(b, dims),
       out](KernelContext& context) { kernels.run(choice, left, right, out, context); },
      stream);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b, StreamRef stream) {
  const DDim dims = broadcast_dims(condition.dims(), broadcast_dims(a.dims(), b.dims()));
  Tensor out(a.dtype(), dims, stream.memory());
  where(condition, a, b, out, stream);
  return out;
}

}  // namespace millrace
