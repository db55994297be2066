// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/softmax.h>

#include <vector>

#include <millrace/kernels/cpu/softmax.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// The same view with `axis` as the last one.
Tensor axis_last(const Tensor& x, int axis) {
  std::vector<int> axes;
  for (int i = 0; i < x.rank(); ++i)
    if (i != axis) axes.push_back(i);
  axes.push_back(axis);
  return x.permute(axes);
}

constexpr internal::Implementations<const Tensor&, bool, const Tensor&> kernels{"softmax", {{"cuda", cuda::softmax}}, cpu::softmax};

Tensor softmax_along(const char* op, const Tensor& x, int axis, bool logarithm, StreamRef stream) {
  const int at = internal::checked_axis(op, axis, x.dims());
  internal::check_floating(op, x);
  Tensor out(x.dtype(), x.dims(), stream.memory());
  internal::check_device_places(op, stream, {&x, &out});
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [from = axis_last(x, at), to = axis_last(out, at), logarithm](KernelContext& context) { kernels.run(from, logarithm, to, context); },
      stream);
  return out;
}

}  // namespace

Tensor softmax(const Tensor& x, int axis, StreamRef stream) { return softmax_along("softmax", x, axis, false, stream); }
Tensor log_softmax(const Tensor& x, int axis, StreamRef stream) { return softmax_along("log_softmax", x, axis, true, stream); }

}  // namespace millrace
