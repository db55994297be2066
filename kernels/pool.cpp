// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/pool.h>

#include <limits>
#include <string>

#include <millrace/kernels/cpu/pool.h>
#include <millrace/kernels/cpu/widen.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const PoolDesc&, const Tensor&, const Tensor&> kernels{"pool", {}, cpu::pool};

void check(const PoolDesc& desc, const Tensor& x) {
  const bool adds = desc.fold == Binary::add;  // a sum of f16 or bf16 would be rounded once for each element
  if (!is_floating(x.dtype()) || (adds && internal::wide_dtype(x.dtype()) != x.dtype()))
    throw DTypeError("pool: expected " + std::string(adds ? "f32 or f64" : "floats") + " for x, found " + x.to_string());
  if (desc.fold != Binary::maximum && desc.fold != Binary::minimum && desc.fold != Binary::add)
    throw ArgumentError("pool: expected maximum, minimum or add, found " + std::string(name_of(desc.fold)));
  if (desc.axes.empty() || x.rank() < static_cast<int>(desc.axes.size()))
    throw ShapeError("pool: expected 1 axis or more and as many in x, found " + std::to_string(desc.axes.size()) + " and " + x.to_string());
  for (const PoolDesc::Axis& axis : desc.axes)
    if (axis.kernel < 1 || axis.stride < 1 || axis.dilation < 1 || axis.before < 0 || axis.after < 0)
      throw ArgumentError("pool: expected kernels, strides and dilations of 1 or more and pads of 0 or more, found " +
                          std::to_string(axis.kernel) + ", " + std::to_string(axis.stride) + ", " + std::to_string(axis.dilation) + ", " +
                          std::to_string(axis.before) + " and " + std::to_string(axis.after));
}

}  // namespace

std::int64_t PoolDesc::out_extent(const Axis& axis, std::int64_t extent) {
  const std::int64_t padded = checked_add(extent, checked_add(axis.before, axis.after));
  const std::int64_t span = checked_add(checked_mul(axis.dilation, axis.kernel - 1), std::int64_t{1});
  return padded < span ? 0 : (padded - span) / axis.stride + 1;
}

double PoolDesc::padding() const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return fold == Binary::maximum ? -infinity : fold == Binary::minimum ? infinity : 0.0;
}

Tensor pool(const PoolDesc& desc, const Tensor& x, StreamRef stream) {
  check(desc, x);
  DDim dims = x.dims();
  const int first = x.rank() - static_cast<int>(desc.axes.size());
  for (int axis = first; axis < x.rank(); ++axis)
    dims[axis] = PoolDesc::out_extent(desc.axes[static_cast<std::size_t>(axis - first)], x.dim(axis));
  const Tensor own = x.is_contiguous() ? x : internal::row_major("pool", x, stream);
  Tensor out(x.dtype(), dims, stream.memory());
  internal::check_device_places("pool", stream, {&own, &out});
  const bool host = !internal::on_cuda(stream.place());
  const Tensor wide = host ? internal::wide_room(own, stream.memory()) : own,
               folds = host ? internal::wide_room(out, stream.memory()) : out;
  launch(
      TensorRefs<1>{&own}, TensorRefs<1>{&out},
      [=](KernelContext& context) {
        cpu::widen(own, wide, context.team());
        kernels.run(desc, wide, folds, context);
        cpu::narrow(folds, out, context.team());
      },
      stream);
  return out;
}

}  // namespace millrace
