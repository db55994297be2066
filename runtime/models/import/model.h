// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// A model file of any kind that this library reads, by its ending: `.onnx` (onnx.h), or `.mr` with its `.safetensors`
/// (program/storage.h). A file with another ending is told by its first bytes. Errors are those of the reader.
Program load_model(const std::filesystem::path& path, std::shared_ptr<const OpRegistry> registry = nullptr);

}  // namespace millrace
