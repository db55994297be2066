// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/live_trainer.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include <millrace/kernels/fill.h>
#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/tensor/cpu_stream.h>

namespace millrace::training {
namespace {

using build::Var;

VarId port_of(const std::vector<Program::Port>& ports, const std::string& name, const char* what) {
  const auto found = std::find_if(ports.begin(), ports.end(), [&](const Program::Port& port) { return port.name == name; });
  if (found == ports.end()) throw ArgumentError(fmt::format("live trainer: expected {} '{}' of the model, found none", what, name));
  return found->var;
}

/// The model with the loss of an update: the mean over the last k1 rows.
Program with_loss(const Program& model, const LiveTrainerOptions& options) {
  if (options.k1 < 1 || options.k2 < options.k1 || options.k2 % options.k1 != 0)
    throw ArgumentError(
        fmt::format("live trainer: expected k1 of at least 1 and a multiple of it as k2, found {} and {}", options.k1, options.k2));
  Program made = model;
  const build::Guard guard(made);
  const Var losses = Var::of(port_of(made.outputs(), options.losses, "an output"));
  const std::optional<DDim>& shape = losses.type().shape;
  if (shape && !(shape->rank() == 1 || (shape->rank() == 2 && ((*shape)[1] == 1 || (*shape)[1] == DDim::unknown))))
    throw ShapeError(
        fmt::format("live trainer: expected losses of [rows] or [rows, 1], found '{}': {}", options.losses, losses.type().to_string()));
  constexpr std::int64_t end = std::numeric_limits<std::int64_t>::max();
  const Var plain = losses.type().lod_depth > 0 ? build::drop_lod(losses) : losses;
  build::output(options.trainer.loss, build::mean_loss(build::slice(plain, 0, -options.k1, end)));
  return made;
}

bool is_state(const LiveTrainerOptions& options, const std::string& name) {
  return std::any_of(options.states.begin(), options.states.end(), [&](const auto& state) { return state.first == name; });
}

/// Zeros for each state: one row.
Tensors first_states(const Program& model, const LiveTrainerOptions& options) {
  CpuStream stream(std::make_shared<ThreadTeam>(1));
  Tensors made;
  for (const auto& [input, output] : options.states) {
    const VarType& type = model.var(port_of(model.inputs(), input, "an input")).type;
    const VarType& next = model.var(port_of(model.outputs(), output, "an output")).type;
    if (type.lod_depth > 0)
      throw ArgumentError(fmt::format("live trainer: expected a state of one row as '{}', found rows, {}", input, type.to_string()));
    if (!fits(next, type))
      throw ShapeError(
          fmt::format("live trainer: expected a state '{}' like '{}', {}, found {}", output, input, type.to_string(), next.to_string()));
    DDim dims = type.shape.value_or(DDim{});
    if (dims.rank() > 0 && dims[0] == DDim::unknown) dims[0] = 1;
    if (!type.is_tensor() || !type.shape || std::count(dims.begin(), dims.end(), DDim::unknown) > 0)
      throw ShapeError(fmt::format("live trainer: expected a state '{}' whose rows have known extents, found {}", input, type.to_string()));
    made.emplace(input, zeros(dims, type.dtype, stream));
  }
  return made;
}

task<std::optional<LoDTensor>> next_row(TensorArray rows, std::int64_t index) {
  SlotHas has = rows.has(index);
  const bool there = co_await has;
  if (!there) co_return std::nullopt;
  SlotRead read = rows.read(index);
  SlotValue value = co_await read;
  const Point written = value.ready();
  co_await ready(written);
  co_return value;
}

}  // namespace

LiveTrainer::LiveTrainer(const Program& model, const LiveTrainerOptions& options)
    : options_(options), trainer_(with_loss(model, options), options.trainer), zeros_(first_states(model, options)), executor_(1) {
  for (const Program::Port& port : model.inputs()) {
    if (is_state(options, port.name)) continue;
    const VarType& type = model.var(port.var).type;
    if (!type.is_tensor() || !type.shape || type.shape->rank() < 1 || type.lod_depth > 1)
      throw ShapeError(fmt::format("live trainer: expected an input '{}' with an axis of rows and at most one level, found {}", port.name,
                                   type.to_string()));
    inputs_.push_back({port.name, type.dtype, type.shape->erased(0), type.lod_depth > 0});
    kept_[port.name];
  }
  reset();
}

void LiveTrainer::check(const Row& row) const {
  for (const Input& input : inputs_) {
    const auto found = row.find(input.name);
    if (found == row.end()) throw ArgumentError(fmt::format("live trainer: expected a row of '{}', found none", input.name));
    const Tensor& value = found->second;
    if (value.dtype() != input.dtype)
      throw DTypeError(fmt::format("live trainer: expected {} in a row of '{}', found {}", millrace::name_of(input.dtype), input.name,
                                   value.to_string()));
    bool fits = value.rank() == input.row.rank();
    for (int axis = 0; fits && axis < value.rank(); ++axis)
      fits = input.row[axis] == DDim::unknown ? kept_.at(input.name).empty() || value.dim(axis) == kept_.at(input.name).front().dim(axis)
                                              : value.dim(axis) == input.row[axis];
    if (!fits)
      throw ShapeError(
          fmt::format("live trainer: expected a row of {} for '{}', found {}", input.row.to_string(), input.name, value.to_string()));
  }
  for (const auto& [name, value] : row)
    if (!kept_.contains(name)) throw ArgumentError(fmt::format("live trainer: expected rows of the model's inputs, found '{}'", name));
}

Tensor LiveTrainer::last_rows(const Input& input) const {
  const std::deque<Tensor>& rows = kept_.at(input.name);
  Tensor made(input.dtype, rows.front().dims().inserted(0, std::ssize(rows)));
  visit_dtype(input.dtype, [&]<class T>(std::type_identity<T>) {
    T* to = made.mutable_data<T>();
    for (const Tensor& row : rows)
      for (const T value : row.to_vector<T>()) *to++ = value;
  });
  return made;
}

void LiveTrainer::reset(const Tensors& states) {
  Tensors first = zeros_;
  for (const auto& [name, state] : states) {
    const auto found = first.find(name);
    if (found == first.end()) throw ArgumentError(fmt::format("live trainer: expected a state of the model, found '{}'", name));
    if (state.dtype() != found->second.dtype())
      throw DTypeError(fmt::format("live trainer: expected {} in the state '{}', found {}", millrace::name_of(found->second.dtype()), name,
                                   state.to_string()));
    if (state.dims() != found->second.dims())
      throw ShapeError(
          fmt::format("live trainer: expected {} in the state '{}', found {}", found->second.dims().to_string(), name, state.to_string()));
    found->second = state.copy_to(CpuPlace{});
  }
  for (auto& [name, rows] : kept_) rows.clear();
  states_.assign(1, std::move(first));
  rows_ = 0;
}

std::optional<Trainer::Step> LiveTrainer::push(const Row& row) {
  check(row);
  Row own;
  for (const auto& [name, value] : row) own.emplace(name, value.copy_to(CpuPlace{}));  // its owner may write to it again
  return add(own);
}

std::optional<Trainer::Step> LiveTrainer::add(const Row& row) {
  for (const Input& input : inputs_) {
    std::deque<Tensor>& rows = kept_.at(input.name);
    rows.push_back(row.at(input.name));
    if (std::ssize(rows) > options_.k2) rows.pop_front();
  }
  ++rows_;
  if (rows_ % options_.k1 != 0) return std::nullopt;
  try {
    return update();
  } catch (...) {
    reset();
    throw;
  }
}

Trainer::Step LiveTrainer::update() {
  Feeds feeds;
  for (const auto& [name, state] : states_.front()) feeds.emplace(name, state);
  for (const Input& input : inputs_) {
    Tensor rows = last_rows(input);
    const LoD::Level all{rows.dim(0)};
    feeds.emplace(input.name, input.ragged ? Value(LoDTensor(std::move(rows), LoD::from_lengths({all}))) : Value(std::move(rows)));
  }
  Trainer::Step step = trainer_.step(std::move(feeds));
  Tensors next;
  for (const auto& [input, output] : options_.states) next.emplace(input, step.outputs[output].tensor().copy_to(CpuPlace{}));
  states_.push_back(std::move(next));
  if (std::ssize(states_) > options_.k2 / options_.k1) states_.pop_front();
  return step;
}

void LiveTrainer::learn(const std::map<std::string, TensorArray>& rows, const std::function<void(const Trainer::Step&)>& after) {
  for (const Input& input : inputs_)
    if (!rows.contains(input.name))
      throw ArgumentError(fmt::format("live trainer: expected an array of rows of '{}', found none", input.name));
  for (std::int64_t index = 0;; ++index) {
    Row row;
    for (const auto& [name, array] : rows) {
      std::optional<LoDTensor> next = sync_wait(executor_, next_row(array, index), "live trainer");
      if (!next) return;
      row.emplace(name, next->tensor());
    }
    check(row);
    if (const std::optional<Trainer::Step> step = add(row); step && after) after(*step);
  }
}

}  // namespace millrace::training
