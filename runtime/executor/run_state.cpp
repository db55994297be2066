// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/run_state.h>

#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/task/cancellation.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/trace/tracer.h>

namespace millrace {

bool is_cut_off(const TaskInfo& task) {
  if (!task.cancelled()) return false;
  try {
    throw;
  } catch (const CancelledError&) {
    return true;
  } catch (...) {
    return false;
  }
}

namespace {

VarScope& up(VarScope& scope, int levels) {
  VarScope* at = &scope;
  for (; levels > 0; --levels) at = at->parent().get();
  return *at;
}

}  // namespace

RunState::RunState(Executable executable, RunOptions options)
    : executable_(std::move(executable)),
      device_(executable_.compiled().for_runs->take()),
      options_(options),
      joins_(options_.tracer == nullptr && !options_.keep_step_scopes && options_.backend == Backend::automatic),
      root_(executable_.compiled().root_scopes->take(count_)) {
  if (CallerDevices* const hosts = executable_.compiled().hosts_for_runs.get()) host_.emplace(hosts->take());
  if (options_.tracer != nullptr)
    add_tracks();
  else if (compiled().extent_values != nullptr)
    extent_values_ = compiled().extent_values->take();
}

RunState::~RunState() {
  if (extent_values_ != nullptr) compiled().extent_values->give_back(std::move(extent_values_));
}

void RunState::forget_extent_values() noexcept {
  if (extent_values_ == nullptr) return;
  extent_values_.reset();
  compiled().extent_values->clear();
}

// ---- Values ----

const Value* RunState::find(const ValueSource& source, VarScope& scope) const {
  if (source.up == ValueSource::constant) return &compiled().constants[source.index];
  return up(scope, source.up).find(source.index);
}

PendingValue RunState::pending(const ValueSource& source, const ScopePtr& scope) const {
  if (const Value* value = find(source, *scope)) return {*value, nullptr, 0, nullptr};
  auto [at, index] = up(*scope, source.up).origin(source.index);
  return {{}, std::move(at), index, &compiled().name_of(source.var)};
}

const Value* RunState::find(VarId var, VarScope& scope) const {
  if (const Value* const constant = compiled().held[static_cast<std::size_t>(var)].get()) return constant;
  VarScope* at = &scope;
  while (at->block() != program().var(var).block) at = at->parent().get();
  return at->find(compiled().index_of(var));
}

task<void> RunState::wait_for(VarId var, ScopePtr scope) const {
  if (find(var, *scope) != nullptr) co_return;
  while (scope->block() != program().var(var).block) scope = scope->parent();
  const std::size_t index = compiled().index_of(var);
  const ScopePtr origin = scope->origin(index).first;
  co_await scope->gate(index, compiled().name_of(var)).wait();
}

// ---- Streams and names ----

std::size_t RunState::stream_index(const CompiledOp& op, const VarScope& scope) const {
  const VarScope* step = scope.step();
  return op.stream + (step == nullptr ? 0 : static_cast<std::size_t>(step->iteration()));
}

StreamRef RunState::stream(const CompiledOp& op, const VarScope& scope) const {
  return op.on_host ? host_stream() : device_->stream(stream_index(op, scope));
}

std::string RunState::whose(const CompiledOp& op, const VarScope& scope) const {
  std::string text = describe(*op.op, scope.block());
  int block = scope.block();
  for (const VarScope* step = scope.step(); step != nullptr; step = step->parent()->step()) {
    text += fmt::format(", iteration {}", step->iteration());
    if (step->block() != block) text += fmt::format(" of block {}", step->block());
    block = step->block();
  }
  return text;
}

// ---- The trace ----

void RunState::add_tracks() {
  for (const Block& block : program().blocks())
    block_tracks_.push_back(
        options_.tracer->add_track(block.idx == 0 ? program().title() : fmt::format("{}, block {}", program().title(), block.idx)));
  stream_tracks_.push_back(options_.tracer->add_track("ops on the host"));
  for (std::size_t i = 0; i < compiled().device->stream_count(); ++i)
    stream_tracks_.push_back(options_.tracer->add_track(fmt::format("ops on stream {}", i)));
}

std::uint64_t RunState::track(const CompiledOp& op, const VarScope& scope) const {
  if (stream_tracks_.empty()) return 0;
  return stream_tracks_[op.on_host ? 0 : 1 + stream_index(op, scope) % (stream_tracks_.size() - 1)];
}

std::uint64_t RunState::block_track(int block) const { return block_tracks_.empty() ? 0 : block_tracks_[static_cast<std::size_t>(block)]; }

// ---- The result ----

void RunState::count_iteration(const ScopePtr& scope) {
  ++result_.iterations;
  if (options_.keep_step_scopes) result_.step_scopes_.push_back(scope);
}

RunResult RunState::take_result(std::vector<std::pair<std::string, Value>> outputs) {
  result_.outputs_ = std::move(outputs);
  compiled().root_scopes->give_back(std::exchange(root_, nullptr));
  result_.count_ = count_;
  if (options_.keep_step_scopes) result_.executable_ = executable_;
  return std::move(result_);
}

}  // namespace millrace
