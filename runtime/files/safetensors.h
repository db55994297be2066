// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <millrace/tensor/tensor.h>

namespace millrace {

/// The contents of a .safetensors file: named tensors in the order of their bytes, and free text.
struct SafeTensors {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, std::string> metadata;

  /// The tensor of that name, or null.
  const Tensor* find(std::string_view name) const noexcept;
};

/// Reads f64 f32 f16 bf16 i64 i32 i8 u8 bool; I16 and U16 as i32, U32 and U64 as i64 (OverflowError for a number that does not fit); another element type is a DTypeError that names tensor and type. Strict:
/// a header of at most 16 MiB that is one JSON object in UTF-8 without a key twice, and tensors that fill the file from
/// its header to its end without hole or overlap. Anything else is a ParseError that says where. Nothing is allocated
/// from a declared size before it is compared with the bytes there. Source: github.com/huggingface/safetensors,
/// "Format".
SafeTensors read_safetensors(const std::filesystem::path& path);
/// Reads the bytes of such a file; `where` opens each error.
SafeTensors parse_safetensors(std::string_view bytes, const std::string& where);

/// Writes the tensors in their order; the file appears whole or not at all. Tensors are on the host, of any strides.
/// ArgumentError for a name that is there twice, is `__metadata__` or is no UTF-8.
void write_safetensors(const std::filesystem::path& path, const SafeTensors& contents);
/// Gives the bytes of such a file.
std::string format_safetensors(const SafeTensors& contents);
/// SHA-256 of the file that the tensors alone would be.
std::string sha256(const SafeTensors& contents);

}  // namespace millrace
