// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/tensor/lod_tensor.h>

namespace millrace {

/// PaddlePaddle Fluid's parameter files: serialised LoDTensors as `save_vars` writes them (one to a file, named like the
/// variable) and `save_combine` (several, one behind the other). Source: paddle/fluid/framework/lod_tensor.cc,
/// SerializeToStream, version 0:
///
///     u32 version of the LoD, u64 levels, per level: u64 bytes, u64 offsets …
///     u32 version of the tensor, i32 bytes of its description, the protobuf TensorDesc {1: type, 2: extents}, elements
///
/// all little-endian. Read: FP64 FP32 FP16 BF16 INT64 INT32 INT8 UINT8 BOOL; another type is a DTypeError that names its
/// number. A file of another form or length, or with offsets that do not describe the rows, is a ParseError that
/// says where. A declared size is compared with the bytes that are there before anything is allocated.
LoDTensor read_fluid_tensor(const std::filesystem::path& path);
/// Reads the bytes of such a file; `where` opens each error.
LoDTensor parse_fluid_tensor(std::string_view bytes, const std::string& where);

/// All tensors of a file that `save_combine` wrote, in their order; it holds no names. An empty file holds none.
std::vector<LoDTensor> read_fluid_tensors(const std::filesystem::path& path);
std::vector<LoDTensor> parse_fluid_tensors(std::string_view bytes, const std::string& where);

}  // namespace millrace
