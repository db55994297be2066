// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <millrace/streaming/live/served_model.h>
#include <millrace/streaming/live/state_slab.h>

#include "whole_run.h"

namespace millrace::app {
namespace {

/// The sequences of all live inputs: where each begins and ends among the rows.
struct Sequences {
  std::vector<std::int64_t> offsets;
  LoD lod;

  std::int64_t count() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t length(std::int64_t i) const { return offsets[static_cast<std::size_t>(i) + 1] - offsets[static_cast<std::size_t>(i)]; }
  std::int64_t rows() const { return offsets.back(); }
};

const LoDTensor& fed(const std::map<std::string, LoDTensor>& feeds, const Recurrence::Input& input) {
  const auto found = feeds.find(input.name);
  const std::string wanted = fmt::format("{}{}", name_of(input.dtype), input.row.inserted(0, DDim::unknown).to_string());
  if (found == feeds.end()) throw ArgumentError(fmt::format("input '{}': expected {}, found nothing: see --input", input.name, wanted));
  const Tensor& rows = found->second.tensor();
  if (rows.dtype() != input.dtype)
    throw DTypeError(
        fmt::format("input '{}': expected {}, found {}{}", input.name, wanted, name_of(rows.dtype()), rows.dims().to_string()));
  if (rows.rank() != input.row.rank() + 1 || rows.dims().erased(0) != input.row)
    throw ShapeError(
        fmt::format("input '{}': expected {}, found {}{}", input.name, wanted, name_of(rows.dtype()), rows.dims().to_string()));
  if (found->second.lod().depth() > 1)
    throw LoDError(fmt::format("input '{}': expected at most one level of LoD, found {}", input.name, found->second.lod().to_string()));
  return found->second;
}

Sequences sequences_of(const Recurrence& recurrence, const std::map<std::string, LoDTensor>& feeds) {
  Sequences made;
  for (const Recurrence::Input& input : recurrence.inputs) {
    const LoDTensor& value = fed(feeds, input);
    std::vector<std::int64_t> offsets{0, value.rows()};
    if (value.lod().depth() == 1) {
      const auto own = value.lod().offsets(0);
      offsets.assign(own.begin(), own.end());
    }
    if (!made.offsets.empty() && made.offsets != offsets)
      throw LoDError(fmt::format("input '{}': expected sequences as long as those of '{}'", input.name, recurrence.inputs[0].name));
    made.offsets = std::move(offsets);
    made.lod = value.lod();
  }
  return made;
}

/// What was given for the start of every sequence.
std::vector<Tensor> given_of(const Recurrence& recurrence, const std::map<std::string, LoDTensor>& feeds) {
  for (const auto& [name, value] : feeds) {
    const auto is_it = [&wanted = name](const auto& port) { return port.name == wanted; };
    const bool known = std::any_of(recurrence.inputs.begin(), recurrence.inputs.end(), is_it) ||
                       std::any_of(recurrence.given.begin(), recurrence.given.end(), is_it);
    if (!known) throw ArgumentError(fmt::format("--input: expected an input that arrives or is given at the start, found '{}'", name));
  }
  std::vector<Tensor> made;
  for (const Recurrence::Given& wanted : recurrence.given) {
    const auto found = feeds.find(wanted.name);
    made.push_back(found == feeds.end() ? Tensor() : found->second.tensor());
    if (found == feeds.end()) continue;
    if (made.back().dtype() != wanted.dtype || made.back().dims() != wanted.dims)
      throw ShapeError(fmt::format("input '{}': expected {}{}, found {}{}", wanted.name, name_of(wanted.dtype), wanted.dims.to_string(),
                                   name_of(made.back().dtype()), made.back().dims().to_string()));
  }
  return made;
}

void copy_row(const Tensor& from, std::int64_t from_row, std::int64_t from_rows, Tensor& to, std::int64_t to_row, std::int64_t to_rows) {
  const std::size_t bytes = to_rows == 0 ? 0 : to.bytes() / static_cast<std::size_t>(to_rows);
  if (from.bytes() != bytes * static_cast<std::size_t>(from_rows))
    throw ShapeError("step: expected rows of " + std::to_string(bytes) + " bytes");
  std::memcpy(static_cast<std::byte*>(to.raw_mutable()) + static_cast<std::size_t>(to_row) * bytes,
              static_cast<const std::byte*>(from.raw()) + static_cast<std::size_t>(from_row) * bytes, bytes);
}

Tensor blank(DType dtype, const DDim& dims) {
  Tensor made(dtype, dims);
  made.storage()->mark_written();
  return made;
}

/// Step `t` of every sequence that has one.
Tick tick_at(std::int64_t t, const Recurrence& recurrence, const Sequences& sequences, const std::map<std::string, LoDTensor>& feeds) {
  Tick tick;
  for (std::int64_t i = 0; i < sequences.count(); ++i)
    if (t < sequences.length(i)) tick.slots.push_back(i);
  const auto rows = static_cast<std::int64_t>(tick.slots.size());
  for (const Recurrence::Input& input : recurrence.inputs) {
    Tensor& to = tick.inputs.emplace_back(blank(input.dtype, input.dims.inserted(0, rows)));
    const Tensor& from = feeds.at(input.name).tensor();
    for (std::int64_t row = 0; row < rows; ++row)
      copy_row(from, sequences.offsets[static_cast<std::size_t>(tick.slots[static_cast<std::size_t>(row)])] + t, sequences.rows(), to, row,
               rows);
  }
  return tick;
}

/// The last value of each state that has a name outside.
void add_finals(const Model& model, const Recurrence& recurrence, const StateSlab& slab, const Sequences& sequences,
                NamedOutputs& outputs) {
  for (std::size_t index = 0; index < recurrence.states.size(); ++index) {
    const Recurrence::State& state = recurrence.states[index];
    const auto pair = std::find_if(model.states.begin(), model.states.end(), [&](const auto& named) { return named.first == state.name; });
    if (pair == model.states.end()) continue;
    if (sequences.lod.depth() == 0) {
      outputs.emplace_back(pair->second, slab.state(index, 0));
      continue;
    }
    Tensor all = blank(state.dtype, state.dims.inserted(0, sequences.count()));
    for (std::int64_t i = 0; i < sequences.count(); ++i) copy_row(slab.state(index, i), 0, 1, all, i, sequences.count());
    outputs.emplace_back(pair->second, std::move(all));
  }
}

/// An input without axes that is fed a scalar never changes; the rows of a file say what the model leaves open.
void settle(Model& model, std::map<std::string, LoDTensor>& feeds) {
  for (const Program::Port& port : model.program.inputs()) {
    const auto fed_here = feeds.find(port.name);
    if (fed_here == feeds.end()) continue;
    const VarType& type = model.program.var(port.var).type;
    const Tensor& value = fed_here->second.tensor();
    const bool state = std::any_of(model.states.begin(), model.states.end(), [&](const auto& pair) { return pair.first == port.name; });
    if (state) continue;
    if (type.rank() == 0 && value.elements() == 1) {
      model.constants.insert_or_assign(port.name, value.reshape(*type.shape));
      feeds.erase(fed_here);
    } else if (value.rank() > 0 && !type.is_static()) {
      model.rows.try_emplace(port.name, value.dims().erased(0));
    }
  }
}

}  // namespace

Outcome run_steps(Model model, std::map<std::string, LoDTensor> feeds, std::shared_ptr<Device> device, const RunOptions& options) {
  settle(model, feeds);
  const std::shared_ptr<const ServedModel> stepped = served(model);
  const Recurrence& recurrence = *stepped->recurrence();
  const Sequences sequences = sequences_of(recurrence, feeds);
  const std::vector<Tensor> given = given_of(recurrence, feeds);
  StateSlab slab(stepped->recurrence(), std::move(device), options.gear);
  Tick first;
  for (std::int64_t i = 0; i < sequences.count(); ++i) first.starts.push_back({i, given});
  slab.run(first, options.tracer);
  std::vector<Tensor> made;
  for (const Recurrence::Output& output : recurrence.outputs) made.push_back(blank(output.dtype, output.row.inserted(0, sequences.rows())));
  std::int64_t steps = 0;
  for (std::int64_t i = 0; i < sequences.count(); ++i) steps = std::max(steps, sequences.length(i));
  for (std::int64_t t = 0; t < steps; ++t) {
    const Tick tick = tick_at(t, recurrence, sequences, feeds);
    const TickResult result = slab.run(tick, options.tracer);
    if (!result.failures.empty()) std::rethrow_exception(result.failures.front().error);
    const auto rows = static_cast<std::int64_t>(tick.slots.size());
    for (std::size_t i = 0; i < made.size(); ++i)
      for (std::int64_t row = 0; row < rows; ++row)
        copy_row(result.outputs[i], row, rows, made[i],
                 sequences.offsets[static_cast<std::size_t>(tick.slots[static_cast<std::size_t>(row)])] + t, sequences.rows());
  }
  Outcome outcome;
  for (std::size_t i = 0; i < made.size(); ++i)
    outcome.outputs.emplace_back(recurrence.outputs[i].name, LoDTensor(std::move(made[i]), sequences.lod));
  add_finals(model, recurrence, slab, sequences, outcome.outputs);
  outcome.stats = fmt::format("{} rows in {} steps, {} bytes of state; steps {}", sequences.rows(), steps, slab.bytes(), slab.gear());
  return outcome;
}

}  // namespace millrace::app
