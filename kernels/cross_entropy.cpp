// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cross_entropy.h>

#include <string>

#include <millrace/kernels/cpu/cross_entropy.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/one_hot.h>
#include <millrace/kernels/softmax.h>
#include <millrace/kernels/unary.h>
#include <millrace/kernels/where.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

void check(const char* name, const Tensor& x, const Tensor& labels) {
  internal::check_floating(name, x);
  internal::check_dtype(name, "labels", labels, DType::i64);
  internal::check_contiguous(name, "labels", labels);
  if (x.rank() != 2 || labels.elements() != x.dim(0))
    throw ShapeError(std::string(name) + ": expected a label for each row of " + x.to_string() + ", found " + labels.to_string());
}

/// Host rows of a dtype that vectors sum in have a kernel of their own.
bool is_one_kernel(const Tensor& x, StreamRef stream) {
  return stream.place().is_cpu() && (x.dtype() == DType::f32 || x.dtype() == DType::f64);
}

/// Checks labels on the host, where the kernels of other dtypes do not.
void check_labels(const Tensor& labels, std::int64_t classes, std::int64_t ignore, StreamRef stream) {
  launch(TensorRefs<1>{&labels}, TensorRefs<0>{}, [=](ThreadTeam&) { cpu::check_labels(labels, classes, ignore); }, stream);
}

Tensor rows_of(const char* name, const Tensor& x, StreamRef stream) { return x.is_contiguous() ? x : internal::row_major(name, x, stream); }

Tensor i64(std::int64_t value, StreamRef stream) { return full(DDim{}, static_cast<double>(value), DType::i64, stream); }

/// The labels of rows that count, others as 0; a label that is no class as one behind the last, which `gather_elements` refuses.
Tensor checked_labels(const Tensor& labels, std::int64_t classes, std::int64_t ignore, StreamRef stream) {
  const Tensor outside = where(less(labels, i64(0, stream), stream), i64(classes, stream), labels, stream);
  return where(equal(labels, i64(ignore, stream), stream), i64(0, stream), outside, stream);
}

}  // namespace

Tensor cross_entropy(const Tensor& x, const Tensor& labels, std::int64_t ignore, StreamRef stream) {
  constexpr const char* name = "softmax_cross_entropy";
  internal::check_device_places(name, stream, {&x, &labels});
  check(name, x, labels);
  if (!is_one_kernel(x, stream)) {
    if (stream.place().is_cpu()) check_labels(labels, x.dim(1), ignore, stream);
    const Tensor column = labels.reshape(DDim{x.dim(0), 1});
    const Tensor picked = gather_elements(log_softmax(x, 1, stream), checked_labels(column, x.dim(1), ignore, stream), 1, stream);
    const Tensor counts = not_equal(column, i64(ignore, stream), stream);
    return where(counts, unary(Unary::neg, {}, picked, stream), full(DDim{}, 0, x.dtype(), stream), stream);
  }
  const Tensor from = rows_of(name, x, stream), out(x.dtype(), DDim{x.dim(0), 1}, stream.memory());
  launch(
      TensorRefs<2>{&from, &labels}, TensorRefs<1>{&out}, [=](ThreadTeam& team) { cpu::cross_entropy(from, labels, ignore, out, team); },
      stream);
  return out;
}

Tensor cross_entropy_gradient(const Tensor& gradient, const Tensor& x, const Tensor& labels, std::int64_t ignore, StreamRef stream) {
  constexpr const char* name = "softmax_cross_entropy_gradient";
  internal::check_device_places(name, stream, {&gradient, &x, &labels});
  check(name, x, labels);
  internal::check_same_dtype(name, x, gradient);
  if (gradient.rank() != 2 || gradient.dim(1) != 1 || (gradient.dim(0) != x.dim(0) && gradient.dim(0) != 1))
    throw ShapeError(std::string(name) + ": expected a gradient for each row of " + x.to_string() + ", found " + gradient.to_string());
  if (!is_one_kernel(x, stream)) {
    const Tensor flat = labels.reshape(DDim{x.dim(0)}), column = labels.reshape(DDim{x.dim(0), 1});
    // A device finds a label that is no class where it picks by labels, which a gradient does not.
    if (stream.place().is_cpu())
      check_labels(labels, x.dim(1), ignore, stream);
    else
      gather_elements(x, checked_labels(column, x.dim(1), ignore, stream), 1, stream);
    const Tensor right = one_hot(flat, x.dim(1), -1, 0, 1, x.dtype(), stream);
    const Tensor made = mul(gradient, sub(softmax(x, 1, stream), right, stream), stream);
    const Tensor counts = not_equal(column, i64(ignore, stream), stream);
    return where(counts, made, full(DDim{}, 0, x.dtype(), stream), stream);
  }
  const Tensor of_losses = rows_of(name, gradient, stream), from = rows_of(name, x, stream), out(x.dtype(), x.dims(), stream.memory());
  launch(
      TensorRefs<3>{&of_losses, &from, &labels}, TensorRefs<1>{&out},
      [=](ThreadTeam& team) { cpu::cross_entropy_gradient(of_losses, from, labels, ignore, out, team); }, stream);
  return out;
}

}  // namespace millrace
