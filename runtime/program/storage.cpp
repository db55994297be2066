// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/storage.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/program/text.h>

namespace millrace {
namespace {

constexpr std::uint64_t most_text = std::uint64_t{256} << 20;

std::filesystem::path weights_of(std::filesystem::path path) { return path.replace_extension(".safetensors"); }

}  // namespace

void save_program(const Program& program, const std::filesystem::path& path) {
  if (path.extension() != ".mr") throw ArgumentError("save_program: expected a path that ends in .mr, found '" + path.string() + "'");
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw IoError(path.string() + ": cannot write: it is a folder");
  SafeTensors weights;
  for (const auto& [var, value] : program.parameters()) weights.tensors.emplace_back(program.var(var).name, value);
  // The text is written before the weights take their place, so that what fails until then changes neither file.
  AtomicFile text(path);
  text.write(print(program));
  write_safetensors(weights_of(path), weights);
  text.commit();
}

Program load_program(const std::filesystem::path& path, std::shared_ptr<const OpRegistry> registry) {
  const std::string text = read_file(path, most_text);
  const std::filesystem::path beside = weights_of(path);
  std::map<std::string, Tensor> weights;
  std::error_code absent;
  const bool found = beside != path && std::filesystem::exists(beside, absent);
  if (found || absent)
    for (auto& [name, tensor] : read_safetensors(beside).tensors) weights.emplace(name, std::move(tensor));
  try {
    return parse_program(text, weights, std::move(registry));
  } catch (Error& error) {
    error.add_context(" (in " + path.string() + (found ? ", weights of " : ", without ") + beside.string() + ")");
    throw;
  }
}

}  // namespace millrace
