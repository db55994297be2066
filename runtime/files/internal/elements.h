// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <millrace/tensor/tensor.h>

namespace millrace::internal {

/// Extents as a shape that a file declares: DDim after checks of rank, signs and product. ParseError opens with
/// `where`.
DDim file_dims(const std::vector<std::int64_t>& extents, const std::string& where);

/// ParseError unless `found` bytes are as many as `dims` needs.
void check_bytes(DType dtype, const DDim& dims, std::uint64_t found, const std::string& where);

/// A host tensor from little-endian, row-major bytes. ParseError when they are not exactly as many as `dims` needs, or
/// when a bool is neither 0 nor 1; checked before anything is allocated.
Tensor from_bytes(DType dtype, const DDim& dims, std::string_view bytes, const std::string& where);

/// Integers that files have and tensors do not.
enum class FileInteger { i16, u16, u32, u64 };
/// A dtype with as many bytes, as which they are read.
DType stored_as(FileInteger from);
/// The numbers of elements that were read as `stored_as(from)`: i32, or i64 for u32 and u64. OverflowError, which opens with `where`, for a u64 beyond 2⁶³ − 1.
Tensor widened(const Tensor& stored, FileInteger from, const std::string& where);

/// The elements as bytes in memory of the host: row-major, little-endian.
std::string_view to_bytes(const Tensor& contiguous);

/// Reverses the bytes of each element in place.
void swap_bytes(Tensor& tensor);

}  // namespace millrace::internal
