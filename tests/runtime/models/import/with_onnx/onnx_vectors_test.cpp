// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include <onnx_values.pb.h>

#include <runtime/models/import/with_onnx/unsupported_vectors.h>
#include <support/drive.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/files/file.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>
#include <millrace/tensor/error.h>

/// The tests that come with ONNX, from Debian's libonnx-testdata: single nodes, small graphs, and what PyTorch exported.
namespace millrace {
namespace {

namespace fs = std::filesystem;

const fs::path root = "/usr/share/libonnx-testdata/data";

template <class Proto>
Proto read_proto(const fs::path& path) {
  Proto proto;
  if (!proto.ParseFromString(read_file(path))) throw ParseError(path.string() + ": expected another message");
  return proto;
}

Tensor tensor_of(const onnx::TensorProto& proto, const std::string& where) {
  importing::Source source(where);
  return importing::tensor_of_onnx(proto, source, where);
}

Value list_of(const onnx::SequenceProto& proto, const std::string& where) {
  std::vector<Tensor> elements;
  for (const onnx::TensorProto& element : proto.tensor_values()) elements.push_back(tensor_of(element, where));
  return TensorList(std::move(elements));
}

/// A file holds what the type of its input or output says.
Value read_value(const fs::path& path, const onnx::TypeProto& type) {
  if (type.has_sequence_type()) return list_of(read_proto<onnx::SequenceProto>(path), path.string());
  if (!type.has_optional_type()) return tensor_of(read_proto<onnx::TensorProto>(path), path.string());
  const auto held = read_proto<onnx::OptionalProto>(path);
  if (held.has_sequence_value()) return list_of(held.sequence_value(), path.string());
  return held.has_tensor_value() ? Value(tensor_of(held.tensor_value(), path.string())) : Value();
}

/// input_0.pb, input_1.pb, … or output_….
template <class Ports>
std::vector<Value> read_values(const fs::path& folder, const std::string& kind, const Ports& ports) {
  std::vector<Value> values;
  for (int i = 0; i < ports.size() && fs::exists(folder / (kind + "_" + std::to_string(i) + ".pb")); ++i)
    values.push_back(read_value(folder / (kind + "_" + std::to_string(i) + ".pb"), ports.Get(i).type()));
  return values;
}

std::vector<double> numbers(const Tensor& tensor) {
  return visit_dtype(tensor.dtype(), [&]<class T>(std::type_identity<T>) {
    std::vector<double> values;
    for_each_offset(tensor.dims(), tensor.strides(),
                    [&](std::int64_t at) { values.push_back(convert_element<double>(tensor.data<T>()[at])); });
    return values;
  });
}

/// The difference, or an empty text.
std::string compare(const Tensor& found, const Tensor& expected, double relative) {
  if (found.dtype() != expected.dtype() || found.dims() != expected.dims())
    return "expected " + expected.to_string() + ", found " + found.to_string();
  const std::vector<double> a = numbers(found);
  const std::vector<double> b = numbers(expected);
  if (expected.dtype() == DType::f16 || expected.dtype() == DType::bf16) relative = 1e-3;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (!(std::abs(a[i] - b[i]) <= 1e-6 + relative * std::abs(b[i])))
      return "element " + std::to_string(i) + ": expected " + std::to_string(b[i]) + ", found " + std::to_string(a[i]);
  }
  return "";
}

std::string compare(const Value& found, const Value& expected, double relative) {
  if (found.empty() || expected.empty()) return found.empty() == expected.empty() ? "" : "one of the two holds nothing";
  if (found.is_tensor() && expected.is_tensor()) return compare(found.tensor().tensor(), expected.tensor().tensor(), relative);
  if (!found.is_list() || !expected.is_list()) return "expected another kind of value";
  if (found.list().size() != expected.list().size())
    return "expected " + expected.list().to_string() + ", found " + found.list().to_string();
  for (std::int64_t i = 0; i < found.list().size(); ++i)
    if (const std::string wrong = compare(found.list().at(i), expected.list().at(i), relative); !wrong.empty())
      return "[" + std::to_string(i) + "] " + wrong;
  return "";
}

/// The program of a vector: where a node needs a value when it is built, the inputs of whole numbers are made constant.
Program import_vector(const fs::path& folder) {
  try {
    return import_onnx(folder / "model.onnx");
  } catch (const UnsupportedError& error) {
    if (std::string(error.what()).find("that the file holds") == std::string::npos) throw;
  }
  const auto model = read_proto<onnx::ModelProto>(folder / "model.onnx");
  const std::vector<Value> inputs = read_values(folder / "test_data_set_0", "input", model.graph().input());
  OnnxOptions options;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].is_tensor()) continue;
    const Tensor& value = inputs[i].tensor().tensor();
    if (value.dtype() == DType::i64 || value.dtype() == DType::i32)
      options.constants.emplace(model.graph().input(static_cast<int>(i)).name(), value);
  }
  return import_onnx(folder / "model.onnx", options);
}

/// Empty when the vector passes; nothing when it needs what this library does not have.
std::optional<std::string> try_vector(const fs::path& folder) {
  const auto model = read_proto<onnx::ModelProto>(folder / "model.onnx");
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  std::optional<Program> program;
  try {
    program = import_vector(folder);
    inputs = read_values(folder / "test_data_set_0", "input", model.graph().input());
    outputs = read_values(folder / "test_data_set_0", "output", model.graph().output());
  } catch (const UnsupportedError&) {
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
  try {
    Feeds feeds;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = model.graph().input(static_cast<int>(i)).name();
      for (const Program::Port& port : program->inputs())
        if (port.name == name) feeds.emplace(name, inputs[i]);
    }
    const RunResult result = testing::run_fifo(run(*program, feeds));
    // The expected windows were computed with another π, the pictures are given with four digits.
    const std::string file = folder.filename();
    const double relative = file.find("window") == file.npos && file.find("gridsample") == file.npos ? 1e-5 : 1e-3;
    // Random numbers are others than those of the generator.
    if (file.starts_with("test_bernoulli")) return "";
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::string& name = program->outputs().at(i).name;
      if (const std::string wrong = compare(result.value(name), outputs[i], relative); !wrong.empty())
        return "output " + name + ": " + wrong;
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Whether the vector is known to need what the library has not; `matched` counts what each line stands for.
bool known_unsupported(const std::string& name, std::map<std::string, int>& matched) {
  bool found = false;
  for (const char* pattern : unsupported_vectors) {
    const std::string text = pattern;
    const bool prefix = text.ends_with('*');
    if (prefix ? !name.starts_with(text.substr(0, text.size() - 1)) : name != text) continue;
    ++matched[text];
    found = true;
  }
  return found;
}

TEST_CASE("ONNX's own tests give what they expect, but for those that are listed as needing what the library has not") {
  if (!fs::exists(root)) {
    MESSAGE("skipped: Debian's libonnx-testdata is not installed");
    return;
  }
  std::vector<fs::path> folders;
  for (const char* family : {"node", "simple", "pytorch-operator", "pytorch-converted"})
    for (const fs::directory_entry& entry : fs::directory_iterator(root / family)) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  std::size_t passed = 0;
  std::map<std::string, int> matched;
  for (const fs::path& folder : folders) {
    const std::string name = folder.filename();
    const std::optional<std::string> wrong = try_vector(folder);
    const bool listed = known_unsupported(name, matched);
    INFO("vector ", name);
    CHECK(wrong.value_or("") == "");
    // A vector that passes leaves the list, and one that does not is on it: none is lost unseen.
    CHECK(wrong.has_value() != listed);
    passed += wrong.has_value() ? 1 : 0;
  }
  for (const char* pattern : unsupported_vectors) {
    INFO("listed ", pattern);
    CHECK(matched[pattern] > 0);
  }
  MESSAGE(passed, " of ", folders.size(), " vectors pass; the others need ops or types that the library has not");
}

}  // namespace
}  // namespace millrace
