// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_graph/captured_loop.h>

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/loops/binder.h>
#include <millrace/runtime/loops/last_state.h>
#include <millrace/runtime/program/internal/op_name.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

constexpr std::size_t most_graphs = 16;

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
      if (!def.follow_rows) throw UnsupportedError(internal::op_name(op) + " does not say how it treats rows");
      try {
        out = def.follow_rows(InferContext(step, op, 0), in);
      } catch (const UnsupportedError& error) {
        throw UnsupportedError(internal::op_name(op) + " " + error.what());
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
        throw UnsupportedError(internal::op_name(op) + ": the host looks at '" + step.var(op.inputs[input]).name + "' each time");
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
  Values(const CapturedForm& form, const LoopOperands& operands, Device& device)
      : form_(form.form()), coupled_(form.couples_rows()), operands_(operands), binder_(form_, operands, device.stream(0)) {}

  void read() {
    slots.iterations = operands_.iterations;
    std::vector<std::vector<std::int64_t>> counts;
    for (std::size_t i = 0; i < operands_.inputs.size(); ++i) counts.push_back(read_input(i));
    binder_.set_rows(counts);
    take_rows();
    for (std::size_t i = 0; i < operands_.states.size(); ++i) read_state(i);
    for (const Tensor& value : operands_.shared) {
      slots.shared.push_back(value);
      iteration.shared.push_back({value.dtype(), value.dims()});
    }
    binder_.check_outputs();
    std::size_t next = iteration.outputs = form_.outputs.size();
    for (const LoopForm::State& state : form_.states)
      iteration.next.push_back(state.changes ? std::optional<std::size_t>(next++) : std::nullopt);
  }

  cuda::LoopIteration iteration;
  cuda::LoopSlots slots;
  const std::optional<SequenceOrder>& order() const noexcept { return binder_.order(); }
  LoopOperands::Slots ordered() const noexcept { return binder_.ordered(); }

 private:
  const std::string& port(std::size_t at) const { return form_.step.inputs()[at].name; }

  std::vector<std::int64_t> read_input(std::size_t input) {
    BoundInput bound = binder_.input(input);
    cuda::LoopSlots::Input made;
    if (bound.whole) made.held.push_back(*bound.whole);
    for (std::size_t t = 0; t < bound.rows.size(); ++t) {
      const auto [first, stride] = operands_.read[input];
      if (first + stride * static_cast<std::int64_t>(t) < 0) refuse(fmt::format("'{}' is read before its first slot", port(input)));
      if (bound.whole) {
        const std::int64_t width = bound.whole->dims().erased(0).elements() * static_cast<std::int64_t>(size_of(bound.whole->dtype()));
        made.slots.push_back(static_cast<const std::byte*>(bound.whole->raw()) + bound.begin[t] * width);
      } else {
        made.slots.push_back(bound.slots[t].raw());
        made.held.push_back(bound.slots[t]);
      }
    }
    iteration.inputs.push_back({made.held.front().dtype(), made.held.front().dims()});
    slots.inputs.push_back(std::move(made));
    return std::move(bound.rows);
  }

  /// A graph loses rows from iteration to iteration; it gains none.
  void take_rows() {
    const std::vector<std::int64_t>& rows = binder_.rows();
    if (rows.empty()) return;
    for (cuda::LoopIteration::Place& input : iteration.inputs) input.dims[0] = rows.front();
    if (!std::is_sorted(rows.rbegin(), rows.rend())) refuse("iterations have more rows than those before");
    if (rows.front() == 0) refuse("iterations have no rows");
    iteration.ragged = binder_.ragged();
    if (!iteration.ragged) return;
    if (ordered().stride != 1) refuse("iterations have fewer and fewer rows, and no order says which");
    if (!coupled_.empty()) refuse("iterations have fewer and fewer rows, and " + coupled_);
    slots.rows = rows;
    slots.kept.resize(rows.size());
    iteration.moves = binder_.moves();
    for (std::int64_t t = 1; iteration.moves && t < operands_.iterations; ++t)
      slots.kept[static_cast<std::size_t>(t)] = shrink_rows(*order(), ordered().first + t - 1, ordered().first + t).rows;
  }

  void read_state(std::size_t index) {
    const std::string& name = port(operands_.inputs.size() + index);
    const Tensor held = binder_.state(index);
    if (held.elements() == 0) refuse(fmt::format("state '{}' is empty", name));
    if (iteration.ragged && held.dim(0) != binder_.rows().front())
      refuse(fmt::format("state '{}' has {} rows where the first iteration has {}", name, held.dim(0), binder_.rows().front()));
    slots.states.push_back(held);
    iteration.states.push_back({held.dtype(), held.dims()});
  }

  const LoopForm& form_;
  const std::string& coupled_;
  const LoopOperands& operands_;
  LoopBinder binder_;
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
  run->order_ = values.order();
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
      last.push_back(last_state(*form_, operands_, i, iterations(), LoDTensor(slots_.last[i])));
    else
      last.push_back(operands_.states[i]);
  }
  return last;
}

}  // namespace millrace
