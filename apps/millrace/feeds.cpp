// SPDX-License-Identifier: Apache-2.0
#include "feeds.h"

#include <cstring>

#include <fmt/format.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/files/npz.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/streaming/audio/audio_front_end.h>
#include <millrace/streaming/audio/wav.h>

#include "commands.h"
#include "model_flags.h"

namespace millrace::app {
namespace {

Tensor sound_rows(const std::string& name, const std::string& path, const StreamConfig& config) {
  if (!config.audio)
    throw ArgumentError(
        fmt::format("{}: expected a TOML with [audio] to make rows of sound for input '{}', found none: see --config", path, name));
  if (config.audio->input != name)
    throw ArgumentError(fmt::format("{}: expected the input '{}' that [audio] names, found '{}'", path, config.audio->input, name));
  const AudioFile file = read_wav(path);
  AudioFrontEnd source(*config.audio, file.format);
  std::vector<float> values;
  const auto take_rows = [&] {
    const std::size_t rows = source.rows();
    for (std::size_t k = 0; k < rows; ++k) {
      const std::span<const std::byte> row = source.row(k);
      const std::size_t old = values.size();
      values.resize(old + row.size() / sizeof(float));
      std::memcpy(values.data() + old, row.data(), row.size());
    }
    source.pop(rows);
  };
  for (std::span<const std::byte> left(file.bytes); !left.empty();) {
    left = left.subspan(source.feed(left));
    take_rows();
  }
  source.end();
  take_rows();
  const std::int64_t width = config.audio->row_samples();
  return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()) / width, width});
}

std::map<std::string, Tensor> read_archive(const std::string& path) {
  if (ending_of(path) == ".npz") return read_npz(path);
  std::map<std::string, Tensor> tensors;
  for (auto& [name, tensor] : read_safetensors(path).tensors) tensors.emplace(name, std::move(tensor));
  return tensors;
}

/// FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME.
Tensor read_rows(const std::string& path) {
  const auto at = path.rfind(':');
  const std::string file = path.substr(0, at);
  const auto is_archive = [](const std::string& name) { return ending_of(name) == ".npz" || ending_of(name) == ".safetensors"; };
  if (at == path.npos || !is_archive(file)) {
    if (!is_archive(path)) return read_npy(path);
    throw UsageError(fmt::format("--input: expected {}:TENSOR, which names a tensor of the file, found the file alone", path));
  }
  const std::string name = path.substr(at + 1);
  const std::map<std::string, Tensor> tensors = read_archive(file);
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  std::string names;
  for (const auto& [each, tensor] : tensors) names += (names.empty() ? "" : ", ") + each;
  throw ArgumentError(fmt::format("{}: expected a tensor '{}', found {}", file, name, names.empty() ? "none" : names));
}

}  // namespace

std::map<std::string, LoDTensor> read_feeds(const std::vector<std::string>& inputs, const std::vector<std::string>& lods,
                                            const StreamConfig& config) {
  std::map<std::string, LoD> levels;
  for (const std::string& text : lods) {
    const auto [name, lod] = split_assignment("--lod", text);
    try {
      if (!levels.emplace(name, LoD::parse(lod)).second) throw UsageError(fmt::format("--lod: '{}' is given twice", name));
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      throw UsageError(fmt::format("--lod {}: {}", name, error.what()));
    }
  }
  std::map<std::string, LoDTensor> feeds;
  for (const std::string& text : inputs) {
    const auto [name, path] = split_assignment("--input", text);
    if (feeds.contains(name)) throw UsageError(fmt::format("--input: '{}' is given twice", name));
    const bool sound = ending_of(path) == ".wav";
    Tensor rows = sound ? sound_rows(name, path, config) : read_rows(path);
    const auto lod = levels.extract(name);
    try {
      feeds.emplace(name, lod.empty() ? LoDTensor(std::move(rows)) : LoDTensor(std::move(rows), lod.mapped()));
    } catch (Error& error) {
      error.add_context(" in " + path + " with --lod " + name);
      throw;
    }
  }
  if (!levels.empty()) throw UsageError(fmt::format("--lod: expected an input of --input, found '{}'", levels.begin()->first));
  return feeds;
}

}  // namespace millrace::app
