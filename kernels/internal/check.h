// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace::internal {

/// PlaceError unless this build has kernels for the place of `stream` and every tensor lives there. UninitializedError for a tensor that was moved from.
/// Null tensors are skipped.
void check_device_places(std::string_view op, StreamRef stream, std::initializer_list<const Tensor*> tensors);
/// Whether work of `place` runs on a CUDA device.
bool on_cuda(const Place& place);
/// PlaceError unless work of `stream` computes in host memory, for an op that has no kernel for a device: "conv: expected host memory, found f32[2, 3] on
/// cuda:0: the op has no kernel for a device, run the program on cpu". `x` is named.
void check_host(std::string_view op, StreamRef stream, const Tensor& x);
/// PlaceError unless this build has kernels for `place`: plans of a backend's place are for host memory, as its streams show.
void check_device_plan_place(std::string_view op, const Place& place);

/// DTypeError, ShapeError: "gemm: expected f32 for c, found f64[2, 3] on cpu".
void check_dtype(std::string_view op, std::string_view role, const Tensor& tensor, DType expected);
void check_same_dtype(std::string_view op, const Tensor& a, const Tensor& b);
void check_floating(std::string_view op, const Tensor& tensor);
void check_index_dtype(std::string_view op, const Tensor& tensor);
void check_dims(std::string_view op, std::string_view role, const Tensor& tensor, const DDim& expected);
void check_contiguous(std::string_view op, std::string_view role, const Tensor& tensor);

/// LoDError unless `offsets` start at 0, never decrease and end at the rows of `x` (ShapeError for a scalar): sequence i is
/// the rows [offsets[i], offsets[i + 1]).
void check_row_offsets(std::string_view op, const Tensor& x, const std::vector<std::int64_t>& offsets);

/// `axis` made 0…rank−1, for a tensor of at least rank 1; IndexError names op, axis and extents.
int checked_axis(std::string_view op, int axis, const DDim& dims);

}  // namespace millrace::internal
