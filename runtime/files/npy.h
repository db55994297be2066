// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <millrace/tensor/tensor.h>

namespace millrace {

/// NumPy's .npy files, versions 1 to 3. Source: numpy/lib/format.py.
///
/// Read: f64 f32 f16 i64 i32 i8 u8 bool; i16 and u16 as i32, u32 and u64 as i64 (OverflowError for a number that does not fit); little- or big-endian, row-major or Fortran order; the result is row-major on
/// the host. Other element types are a DTypeError that names the code found. Bytes that are no .npy file, are too few
/// or too many, or a bool other than 0 or 1, are a ParseError. A declared size is compared with the bytes that are
/// there before anything is allocated.
Tensor read_npy(const std::filesystem::path& path);
/// Reads the bytes of such a file; `where` opens each error.
Tensor parse_npy(std::string_view bytes, const std::string& where);

/// Writes version 1, little-endian, row-major; the file appears whole or not at all. `tensor` is on the host, of any
/// strides. npy has no code for bf16: DTypeError says what to do instead.
void write_npy(const std::filesystem::path& path, const Tensor& tensor);
/// Gives the bytes of such a file.
std::string format_npy(const Tensor& tensor);

}  // namespace millrace
