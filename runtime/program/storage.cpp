// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/storage.h>

#include <millrace/runtime/import/file.h>
#include <millrace/runtime/import/safetensors.h>
#include <millrace/runtime/program/text.h>

namespace millrace {
namespace {

std::filesystem::path weights_of(std::filesystem::path path) { return path.replace_extension(".safetensors"); }

}  // namespace

void save_program(const Program& program, const std::filesystem::path& path) {
  SafeTensors weights;
  for (const auto& [var, value] : program.parameters()) weights.tensors.emplace_back(program.var(var).name, value);
  write_safetensors(weights_of(path), weights);
  write_file(path, print(program));
}

Program load_program(const std::filesystem::path& path, std::shared_ptr<const OpRegistry> registry) {
  const std::string text = read_file(path);
  std::map<std::string, Tensor> weights;
  if (std::filesystem::exists(weights_of(path)))
    for (auto& [name, tensor] : read_safetensors(weights_of(path)).tensors) weights.emplace(name, std::move(tensor));
  try {
    return parse_program(text, weights, std::move(registry));
  } catch (Error& error) {
    error.add_context(" (in " + path.string() + ")");
    throw;
  }
}

}  // namespace millrace
