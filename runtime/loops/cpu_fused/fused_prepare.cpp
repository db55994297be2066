// SPDX-License-Identifier: Apache-2.0
// What a fused loop works on: values that fit, and room for what it makes.
#include <algorithm>
#include <functional>
#include <numeric>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/loops/cpu_fused/internal/fused_state.h>
#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/program/straight_program.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

using passes::Source;
using From = Source::From;

/// What comes ahead of the iterations of a run should stay in the second cache until they take it.
constexpr std::int64_t run_bytes = 256 << 10;
/// Rows of a part.
constexpr std::int64_t part_rows = 64;
/// Multiply-adds below which a second thread costs more than it saves.
constexpr std::int64_t thread_work = 1 << 20;

/// Up to so many rows are as dear as one where weights come from far: the threads share the weights, not the rows.
constexpr std::int64_t shared_rows = 4;

/// Multiply-adds of a row in one product or cell.
std::int64_t product_of(const RowOp& op, const RowDesc& desc) {
  if (op.kind == RowOp::Kind::matmul) return op.outer * op.inner * desc.registers[static_cast<std::size_t>(op.in[0].reg)].width;
  return op.kind == RowOp::Kind::lstm_cell ? 4 * op.inner * op.inner : 0;
}

/// Multiply-adds of a row, or what takes as long.
std::int64_t work_of(const RowOp& op, const RowDesc& desc) {
  if (op.kind == RowOp::Kind::matmul) return op.outer * op.inner * desc.registers[static_cast<std::size_t>(op.in[0].reg)].width;
  if (op.kind == RowOp::Kind::lstm_cell) return 4 * op.inner * (op.inner + 32);
  return 64 + 8 * op.outer * op.inner;
}

bool plain(const Tensor& x, DType dtype) { return x.dtype() == dtype && x.is_contiguous() && x.place().is_cpu(); }

}  // namespace

FusedRun::~FusedRun() = default;
const LoopForm& FusedRun::form() const noexcept { return state_->loop->form(); }
std::int64_t FusedRun::iterations() const noexcept { return state_->operands.iterations; }
std::int64_t FusedRun::rows() const noexcept { return state_->most_rows; }
std::int64_t FusedRun::work() const noexcept { return state_->offset(state_->operands.iterations) * state_->work; }
std::optional<DDim> FusedRun::stacked(std::size_t output) const {
  const Tensor& whole = state_->whole[static_cast<std::size_t>(state_->target_of(output).whole)];
  return whole.dims().erased(0).inserted(0, state_->first_rows).inserted(0, state_->operands.outputs[output].size());
}
void FusedRun::deal(int threads) { state_->make_parts(threads, stream_); }

// ---- What there is to work on ----

/// Rows of an input as the loop computes with them; nothing when they are of another kind than they should be.
std::optional<Tensor> FusedRun::State::numbers(const Tensor& x, std::size_t input, StreamRef stream) {
  const DType wanted = loop->form().step.var(loop->form().step.inputs()[input].var).type.dtype;
  if (!plain(x, wanted)) return std::nullopt;
  stream.wait(x.ready());
  if (wanted == dtype) return x;
  if (wanted != DType::boolean) return std::nullopt;
  widened.push_back(cast(x, dtype, stream));
  return widened.back();
}

/// One slot that is there, or what stands before the first.
bool FusedRun::State::read_slot(std::size_t input, std::int64_t slot, IterationRows& made, std::vector<std::int64_t>& counts,
                                StreamRef stream) {
  const DDim& dims = loop->form().step.var(loop->form().step.inputs()[input].var).type.shape.value();
  std::optional<LoDTensor> held;
  if (slot >= 0)
    held = operands.inputs[input].peek(slot);
  else if (slot == -1 && input < operands.boots.size() && operands.boots[input])
    held = *operands.boots[input];
  if (!held || !held->lod().empty() || held->dims().rank() != dims.rank() || held->dims().erased(0) != dims.erased(0)) return false;
  const std::optional<Tensor> rows_there = numbers(held->tensor(), input, stream);
  if (!rows_there) return false;
  made.first.push_back(static_cast<const std::byte*>(rows_there->raw()));
  counts.push_back(held->dims()[0]);
  return true;
}

/// Slots that are there.
bool FusedRun::State::read_slots(std::size_t input, IterationRows& made, std::vector<std::int64_t>& counts, StreamRef stream) {
  const TensorArray& array = operands.inputs[input];
  const auto [first, stride] = operands.read[input];
  const DDim& dims = loop->form().step.var(loop->form().step.inputs()[input].var).type.shape.value();
  const auto filled = array.filled();
  const std::int64_t slots = array.is_window() ? 0 : array.size();
  const auto last = lowering::value_at(first, stride, operands.iterations - 1);
  if (!last || std::min(first, *last) < -1 || std::max(first, *last) >= slots) return false;
  if (arrives(input)) return expect_slots(input, made, counts);
  if (filled != nullptr) {
    const std::optional<Tensor> whole_there = numbers(filled->whole, input, stream);
    if (!whole_there) return false;
    const DDim slot = filled->items ? filled->whole.dims().erased(0) : filled->whole.dims();
    if (slot.rank() != dims.rank() || slot.rank() == 0 || slot.erased(0) != dims.erased(0)) return false;
    const std::int64_t step = filled->items ? slot[0] : 1;
    const auto* data = static_cast<const std::byte*>(whole_there->raw());
    for (std::int64_t t = 0; t < operands.iterations; ++t) {
      if (first + stride * t < 0) {
        if (!read_slot(input, first + stride * t, made, counts, stream)) return false;
        continue;
      }
      const auto at = static_cast<std::size_t>(first + stride * t);
      made.first.push_back(data + filled->offsets[at] * step * made.width * size);
      counts.push_back(filled->items ? slot[0] : filled->offsets[at + 1] - filled->offsets[at]);
    }
    return true;
  }
  for (std::int64_t t = 0; t < operands.iterations; ++t)
    if (!read_slot(input, first + stride * t, made, counts, stream)) return false;
  return true;
}

/// Slots that another run makes: known by where it will put them.
bool FusedRun::State::read_feeder(std::size_t input, IterationRows& made, std::vector<std::int64_t>& counts) {
  const LoopOperands::Source& source = operands.sources[input];
  const std::shared_ptr<State>& from = static_cast<const FusedRun&>(*source.run).state_;
  const DDim& dims = loop->form().step.var(loop->form().step.inputs()[input].var).type.shape.value();
  const auto [first, stride] = operands.read[input];
  const auto [written, written_stride] = from->operands.written[source.output];
  if (stride != written_stride || (first - written) % stride != 0) return false;
  const std::int64_t shift = (first - written) / stride;
  if (shift < 0 || operands.iterations + shift > from->operands.iterations) return false;
  const Target& target = from->target_of(source.output);
  const Tensor& there = from->whole[static_cast<std::size_t>(target.whole)];
  if (there.dtype() != dtype || there.dims().rank() != dims.rank() || there.dims().erased(0) != dims.erased(0)) return false;
  const auto* data = static_cast<const std::byte*>(there.raw());
  for (std::int64_t iteration = shift; iteration < operands.iterations + shift; ++iteration) {
    made.first.push_back(data + from->place(target, iteration) * made.width * size);
    counts.push_back(from->rows_of(iteration));
  }
  feeders.push_back({from, shift});
  return true;
}

bool FusedRun::State::read_inputs(StreamRef stream) {
  std::vector<std::vector<std::int64_t>> counts(operands.inputs.size());
  for (std::size_t i = 0; i < operands.inputs.size(); ++i) {
    const TensorArray& array = operands.inputs[i];
    const DDim& dims = loop->form().step.var(loop->form().step.inputs()[i].var).type.shape.value();
    if (i > 0 && array.order() != order) return false;
    if (i == 0) order = array.order();
    IterationRows made{{}, dims.erased(0).elements()};
    const bool fed = i < operands.sources.size() && operands.sources[i].run != nullptr;
    if (!(fed ? read_feeder(i, made, counts[i]) : read_slots(i, made, counts[i], stream))) return false;
    inputs.push_back(std::move(made));
  }
  if (operands.inputs.empty()) {  // the states say how many rows there are
    if (operands.states.empty() || operands.states[0].dims().rank() == 0) return false;
    first_rows = most_rows = operands.states[0].dims()[0];
    return true;
  }
  return count_rows(counts);
}

/// How many rows each iteration has, by those of its inputs.
bool FusedRun::State::count_rows(const std::vector<std::vector<std::int64_t>>& counts) {
  // What is shrunk has the rows of another input, and more behind them.
  const std::vector<LoopForm::StepInput>& form = loop->form().inputs;
  const auto leads = std::find_if(form.begin(), form.end(), [](const auto& input) { return !input.shrinks; });
  const auto leader = static_cast<std::size_t>(leads == form.end() ? 0 : leads - form.begin());
  ordered = operands.read[leader];
  if (order && ordered.first < 0) return false;
  rows = counts[leader];
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == rows) continue;
    const bool more = std::equal(rows.begin(), rows.end(), counts[i].begin(), std::less_equal<>());
    if (!form[i].shrinks || !more || !order || !order->sorted() || operands.read[i].stride != ordered.stride || ordered.stride < 0)
      return false;
  }
  first_rows = rows.front();
  most_rows = *std::max_element(rows.begin(), rows.end());
  if (std::all_of(rows.begin(), rows.end(), [&](std::int64_t count) { return count == first_rows; })) {
    rows.clear();
    return true;
  }
  offsets.assign(1, 0);
  for (const std::int64_t count : rows) offsets.push_back(offsets.back() + count);
  if (!order) return false;
  // States go on with the sequences that live on.
  return operands.states.empty() || (ordered.stride == 1 && std::is_sorted(rows.rbegin(), rows.rend()));
}

/// The rows of a state that the first iteration takes; nothing where they cannot be told.
std::optional<Tensor> FusedRun::State::first_rows_of(const SlotValue& value, bool shrinks, StreamRef stream) const {
  if (!order || !shrinks) return order && (!rows.empty() || value.dims()[0] != first_rows) ? std::nullopt : std::optional(value.tensor());
  if (value.has_order() && value.order() != *order) return std::nullopt;
  // What was computed has the rows of the iteration before, or stands in the caller's order.
  const SlotValue held = value.has_order() || ordered.first > 0 ? value : reorder(value, *order, stream);
  const std::int64_t iteration = held.has_order() ? held.iteration() : ordered.first - 1;
  if (iteration > ordered.first || held.dims()[0] != order->live(iteration)) return std::nullopt;
  if (ordered.stride < 0 && first_rows != order->sequences()) return std::nullopt;
  const RowSelection first = shrink_rows(*order, iteration, ordered.first);
  if (!first.prefix || first.count() != first_rows) return std::nullopt;
  return held.tensor().rows(0, first_rows);
}

bool FusedRun::State::read_states(StreamRef stream) {
  const std::vector<Program::Port>& ports = loop->form().step.inputs();
  for (std::size_t i = 0; i < operands.states.size(); ++i) {
    const SlotValue& value = operands.states[i];
    const LoopForm::State& form = loop->form().states[i];
    const DDim& dims = loop->form().step.var(ports[operands.inputs.size() + i].var).type.shape.value();
    if (value.dims().rank() != dims.rank() || value.dims().erased(0) != dims.erased(0) || !value.lod().empty()) return false;
    if (value.dtype() != dtype || !value.tensor().place().is_cpu()) return false;
    std::optional<Tensor> held = first_rows_of(value, form.shrinks, stream);
    if (!held || held->dim(0) != first_rows) return false;
    stream.wait(held->ready());
    if (!held->is_contiguous()) return false;
    initial.push_back(*std::move(held));
  }
  moves = !rows.empty() && !order->sorted() && !operands.states.empty();
  return true;
}

bool FusedRun::State::read_shared(StreamRef stream) {
  const std::vector<Program::Port>& ports = loop->form().step.inputs();
  const std::size_t before = operands.inputs.size() + operands.states.size();
  for (std::size_t i = 0; i < operands.shared.size(); ++i) {
    const VarType& type = loop->form().step.var(ports[before + i].var).type;
    const Tensor& value = operands.shared[i];
    if (value.dtype() != type.dtype || value.dims() != *type.shape || !value.place().is_cpu() || !value.is_contiguous()) return false;
    stream.wait(value.ready());
    shared.push_back(value);
  }
  const auto given = [&](const Source& from) { return from.from == From::shared ? shared[from.place] : invariant[from.place]; };
  if (loop->invariant_) {
    std::vector<Value> values;
    for (const Source& from : loop->invariant_inputs_) values.emplace_back(given(from));
    for (const Value& value : StraightProgram(*loop->invariant_).run(values)) {
      stream.wait(value.tensor().tensor().ready());
      if (!value.tensor().tensor().is_contiguous()) return false;
      invariant.push_back(value.tensor().tensor());
    }
  }
  const auto pack = [&](const FusedLoop::Part& part) {
    std::vector<Tensor> values;
    for (const std::size_t at : part.shared) values.push_back(given(part.inputs[at]));
    return part.kernel ? part.kernel->weights(values) : RowWeights();
  };
  ahead_weights = pack(loop->ahead_);
  step_weights = pack(loop->step_);
  behind_weights = pack(loop->behind_);
  return true;
}

bool FusedRun::State::check_outputs() const {
  for (std::size_t i = 0; i < operands.outputs.size(); ++i) {
    const TensorArray& array = operands.outputs[i];
    const auto [first, stride] = operands.written[i];
    const auto last = lowering::value_at(first, stride, operands.iterations - 1);
    if (!last || array.is_window() || array.closed() || std::min(first, *last) < 0) return false;
    if (array.is_fixed() && std::max(first, *last) >= array.size()) return false;
    for (std::int64_t t = 0; t < operands.iterations; ++t) {
      const SlotState slot = array.state(first + stride * t);
      if (slot != SlotState::empty && slot != SlotState::waited) return false;
      if (array.order() && array.order()->live(first + stride * t) != rows_of(t)) return false;
    }
  }
  return true;
}

// ---- Where it goes ----

/// Whether each iteration has a product that is large enough for two threads.
bool FusedRun::State::worth_sharing() const {
  if (!loop->step_.kernel) return false;
  const RowDesc& desc = loop->step_.kernel->plan().desc();
  return std::any_of(desc.ops.begin(), desc.ops.end(), [&](const RowOp& op) { return product_of(op, desc) >= row_split_work; });
}

void FusedRun::State::make_outputs(StreamRef stream) {
  const std::size_t outputs = operands.outputs.size();
  next_of.resize(loop->form().states.size());
  for (std::size_t i = 0; i < next_of.size(); ++i) {
    if (!loop->form().states[i].changes) continue;
    next_of[i] = outputs + changing.size();
    changing.push_back(i);
  }
  const auto targets = [](const FusedLoop::Part& part) { return std::vector<Target>(part.kernel ? part.kernel->outputs().size() : 0); };
  ahead_targets = targets(loop->ahead_);
  step_targets = targets(loop->step_);
  behind_targets = targets(loop->behind_);
  for (std::size_t i = 0; i < loop->outputs_.size(); ++i) {
    const Source& from = loop->outputs_[i];
    const bool is_behind = from.from == From::step && from.place >= loop->step_outputs_;
    const FusedLoop::Part& part = from.from == From::ahead ? loop->ahead_ : is_behind ? loop->behind_ : loop->step_;
    const std::size_t place = is_behind ? from.place - loop->step_outputs_ : from.place;
    Target& target = (from.from == From::ahead ? ahead_targets : is_behind ? behind_targets : step_targets)[place];
    if (i >= outputs) {  // a next state
      if (target.whole < 0 && target.state < 0 && from.from == From::step && !is_behind)
        target.state = static_cast<std::int64_t>(changing[i - outputs]);
      continue;
    }
    if (target.whole < 0) {
      target.whole = static_cast<std::int64_t>(whole.size());
      target.falls = operands.written[i].stride < 0;
      whole.emplace_back(dtype, part.kernel->outputs()[place].dims.inserted(0, offset(operands.iterations)), stream.memory());
      whole.back().storage()->mark_written();
    }
  }
  // What `behind` reads of the iterations is kept for a run of them.
  for (const Source& from : loop->behind_.inputs)
    if (from.from == From::step) step_targets[from.place].state = -1;
}

void FusedRun::State::make_parts(int threads, StreamRef stream) {
  const std::int64_t n = most_rows;
  std::int64_t pieces = std::max<std::int64_t>(1, (n + part_rows - 1) / part_rows);
  if (threads > 1 && n > 1 && offset(operands.iterations) * work >= 2 * thread_work)
    pieces = (std::max<std::int64_t>(pieces, threads) + threads - 1) / threads * threads;
  pieces = moves ? 1 : std::min(pieces, n);
  shares = threads > 1 && n <= shared_rows && worth_sharing();
  if (shares) pieces = 1;
  std::int64_t ahead_width = 1;
  if (loop->ahead_.kernel)
    for (const RowKernel::Port& port : loop->ahead_.kernel->outputs()) ahead_width += port.width;
  if (loop->behind_.kernel && loop->step_.kernel)
    for (const RowKernel::Port& port : loop->step_.kernel->outputs()) ahead_width += port.width;
  run_rows = std::max<std::int64_t>(8, std::min<std::int64_t>(256, run_bytes / (ahead_width * size)));
  std::vector<std::int64_t> dealt(static_cast<std::size_t>(pieces));
  std::iota(dealt.begin(), dealt.end(), std::int64_t{0});
  // Long sequences stand in front: each thread gets some of the front and some of the back.
  if (pieces > 2)
    for (std::int64_t i = 0; i < pieces; ++i) dealt[static_cast<std::size_t>(i)] = i % 2 == 0 ? i / 2 : pieces - 1 - i / 2;
  const RowKernel* kernels[3] = {nullptr, nullptr, nullptr};
  const FusedLoop::Part* all[3] = {&loop->ahead_, &loop->step_, &loop->behind_};
  std::int64_t workspace = 64;
  for (int k = 0; k < 3; ++k) {
    if (!all[k]->kernel) continue;
    kernels[k] = &*all[k]->kernel;
    workspace = std::max(workspace, kernels[k]->plan().workspace_bytes());
  }
  for (const std::int64_t at : dealt) {
    Part part;
    part.first = n * at / pieces;
    part.last = n * (at + 1) / pieces;
    const std::int64_t count = part.last - part.first;
    const std::int64_t room = std::max(run_rows, count);
    part.workspace.resize(workspace, stream);
    part.held.resize(2 * operands.states.size());
    part.side.assign(operands.states.size(), 0);
    for (std::size_t i = 0; i < operands.states.size(); ++i) {
      const std::int64_t width = initial[i].dims().erased(0).elements();
      for (std::size_t side = 0; side < 2; ++side) part.held[2 * i + side].resize(count * width * size, stream);
      part.states.push_back({part.held[2 * i].data(), width});
    }
    for (int k = 0; k < 2; ++k) {
      std::vector<LineBuffer>& buffers = k == 0 ? part.ahead : part.step;
      if (kernels[k] == nullptr) continue;
      buffers.resize(kernels[k]->outputs().size());
      const std::vector<Target>& targets = k == 0 ? ahead_targets : step_targets;
      for (std::size_t i = 0; i < buffers.size(); ++i)
        if (targets[i].whole < 0 && targets[i].state < 0) buffers[i].resize(room * kernels[k]->outputs()[i].width * size, stream);
    }
    parts.push_back(std::move(part));
  }
  make_room_aside(loop->ahead_, ahead_targets, &Part::ahead_aside, stream);
  make_room_aside(loop->behind_, behind_targets, &Part::behind_aside, stream);
}

/// For rows of a run that lie in another order than that of the iterations.
void FusedRun::State::make_room_aside(const FusedLoop::Part& what, const std::vector<Target>& targets, std::vector<LineBuffer> Part::* room,
                                      StreamRef stream) {
  if (!what.kernel || !what.multiplies) return;
  for (Part& part : parts) {
    (part.*room).resize(what.inputs.size() + targets.size());
    const auto make = [&](std::size_t port, std::int64_t width) {
      (part.*room)[port].resize(std::max(run_rows, part.last - part.first) * width * size, stream);
    };
    for (std::size_t i = 0; i < what.inputs.size(); ++i)
      if (!in_line(what.inputs[i], 0, operands.iterations)) make(i, what.kernel->inputs()[i].width);
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (!in_line(targets[i])) make(what.inputs.size() + i, what.kernel->outputs()[i].width);
  }
}

FusedRun::FusedRun(std::shared_ptr<const FusedLoop> loop, LoopOperands operands, StreamRef stream)
    : state_(std::make_shared<State>()), stream_(stream) {
  State& state = *state_;
  state.loop = std::move(loop);
  state.operands = std::move(operands);
  for (const FusedLoop::Part* part : {&state.loop->ahead_, &state.loop->step_, &state.loop->behind_}) {
    if (!part->kernel) continue;
    state.dtype = part->kernel->plan().desc().dtype;
    for (const RowOp& op : part->kernel->plan().desc().ops) state.work += work_of(op, part->kernel->plan().desc());
  }
  state.size = static_cast<std::int64_t>(size_of(state.dtype));
  if (!state.read_inputs(stream) || state.most_rows == 0 || !state.read_states(stream) || !state.read_shared(stream) ||
      !state.check_outputs())
    throw UnsupportedError("what it works on does not fit: slots that are not there yet, or extents that differ");
  state.make_outputs(stream);
  bool arrives = false;
  for (std::size_t i = 0; i < state.inputs.size(); ++i) arrives = arrives || state.arrives(i);
  state.bound = arrives ? 0 : state.operands.iterations;
}

}  // namespace millrace
