// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// numpy's take: out[i…, j…, k…] = x[i…, index[j…], k…] with `axis` between i and k. `index` is i64 or i32 of any
/// shape, negative values count from the end. An index outside is an IndexError that fails the stream and names index,
/// axis and extent.
Tensor gather(const Tensor& x, const Tensor& index, int axis, StreamRef stream);
/// `table` [V, C] rows by `index`: gather along axis 0.
inline Tensor embedding(const Tensor& table, const Tensor& index, StreamRef stream) { return gather(table, index, 0, stream); }
/// ONNX GatherElements: out has the extents of `index`; out[…, i, …] = x[…, index[…, i, …], …].
Tensor gather_elements(const Tensor& x, const Tensor& index, int axis, StreamRef stream);

/// out[…, i, j] = x[…, rows[i], columns[j]]: gather along the last axis but one, then along the last, written once. `rows` and `columns` are i64 or i32 of one axis. In host memory alone.
/// Errors as above, and ShapeError.
Tensor gather_planes(const Tensor& x, const Tensor& rows, const Tensor& columns, StreamRef stream);

/// The sum of what several lists of places pick along `axis`, each by weights: out[i…, j, k…] = Σ_t x[i…, places_t[j], k…] · weights_t[j]. Products are rounded and
/// added in the order of the terms: the bits of `gather`, `mul` and `add`, one op after another. f32 or f64; places are i64 or i32 of one axis, weights of as many
/// elements and the dtype of x. In host memory alone. Errors as above, ShapeError and DTypeError.
struct GatherTerm {
  Tensor places;
  Tensor weights;
};
Tensor gather_sum(const Tensor& x, const std::vector<GatherTerm>& terms, int axis, StreamRef stream);

/// Rows of axis 0 by plan. out[i] = x[index[i]]; index −1 gives a row of zeros. Rows have the same extents and dtype on
/// both sides (ShapeError, DTypeError); `out` has as many rows as the plan. Indices below −1 or past the end are an
/// IndexError: at once for a vector, failing the stream for a tensor (i64 or i32, [rows]).
void gather_rows(const Tensor& x, const std::vector<std::int64_t>& index, Tensor& out, StreamRef stream);
void gather_rows(const Tensor& x, const Tensor& index, Tensor& out, StreamRef stream);
Tensor gather_rows(const Tensor& x, const std::vector<std::int64_t>& index, StreamRef stream);
Tensor gather_rows(const Tensor& x, const Tensor& index, StreamRef stream);
/// Rows as `gather_rows` takes them, but −1 gives `otherwise`, a tensor of the dtype of x that broadcasts to a row (ShapeError, DTypeError).
void gather_rows_or(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& otherwise, Tensor& out, StreamRef stream);
Tensor gather_rows_or(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& otherwise, StreamRef stream);

/// out[index[i]] = x[i]; index −1 skips row i; rows of `out` that are not named keep what they hold. A row named twice
/// gets the later one. Errors as above. `out` may be only partly written before: other elements stay undefined.
void scatter_rows(const Tensor& x, const std::vector<std::int64_t>& index, Tensor& out, StreamRef stream);
void scatter_rows(const Tensor& x, const Tensor& index, Tensor& out, StreamRef stream);

}  // namespace millrace
