// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/matmul.h>

#include <millrace/kernels/cpu/gemm.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// The matrix that begins `offset` elements behind `x`.
Tensor matrix_at(const Tensor& x, std::int64_t offset) {
  const auto first = (static_cast<const std::byte*>(x.raw()) - x.storage()->data()) / static_cast<std::int64_t>(size_of(x.dtype()));
  return Tensor(x.dtype(), x.dims().slice(x.rank() - 2, x.rank()), x.strides().slice(x.rank() - 2, x.rank()), first + offset, x.storage());
}

/// One matrix for all of a batch whose rows stand one behind the other, when b is the same for all of it.
bool is_one_product(const Tensor& a, const Tensor& b) {
  for (int axis = 0; axis < b.rank() - 2; ++axis)
    if (b.dim(axis) != 1 && b.strides()[axis] != 0) return false;
  return a.is_contiguous();
}

}  // namespace

std::int64_t matmul_scratch_bytes(const Tensor& a, const Tensor& b) {
  if (a.elements() == 0 || b.elements() == 0) return 0;
  const Tensor left = matrix_at(a, 0);
  const Tensor right = matrix_at(b, 0);
  return gemm_scratch_bytes(left, right);
}

void matmul(const Tensor& a, const Tensor& b, const Tensor& out, const Tensor& scratch, ThreadTeam& team) {
  if (out.elements() == 0) return;
  const std::int64_t m = a.dim(-2);
  const std::int64_t n = b.dim(-1);
  if (is_one_product(a, b)) {
    const std::int64_t rows = out.elements() / n;
    return gemm(1, a.reshape(DDim{rows, a.dim(-1)}), matrix_at(b, 0), 0, out.reshape(DDim{rows, n}), scratch, team);
  }
  const int axes = out.rank() - 2;
  const DDim batch = out.dims().slice(0, axes);
  const DDim a_strides = a.strides().slice(0, axes);
  const DDim b_strides = b.strides().slice(0, axes);
  const StridedLoop<2> loop(batch, {&a_strides, &b_strides});
  std::int64_t done = 0;
  loop.each_run(0, loop.count(), [&](const auto& offsets, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i, ++done)
      gemm(1, matrix_at(a, offsets[0] + i * loop.inner()[0]), matrix_at(b, offsets[1] + i * loop.inner()[1]), 0,
           matrix_at(out, done * m * n), scratch, team);
  });
}

}  // namespace millrace::cpu
