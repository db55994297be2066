// SPDX-License-Identifier: Apache-2.0
#include "output_files.h"

#include <map>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/files/safetensors.h>

#include "commands.h"

namespace millrace::app {

std::string file_name_of(const std::string& name) {
  std::string safe;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
    safe += plain ? c : '_';
  }
  if (safe.empty() || safe.front() == '.') safe.insert(safe.begin(), '_');
  return safe;
}

namespace {

/// AtomicFile writes beside the file under a name that is longer by ".tmp" and a number.
constexpr std::size_t longest_file_name = 255 - std::string_view(".tmp1000").size();

void check_length(const std::string& output, const std::string& file) {
  if (file.size() > longest_file_name)
    throw IoError(fmt::format("output '{}': expected a name that makes a file name of at most {} characters, found one that makes {}",
                              output, longest_file_name, file.size()));
}

}  // namespace

void write_outputs(const std::filesystem::path& folder, const NamedOutputs& outputs) {
  std::map<std::string, std::string> taken;  // file, output
  std::vector<std::pair<std::filesystem::path, std::string>> files;
  for (const auto& [name, value] : outputs) {
    const std::string file = file_name_of(name);
    const auto [other, fresh] = taken.emplace(file, name);
    if (!fresh && other->second == name)
      throw UsageError(
          fmt::format("outputs: expected different names, found '{}' as an output and as an element or a part of another", name));
    if (!fresh) throw UsageError(fmt::format("outputs '{}' and '{}' would both be written to {}.npy", other->second, name, file));
    const bool npy = value.tensor().dtype() != DType::bf16;
    check_length(name, file + (!npy ? ".safetensors" : value.lod().depth() > 0 ? ".lod.json" : ".npy"));
    files.emplace_back(folder / (file + (npy ? ".npy" : ".safetensors")),
                       npy ? format_npy(value.tensor()) : format_safetensors({{{name, value.tensor()}}, {}}));
    if (value.lod().depth() > 0) files.emplace_back(folder / (file + ".lod.json"), value.lod().to_string() + "\n");
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError(fmt::format("{}: cannot make the folder: {}", folder.string(), error.message()));
  std::vector<std::unique_ptr<AtomicFile>> open;
  for (const auto& [path, bytes] : files) {
    if (std::filesystem::is_directory(path)) throw IoError(fmt::format("{}: expected a file or nothing, found a folder", path.string()));
    open.push_back(std::make_unique<AtomicFile>(path));
    open.back()->write(bytes);
  }
  for (const auto& file : open) file->commit();
}

}  // namespace millrace::app
