// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/state_slab.h>

#include <algorithm>
#include <cstring>

#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/streaming/live/row_buffer.h>
#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/recovery.h>
#include <millrace/tensor/work_failure.h>

namespace millrace {
namespace {

Tensor host_zeros(DType dtype, const DDim& dims) {
  Tensor made(dtype, dims);
  made.storage()->mark_written();
  std::memset(made.raw_mutable(), 0, made.bytes());
  return made;
}

/// Whether a kernel can find something wrong in values, such as an index outside: in integers alone, and not in those that never change.
bool may_fault(const Program& step) {
  for (const Op& op : step.block(0).ops)
    for (const VarId var : op.inputs)
      if (var != no_var && is_integer(step.var(var).type.dtype) && !step.constant(var)) return true;
  return false;
}

/// Both are on the host, and nothing is under way.
void copy_row(const Tensor& from, const Tensor& to, std::int64_t row) {
  std::memcpy(to.rows(row, row + 1).raw_mutable(), from.raw(), from.bytes());
}

void gather_host_rows(const Tensor& slab, const std::vector<Slot>& slots, Tensor& rows) {
  const std::size_t bytes = rows.bytes() / slots.size();
  auto* to = static_cast<std::byte*>(rows.raw_mutable());
  for (const Slot slot : slots) {
    std::memcpy(to, static_cast<const std::byte*>(slab.raw()) + static_cast<std::size_t>(slot) * bytes, bytes);
    to += bytes;
  }
}

void scatter_host_rows(const Tensor& rows, const std::vector<Slot>& slots, const Tensor& slab) {
  const std::size_t bytes = rows.bytes() / slots.size();
  const auto* from = static_cast<const std::byte*>(rows.raw());
  for (const Slot slot : slots) {
    std::memcpy(static_cast<std::byte*>(slab.raw_mutable()) + static_cast<std::size_t>(slot) * bytes, from, bytes);
    from += bytes;
  }
}

/// Slabs of one host, and runs beside them, have threads of their own: none waits for a stream of another.
std::shared_ptr<Device> streams_of_its_own(std::shared_ptr<Device> device) {
  std::shared_ptr<Device> own = device->with_own_streams();
  return own != nullptr ? std::move(own) : std::move(device);
}

}  // namespace

void TickResult::begin(const Tick& tick) {
  slots = tick.slots;
  failures.clear();
  failures.reserve(tick.slots.size());
  crossed.clear();
  crossed.resize(tick.crossings.size());
  saved.clear();
  saved.resize(tick.saves.size());
  error = lost = nullptr;
}

StateSlab::StateSlab(std::shared_ptr<const Recurrence> recurrence, std::shared_ptr<Device> device, Backend backend)
    : recurrence_(std::move(recurrence)),
      device_(streams_of_its_own(device ? std::move(device) : make_cpu_device())),
      backend_(backend),
      start_(recurrence_->start, device_) {
  for (const Recurrence::Boundary& boundary : recurrence_->boundaries) boundaries_.emplace_back(boundary.batched, device_);
  for (const Recurrence::Given& given : recurrence_->given)
    not_given_.push_back((given.otherwise.elements() > 0 ? given.otherwise : host_zeros(given.dtype, given.dims)).read_only());
  slabs_.resize(recurrence_->states.size());
  may_fault_ = may_fault(recurrence_->batched);
  if (std::holds_alternative<CudaPlace>(device_->place()) && backend != Backend::interpreted)
    fuse(backend);
  else
    step_.emplace(recurrence_->batched, device_, backend);
}

namespace {

bool alike(const Recurrence& a, const Recurrence& b) {
  const auto same = [](const auto& one, const auto& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const auto& x, const auto& y) { return x.name == y.name && x.dtype == y.dtype && x.dims == y.dims; });
  };
  return same(a.inputs, b.inputs) && same(a.given, b.given) && same(a.states, b.states) && same(a.outputs, b.outputs);
}

}  // namespace

void StateSlab::renew_weights(std::shared_ptr<const Recurrence> recurrence) {
  if (!device_->place().is_cpu() || !boundaries_.empty() || !recurrence->boundaries.empty() || !under_way_.empty())
    throw UnsupportedError("state slab: expected a CPU, one level of LoD and no tick under way to renew the weights");
  if (!alike(*recurrence_, *recurrence))
    throw ArgumentError("state slab: expected a recurrence that is like the one before, found other inputs, states or outputs");
  StraightProgram start(recurrence->start, device_);
  StepRunner step(recurrence->batched, device_, backend_);
  start_ = std::move(start);
  step_.emplace(std::move(step));
  fresh_.reset();
  recurrence_ = std::move(recurrence);
}

/// The first graph is made here, and not when the first row is there.
void StateSlab::fuse(Backend backend) {
  required_ = backend != Backend::automatic;
  try {
    on_device_ = std::make_unique<DeviceStep>(DeviceStepForm(*recurrence_, backend), device_);
    grow(0);
    on_device_->prepare(1);
  } catch (const UnsupportedError& error) {
    on_device_.reset();
    reason_ = error.what();
    if (required_) throw UnsupportedError("backend " + std::string(name_of(backend)) + ": expected a step that runs so, but " + reason_);
  }
}

/// On CUDA made when it is first wanted: it has weights of its own.
StepRunner& StateSlab::op_by_op() {
  if (!step_) step_.emplace(recurrence_->batched, device_, Backend::interpreted);
  return *step_;
}

std::string StateSlab::backend() const {
  const auto with = [](Backend backend, const std::string& reason) {
    return std::string(name_of(backend)) + (reason.empty() ? "" : ": " + reason);
  };
  if (on_device_)
    return with(on_device_->form().backend(), on_device_->form().backend() == Backend::fused ? "" : on_device_->form().reason());
  if (step_ && step_->fused()) return with(Backend::fused, "");
  return with(Backend::interpreted, reason_.empty() && step_ ? step_->reason() : reason_);
}

/// Weights and slabs are not to go before those who read them.
StateSlab::~StateSlab() {
  for (UnderWay& one : under_way_) arrived(one);
}

void StateSlab::grow(Slot slot) {
  if (slot < capacity_) return;
  const Slot wanted = std::max<Slot>({slot + 1, 2 * capacity_, 16});
  try {
    grow_to(wanted);
  } catch (const OutOfMemoryError&) {
    if (wanted == slot + 1) throw;
    grow_to(slot + 1);
  }
}

/// All slabs or none.
void StateSlab::grow_to(Slot wanted) {
  std::vector<Tensor> grown;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    const Recurrence::State& state = recurrence_->states[i];
    // Zeros, so that no slot ever holds what another sequence left in the memory; the device's memory, so that its limit bounds states.
    const DDim dims = state.dims.inserted(0, wanted);
    grown.push_back(zeros(dims, state.dtype, device_->stream(0)));
    if (capacity_ > 0) copy(slabs_[i], grown[i].rows(0, capacity_), device_->stream(0));
  }
  for (const Tensor& one : grown) one.ready().wait();
  slabs_ = std::move(grown);
  capacity_ = wanted;
  // A cache would keep the slabs before, which are together as large as those that are.
  if (auto* const cache = dynamic_cast<CachingResource*>(device_->memory().get())) cache->release_cached();
  if (on_device_) on_device_->moved(slabs_);
}

/// Small integers are computed on the host, whatever the device.
Tensor StateSlab::on_device(const Tensor& value) const {
  return value.place() == device_->place() ? value : clone(value, device_->stream(0));
}

void StateSlab::start(const Tick::Start& start) {
  if (!start.states.empty()) {
    grow(start.slot);
    for (std::size_t i = 0; i < slabs_.size(); ++i) copy(start.states.at(i), slabs_[i].select(0, start.slot), device_->stream(0));
    return;
  }
  const bool given = std::any_of(start.given.begin(), start.given.end(), [](const Tensor& value) { return value.elements() > 0; });
  std::optional<std::vector<Value>> own;
  if (given || !fresh_) {
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < not_given_.size(); ++i)
      inputs.emplace_back(i < start.given.size() && start.given[i].elements() > 0 ? start.given[i] : not_given_[i]);
    own = start_.run(inputs);
    for (const Value& value : *own) value.tensor().tensor().ready().wait();
    if (!given) fresh_ = own;
  }
  const std::vector<Value>& values = own ? *own : *fresh_;
  grow(start.slot);
  for (std::size_t i = 0; i < slabs_.size(); ++i) copy(values[i].tensor().tensor(), slabs_[i].select(0, start.slot), device_->stream(0));
}

void StateSlab::wait_for_states() const {
  // The last was written last: the others need not be asked for.
  for (std::size_t i = slabs_.size(); capacity_ > 0 && i-- > 0;) slabs_[i].ready().wait();
}

/// Waits for the writes of the last tick, or for those before the first one. Slots of writes that failed are torn.
void StateSlab::settle() {
  try {
    for (std::size_t i = 0; !settled_ && i < device_->stream_count(); ++i) device_->stream(i).position().wait();
    settled_ = true;
    wait_for_states();
  } catch (...) {
    for (const Slot slot : written_) torn_.insert_or_assign(slot, std::current_exception());
    settled_ ? recover() : lose(std::current_exception());
  }
  written_.clear();
}

/// All at once; when that fails, what is left waits for `check_state`.
void StateSlab::begin(const std::vector<Tick::Start>& starts) {
  for (const Tick::Start& one : starts) {
    torn_.erase(one.slot);
    unstarted_.insert_or_assign(one.slot, one);
  }
  if (starts.empty()) return;
  try {
    for (const Tick::Start& one : starts) start(one);
    wait_for_states();
    for (const Tick::Start& one : starts) unstarted_.erase(one.slot);
  } catch (...) {
    recover();
  }
}

/// The slots hold the states of their sequences, or this throws why one does not.
void StateSlab::check_state(const std::vector<Slot>& slots) {
  for (const Slot slot : slots) {
    if (const auto torn = torn_.find(slot); torn != torn_.end()) rethrow_own(torn->second);
    if (const auto waiting = unstarted_.find(slot); waiting != unstarted_.end()) {
      start(waiting->second);
      wait_for_states();
      unstarted_.erase(waiting);
    }
    grow(slot);
  }
}

/// Changes the states of slots: `change` counts what it has changed. A change that is left half done can be neither taken back nor done again.
template <class Change>
void StateSlab::commit(const std::vector<Slot>& slots, Change&& change) {
  std::size_t changed = 0;
  written_.insert(written_.end(), slots.begin(), slots.end());
  try {
    change(changed);
  } catch (...) {
    for (const Slot slot : slots)
      if (changed > 0) torn_.insert_or_assign(slot, std::current_exception());
    throw;
  }
}

/// Something failed: finds out whether the device is as good as it was, and makes its streams so.
void StateSlab::recover() {
  std::exception_ptr failed = millrace::lost(*device_);
  bool good = failed == nullptr;
  for (std::size_t i = 0; good && i < device_->stream_count(); ++i) {
    try {
      device_->stream(i).position().wait();
    } catch (...) {
      if (!failed) failed = std::current_exception();
    }
  }
  if (!failed) return put_back();
  if (good && !millrace::lost(*device_) && renew(*device_)) {
    for (const Tensor& slab : slabs_)
      if (capacity_ > 0) slab.storage()->set_ready(device_->stream(0).position());
    return put_back();
  }
  lose(failed);
}

void StateSlab::lose(std::exception_ptr failed) {
  if (const std::exception_ptr cause = millrace::lost(*device_)) failed = cause;
  lost_ = place_lost(device_->place(), failed);
}

std::vector<Value> StateSlab::with_states(std::vector<Value> inputs, const std::vector<Slot>& slots) const {
  for (const Tensor& slab : slabs_) inputs.emplace_back(gather_rows(slab, slots, device_->stream(0)));
  return inputs;
}

/// Opens or closes an inner sequence of several slots, by one boundary.
void StateSlab::cross(std::size_t boundary, const std::vector<const Tick::Crossing*>& all, const std::vector<TickResult::Crossed*>& results,
                      Tracer* tracer) {
  const Recurrence::Boundary& at = recurrence_->boundaries[boundary];
  const StreamRef stream = device_->stream(0);
  CpuDevice host;
  std::vector<Slot> slots;
  for (const Tick::Crossing* crossing : all) slots.push_back(crossing->slot);
  check_state(slots);
  for (TickResult::Crossed* result : results) result->outputs.clear();
  std::vector<Value> made;
  if (!at.batched.outputs().empty()) {
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < at.inputs.size(); ++i) {
      Tensor rows = host_zeros(at.inputs[i].dtype, at.inputs[i].dims.inserted(0, static_cast<std::int64_t>(all.size())));
      for (std::size_t n = 0; n < all.size(); ++n)
        copy(all[n]->inputs.at(i), rows.rows(static_cast<std::int64_t>(n), static_cast<std::int64_t>(n) + 1), host.stream(0));
      inputs.emplace_back(std::move(rows));
    }
    made = boundaries_[boundary].run(with_states(std::move(inputs), slots), tracer);
  }
  for (std::size_t i = 0; i < at.outputs.size(); ++i) {
    const Tensor rows = made[i].tensor().tensor().copy_to(CpuPlace{});
    for (std::size_t n = 0; n < all.size(); ++n)
      results[n]->outputs.push_back(rows.rows(static_cast<std::int64_t>(n), static_cast<std::int64_t>(n) + 1));
  }
  std::vector<Tensor> next;
  for (std::size_t i = 0; i < at.changes.size(); ++i) next.push_back(on_device(made[at.outputs.size() + i].tensor().tensor()));
  for (std::size_t i = next.size(); i-- > 0;) next[i].ready().wait();
  commit(slots, [&](std::size_t& changed) {
    for (std::size_t i = 0; i < next.size(); ++i, ++changed) scatter_rows(next[i], slots, slabs_[at.changes[i]], stream);
    for (const auto& [state, value] : at.constants)
      for (const Slot slot : slots) {
        copy(value, slabs_[state].select(0, slot), stream);
        ++changed;
      }
  });
}

/// The crossings of a tick by their boundaries.
struct StateSlab::Crossings {
  struct Of {
    std::vector<const Tick::Crossing*> all{};
    std::vector<TickResult::Crossed*> results{};
  };
  std::vector<Of> boundaries;

  Crossings(std::size_t count, const Tick& tick, TickResult& result) {
    if (tick.crossings.empty()) return;
    boundaries.resize(count);
    for (std::size_t n = 0; n < tick.crossings.size(); ++n) {
      Of& of = boundaries.at(tick.crossings[n].boundary);
      of.all.push_back(&tick.crossings[n]);
      of.results.push_back(&result.crossed[n]);
    }
  }
};

/// All crossings of a tick, those of one boundary together; when they fail together, each is tried alone.
void StateSlab::cross(const Crossings& crossings, Tracer* tracer) {
  for (std::size_t boundary = 0; boundary < crossings.boundaries.size(); ++boundary) {
    const auto& [all, results] = crossings.boundaries[boundary];
    if (all.empty()) continue;
    try {
      cross(boundary, all, results, tracer);
      continue;
    } catch (...) {
      if (all.size() == 1) results[0]->error = std::current_exception();
      recover();
    }
    for (std::size_t n = 0; all.size() > 1 && n < all.size(); ++n) {
      try {
        if (lost_) std::rethrow_exception(lost_);
        cross(boundary, {all[n]}, {results[n]}, tracer);
      } catch (...) {
        results[n]->error = std::current_exception();
        if (!lost_) recover();
      }
    }
  }
}

/// The device leaves next states before anybody knows whether the step was good: where values of it can be wrong, those from before are kept.
std::vector<Tensor> StateSlab::step_in_place(const std::vector<Slot>& slots, const std::vector<Tensor>& inputs) {
  before_ = {};
  if (may_fault_) {
    before_.slots = slots;
    for (const Tensor& slab : slabs_) before_.states.push_back(gather_rows(slab, slots, device_->stream(0)));
  }
  const auto failed = [&](bool begun) {
    if (begun && !may_fault_) tear(slots);
    before_.wanted = begun && may_fault_;
  };
  DeviceStep::Started step;
  try {
    step = on_device_->start(slots, inputs);
  } catch (const UnsupportedError&) {
    throw;
  } catch (const OutOfMemoryError&) {  // before anything was enqueued, as above
    throw;
  } catch (...) {
    failed(true);
    throw;
  }
  try {
    step.done.wait();
  } catch (...) {
    failed(step.begun->load());
    throw;
  }
  return std::move(step.outputs);
}

/// A tick that failed may have changed the states of slots.
void StateSlab::tear(const std::vector<Slot>& slots) {
  for (const Slot slot : slots) torn_.insert_or_assign(slot, std::current_exception());
}

/// The states of the slots of a step that failed are again what they were; the streams are good.
void StateSlab::put_back() {
  const Before before = std::exchange(before_, {});
  if (!before.wanted) return;
  const StreamRef stream = device_->stream(0);
  try {
    for (const Tensor& state : before.states) state.storage()->set_ready(stream.position());
    for (std::size_t i = 0; i < slabs_.size(); ++i) scatter_rows(before.states[i], before.slots, slabs_[i], stream);
    wait_for_states();
  } catch (...) {
    for (const Slot slot : before.slots) torn_.insert_or_assign(slot, std::current_exception());
  }
}

bool StateSlab::fits_host_step(const std::vector<Tensor>& inputs, std::size_t rows) const {
  if (!step_ || !step_->fused() || inputs.size() != recurrence_->inputs.size()) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Recurrence::Input& wanted = recurrence_->inputs[i];
    if (inputs[i].dtype() != wanted.dtype || !inputs[i].is_contiguous() ||
        inputs[i].dims() != wanted.dims.inserted(0, static_cast<std::int64_t>(rows)))
      return false;
  }
  return true;
}

/// Between steps nothing is under way on the host: rows are copied as they are.
void StateSlab::step_on_host(const std::vector<Slot>& slots, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  const auto rows = static_cast<std::int64_t>(slots.size());
  const std::vector<Recurrence::State>& states = recurrence_->states;
  on_host_.states.resize(slabs_.size());
  on_host_.next.resize(slabs_.size());
  on_host_.from.clear();
  on_host_.to.clear();
  outputs.resize(recurrence_->outputs.size());
  const auto view = [rows](const Tensor& tensor) { return RowView{tensor.raw_mutable(), tensor.elements() / rows}; };
  for (const Tensor& input : inputs) on_host_.from.push_back(view(input));
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    fit_rows(on_host_.states[i], states[i].dtype, states[i].dims, rows);
    gather_host_rows(slabs_[i], slots, on_host_.states[i]);
    on_host_.from.push_back(view(on_host_.states[i]));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    fit_rows(outputs[i], recurrence_->outputs[i].dtype, recurrence_->outputs[i].dims, rows);
    on_host_.to.push_back(view(outputs[i]));
  }
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    if (!states[i].changes) continue;
    fit_rows(on_host_.next[i], states[i].dtype, states[i].dims, rows);
    on_host_.to.push_back(view(on_host_.next[i]));
  }
  step_->run(on_host_.from, on_host_.to, rows);
  for (std::size_t i = 0; i < slabs_.size(); ++i)
    if (states[i].changes) scatter_host_rows(on_host_.next[i], slots, slabs_[i]);
}

void StateSlab::step(const std::vector<Slot>& slots, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, Tracer* tracer) {
  const StreamRef stream = device_->stream(0);
  check_state(slots);
  const bool traced = tracer != nullptr && tracer->records();
  if (!traced && fits_host_step(inputs, slots.size())) return step_on_host(slots, inputs, outputs);
  if (on_device_ && !traced) {
    try {
      outputs = step_in_place(slots, inputs);
      return;
    } catch (const UnsupportedError& error) {  // of more rows than before: nothing was enqueued
      if (required_) throw;
      reason_ = error.what();
      on_device_.reset();
    }
  }
  std::vector<Tensor> values = inputs;
  for (const Tensor& slab : slabs_) values.push_back(gather_rows(slab, slots, stream));
  const std::vector<Tensor> results = op_by_op().run(values, tracer);
  values.clear();
  const std::size_t count = recurrence_->outputs.size();
  std::vector<Tensor> made;
  for (std::size_t i = 0; i < count; ++i) made.push_back(results[i].copy_to(CpuPlace{}));
  std::vector<Tensor> next;
  for (std::size_t i = count; i < results.size(); ++i) next.push_back(on_device(results[i]));
  for (std::size_t i = next.size(); i-- > 0;) next[i].ready().wait();
  commit(slots, [&](std::size_t& changed) {
    for (std::size_t i = 0; i < slabs_.size(); ++i) {
      if (!recurrence_->states[i].changes) continue;
      scatter_rows(next[changed], slots, slabs_[i], stream);
      ++changed;
    }
  });
  outputs = std::move(made);
}

/// The rows of a tick that failed as a whole, one by one.
void StateSlab::step_alone(const Tick& tick, TickResult& result, Tracer* tracer) {
  const auto rows = static_cast<std::int64_t>(tick.slots.size());
  result.outputs.clear();
  try {
    for (const Recurrence::Output& output : recurrence_->outputs)
      result.outputs.push_back(host_zeros(output.dtype, output.dims.inserted(0, rows)));
  } catch (...) {
    for (std::int64_t row = 0; row < rows; ++row) result.failures.push_back({static_cast<std::size_t>(row), std::current_exception()});
    return;
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    try {
      if (lost_) std::rethrow_exception(lost_);
      std::vector<Tensor> alone;
      for (const Tensor& input : tick.inputs) alone.push_back(input.rows(row, row + 1));
      std::vector<Tensor> outputs;
      step({tick.slots[static_cast<std::size_t>(row)]}, alone, outputs, tracer);
      for (std::size_t i = 0; i < outputs.size(); ++i) copy_row(outputs[i], result.outputs[i], row);
    } catch (...) {
      result.failures.push_back({static_cast<std::size_t>(row), std::current_exception()});
      if (!lost_) recover();
    }
  }
}

TickResult StateSlab::run(const Tick& tick, Tracer* tracer) {
  TickResult result;
  run(tick, result, tracer);
  return result;
}

void StateSlab::run(const Tick& tick, TickResult& result, Tracer* tracer) {
  conclude();
  run_to_end(tick, result, tracer);
}

void StateSlab::run_to_end(const Tick& tick, TickResult& result, Tracer* tracer) {
  const TraceSpan span(tracer, "tick", "tick of " + std::to_string(tick.slots.size()), 0);
  result.begin(tick);
  const Crossings crossings(boundaries_.size(), tick, result);
  if (!lost_) settle();
  if (!lost_) begin(tick.starts);
  try {
    if (!lost_) cross(crossings, tracer);
    if (!lost_ && !tick.slots.empty()) step_all(tick, result, tracer);
    if (!lost_) save(tick, result);
    if (lost_) tell_lost(result);
  } catch (...) {
    result.error = std::current_exception();
  }
}

void StateSlab::step_all(const Tick& tick, TickResult& result, Tracer* tracer) {
  try {
    step(tick.slots, tick.inputs, result.outputs, tracer);
  } catch (...) {
    if (tick.slots.size() == 1) result.failures.push_back({0, std::current_exception()});
    recover();
    if (tick.slots.size() > 1 && !lost_) step_alone(tick, result, tracer);
  }
}

/// A state that cannot be read is the failure of its slot alone.
void StateSlab::save(const Tick& tick, TickResult& result) {
  for (std::size_t n = 0; n < tick.saves.size(); ++n) {
    try {
      check_state({tick.saves[n]});
      for (std::size_t i = 0; i < slabs_.size(); ++i) result.saved[n].states.push_back(state(i, tick.saves[n]));
    } catch (...) {
      result.saved[n] = {{}, std::current_exception()};
      recover();
    }
  }
}

/// Nothing of the tick is for the host to look at before the step, or to put back behind it.
bool StateSlab::can_follow(const Tick& tick) const {
  const auto known = [&](Slot slot) { return slot < capacity_ && !torn_.contains(slot) && !unstarted_.contains(slot); };
  return on_device_ && !may_fault_ && !lost_ && settled_ && written_.empty() && tick.starts.empty() && tick.crossings.empty() &&
         tick.saves.empty() && !tick.slots.empty() && std::all_of(tick.slots.begin(), tick.slots.end(), known);
}

void StateSlab::start(const Tick& tick) {
  if (can_follow(tick)) {
    under_way_.push_back({tick});
    try {
      under_way_.back().step = on_device_->start(tick.slots, tick.inputs);
      return;
    } catch (const UnsupportedError&) {  // nothing was enqueued
    } catch (const OutOfMemoryError&) {
    } catch (...) {
      tear(tick.slots);
    }
    under_way_.pop_back();
  }
  conclude();
  TickResult result;
  run_to_end(tick, result, nullptr);
  under_way_.push_back({tick, {}, std::move(result)});
}

TickResult StateSlab::finish() {
  if (under_way_.empty()) throw UninitializedError("state slab: expected a tick that was started and not finished, found none");
  if (!arrived(under_way_.front())) conclude();
  TickResult result = std::move(*under_way_.front().result);
  under_way_.pop_front();
  return result;
}

/// Waits. False when the tick failed.
bool StateSlab::arrived(UnderWay& one) {
  if (one.result) return true;
  try {
    one.step.done.wait();
  } catch (...) {
    if (one.step.begun->load()) tear(one.tick.slots);
    return false;
  }
  one.result.emplace();
  one.result->slots = one.tick.slots;
  one.result->outputs = std::move(one.step.outputs);
  return true;
}

/// Every tick that was started has its result. Failed ticks are run once the device is good again: torn slots fail, what was not begun is done.
void StateSlab::conclude() {
  bool failed = false;
  for (UnderWay& one : under_way_) failed = !arrived(one) || failed;
  if (!failed) return;
  recover();
  for (UnderWay& one : under_way_)
    if (!one.result) run_to_end(one.tick, one.result.emplace(), nullptr);
}

/// The place is gone: nothing of the tick counts that is not known to be whole, and no state is left to go on from.
void StateSlab::tell_lost(TickResult& result) const {
  result.lost = lost_;
  result.failures.clear();
  for (std::size_t row = 0; row < result.slots.size(); ++row) result.failures.push_back({row, lost_});
  for (TickResult::Crossed& crossed : result.crossed) crossed.error = lost_;
  for (TickResult::Saved& saved : result.saved) saved = {{}, lost_};
}

Tensor StateSlab::state(std::size_t index, Slot slot) const {
  if (index >= slabs_.size() || slot < 0 || slot >= capacity_)
    throw IndexError("state slab: expected a state below " + std::to_string(slabs_.size()) + " and a slot below " +
                     std::to_string(capacity_) + ", found " + std::to_string(index) + " and " + std::to_string(slot));
  if (lost_) rethrow_own(lost_);
  if (const auto torn = torn_.find(slot); torn != torn_.end()) rethrow_own(torn->second);
  if (unstarted_.contains(slot)) throw UninitializedError("state slab: the start of slot " + std::to_string(slot) + " failed");
  return clone(slabs_[index].select(0, slot), device_->stream(0)).copy_to(CpuPlace{});
}

std::size_t StateSlab::bytes() const noexcept {
  std::size_t total = 0;
  for (const Tensor& slab : slabs_) total += slab.bytes();
  return total;
}

}  // namespace millrace
