// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include <fmt/format.h>

#include <millrace/streaming/live/served_model.h>
#include <millrace/streaming/live/state_slab.h>
#include <millrace/tensor/start_thread.h>

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
    throw LoDError(fmt::format("input '{}': expected at most one level of LoD, found {}", input.name, found->second.lod().brief()));
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
      throw LoDError(fmt::format(
          "input '{}': expected sequences as long as those of '{}', since --state says that the graph is one step, and inputs that "
          "are no states have a row for each step; a graph over whole sequences takes no --state",
          input.name, recurrence.inputs[0].name));
    made.offsets = std::move(offsets);
    made.lod = value.lod();
  }
  return made;
}

/// The values given for the start of every sequence.
std::vector<Tensor> given_of(const Program& program, const Recurrence& recurrence, const std::map<std::string, LoDTensor>& feeds) {
  for (const auto& [name, value] : feeds) {
    const auto is_it = [&wanted = name](const auto& port) { return port.name == wanted; };
    const bool known = std::any_of(recurrence.inputs.begin(), recurrence.inputs.end(), is_it) ||
                       std::any_of(recurrence.given.begin(), recurrence.given.end(), is_it);
    if (!known && program.constant(program.find_var(name)) != nullptr)
      throw ArgumentError(fmt::format("--input: '{}' has a default value in the model, taken as a constant: see --state", name));
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

/// The inputs of all ranks: each has some of the sequences, and writes rows that no other writes.
struct Steps {
  const Recurrence& recurrence;
  const Sequences& sequences;
  const std::map<std::string, LoDTensor>& feeds;
  const std::vector<Tensor>& given;
  std::vector<Tensor>& outputs;
};

/// The sequences of a rank: their states on its device, in slots in the order of `own`.
class RankSteps {
 public:
  RankSteps(const Steps& all, std::vector<std::int64_t> own, std::shared_ptr<const Recurrence> recurrence, std::shared_ptr<Device> device,
            Backend backend)
      : all_(all), own_(std::move(own)), slab_(std::move(recurrence), std::move(device), backend) {
    for (const Tensor& output : all.outputs) to_.push_back(static_cast<std::byte*>(output.raw_mutable()));
  }

  void run(Tracer* tracer) {
    Tick first;
    for (std::size_t slot = 0; slot < own_.size(); ++slot) first.starts.push_back({static_cast<Slot>(slot), all_.given});
    slab_.run(first, tracer);
    std::int64_t longest = 0;
    for (const std::int64_t i : own_) longest = std::max(longest, all_.sequences.length(i));
    for (std::int64_t t = 0; t < longest; ++t) {
      const Tick tick = tick_at(t);
      const TickResult result = slab_.run(tick, tracer);
      if (!result.failures.empty()) std::rethrow_exception(result.failures.front().error);
      for (std::size_t output = 0; output < to_.size(); ++output) keep(result.outputs[output], tick, t, to_[output]);
    }
  }
  Tensor state(std::size_t index, std::size_t slot) const { return slab_.state(index, static_cast<Slot>(slot)); }
  const std::vector<std::int64_t>& own() const noexcept { return own_; }
  std::size_t bytes() const noexcept { return slab_.bytes(); }
  std::string backend() const { return slab_.backend(); }

 private:
  /// Where step `t` of the sequence in a slot stands among all rows.
  std::int64_t row_of(Slot slot, std::int64_t t) const {
    return all_.sequences.offsets[static_cast<std::size_t>(own_[static_cast<std::size_t>(slot)])] + t;
  }
  /// Step `t` of every sequence that has one.
  Tick tick_at(std::int64_t t) const {
    Tick tick;
    for (std::size_t slot = 0; slot < own_.size(); ++slot)
      if (t < all_.sequences.length(own_[slot])) tick.slots.push_back(static_cast<Slot>(slot));
    const auto rows = static_cast<std::int64_t>(tick.slots.size());
    for (const Recurrence::Input& input : all_.recurrence.inputs) {
      Tensor& to = tick.inputs.emplace_back(blank(input.dtype, input.dims.inserted(0, rows)));
      const Tensor& from = all_.feeds.at(input.name).tensor();
      for (std::int64_t row = 0; row < rows; ++row)
        copy_row(from, row_of(tick.slots[static_cast<std::size_t>(row)], t), all_.sequences.rows(), to, row, rows);
    }
    return tick;
  }
  void keep(const Tensor& made, const Tick& tick, std::int64_t t, std::byte* to) const {
    const std::size_t bytes = made.bytes() / tick.slots.size();
    for (std::size_t row = 0; row < tick.slots.size(); ++row)
      std::memcpy(to + static_cast<std::size_t>(row_of(tick.slots[row], t)) * bytes,
                  static_cast<const std::byte*>(made.raw()) + row * bytes, bytes);
  }

  const Steps& all_;
  std::vector<std::int64_t> own_;
  StateSlab slab_;
  std::vector<std::byte*> to_;
};

/// All ranks at once, each on a thread of its own but for the first; the error of the first that has one.
void run_ranks(const std::vector<std::unique_ptr<RankSteps>>& ranks, Tracer* tracer) {
  std::vector<std::exception_ptr> errors(ranks.size());
  const auto go = [&](std::size_t rank) {
    try {
      ranks[rank]->run(tracer);
    } catch (...) {
      errors[rank] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  try {
    for (std::size_t rank = 1; rank < ranks.size(); ++rank)
      threads.push_back(start_thread(fmt::format("step: the thread of rank {}", rank), [&go, rank] { go(rank); }));
    go(0);
  } catch (...) {
    errors[0] = std::current_exception();
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// The last value of each state that has a name outside, where no output of that name gives it as its last row.
void add_finals(const Model& model, const Recurrence& recurrence, const std::vector<std::unique_ptr<RankSteps>>& ranks,
                const Sequences& sequences, NamedOutputs& outputs) {
  for (std::size_t index = 0; index < recurrence.states.size(); ++index) {
    const Recurrence::State& state = recurrence.states[index];
    const auto pair = std::find_if(model.states.begin(), model.states.end(), [&](const auto& named) { return named.first == state.name; });
    if (pair == model.states.end()) continue;
    const auto given = [&](const Recurrence::Output& output) { return output.name == pair->second; };
    if (std::any_of(recurrence.outputs.begin(), recurrence.outputs.end(), given)) continue;
    if (sequences.lod.depth() == 0) {
      outputs.emplace_back(pair->second, ranks[0]->state(index, 0));
      continue;
    }
    Tensor all = blank(state.dtype, state.dims.inserted(0, sequences.count()));
    for (const auto& rank : ranks)
      for (std::size_t slot = 0; slot < rank->own().size(); ++slot)
        copy_row(rank->state(index, slot), 0, 1, all, rank->own()[slot], sequences.count());
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

Outcome run_steps(Model model, std::map<std::string, LoDTensor> feeds, const std::vector<std::shared_ptr<Device>>& devices,
                  const RunOptions& options) {
  settle(model, feeds);
  const std::shared_ptr<const ServedModel> stepped = served(model);
  const Recurrence& recurrence = *stepped->recurrence();
  const Sequences sequences = sequences_of(recurrence, feeds);
  const std::vector<Tensor> given = given_of(model.program, recurrence, feeds);
  std::vector<Tensor> made;
  for (const Recurrence::Output& output : recurrence.outputs) made.push_back(blank(output.dtype, output.row.inserted(0, sequences.rows())));
  const Steps all{recurrence, sequences, feeds, given, made};
  std::vector<std::unique_ptr<RankSteps>> ranks;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    std::vector<std::int64_t> own;
    for (auto i = static_cast<std::int64_t>(rank); i < sequences.count(); i += static_cast<std::int64_t>(devices.size())) own.push_back(i);
    ranks.push_back(std::make_unique<RankSteps>(all, std::move(own), stepped->recurrence(), devices[rank], options.backend));
  }
  run_ranks(ranks, options.tracer);
  std::int64_t steps = 0;
  for (std::int64_t i = 0; i < sequences.count(); ++i) steps = std::max(steps, sequences.length(i));
  Outcome outcome;
  for (std::size_t i = 0; i < made.size(); ++i)
    outcome.outputs.emplace_back(recurrence.outputs[i].name, LoDTensor(std::move(made[i]), sequences.lod));
  add_finals(model, recurrence, ranks, sequences, outcome.outputs);
  std::size_t bytes = 0;
  for (const auto& rank : ranks) bytes += rank->bytes();
  outcome.stats = fmt::format("{} rows in {} steps, {} bytes of state; steps {}", sequences.rows(), steps, bytes, ranks[0]->backend());
  for (std::size_t rank = 0; devices.size() > 1 && rank < ranks.size(); ++rank)
    outcome.stats += fmt::format(", rank {}: {} sequences", rank, ranks[rank]->own().size());
  return outcome;
}

}  // namespace millrace::app
