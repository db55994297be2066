// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/ragged_file.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include <fmt/format.h>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/files/npz.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/tensor/cpu_stream.h>

namespace millrace::training {
namespace {

std::map<std::string, Tensor> tensors_of(const std::filesystem::path& path) {
  const std::string ending = ending_of(path);
  if (ending == ".npz") return read_npz(path);
  if (std::error_code error; ending != ".safetensors")
    throw UnsupportedError(
        path.string() +
        ": expected a file whose name ends in .ts, .csv, .tsv, .npz or .safetensors, or format = \"text\" for its bytes, found " +
        (std::filesystem::is_directory(path, error) ? "a folder" : "the ending " + millrace::internal::printable(ending)));
  std::map<std::string, Tensor> all;
  for (auto& [name, tensor] : read_safetensors(path).tensors) all.emplace(name, std::move(tensor));
  return all;
}

const Tensor& needed(const std::map<std::string, Tensor>& all, const std::string& name, const std::string& file) {
  const auto found = all.find(name);
  if (found != all.end()) return found->second;
  std::string names;
  for (const auto& [other, tensor] : all) names += (names.empty() ? "" : ", ") + other;
  throw ArgumentError(file + ": expected a tensor '" + name + "', found " + (names.empty() ? "none" : names));
}

Tensor converted(const Tensor& tensor, DType to) {
  if (tensor.dtype() == to) return tensor;
  CpuStream stream(std::make_shared<ThreadTeam>(1));
  return cast(tensor, to, stream);
}

/// i64 of any integers.
Tensor as_integers(const Tensor& tensor, const std::string& what) {
  if (is_floating(tensor.dtype())) throw DTypeError(what + ": expected integers, found " + tensor.to_string());
  return converted(tensor, DType::i64);
}

/// Numbers of one axis as rows of one number.
Tensor as_column(const Tensor& tensor) { return tensor.rank() == 1 ? tensor.reshape({tensor.dim(0), 1}) : tensor; }

/// Values as `to`. ArgumentError names the first finite one that it does not hold.
Tensor as_values(const Tensor& tensor, DType to, const std::string& what) {
  const Tensor made = converted(as_column(tensor), to);
  if (tensor.dtype() != DType::f64 || to == DType::f64) return made;
  const std::vector<double> given = tensor.to_vector<double>();
  const std::vector<float> held = made.to_vector<float>();
  for (std::size_t i = 0; i < held.size(); ++i)
    if (std::isfinite(given[i]) && !std::isfinite(held[i])) {
      const std::size_t width = held.size() / static_cast<std::size_t>(made.dim(0));
      throw ArgumentError(fmt::format("{}: row {}, element {}: expected a finite number that {} holds, found {}", what, i / width,
                                      i % width, name_of(to), given[i]));
    }
  return made;
}

/// Lengths of sequences that lie one behind the other.
LoD lod_of(const std::map<std::string, Tensor>& all, const std::string& tensor, const std::string& file) {
  const Tensor lengths = as_integers(needed(all, tensor, file), file + ", " + tensor);
  if (lengths.rank() != 1) throw ShapeError(file + ", " + tensor + ": expected one axis, found " + lengths.to_string());
  return LoD::from_lengths({lengths.to_vector<std::int64_t>()});
}

}  // namespace

Dataset read_ragged(const std::filesystem::path& path, Targets targets) {
  const std::string name = path.string();
  const std::map<std::string, Tensor> all = tensors_of(path);
  Tensor rows = needed(all, "rows", name);
  if (rows.dtype() == DType::boolean)
    throw DTypeError(name + ", rows: expected floating values, or integers as numbers of words, found " + rows.to_string());
  rows = is_floating(rows.dtype()) ? as_column(rows) : as_integers(rows, name + ", rows");
  try {
    const LoD lod = lod_of(all, "lengths", name);
    if (lod.rows() != rows.dim(0))
      throw LoDError(fmt::format("lengths: expected {} rows in all, as the tensor 'rows' has, found {}", rows.dim(0), lod.rows()));
    Tensor labels = needed(all, "labels", name);
    labels = is_floating(labels.dtype()) ? as_values(labels, rows.dtype() == DType::f64 ? DType::f64 : DType::f32, name + ", labels")
                                         : as_integers(labels, name + ", labels");
    Dataset made{LoDTensor(rows, lod), labels, targets == Targets::row, {}, name};
    if (targets == Targets::tokens) made.target_lod = lod_of(all, "label_lengths", name);
    made.validate();
    return made;
  } catch (LoDError& error) {
    error.add_context(" (in " + name + ")");
    throw;
  }
}

Dataset parse_characters(std::string_view text, const std::string& name, std::int64_t length, const std::vector<std::string>& alphabet) {
  if (length < 1) throw ArgumentError(name + ": expected sequences of at least 1 byte, found " + std::to_string(length));
  std::array<std::int64_t, 256> number{};
  number.fill(-1);
  std::vector<std::string> classes = alphabet;
  if (classes.empty()) {
    std::array<bool, 256> occurs{};
    for (const char c : text) occurs[static_cast<unsigned char>(c)] = true;
    for (int c = 0; c < 256; ++c)
      if (occurs[static_cast<std::size_t>(c)]) classes.emplace_back(1, static_cast<char>(c));
  }
  for (std::size_t i = 0; i < classes.size(); ++i) number[static_cast<unsigned char>(classes[i].at(0))] = static_cast<std::int64_t>(i);
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < text.size(); ++i) {
    numbers.push_back(number[static_cast<unsigned char>(text[i])]);
    if (numbers.back() < 0)
      throw ParseError(name + ", byte " + std::to_string(i) + ": expected a byte of the alphabet, found " +
                       std::to_string(static_cast<int>(static_cast<unsigned char>(text[i]))));
  }
  const std::int64_t rows = std::max<std::int64_t>(0, static_cast<std::int64_t>(numbers.size()) - 1);
  LoD::Level lengths;
  for (std::int64_t begin = 0; begin < rows; begin += length) lengths.push_back(std::min(length, rows - begin));
  std::vector<std::int64_t> next(numbers.begin() + (numbers.empty() ? 0 : 1), numbers.end());
  numbers.resize(static_cast<std::size_t>(rows));
  return {LoDTensor(Tensor::from(numbers, {rows}), LoD::from_lengths({lengths})), Tensor::from(next, {rows}), true, classes, name};
}

Dataset read_characters(const std::filesystem::path& path, std::int64_t length, const std::vector<std::string>& alphabet) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;
  return parse_characters(read_file(path, most_bytes), path.string(), length, alphabet);
}

}  // namespace millrace::training
