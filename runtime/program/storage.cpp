// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/storage.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/program/text.h>

namespace millrace {
namespace {

constexpr std::uint64_t most_text = std::uint64_t{256} << 20;

constexpr std::string_view weights_word = "\nweights \"";
constexpr const char* metadata_key = "sha256";

std::filesystem::path weights_of(std::filesystem::path path) { return path.replace_extension(".safetensors"); }

/// The hash in the last line of a text, or nothing.
std::string_view named_weights(std::string_view text) {
  const auto at = text.rfind(weights_word);
  if (at == text.npos) return {};
  const std::string_view rest = text.substr(at + weights_word.size());
  return rest.substr(0, rest.find('"'));
}

}  // namespace

void save_program(const Program& program, const std::filesystem::path& path) {
  if (path.extension() != ".mr") throw ArgumentError("save_program: expected a path that ends in .mr, found '" + path.string() + "'");
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw IoError(path.string() + ": cannot write: it is a folder");
  SafeTensors weights;
  for (const auto& [var, value] : program.parameters()) weights.tensors.emplace_back(program.var(var).name, value);
  const std::string hash = sha256(weights);
  weights.metadata[metadata_key] = hash;
  // The text is written before the weights take their place, so that what fails until then changes neither file.
  AtomicFile text(path);
  text.write(print(program));
  text.write(std::string(weights_word.substr(1)) + hash + "\"\n");
  write_safetensors(weights_of(path), weights);
  text.commit();
}

Program load_program(const std::filesystem::path& path, std::shared_ptr<const OpRegistry> registry) {
  const std::string text = read_file(path, most_text);
  const std::filesystem::path beside = weights_of(path);
  std::map<std::string, Tensor> weights;
  std::string hash;
  std::error_code absent;
  const bool found = beside != path && std::filesystem::exists(beside, absent);
  if (found || absent) {
    SafeTensors contents = read_safetensors(beside);
    for (auto& [name, tensor] : contents.tensors) weights.emplace(name, std::move(tensor));
    hash = std::move(contents.metadata[metadata_key]);
  }
  try {
    Program program = parse_program(text, weights, std::move(registry));
    const std::string_view wanted = named_weights(text);
    if (!wanted.empty() && !hash.empty() && wanted != hash)
      throw ParseError("expected the weights that the program was saved with, '" + std::string(wanted.substr(0, 8)) +
                       "…', found those of another one, '" + hash.substr(0, 8) +
                       "…': saving was interrupted, or one of the files was copied alone");
    return program;
  } catch (Error& error) {
    error.add_context(" (in " + path.string() + (found ? ", weights of " : ", without ") + beside.string() + ")");
    throw;
  }
}

}  // namespace millrace
