// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <millrace/tensor/lod_tensor.h>

namespace millrace::app {

/// Tensors on the host, by the names of outputs.
using NamedOutputs = std::vector<std::pair<std::string, LoDTensor>>;

/// Writes NAME.npy for each (NAME.safetensors, with one tensor of that name, for bf16, which npy lacks), and NAME.lod.json beside a ragged one, into `folder`, which is made when it is not there. All files or none:
/// none appears before all are written. Letters, digits and `_-.` stay in a file's name, anything else becomes `_`; UsageError when two
/// outputs would share a file.
void write_outputs(const std::filesystem::path& folder, const NamedOutputs& outputs);

/// `name` as a file's name.
std::string file_name_of(const std::string& name);

}  // namespace millrace::app
