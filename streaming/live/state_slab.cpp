// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/state_slab.h>

#include <algorithm>
#include <cstring>

#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/copy.h>

namespace millrace {
namespace {

Tensor host_zeros(DType dtype, const DDim& dims) {
  Tensor made(dtype, dims);
  made.storage()->mark_written();
  std::memset(made.raw_mutable(), 0, made.bytes());
  return made;
}

/// Both are on the host, and nothing is under way.
void copy_row(const Tensor& from, const Tensor& to, std::int64_t row) {
  std::memcpy(to.rows(row, row + 1).raw_mutable(), from.raw(), from.bytes());
}

}  // namespace

StateSlab::StateSlab(std::shared_ptr<const Recurrence> recurrence, std::shared_ptr<Device> device, Gear gear)
    : recurrence_(std::move(recurrence)), device_(device ? std::move(device) : make_cpu_device()), start_(recurrence_->start, device_) {
  for (const Recurrence::Boundary& boundary : recurrence_->boundaries) boundaries_.emplace_back(boundary.batched, device_);
  for (const Recurrence::Given& given : recurrence_->given) zeros_.push_back(host_zeros(given.dtype, given.dims).read_only());
  slabs_.resize(recurrence_->states.size());
  if (std::holds_alternative<CudaPlace>(device_->place()) && gear != Gear::interpreted)
    fuse(gear);
  else
    step_.emplace(recurrence_->batched, device_, gear);
}

/// The first graph is made here, and not when the first row is there.
void StateSlab::fuse(Gear gear) {
  required_ = gear != Gear::automatic;
  try {
    on_device_ = std::make_unique<DeviceStep>(DeviceStepForm(*recurrence_, gear), device_);
    grow(0);
    on_device_->prepare(1);
  } catch (const UnsupportedError& error) {
    on_device_.reset();
    reason_ = error.what();
    if (required_) throw UnsupportedError("gear " + std::string(name_of(gear)) + ": expected a step that runs so, but " + reason_);
  }
}

/// On CUDA made when it is first wanted: it has weights of its own.
StepRunner& StateSlab::op_by_op() {
  if (!step_) step_.emplace(recurrence_->batched, device_, Gear::interpreted);
  return *step_;
}

std::string StateSlab::gear() const {
  const auto with = [](Gear gear, const std::string& reason) { return std::string(name_of(gear)) + (reason.empty() ? "" : ": " + reason); };
  if (on_device_) return with(on_device_->form().gear(), on_device_->form().gear() == Gear::fused ? "" : on_device_->form().reason());
  if (step_ && step_->fused()) return with(Gear::fused, "");
  return with(Gear::interpreted, reason_.empty() && step_ ? step_->reason() : reason_);
}

StateSlab::~StateSlab() = default;

void StateSlab::grow(Slot slot) {
  if (slot < capacity_) return;
  const Slot wanted = std::max<Slot>({slot + 1, 2 * capacity_, 16});
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    const Recurrence::State& state = recurrence_->states[i];
    // Zeros, so that no slot ever holds what another sequence left in the memory.
    const DDim dims = state.dims.inserted(0, wanted);
    Tensor grown = device_->place().is_cpu() ? host_zeros(state.dtype, dims) : zeros(dims, state.dtype, device_->stream(0));
    if (capacity_ > 0) copy(slabs_[i], grown.rows(0, capacity_), device_->stream(0));
    slabs_[i] = std::move(grown);
  }
  capacity_ = wanted;
  if (on_device_) on_device_->moved(slabs_);
}

/// Small integers are computed on the host, whatever the device.
Tensor StateSlab::on_device(const Tensor& value) const {
  return value.place() == device_->place() ? value : clone(value, device_->stream(0));
}

void StateSlab::start(const Tick::Start& start) {
  const bool given = std::any_of(start.given.begin(), start.given.end(), [](const Tensor& value) { return value.elements() > 0; });
  std::optional<std::vector<Value>> own;
  if (given || !fresh_) {
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < zeros_.size(); ++i)
      inputs.emplace_back(i < start.given.size() && start.given[i].elements() > 0 ? start.given[i] : zeros_[i]);
    own = run_straight(start_, inputs);
    if (!given) fresh_ = own;
  }
  const std::vector<Value>& values = own ? *own : *fresh_;
  grow(start.slot);
  for (std::size_t i = 0; i < slabs_.size(); ++i) copy(values[i].tensor().tensor(), slabs_[i].select(0, start.slot), device_->stream(0));
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
  std::vector<Value> made;
  if (!at.batched.outputs().empty()) {
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < at.inputs.size(); ++i) {
      Tensor rows = host_zeros(at.inputs[i].dtype, at.inputs[i].dims.inserted(0, static_cast<std::int64_t>(all.size())));
      for (std::size_t n = 0; n < all.size(); ++n)
        copy(all[n]->inputs.at(i), rows.rows(static_cast<std::int64_t>(n), static_cast<std::int64_t>(n) + 1), host.stream(0));
      inputs.emplace_back(std::move(rows));
    }
    made = run_straight(boundaries_[boundary], with_states(std::move(inputs), slots), tracer);
  }
  for (std::size_t i = 0; i < at.outputs.size(); ++i) {
    const Tensor rows = made[i].tensor().tensor().copy_to(CpuPlace{});
    for (std::size_t n = 0; n < all.size(); ++n)
      results[n]->outputs.push_back(rows.rows(static_cast<std::int64_t>(n), static_cast<std::int64_t>(n) + 1));
  }
  for (std::size_t i = 0; i < at.changes.size(); ++i)
    scatter_rows(on_device(made[at.outputs.size() + i].tensor().tensor()), slots, slabs_[at.changes[i]], stream);
  for (const auto& [state, value] : at.constants)
    for (const Slot slot : slots) copy(value, slabs_[state].select(0, slot), stream);
}

/// All crossings of a tick, those of one boundary together; when they fail together, each is tried alone.
void StateSlab::cross(const Tick& tick, TickResult& result, Tracer* tracer) {
  result.crossed.resize(tick.crossings.size());
  for (std::size_t boundary = 0; boundary < boundaries_.size(); ++boundary) {
    std::vector<const Tick::Crossing*> all;
    std::vector<TickResult::Crossed*> results;
    for (std::size_t n = 0; n < tick.crossings.size(); ++n) {
      if (tick.crossings[n].boundary != boundary) continue;
      grow(tick.crossings[n].slot);
      all.push_back(&tick.crossings[n]);
      results.push_back(&result.crossed[n]);
    }
    if (all.empty()) continue;
    try {
      cross(boundary, all, results, tracer);
      continue;
    } catch (const Error&) {
      if (all.size() == 1) results[0]->error = std::current_exception();
    }
    for (std::size_t n = 0; all.size() > 1 && n < all.size(); ++n) {
      try {
        cross(boundary, {all[n]}, {results[n]}, tracer);
      } catch (const Error&) {
        results[n]->error = std::current_exception();
      }
    }
  }
}

std::vector<Tensor> StateSlab::step(const std::vector<Slot>& slots, const std::vector<Tensor>& inputs, Tracer* tracer) {
  if (on_device_ && (tracer == nullptr || !tracer->records())) {
    try {
      return on_device_->run(slots, inputs);
    } catch (const UnsupportedError& error) {  // of more rows than before: nothing was enqueued
      if (required_) throw;
      reason_ = error.what();
      on_device_.reset();
    }
  }
  const StreamRef stream = device_->stream(0);
  std::vector<Tensor> values = inputs;
  for (const Tensor& slab : slabs_) values.push_back(gather_rows(slab, slots, stream));
  const std::vector<Tensor> results = op_by_op().run(values, tracer);
  const std::size_t outputs = recurrence_->outputs.size();
  std::vector<Tensor> made;
  for (std::size_t i = 0; i < outputs; ++i) made.push_back(results[i].copy_to(CpuPlace{}));
  std::size_t next = outputs;
  for (std::size_t i = 0; i < slabs_.size(); ++i)
    if (recurrence_->states[i].changes) scatter_rows(on_device(results[next++]), slots, slabs_[i], stream);
  return made;
}

TickResult StateSlab::run(const Tick& tick, Tracer* tracer) {
  const TraceSpan span(tracer, "tick", "tick of " + std::to_string(tick.slots.size()), 0);
  for (const Tick::Start& first : tick.starts) start(first);
  TickResult result;
  result.slots = tick.slots;
  cross(tick, result, tracer);
  if (tick.slots.empty()) return result;
  for (const Slot slot : tick.slots) grow(slot);
  try {
    result.outputs = step(tick.slots, tick.inputs, tracer);
    return result;
  } catch (const Error&) {
    if (tick.slots.size() == 1) {
      result.failures.push_back({0, std::current_exception()});
      return result;
    }
  }
  const auto rows = static_cast<std::int64_t>(tick.slots.size());
  for (const Recurrence::Output& output : recurrence_->outputs)
    result.outputs.push_back(host_zeros(output.dtype, output.dims.inserted(0, rows)));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<Tensor> alone;
    for (const Tensor& input : tick.inputs) alone.push_back(input.rows(row, row + 1));
    try {
      const std::vector<Tensor> outputs = step({tick.slots[static_cast<std::size_t>(row)]}, alone, tracer);
      for (std::size_t i = 0; i < outputs.size(); ++i) copy_row(outputs[i], result.outputs[i], row);
    } catch (const Error&) {
      result.failures.push_back({static_cast<std::size_t>(row), std::current_exception()});
    }
  }
  return result;
}

Tensor StateSlab::state(std::size_t index, Slot slot) const {
  if (index >= slabs_.size() || slot < 0 || slot >= capacity_)
    throw IndexError("state slab: expected a state below " + std::to_string(slabs_.size()) + " and a slot below " +
                     std::to_string(capacity_) + ", found " + std::to_string(index) + " and " + std::to_string(slot));
  return clone(slabs_[index].select(0, slot), device_->stream(0)).copy_to(CpuPlace{});
}

std::size_t StateSlab::bytes() const noexcept {
  std::size_t total = 0;
  for (const Tensor& slab : slabs_) total += slab.bytes();
  return total;
}

}  // namespace millrace
