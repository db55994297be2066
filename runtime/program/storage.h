// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Writes `path` (NAME.mr, the printed form) and NAME.safetensors beside it. Each file is written whole or not at all. IoError names the file.
void save_program(const Program& program, const std::filesystem::path& path);
/// Reads what `save_program` wrote, and checks it. ParseError and ProgramError name file, line, expected and found.
Program load_program(const std::filesystem::path& path, std::shared_ptr<const OpRegistry> registry = nullptr);

}  // namespace millrace
