// SPDX-License-Identifier: Apache-2.0
#include "model_flags.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>

#include <fmt/format.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/layers/narrow.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/models/import/model.h>
#include <millrace/runtime/models/import/onnx.h>
#include <millrace/streaming/protocol/number.h>
#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/cuda_device.h>

#include "commands.h"

namespace millrace::app {
namespace {

/// "1,2,3". UsageError says which flag.
std::vector<GivenNumber> numbers_of(const std::string& flag, const std::string& text) {
  std::vector<GivenNumber> values;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    double value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    std::int64_t whole = 0;
    if (const auto exact = std::from_chars(at, end, whole); exact.ec == std::errc() && exact.ptr == stop)
      values.emplace_back(whole);
    else if (error == std::errc())
      values.emplace_back(value);
    if (error == std::errc() && stop == end) return values;
    if (error != std::errc() || *stop != ',')
      throw UsageError(fmt::format("{}: expected numbers such as 16000 or 1,2,3, found '{}'", flag, text));
    at = stop + 1;
  }
}

DDim extents_of(const std::string& name, const std::string& text) {
  std::vector<std::int64_t> extents;
  for (const GivenNumber& number : numbers_of("--row " + name, text)) {
    extents.push_back(element_of<std::int64_t>(number).value_or(0));
    if (extents.back() < 1 || extents.back() > 1000000000)
      throw UsageError(fmt::format("--row {}: expected extents from 1, found '{}'", name, text));
  }
  if (extents.size() >= static_cast<std::size_t>(max_rank))
    throw UsageError(fmt::format("--row {}: expected fewer than {} extents, found {}", name, max_rank, extents.size()));
  return DDim(std::span<const std::int64_t>(extents));
}

bool agree(const DDim& a, const DDim& b) {
  return a.rank() == b.rank() && std::equal(a.begin(), a.end(), b.begin(), [](std::int64_t left, std::int64_t right) {
           return left == right || left == DDim::unknown || right == DDim::unknown;
         });
}

/// Whether `row` may be one row of values of the type, with or without the axis of the rows.
bool may_be_row(const DDim& row, const VarType& type) {
  if (!type.is_tensor() || !type.shape || agree(row, *type.shape)) return true;
  for (int axis = 0; axis < type.rank(); ++axis)
    if (agree(row, type.shape->erased(axis))) return true;
  return false;
}

/// ArgumentError unless the program has an input of that name, of which `row` may be a row.
void check_row(const Program& program, const std::string& name, const DDim& row, const std::string& path) {
  for (const Program::Port& port : program.inputs()) {
    if (port.name != name) continue;
    const VarType& type = program.var(port.var).type;
    if (may_be_row(row, type)) return;
    throw ArgumentError(fmt::format("--row {}: expected one row of {}, found {}", name, type.to_string(), row.to_string()));
  }
  throw ArgumentError(fmt::format("--row {}: {} has no input of that name", name, path));
}

/// UsageError when two flags share an input or an output.
void check_once(const std::vector<std::pair<std::string, std::string>>& states) {
  std::set<std::string> inputs, outputs;
  for (const auto& [input, output] : states) {
    if (!inputs.insert(input).second) throw UsageError(fmt::format("--state: input '{}' is given twice", input));
    if (!outputs.insert(output).second) throw UsageError(fmt::format("--state: output '{}' is given twice", output));
  }
}

/// The numbers of "1,2,3" as a tensor of the input's type.
Tensor constant_of(const Program& program, const std::string& name, const std::string& text) {
  for (const Program::Port& port : program.inputs()) {
    if (port.name != name) continue;
    const VarType& type = program.var(port.var).type;
    if (!type.is_static())
      throw ArgumentError(fmt::format("--const {}: expected an input of known extents, found {}", name, type.to_string()));
    const std::vector<GivenNumber> values = numbers_of("--const " + name, text);
    if (std::cmp_not_equal(values.size(), type.shape->elements()))
      throw UsageError(
          fmt::format("--const {}: expected {} numbers for {}, found {}", name, type.shape->elements(), type.to_string(), values.size()));
    return visit_dtype(type.dtype, [&]<class T>(std::type_identity<T>) {
      std::vector<T> converted;
      for (const GivenNumber& value : values) {
        const std::optional<T> held = element_of<T>(value);
        if (!held)
          throw ArgumentError(fmt::format("--const {}: expected numbers that {} can hold, found '{}'", name, name_of(type.dtype), text));
        converted.push_back(*held);
      }
      Tensor made(type.dtype, *type.shape);
      std::copy(converted.begin(), converted.end(), made.mutable_data<T>());
      return made;
    });
  }
  throw ArgumentError(fmt::format("--const {}: the program has no input of that name", name));
}

}  // namespace

void ModelFlags::add_to(CLI::App& command) {
  command.add_option("MODEL", path, "A model: NAME.onnx, or NAME.mr with its NAME.safetensors")->required();
  command.add_option("--state", states, "INPUT:OUTPUT. The graph is one step, and INPUT takes the next value of OUTPUT")
      ->allow_extra_args(false)
      ->delimiter(',');
  command.add_option("--const", constants, "INPUT=NUMBER. An input that never changes, such as a sampling rate")->allow_extra_args(false);
  command.add_option("--row", rows, "INPUT=EXTENTS, such as 40 or 3,4: one row of a live input, where the model leaves it open")
      ->allow_extra_args(false);
  command.add_option("--config", config,
                     "TOML that says how the model is fed: audio, states, labels; default: MODEL's name with .toml, if that exists");
  command.add_option("--weights", weights, "f32: as they are; bf16 or int8: matrices in fewer bits, where rows are multiplied by them")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
}

std::string ModelFlags::source() const { return config.empty() ? path : fmt::format("{} with {}", path, config); }

std::pair<std::string, std::string> split_assignment(const std::string& flag, const std::string& text, char at) {
  const auto found = text.find(at);
  if (found == 0 || found == text.npos || found + 1 == text.size())
    throw UsageError(fmt::format("{}: expected NAME{}VALUE, found '{}'", flag, at, text));
  return {text.substr(0, found), text.substr(found + 1)};
}

Model load(const ModelFlags& flags) {
  std::vector<std::pair<std::string, std::string>> states;
  for (const std::string& text : flags.states) states.push_back(split_assignment("--state", text, ':'));
  std::vector<std::pair<std::string, std::string>> constants;
  for (const std::string& text : flags.constants) constants.push_back(split_assignment("--const", text));
  std::map<std::string, DDim> rows;
  for (const std::string& text : flags.rows) {
    const auto [name, extents] = split_assignment("--row", text);
    rows.insert_or_assign(name, extents_of(name, extents));
  }
  check_once(states);
  Model model{load_model(flags.path), {}, std::move(states), {}, std::move(rows)};
  const std::filesystem::path path(flags.path);
  const std::filesystem::path beside = std::filesystem::path(path).replace_extension(".toml");
  if (!flags.config.empty())
    model.config = read_stream_config(flags.config);
  else if (std::filesystem::exists(beside))
    model.config = read_stream_config(beside.string());
  for (const auto& [name, extents] : model.rows) check_row(model.program, name, extents, flags.path);
  if (model.states.empty()) model.states = model.config.states;
  for (const auto& [name, text] : constants) model.constants.emplace(name, constant_of(model.program, name, text));
  // An import folds the values that it knows while it builds.
  if ((!constants.empty() || !model.states.empty()) && ending_of(path) == ".onnx") {
    OnnxOptions options;
    options.constants = model.constants;
    for (const auto& [input, output] : model.states) options.inputs.insert(input);
    options.defaults = &model.defaults;
    model.program = import_onnx(path, options);
  }
  naming(flags.source(), [&] { check_states(model.program, model.states); });
  if (flags.weights == "bf16" || flags.weights == "int8") {
    const DType dtype = flags.weights == "bf16" ? DType::bf16 : DType::i8;
    if (layers::narrow_weights(model.program, dtype) == 0)
      throw ArgumentError(fmt::format("--weights {}: {} has no product of rows with a matrix of f32", flags.weights, flags.path));
  }
  return model;
}

std::shared_ptr<const ServedModel> served(const Model& model) {
  return std::make_shared<const ServedModel>(model.program, model.config, model.states, model.constants, model.rows, model.defaults);
}

std::function<std::string(const std::string&)> bytes_above_zero() {
  return [](const std::string& text) {
    const bool good = text.find_first_not_of('0') != text.npos && !text.starts_with('-');
    return good ? std::string() : fmt::format("expected a number of bytes from 1, found '{}'", text);
  };
}

std::function<std::string(const std::string&)> within(double least, double most) {
  return [least, most](const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
    return good ? std::string() : fmt::format("expected a number from {} to {}, found '{}'", least, most, text);
  };
}

void DeviceFlags::add_place(CLI::App& command) {
  command
      .add_option("--place", place,
                  "Where to run: cpu, or cuda:INDEX (see millrace info). Of a list, such as cuda:0,cuda:1, each rank of several takes one "
                  "in turn, and so "
                  "does each session that is served")
      ->capture_default_str();
}

void DeviceFlags::add_to(CLI::App& command) {
  add_place(command);
  command.add_option("--threads", threads, "Threads that a kernel may use; results do not depend on it")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--streams", streams, "Streams of a device, which independent work takes; results do not depend on it")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  command
      .add_option(
          "--memory-limit", memory_limit,
          "Bytes that tensors of a place may take, such as 500M or 2G; what needs more fails with the op, the iteration and the size. "
          "Default: none; for serve three quarters of the memory that the process may use")
      ->transform(CLI::AsSizeValue(false))
      ->check(bytes_above_zero());
  command.add_flag(
      "--tf32", tf32,
      "Products of f32 on a CUDA device by tensor cores, from factors rounded to tf32 (10 bits of mantissa): for speed, at the "
      "price of other results than without, which are the same in all backends. An error on the CPU");
  add_backend(command);
}

void DeviceFlags::add_backend(CLI::App& command) {
  command
      .add_option("--backend,--gear", backend,
                  "How loops run: interpreted, iteration by iteration; captured, as a CUDA graph; fused, as one kernel; auto, the fastest "
                  "that a loop "
                  "fits. A backend that is named and that a loop cannot have is an error. Results do not depend on it")
      ->check(CLI::IsMember({"auto", "interpreted", "captured", "fused"}))
      ->capture_default_str();
}

void DeviceFlags::refuse_in(CLI::App& command, const std::string& why) {
  for (const char* flag : {"--place", "--threads", "--streams", "--memory-limit", "--backend", "--gear"}) {
    const auto refuse = [text = fmt::format("{} {}: {}", command.get_name(), flag, why)](const std::string&) { throw UsageError(text); };
    command.add_option_function<std::string>(flag, refuse)->group("");
  }
}

Backend DeviceFlags::chosen_backend() const { return backend_of(backend).value_or(Backend::automatic); }

std::string DeviceFlags::where() const { return tf32 ? place + " (f32 as tf32)" : place; }

std::vector<std::string> DeviceFlags::places() const {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin <= place.size();) {
    const std::size_t comma = std::min(place.find(',', begin), place.size());
    found.push_back(place.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return found;
}

Place DeviceFlags::parsed_place(int rank) const {
  const std::vector<std::string> all = places();
  try {
    return Place::parse(all[static_cast<std::size_t>(rank) % all.size()]);
  } catch (const ParseError& error) {
    throw UsageError(std::string("--place: ") + error.what());
  }
}

std::shared_ptr<Device> DeviceFlags::make() const {
  if (places().size() > 1) throw UsageError(fmt::format("--place: expected one place, for one rank, found '{}'", place));
  return make_for(0);
}

std::vector<std::shared_ptr<Device>> DeviceFlags::make_all() const {
  std::vector<std::shared_ptr<Device>> all;
  for (std::size_t i = 0; i < places().size(); ++i) all.push_back(make_for(static_cast<int>(i)));
  return all;
}

namespace {

std::shared_ptr<Device> limited_device(const DeviceFlags& flags, const Place& place) {
  const std::size_t streams = place.is_cpu() ? 1 : static_cast<std::size_t>(flags.streams);
  if (flags.memory_limit == 0) return make_device(place, flags.threads, streams, flags.tf32);
  if (place.is_cpu())
    return std::make_shared<CpuDevice>(flags.threads, streams, std::make_shared<CachingResource>(host_memory(), flags.memory_limit));
  const auto* cuda = std::get_if<CudaPlace>(&place);
  if (cuda == nullptr) return make_device(place, flags.threads, streams, flags.tf32);
  CudaOptions options;
  options.index = cuda->index;
  options.streams = streams;
  options.tf32 = flags.tf32;
  options.budget = flags.memory_limit;
  return make_cuda_device(options);
}

}  // namespace

std::shared_ptr<Device> DeviceFlags::make_for(int rank) const {
  const Place wanted = parsed_place(rank);
  if (tf32 && wanted.is_cpu()) throw UsageError("--tf32: expected a CUDA device as --place, found cpu, which multiplies f32 as f32");
  try {
    return limited_device(*this, wanted);
  } catch (const Error& error) {
    throw PlaceError(fmt::format("--place: expected cpu or a device of this machine, found {}: {}", wanted.to_string(), error.what()));
  }
}

}  // namespace millrace::app
