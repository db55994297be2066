// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_graph/captured_loop.h>

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <millrace/kernels/gather.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

constexpr std::size_t most_graphs = 16;

std::string called(const Op& op) { return "op " + (op.label.empty() ? op.type : op.type + " '" + op.label + "'"); }

/// Where the rows of an iteration lie in each var of it; −1: nowhere. UnsupportedError where one row is made of several.
void follow_rows(const LoopForm& form) {
  const Program& step = form.step;
  std::map<VarId, int> axes;
  const std::size_t rows = form.inputs.size() + form.states.size();
  for (std::size_t i = 0; i < step.inputs().size(); ++i) axes[step.inputs()[i].var] = i < rows ? 0 : -1;
  const auto axis_of = [&](VarId var) {
    const auto found = axes.find(var);
    return found == axes.end() ? -1 : found->second;
  };
  for (const Op& op : step.block(0).ops) {
    std::vector<int> in;
    for (const VarId input : op.inputs) in.push_back(axis_of(input));
    std::vector<int> out(op.outputs.size(), -1);
    if (std::any_of(in.begin(), in.end(), [](int axis) { return axis >= 0; })) {
      const OpDef& def = step.registry().at(op.type);
      if (!def.follow_rows) throw UnsupportedError(called(op) + " does not say how it treats rows");
      try {
        out = def.follow_rows(InferContext(step, op, 0), in);
      } catch (const UnsupportedError& error) {
        throw UnsupportedError(called(op) + " " + error.what());
      }
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) axes[op.outputs[i]] = out.at(i);
  }
  for (const Program::Port& port : step.outputs())
    if (axis_of(port.var) != 0) throw UnsupportedError("'" + port.name + "' has no row for each sequence along axis 0");
}

}  // namespace

void expect_no_host(const Program& step) {
  for (const Op& op : step.block(0).ops)
    for (const std::size_t input : step.registry().at(op.type).host_inputs)
      if (input < op.inputs.size() && op.inputs[input] != no_var && step.constant(op.inputs[input]) == nullptr)
        throw UnsupportedError(called(op) + ": the host looks at '" + step.var(op.inputs[input]).name + "' each time");
}

CapturedForm::CapturedForm(const Program& program, int block, const Op& loop) : form_(find_loop_form(program, block, loop)) {
  expect_no_host(form_.step);
  try {
    follow_rows(form_);
  } catch (const UnsupportedError& error) {
    couples_rows_ = error.what();
  }
}

std::string CapturedForm::to_string() const {
  return couples_rows_.empty() ? "backend: captured\n"
                               : "backend: captured, where all iterations have the same rows: " + couples_rows_ + "\n";
}

CapturedLoop::CapturedLoop(const Program& program, int block, const Op& loop, std::shared_ptr<Device> device, std::size_t stream)
    : form_(program, block, loop),
      device_(cuda::make_recording_device(std::move(device), stream)),
      iteration_(form_.form().step, device_) {}

CapturedLoop::~CapturedLoop() = default;

namespace {

[[noreturn]] void refuse(const std::string& why) { throw UnsupportedError(why); }

/// "3,0,f32[2, 4],…": what tells one graph of a loop from another.
std::string key_of(const cuda::LoopIteration& iteration) {
  std::string key = fmt::format("{}{}", iteration.ragged ? "ragged" : "", iteration.moves ? " moves" : "");
  for (const auto* places : {&iteration.inputs, &iteration.states, &iteration.shared})
    for (const cuda::LoopIteration::Place& place : *places) key += fmt::format(" {}{}", name_of(place.dtype), place.dims.to_string());
  return key;
}

}  // namespace

/// The operands of a run as slots of a graph, and the extents that the graph must be made for.
class CapturedLoop::Values {
 public:
  Values(const CapturedForm& form, LoopOperands& operands, Device& device)
      : form_(form.form()), coupled_(form.couples_rows()), operands_(operands), stream_(device.stream(0)), place_(device.place()) {}

  void read() {
    slots.iterations = operands_.iterations;
    std::vector<std::vector<std::int64_t>> counts(operands_.inputs.size());
    for (std::size_t i = 0; i < operands_.inputs.size(); ++i) read_input(i, counts[i]);
    count_rows(counts);
    for (std::size_t i = 0; i < operands_.states.size(); ++i) read_state(i);
    for (const Tensor& value : operands_.shared) {
      slots.shared.push_back(value);
      iteration.shared.push_back({value.dtype(), value.dims()});
    }
    check_outputs();
    std::size_t next = iteration.outputs = form_.outputs.size();
    for (const LoopForm::State& state : form_.states)
      iteration.next.push_back(state.changes ? std::optional<std::size_t>(next++) : std::nullopt);
  }

  cuda::LoopIteration iteration;
  cuda::LoopSlots slots;
  std::optional<SequenceOrder> order;
  LoopOperands::Slots ordered() const noexcept { return ordered_; }

 private:
  const std::string& port(std::size_t at) const { return form_.step.inputs()[at].name; }
  std::int64_t rows_of(std::int64_t t) const { return rows_.empty() ? 0 : rows_[static_cast<std::size_t>(t)]; }

  void check_slot(std::size_t input, const Tensor& slot) {
    const DType dtype = form_.step.var(form_.step.inputs()[input].var).type.dtype;
    if (slot.place() != place_ || slot.dtype() != dtype || slot.rank() == 0)
      refuse(fmt::format("'{}': expected {} on {}, found {}", port(input), name_of(dtype), place_.to_string(), slot.to_string()));
  }

  /// The slot of an iteration; −1: what stands before the first.
  std::int64_t slot_of(std::size_t input, std::int64_t t) const {
    const auto [first, stride] = operands_.read[input];
    return lowering::value_at(first, stride, t).value_or(-2);
  }

  void read_input(std::size_t input, std::vector<std::int64_t>& rows) {
    const TensorArray& array = operands_.inputs[input];
    if (input > 0 && array.order() != order) refuse(fmt::format("'{}' has another order than '{}'", port(input), port(0)));
    if (input == 0) order = array.order();
    const std::int64_t least = std::min(slot_of(input, 0), slot_of(input, operands_.iterations - 1));
    const std::int64_t most = std::max(slot_of(input, 0), slot_of(input, operands_.iterations - 1));
    if (least < 0) refuse(fmt::format("'{}' is read before its first slot", port(input)));
    if (array.is_window() || most >= array.size()) refuse(fmt::format("'{}' does not have its slots yet", port(input)));
    cuda::LoopSlots::Input made;
    const DDim dims = array.filled() != nullptr ? read_whole(input, made, rows) : read_slots(input, made, rows);
    iteration.inputs.push_back({made.held.front().dtype(), dims});
    slots.inputs.push_back(std::move(made));
  }

  /// Slots of one tensor. Gives the extents of the first iteration's.
  DDim read_whole(std::size_t input, cuda::LoopSlots::Input& made, std::vector<std::int64_t>& rows) {
    const auto filled = operands_.inputs[input].filled();
    const Tensor whole = filled->whole.is_contiguous() ? filled->whole : clone(filled->whole, stream_);
    check_slot(input, whole);
    DDim slot = filled->items ? whole.dims().erased(0) : whole.dims();
    if (slot.rank() == 0) refuse(fmt::format("slots of '{}' have no rows", port(input)));
    const std::int64_t width = slot.erased(0).elements() * static_cast<std::int64_t>(size_of(whole.dtype()));
    const std::int64_t step = filled->items ? slot[0] : 1;
    for (std::int64_t t = 0; t < operands_.iterations; ++t) {
      const auto at = static_cast<std::size_t>(slot_of(input, t));
      made.slots.push_back(static_cast<const std::byte*>(whole.raw()) + filled->offsets[at] * step * width);
      rows.push_back(filled->items ? slot[0] : filled->offsets[at + 1] - filled->offsets[at]);
    }
    made.held.push_back(whole);
    slot[0] = rows.front();
    return slot;
  }

  DDim read_slots(std::size_t input, cuda::LoopSlots::Input& made, std::vector<std::int64_t>& rows) {
    DDim dims;
    for (std::int64_t t = 0; t < operands_.iterations; ++t) {
      const std::optional<LoDTensor> slot = operands_.inputs[input].peek(slot_of(input, t));
      if (!slot) refuse(fmt::format("'{}' does not have its slots yet", port(input)));
      if (!slot->lod().empty()) refuse(fmt::format("slots of '{}' have sub-sequences", port(input)));
      check_slot(input, slot->tensor());
      if (t == 0) dims = slot->dims();
      if (slot->dims().rank() != dims.rank() || slot->dims().erased(0) != dims.erased(0))
        refuse(fmt::format("slots of '{}' have extents that differ: {} and {}", port(input), dims.to_string(), slot->dims().to_string()));
      const Tensor there = slot->tensor().is_contiguous() ? slot->tensor() : clone(slot->tensor(), stream_);
      made.slots.push_back(there.raw());
      made.held.push_back(there);
      rows.push_back(slot->dims()[0]);
    }
    return dims;
  }

  /// How many rows each iteration has. What is shrunk has those of another input, and more behind them.
  void count_rows(const std::vector<std::vector<std::int64_t>>& counts) {
    if (counts.empty()) return;
    const auto leads = std::find_if(form_.inputs.begin(), form_.inputs.end(), [](const auto& input) { return !input.shrinks; });
    const auto leader = static_cast<std::size_t>(leads == form_.inputs.end() ? 0 : leads - form_.inputs.begin());
    rows_ = counts[leader];
    ordered_ = operands_.read[leader];
    for (std::size_t i = 0; i < counts.size(); ++i) {
      iteration.inputs[i].dims[0] = rows_.front();
      if (counts[i] == rows_) continue;
      const bool more = std::equal(rows_.begin(), rows_.end(), counts[i].begin(), std::less_equal<>());
      if (!form_.inputs[i].shrinks || !more || !order || !order->sorted() || operands_.read[i].stride != ordered_.stride ||
          ordered_.stride < 0)
        refuse(fmt::format("slots of '{}' have other rows than those of '{}'", port(i), port(leader)));
    }
    if (!std::is_sorted(rows_.rbegin(), rows_.rend())) refuse("iterations have more rows than those before");
    if (rows_.front() == 0) refuse("iterations have no rows");
    iteration.ragged = rows_.back() != rows_.front();
    if (!iteration.ragged) return;
    if (!order || ordered_.stride != 1) refuse("iterations have fewer and fewer rows, and no order says which");
    if (!coupled_.empty()) refuse("iterations have fewer and fewer rows, and " + coupled_);
    slots.rows = rows_;
    slots.kept.resize(rows_.size());
    iteration.moves = !order->sorted() && !operands_.states.empty();
    for (std::int64_t t = 1; iteration.moves && t < operands_.iterations; ++t)
      slots.kept[static_cast<std::size_t>(t)] = shrink_rows(*order, ordered_.first + t - 1, ordered_.first + t).rows;
  }

  void read_state(std::size_t index) {
    const SlotValue& value = operands_.states[index];
    const LoopForm::State& state = form_.states[index];
    const std::string& name = port(operands_.inputs.size() + index);
    const DType dtype = form_.step.var(form_.step.inputs()[operands_.inputs.size() + index].var).type.dtype;
    if (value.dtype() != dtype || value.dims().rank() == 0 || !value.lod().empty())
      refuse(fmt::format("state '{}': expected rows of {}, found {}", name, name_of(dtype), value.to_string()));
    if (value.tensor().elements() == 0) refuse(fmt::format("state '{}' is empty", name));
    Tensor held = value.tensor().place() == place_ ? value.tensor() : clone(value.tensor(), stream_);
    if (order) held = of_batch(value, std::move(held), state, name);
    if (iteration.ragged && held.dim(0) != rows_.front())
      refuse(fmt::format("state '{}' has {} rows where the first iteration has {}", name, held.dim(0), rows_.front()));
    slots.states.push_back(held.is_contiguous() ? held : clone(held, stream_));
    iteration.states.push_back({dtype, held.dims()});
  }

  /// The rows of a state that the first iteration begins with.
  Tensor of_batch(const SlotValue& value, Tensor rows, const LoopForm::State& state, const std::string& name) const {
    if (!state.shrinks) {
      if (iteration.ragged) refuse(fmt::format("state '{}' keeps its rows where sequences end", name));
      return rows;
    }
    if (value.has_order() && value.order() != *order) refuse(fmt::format("state '{}' is of another order", name));
    // What was computed has the rows of the iteration before, or stands in the caller's order.
    const bool given = !value.has_order() && ordered_.first <= 0;
    if (given) rows = reorder(LoDTensor(std::move(rows)), *order, stream_).tensor();
    const std::int64_t before = given ? -1 : value.has_order() ? value.iteration() : ordered_.first - 1;
    if (before > ordered_.first || rows.dim(0) != order->live(before) || ordered_.stride < 0)
      refuse(fmt::format("state '{}' has {} rows, which are not those of the iteration before", name, rows.dim(0)));
    const RowSelection first = shrink_rows(*order, before, ordered_.first);
    if (first.count() != rows_.front()) refuse(fmt::format("state '{}' has rows of other sequences than the first iteration", name));
    return first.prefix ? rows.rows(0, rows_.front()) : gather_rows(rows, first.rows, stream_);
  }

  void check_outputs() const {
    for (std::size_t i = 0; i < operands_.outputs.size(); ++i) {
      const TensorArray& array = operands_.outputs[i];
      const auto [first, stride] = operands_.written[i];
      const auto last = lowering::value_at(first, stride, operands_.iterations - 1);
      if (!last || array.is_window() || array.closed() || std::min(first, *last) < 0 || (stride == 0 && operands_.iterations > 1) ||
          (array.is_fixed() && std::max(first, *last) >= array.size()))
        refuse(fmt::format("'{}' has no room for what is written", array.name()));
      for (std::int64_t t = 0; t < operands_.iterations; ++t) {
        const SlotState slot = array.state(first + stride * t);
        if (slot != SlotState::empty && slot != SlotState::waited) refuse(fmt::format("'{}' was written before", array.name()));
        if (array.order() && (rows_.empty() || array.order()->live(first + stride * t) != rows_of(t)))
          refuse(fmt::format("'{}' has an order of other rows", array.name()));
      }
    }
  }

  const LoopForm& form_;
  const std::string& coupled_;
  LoopOperands& operands_;
  StreamRef stream_;
  Place place_;
  std::vector<std::int64_t> rows_;  // by iteration; empty: no input says
  LoopOperands::Slots ordered_;     // of the order: the first iteration, and where the others go
};

std::shared_ptr<cuda::LoopGraph> CapturedLoop::graph_for(const cuda::LoopIteration& iteration) {
  std::string key = key_of(iteration);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.key == key; });
  if (found != kept_.end()) {
    std::rotate(kept_.begin(), found, found + 1);
    return kept_.front().graph;
  }
  cuda::LoopIteration recorded = iteration;
  recorded.run = [this](const std::vector<Tensor>& values) {
    const std::vector<Value> inputs(values.begin(), values.end());
    std::vector<Tensor> results;
    for (const Value& result : iteration_.run(inputs)) results.push_back(result.tensor().tensor());
    return results;
  };
  std::shared_ptr<cuda::LoopGraph> graph = cuda::record_loop(device_, recorded);
  if (kept_.size() == most_graphs) kept_.pop_back();
  kept_.insert(kept_.begin(), {std::move(key), graph});
  return graph;
}

std::unique_ptr<LoopRun> CapturedLoop::prepare(LoopOperands operands) {
  const std::lock_guard lock(mutex_);
  auto run = std::make_unique<Run>();
  run->operands_ = std::move(operands);
  run->form_ = &form_.form();
  Values values(form_, run->operands_, *device_);
  values.read();
  run->graph_ = graph_for(values.iteration);
  run->slots_ = std::move(values.slots);
  run->order_ = std::move(values.order);
  run->ordered_ = values.ordered();
  const std::vector<std::int64_t>& rows = run->slots_.rows;
  const std::shared_ptr<MemoryResource>& memory = device_->stream(0).memory();
  for (const cuda::LoopIteration::Place& output : run->graph_->outputs()) {
    if (output.dims.rank() == 0) refuse("an iteration gives a number without rows");
    DDim dims = output.dims;
    dims[0] = values.iteration.ragged ? 0 : dims[0] * run->iterations();
    for (const std::int64_t count : rows) dims[0] += count;
    run->slots_.outputs.emplace_back(output.dtype, dims, memory);
  }
  for (std::size_t i = 0; i < run->slots_.states.size(); ++i) {
    DDim dims = run->slots_.states[i].dims();
    if (!rows.empty()) dims[0] = rows.back();
    run->slots_.last.emplace_back(form_.form().states[i].changes ? Tensor(run->slots_.states[i].dtype(), dims, memory) : Tensor());
  }
  return run;
}

/// A run that is given up takes the loop along, and one whose values nobody reads reports its errors.
std::optional<Point> CapturedLoop::Run::end() const {
  for (const std::vector<Tensor>* made : {&slots_.outputs, &slots_.last})
    for (const Tensor& tensor : *made)
      if (tensor.storage() != nullptr) return tensor.ready();
  return std::nullopt;
}

bool CapturedLoop::Run::advance(std::int64_t) {
  if (started_) return false;
  number_ = graph_->run(slots_);
  for (std::size_t i = 0; i < slots_.outputs.size(); ++i) {
    const Tensor& whole = slots_.outputs[i];
    const TensorArray& array = operands_.outputs[i];
    const auto [first, stride] = operands_.written[i];
    const std::int64_t same = graph_->outputs()[i].dims[0];
    std::vector<std::int64_t> offsets{0};
    for (std::int64_t t = 0; t < iterations(); ++t)
      offsets.push_back(offsets.back() + (slots_.rows.empty() ? same : slots_.rows[static_cast<std::size_t>(t)]));
    if (array.is_fixed() && first == 0 && stride == 1 && array.size() == iterations()) {
      array.fill(whole, std::move(offsets));
      continue;
    }
    for (std::int64_t t = 0; t < iterations(); ++t) {
      const auto at = static_cast<std::size_t>(t);
      array.write(first + stride * t, LoDTensor(whole.rows(offsets[at], offsets[at + 1])));
    }
  }
  started_ = true;
  return true;
}

std::vector<SlotValue> CapturedLoop::Run::finish() {
  std::vector<SlotValue> last;
  for (std::size_t i = 0; i < slots_.last.size(); ++i) {
    if (form_->states[i].changes)
      last.push_back(order_ && ordered_.stride == 1 ? SlotValue(LoDTensor(slots_.last[i]), order_, ordered_.first + iterations() - 1)
                                                    : SlotValue(LoDTensor(slots_.last[i])));
    else
      last.push_back(operands_.states[i]);
  }
  return last;
}

}  // namespace millrace
