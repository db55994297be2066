// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

/// Integers of 64 bits that the kernels, whose numbers are f64, would round: those beyond ±2^53.
namespace millrace::ops {

/// The one element of `scalar`, where it is an i64 that f64 cannot hold for certain; else nothing.
std::optional<std::int64_t> beyond_f64(const Tensor& scalar);

/// i64 elements that are `value`, all bits of it, in the memory of `stream`.
Tensor full_exactly(const DDim& dims, std::int64_t value, StreamRef stream);

/// The number of elements of start, start + step, … before `limit`. ArgumentError for a step of 0.
std::int64_t range_count(std::int64_t start, std::int64_t limit, std::int64_t step);

/// i64: start + i·step for each i below `range_count`, exactly.
Tensor range_exactly(std::int64_t start, std::int64_t limit, std::int64_t step, StreamRef stream);

}  // namespace millrace::ops
