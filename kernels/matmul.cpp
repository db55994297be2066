// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/matmul.h>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/matmul.h>
#include <millrace/kernels/cpu/widen.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gemm.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// The same elements with an axis of 1 put in: 1-D operands become matrices.
Tensor with_axis(const Tensor& x, int axis) {
  const auto first = static_cast<const std::byte*>(x.raw()) - x.storage()->data();
  return Tensor(x.dtype(), x.dims().inserted(axis, 1), x.strides().inserted(axis, 1), first / static_cast<std::int64_t>(size_of(x.dtype())),
                x.storage());
}

DDim batch_of(const DDim& dims) { return dims.slice(0, dims.rank() - 2); }

DDim with_matrix(DDim batch, std::int64_t rows, std::int64_t columns) {
  batch = batch.inserted(batch.rank(), rows);
  return batch.inserted(batch.rank(), columns);
}

DType product_dtype(DType dtype) { return dtype == DType::i8 || dtype == DType::u8 ? DType::i32 : dtype; }

void check_matmul(const Tensor& a, const Tensor& b, const Tensor& out) {
  if (!internal::multiplies(a.dtype(), b.dtype())) internal::check_same_dtype("matmul", a, b);
  if (a.dtype() == DType::boolean) throw DTypeError("matmul: expected numbers, found " + a.to_string());
  if (out.dtype() != product_dtype(a.dtype()) && out.dtype() != internal::wide_dtype(a.dtype()))
    throw DTypeError("matmul: expected " + std::string(name_of(product_dtype(a.dtype()))) + " for out, found " + out.to_string());
  internal::check_dims("matmul", "out", out, matmul_dims(a.dims(), b.dims()));
  internal::check_contiguous("matmul", "out", out);
}

}  // namespace

DDim matmul_dims(const DDim& a, const DDim& b) {
  const auto refuse = [&] { return ShapeError("matmul: " + a.to_string() + " and " + b.to_string() + " do not fit each other"); };
  if (a.rank() == 0 || b.rank() == 0) throw refuse();
  const DDim left = a.rank() == 1 ? a.inserted(0, 1) : a;
  const DDim right = b.rank() == 1 ? b.inserted(1, 1) : b;
  if (left[-1] != right[-2]) throw refuse();
  const DDim left_batch = batch_of(left);
  const DDim right_batch = batch_of(right);
  DDim made = left_batch;
  try {
    made = broadcast_dims(left_batch, right_batch);
  } catch (const ShapeError&) {
    throw refuse();
  }
  if (a.rank() > 1) made = made.inserted(made.rank(), left[-2]);
  if (b.rank() > 1) made = made.inserted(made.rank(), right[-1]);
  return made;
}

void matmul(const Tensor& a, const Tensor& b, Tensor& out, StreamRef stream) {
  internal::check_device_places("matmul", stream, {&a, &b, &out});
  check_matmul(a, b, out);
  if (a.rank() == 2 && b.rank() == 2) return gemm(1, a, b, 0, out, stream);
  if (a.dim(-1) == 0) return fill(out, 0, stream);  // sums of nothing: the matrices of a batch have no first element to begin at
  const Tensor left = a.rank() == 1 ? with_axis(a, 0) : a;
  const Tensor right = b.rank() == 1 ? with_axis(b, 1) : b;
  const DDim batch = broadcast_dims(batch_of(left.dims()), batch_of(right.dims()));
  if (internal::on_cuda(stream.place())) {
    if (a.dtype() != b.dtype()) return matmul(a, internal::row_major_as("matmul", b, a.dtype(), stream), out, stream);
    launch(
        TensorRefs<2>{&a, &b}, TensorRefs<1>{&out},
        [=](KernelContext& context) {
          cuda::gemm(1, broadcast_view(left, with_matrix(batch, left.dim(-2), left.dim(-1))),
                     broadcast_view(right, with_matrix(batch, right.dim(-2), right.dim(-1))), 0,
                     out.reshape(with_matrix(batch, left.dim(-2), right.dim(-1))), context);
        },
        stream);
    return;
  }
  const Tensor wide_left = internal::wide_room(left, stream.memory());
  const Tensor wide_right = internal::wide_room(right, stream.memory());
  const Tensor result = internal::wide_room(out, stream.memory());
  const std::int64_t scratch_bytes = cpu::matmul_scratch_bytes(wide_left, wide_right);
  const Tensor scratch = scratch_bytes == 0 ? result : Tensor(DType::u8, DDim{scratch_bytes}, stream.memory());
  launch(
      TensorRefs<2>{&a, &b}, TensorRefs<1>{&out},
      [=](ThreadTeam& team) {
        cpu::widen(left, wide_left, team);
        cpu::widen(right, wide_right, team);
        const Tensor matrices = result.reshape(with_matrix(batch, left.dim(-2), right.dim(-1)));
        cpu::matmul(broadcast_view(wide_left, with_matrix(batch, left.dim(-2), left.dim(-1))),
                    broadcast_view(wide_right, with_matrix(batch, right.dim(-2), right.dim(-1))), matrices, scratch, team);
        cpu::narrow(result, out, team);
      },
      stream);
}

Tensor matmul(const Tensor& a, const Tensor& b, StreamRef stream) {
  Tensor out(product_dtype(a.dtype()), matmul_dims(a.dims(), b.dims()), stream.memory());
  matmul(a, b, out, stream);
  return out;
}

}  // namespace millrace
