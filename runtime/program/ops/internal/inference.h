// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/program/op_def.h>

namespace millrace::ops {

/// Helpers of the inferences of the ops. An extent of −1 is unknown, no shape at all is an unknown rank; what is known
/// is checked, and every message names what was expected and what was found (ProgramError).

/// A list of whole numbers, as attributes hold it.
using Ints = std::vector<std::int64_t>;

/// A tensor of that dtype and shape, without LoD.
VarType tensor_type(DType dtype, std::optional<DDim> shape);

/// numpy's broadcasting of what is known: an unknown extent beside n > 1 becomes n, beside 1 it stays unknown.
std::optional<DDim> broadcast(const InferContext& context, const std::vector<std::size_t>& inputs);
/// `axis` counted from 0; `rank` must be known.
int checked_axis(std::int64_t axis, int rank);
/// Each axis of a list, counted from 0; an axis named twice is refused.
std::vector<int> checked_axes(const Ints& axes, int rank);

void expect_same_dtype(const InferContext& context, std::size_t a, std::size_t b);
void expect_dtype(const InferContext& context, std::size_t input, DType wanted);
void expect_float(const InferContext& context, std::size_t input);
/// i64 or i32.
void expect_index(const InferContext& context, std::size_t input);
/// An unknown rank passes.
void expect_rank(const InferContext& context, std::size_t input, int rank);
void expect_scalar(const InferContext& context, std::size_t input);
/// Axis `axis` of an input has `wanted` elements, unless one of them is unknown (or the rank is).
void expect_extent(const InferContext& context, std::size_t input, int axis, std::int64_t wanted);

/// Extent `axis` of an input, −1 when unknown.
std::int64_t extent(const InferContext& context, std::size_t input, int axis);
/// The one extent that both must have: the known one. ProgramError with `what` when they differ.
std::int64_t same_extent(std::int64_t a, std::int64_t b, const std::string& what);
/// Product of axes [begin, end), −1 when one is unknown (and none is 0).
std::int64_t product_of(const DDim& shape, int begin, int end);

/// Elements of an integer tensor on the host.
Ints integers_of(const Tensor& tensor);
/// The constant value of an integer input, if it never changes. ProgramError unless the input is of i64 or i32.
std::optional<Ints> constant_integers(const InferContext& context, std::size_t input);
std::optional<Ints> constant_integers(const PrepareContext& context, std::size_t input);
std::optional<Ints> constant_integers(const Program& program, const Op& op, std::size_t input);
/// The number of elements of a 1-D input, −1 when unknown.
std::int64_t list_length(const InferContext& context, std::size_t input);

/// `[1, 2]`, for messages.
std::string list_text(const Ints& values);

}  // namespace millrace::ops
