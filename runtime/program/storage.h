// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Writes `path` (NAME.mr, the printed form; ArgumentError for another ending) and NAME.safetensors beside it. Each file is written whole
/// or not at all, and the text takes its place last: a failure before that leaves both as they were, or the weights alone new. The last line of the
/// text and the metadata of the weights hold the same hash of the weights. IoError names the file.
void save_program(const Program& program, const std::filesystem::path& path);
/// Reads what `save_program` wrote, and checks it. ParseError, ProgramError and UnsupportedError (unknown ops, all of them) name file,
/// line, expected and found; ParseError, too, where text and weights are not of one save. Weights that the text does not name are not looked at, and weights
/// that another tool wrote, without the hash, are taken as they are.
Program load_program(const std::filesystem::path& path, std::shared_ptr<const OpRegistry> registry = nullptr);

}  // namespace millrace
