// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/byte_sums.h>

#include <string>

#include <millrace/kernels/cpu/byte_sums.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {

Tensor sum_bytes(const Tensor& x, std::int64_t zero, int axes, bool keepdims, StreamRef stream) {
  internal::check_device_places("sum_bytes", stream, {&x});
  internal::check_host("sum_bytes", stream, x);
  if (x.dtype() != DType::u8) internal::check_dtype("sum_bytes", "x", x, DType::i8);
  if (axes < 1 || axes > x.rank())
    throw ShapeError("sum_bytes: expected one of the axes or more of " + x.to_string() + ", found " + std::to_string(axes));
  DDim dims = x.dims().slice(0, x.rank() - axes);
  for (int i = 0; keepdims && i < axes; ++i) dims = dims.inserted(dims.rank(), 1);
  const Tensor from = x.is_contiguous() ? x : internal::row_major("sum_bytes", x, stream);
  const Tensor out(DType::f32, dims, stream.memory());
  const std::int64_t count = x.dims().slice(x.rank() - axes, x.rank()).elements();
  launch(TensorRefs<1>{&from}, TensorRefs<1>{&out}, [=](ThreadTeam& team) { cpu::sum_bytes(from, zero, count, out, team); }, stream);
  return out;
}

}  // namespace millrace
