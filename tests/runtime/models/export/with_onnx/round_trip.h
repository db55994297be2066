// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/files/npz.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/models/export/onnx.h>
#include <millrace/runtime/models/import/onnx.h>

#include "support/program_runs.h"
#include "support/random_tensor.h"

/// Programs that are exported, imported again, and compared.
namespace millrace::testing {

using build::Var;

inline constexpr std::int64_t open = DDim::unknown;

inline LoDTensor one_sequence(Tensor rows) {
  const std::int64_t length = rows.dim(0);
  return LoDTensor(std::move(rows), LoD::from_lengths({{length}}));
}

inline void check_same_values(const Tensor& found, const Tensor& wanted) {
  REQUIRE(found.dtype() == wanted.dtype());
  REQUIRE(found.dims() == wanted.dims());
  const Tensor a = found.copy_to(CpuPlace{});
  const Tensor b = wanted.copy_to(CpuPlace{});
  visit_dtype(a.dtype(), [&]<class T>(std::type_identity<T>) {
    const std::vector<T> x = a.to_vector<T>();
    const std::vector<T> y = b.to_vector<T>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto p = convert_element<double>(x[i]);
      const auto q = convert_element<double>(y[i]);
      if (!(std::isnan(p) && std::isnan(q)) && p != q) CHECK(p == doctest::Approx(q).epsilon(1e-5));
    }
  });
}

/// Element i of a list is PORT@i, and PORT@n tells how many there are.
inline void put_value(NpzTensors& to, const std::string& port, const Value& value) {
  if (!value.is_list()) {
    to.emplace(port, value.tensor().tensor());
    return;
  }
  to.emplace(port + "@n", Tensor::scalar(value.list().size()));
  for (std::int64_t i = 0; i < value.list().size(); ++i) to.emplace(port + "@" + std::to_string(i), value.list().at(i));
}

/// For the test with ONNX Runtime: the model, its feeds and outputs.
inline void keep(const std::string& name, const std::string& model, const std::map<std::string, Value>& feeds,
                 const std::map<std::string, Value>& outputs) {
  const char* folder = std::getenv("MILLRACE_EXPORT_CASES");
  if (folder == nullptr) return;
  const std::filesystem::path stem = std::filesystem::path(folder) / name;
  const auto put = [&](const char* ending, const std::string& bytes) { std::ofstream(stem.string() + ending, std::ios::binary) << bytes; };
  put(".onnx", model);
  NpzTensors fed;
  NpzTensors given;
  for (const auto& [port, value] : feeds) put_value(fed, port, value);
  for (const auto& [port, value] : outputs) put_value(given, port, value);
  put(".in.npz", format_npz(fed));
  put(".out.npz", format_npz(given));
}

inline void check_again(const std::string& name, const Program& program, const Feeds& feeds, bool imported = true);

/// Exports the program, imports it again, and compares outputs on feeds of one sequence.
/// `imported`: false where the importer does not know an op of the model, which ONNX Runtime alone runs then.
inline void check_round_trip(const std::string& name, const std::function<void()>& building, const Feeds& feeds, bool imported = true) {
  INFO(name);
  Program program;
  program.set_title(name);
  {
    const build::Guard guard(program);
    building();
  }
  check_again(name, program, feeds, imported);
}

inline void check_again(const std::string& name, const Program& program, const Feeds& feeds, bool imported) {
  const RunResult wanted = on_cpu(program, feeds);
  const std::string model = format_onnx(program);
  CHECK(model == format_onnx(program));
  keep(name, model, {feeds.begin(), feeds.end()}, {wanted.outputs().begin(), wanted.outputs().end()});
  if (!imported) return;
  const Program again = parse_onnx(model, name);
  Feeds plain;
  for (const auto& [port, value] : feeds) plain.emplace(port, value.is_list() ? value : Value(value.tensor().tensor()));
  const RunResult found = on_cpu(again, plain);
  for (const auto& [port, value] : wanted.outputs()) {
    INFO(port);
    if (!value.is_list()) {
      check_same_values(found[port].tensor(), value.tensor().tensor());
      continue;
    }
    REQUIRE(found.value(port).list().size() == value.list().size());
    for (std::int64_t i = 0; i < value.list().size(); ++i) check_same_values(found.value(port).list().at(i), value.list().at(i));
  }
}

/// Ragged values as rows, and PORT.lengths.
template <class Values>
std::map<std::string, Value> with_lengths(const Values& values) {
  std::map<std::string, Value> plain;
  for (const auto& [port, value] : values) {
    const LoDTensor& ragged = value.tensor();
    plain.emplace(port, ragged.tensor());
    if (!ragged.lod().empty())
      plain.emplace(port + ".lengths", Tensor::from<std::int64_t>(ragged.lod().lengths(0), DDim{ragged.lod().sequences(0)}));
  }
  return plain;
}

/// Exports the program for ragged batches, imports it again, and compares outputs and their lengths.
inline void check_batch(const std::string& name, const std::function<void()>& building, const Feeds& feeds) {
  INFO(name);
  Program program;
  program.set_title(name);
  {
    const build::Guard guard(program);
    building();
  }
  const std::map<std::string, Value> wanted = with_lengths(on_cpu(program, feeds).outputs());
  const std::map<std::string, Value> fed = with_lengths(feeds);
  const std::string model = format_onnx_batch(program);
  keep(name, model, fed, wanted);
  const RunResult found = on_cpu(parse_onnx(model, name), Feeds(fed.begin(), fed.end()));
  for (const auto& [port, value] : wanted) {
    INFO(port);
    check_same_values(found[port].tensor(), value.tensor().tensor());
  }
}

inline Var rows(std::int64_t width, const char* name = "x") { return build::input(name, VarType(DType::f32, {open, width}, 1)); }
inline Var dense(std::int64_t width) { return build::input("x", VarType(DType::f32, {open, 2, width})); }

inline layers::GruWeights gru_weights(Random& random, std::int64_t c, std::int64_t h) {
  return {random_tensor(random, {c, 3 * h}, .5), random_tensor(random, {h, 3 * h}, .5), random_tensor(random, {3 * h}),
          random_tensor(random, {3 * h})};
}

}  // namespace millrace::testing
