// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The combination of an element with an update.
enum class ScatterReduction { none, add, mul, min, max };

/// ONNX GatherND. `index` [B…, I…, r], i64 or i32, names blocks of x [B…, D1 … Dr, R…], where B… are the first `batch_axes` axes of both: out
/// [B…, I…, R…]. Negative places count from the end. ShapeError when the shapes do not fit one another; a place outside is an IndexError that
/// fails the stream.
Tensor gather_nd(const Tensor& x, const Tensor& index, int batch_axes, StreamRef stream);
/// The extents of its result. ShapeError.
DDim gather_nd_dims(const DDim& x, const DDim& index, int batch_axes);

/// ONNX ScatterND: a copy of x [D1 … Dr, R…] whose blocks that `index` [I…, r] names take those of `updates` [I…, R…], one after the other.
/// A block named twice with `none` has the later one. Sums wrap for integers; f16 and bf16 are computed in f32. Not for bool, unless `none`.
Tensor scatter_nd(const Tensor& x, const Tensor& index, const Tensor& updates, ScatterReduction reduction, StreamRef stream);

/// ONNX ScatterElements: the same for single elements, out[…, index[…, i, …], …] takes updates[…, i, …] along `axis`; `index` and `updates`
/// have the same extents, within those of x on other axes.
Tensor scatter_elements(const Tensor& x, const Tensor& index, const Tensor& updates, int axis, ScatterReduction reduction,
                        StreamRef stream);

}  // namespace millrace
