// SPDX-License-Identifier: Apache-2.0
// The operands of a fused loop: values that fit, and room for its results.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/loops/cpu_fused/internal/fused_state.h>
#include <millrace/runtime/program/straight_program.h>
#include <millrace/tensor/pool.h>

namespace millrace {
namespace {

using passes::Source;
using From = Source::From;

/// Bytes of a run's values ahead of its iterations: they should stay in the second cache until the iterations take them.
constexpr std::int64_t run_bytes = 256 << 10;
constexpr std::int64_t part_rows = 64;
/// Multiply-adds below which a second thread costs more than it saves.
constexpr std::int64_t thread_work = 1 << 20;

/// From so many bytes on a state has memory of its own, which is handed on behind the last iteration; a copy of fewer costs less than the memory.
constexpr std::int64_t handed_on_bytes = 64 << 10;

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

}  // namespace

FusedRun::~FusedRun() = default;
const LoopForm& FusedRun::form() const noexcept { return state_->loop->form(); }
std::int64_t FusedRun::iterations() const noexcept { return state_->operands.iterations; }
std::int64_t FusedRun::rows() const noexcept { return state_->most_rows; }
std::int64_t FusedRun::work() const noexcept { return state_->offset(state_->operands.iterations) * state_->work; }
std::optional<DDim> FusedRun::stacked(std::size_t output) const {
  if (state_->last_of[output]) return std::nullopt;
  const Tensor& whole = state_->whole[static_cast<std::size_t>(state_->target_of(output).whole)];
  if (form().unbatched) return whole.dims().erased(0).inserted(0, state_->operands.outputs[output].size());
  return whole.dims().erased(0).inserted(0, state_->first_rows).inserted(0, state_->operands.outputs[output].size());
}
void FusedRun::deal(int threads) { state_->make_parts(threads, stream_); }

// ---- What there is to work on ----

namespace {

constexpr const char* not_its_slots = "it reads other slots than the loop before it writes";

[[noreturn]] void refuse(const std::string& why) { throw UnsupportedError(why); }

}  // namespace

/// Rows of an input as the loop computes with them.
Tensor FusedRun::State::numbers(const Tensor& x, StreamRef stream) {
  stream.wait(x.ready());
  if (x.dtype() == dtype) return x;
  if (is_integer(x.dtype())) {
    const auto exact = [](std::int64_t value) { return -RowKernel::most_given <= value && value <= RowKernel::most_given; };
    const std::vector<std::int64_t> values = cast(x, DType::i64, stream).to_vector<std::int64_t>();
    if (!std::all_of(values.begin(), values.end(), exact)) refuse(fmt::format("it reads integers beyond {}", RowKernel::most_given));
  } else if (x.dtype() != DType::boolean) {
    refuse("rows of " + std::string(name_of(x.dtype())) + " are read where the loop computes in another dtype");
  }
  widened.push_back(cast(x, dtype, stream));
  return widened.back();
}

/// Whether the iteration alone reads the input, as it is: it copies rows that stand apart into the first cache.
bool FusedRun::State::may_pick(std::size_t input) const {
  const auto reads = [input](const FusedLoop::Part& part) {
    return std::any_of(part.inputs.begin(), part.inputs.end(),
                       [input](const Source& from) { return from.from == From::input && from.place == input; });
  };
  const Program& step = loop->form().step;
  return step.var(step.inputs()[input].var).type.dtype == dtype && !reads(loop->ahead_) && !reads(loop->behind_) &&
         (!loop->rest_ || loop->rest_->input != input);
}

/// Slots that are there. Gives the rows of each iteration.
std::vector<std::int64_t> FusedRun::State::read_slots(std::size_t input, IterationRows& made, StreamRef stream) {
  BoundInput bound_input = binder->input(input, may_pick(input));
  if (bound_input.picked != nullptr) {
    made.picked = std::move(bound_input.picked);
    made.begin = std::move(bound_input.begin);
    const std::vector<std::int64_t>& places = made.picked->rows;
    const auto* const from = static_cast<const std::byte*>(made.picked->from.raw());
    made.first.reserve(bound_input.rows.size());
    for (std::size_t t = 0; t < bound_input.rows.size(); ++t) {
      const std::int64_t begin = made.begin[t], end = begin + bound_input.rows[t];
      bool apart = begin == end;
      for (std::int64_t i = begin + 1; !apart && i < end; ++i)
        apart = places[static_cast<std::size_t>(i)] != places[static_cast<std::size_t>(i - 1)] + 1;
      made.first.push_back(apart ? nullptr : from + places[static_cast<std::size_t>(begin)] * made.width * size);
    }
    return std::move(bound_input.rows);
  }
  const std::byte* whole_rows = nullptr;
  if (bound_input.whole) {
    input_rows.push_back(numbers(*bound_input.whole, stream));
    whole_rows = static_cast<const std::byte*>(input_rows.back().raw());
  }
  made.first.reserve(bound_input.rows.size());
  for (std::size_t t = 0; t < bound_input.rows.size(); ++t) {
    if (whole_rows != nullptr && bound_input.begin[t] >= 0) {
      made.first.push_back(whole_rows + bound_input.begin[t] * made.width * size);
      continue;
    }
    input_rows.push_back(numbers(bound_input.slots[t], stream));
    made.first.push_back(static_cast<const std::byte*>(input_rows.back().raw()));
  }
  return std::move(bound_input.rows);
}

/// Slots that another run makes: known by where it will put them.
std::vector<std::int64_t> FusedRun::State::read_feeder(std::size_t input, IterationRows& made) {
  binder->check_order(input);
  const LoopOperands::Source& source = operands.sources[input];
  const std::shared_ptr<State>& from = static_cast<const FusedRun&>(*source.run).state_;
  const DDim& dims = loop->form().step.var(loop->form().step.inputs()[input].var).type.shape.value();
  if (loop->form().unbatched != from->loop->form().unbatched) refuse(not_its_slots);
  const auto [first, stride] = operands.read[input];
  const auto [written, written_stride] = from->operands.written[source.output];
  if (stride != written_stride || (first - written) % stride != 0) refuse(not_its_slots);
  const std::int64_t shift = (first - written) / stride;
  if (shift < 0 || operands.iterations + shift > from->operands.iterations) refuse(not_its_slots);
  if (from->last_of[source.output]) refuse(not_its_slots);
  const Target& target = from->target_of(source.output);
  const Tensor& there = from->whole[static_cast<std::size_t>(target.whole)];
  if (there.dtype() != dtype || there.dims().rank() != dims.rank() || there.dims().erased(0) != dims.erased(0)) refuse(not_its_slots);
  std::vector<std::int64_t> counts;
  counts.reserve(static_cast<std::size_t>(operands.iterations));
  made.first.reserve(static_cast<std::size_t>(operands.iterations));
  const auto* data = static_cast<const std::byte*>(there.raw());
  for (std::int64_t iteration = shift; iteration < operands.iterations + shift; ++iteration) {
    made.first.push_back(data + from->place(target, iteration) * made.width * size);
    counts.push_back(from->rows_of(iteration));
  }
  feeders.push_back({from, shift});
  return counts;
}

void FusedRun::State::read_inputs(StreamRef stream) {
  std::vector<std::vector<std::int64_t>> counts(operands.inputs.size());
  for (std::size_t i = 0; i < operands.inputs.size(); ++i) {
    const DDim& dims = loop->form().step.var(loop->form().step.inputs()[i].var).type.shape.value();
    IterationRows made{{}, dims.erased(0).elements(), nullptr, {}};
    if (i < operands.sources.size() && operands.sources[i].run != nullptr) {
      counts[i] = read_feeder(i, made);
    } else if (arrives(i)) {
      made.first.assign(static_cast<std::size_t>(operands.iterations), nullptr);
      counts[i] = binder->expected_rows(i);
    } else {
      counts[i] = read_slots(i, made, stream);
    }
    inputs.push_back(std::move(made));
  }
  binder->set_rows(counts);
  count_rows();
}

/// The number of rows of each iteration: those of the inputs; without inputs, those of the states.
void FusedRun::State::count_rows() {
  if (operands.inputs.empty()) {
    const bool unbatched = loop->form().unbatched;
    if (!unbatched && (operands.states.empty() || operands.states[0].dims().rank() == 0))
      refuse("neither inputs nor states say how many rows there are");
    first_rows = most_rows = unbatched ? 1 : operands.states[0].dims()[0];
  } else {
    order = binder->order();
    ordered = binder->ordered();
    first_rows = binder->rows().front();
    most_rows = *std::max_element(binder->rows().begin(), binder->rows().end());
  }
  if (most_rows == 0) refuse("iterations have no rows");
  if (!binder->ragged()) return;
  rows = binder->rows();
  offsets.assign(1, 0);
  for (const std::int64_t count : rows) offsets.push_back(offsets.back() + count);
}

void FusedRun::State::read_states(StreamRef stream) {
  for (std::size_t i = 0; i < operands.states.size(); ++i) {
    initial.push_back(binder->state(i));
    if (initial.back().dim(0) != first_rows || initial.back().dtype() != dtype)
      refuse("a state has other rows than the first iteration: " + initial.back().to_string());
    stream.wait(initial.back().ready());
  }
  moves = binder->moves();
}

void FusedRun::State::read_shared(StreamRef stream) {
  const std::vector<Program::Port>& ports = loop->form().step.inputs();
  const std::size_t before = operands.inputs.size() + operands.states.size();
  for (std::size_t i = 0; i < operands.shared.size(); ++i) {
    const VarType& type = loop->form().step.var(ports[before + i].var).type;
    const Tensor& value = operands.shared[i];
    if (value.dtype() != type.dtype || value.dims() != *type.shape || !value.place().is_cpu() || !value.is_contiguous())
      refuse("'" + ports[before + i].name + "': expected " + type.to_string() + " for all rows, found " + value.to_string());
    stream.wait(value.ready());
    shared.push_back(value);
  }
  const auto given = [&](const Source& from) { return from.from == From::shared ? shared[from.place] : invariant[from.place]; };
  if (loop->invariant_) {
    std::vector<Value> values;
    for (const Source& from : loop->invariant_inputs_) values.emplace_back(given(from));
    for (const Value& value : StraightProgram(*loop->invariant_).run(values)) {
      stream.wait(value.tensor().tensor().ready());
      if (!value.tensor().tensor().is_contiguous()) refuse("a value that is the same in all iterations does not lie in order");
      invariant.push_back(value.tensor().tensor());
    }
  }
  const auto pack = [&](const FusedLoop::Part& part, RowWeights& late) -> const RowWeights* {
    if (!part.kernel) return &late;
    if (part.shared.empty()) return &part.kernel->known();
    std::vector<Tensor> values;
    for (const std::size_t at : part.shared) values.push_back(given(part.inputs[at]));
    late = part.kernel->weights(values, stream);
    return &late;
  };
  ahead_weights = pack(loop->ahead_, late_weights[0]);
  step_weights = pack(loop->step_, late_weights[1]);
  behind_weights = pack(loop->behind_, late_weights[2]);
}

// ---- Where it goes ----

/// Whether each iteration has a product that is large enough for two threads.
bool FusedRun::State::worth_sharing() const {
  if (!loop->step_.kernel) return false;
  const RowPlan& plan = loop->step_.kernel->plan();
  // Two rows or more are dealt to the threads whole. Sections are shared by runs of several iterations behind the first one.
  if (plan.sections() > 1 && most_rows == 1) return operands.iterations > 2 && operands.iterations * work >= 2 * thread_work;
  const RowDesc& desc = plan.desc();
  return std::any_of(desc.ops.begin(), desc.ops.end(), [&](const RowOp& op) { return product_of(op, desc) >= row_split_work; });
}

/// The state that an output is, where of its slots the last one alone has a reader, and nothing else keeps all of them.
std::optional<std::size_t> FusedRun::State::last_alone(std::size_t output) const {
  const Source& from = loop->outputs_[output];
  if (!loop->form().outputs[output].last_alone || !rows.empty() || leaves(output) || loop->rest_ || from.from != From::step ||
      from.place >= loop->step_outputs_)
    return std::nullopt;
  for (std::size_t i = 0; i < operands.outputs.size(); ++i)
    if (i != output && loop->outputs_[i] == from) return std::nullopt;
  // Where slots that arrive end the run early, the interpreter goes on, and looks for those of earlier iterations.
  for (std::size_t i = 0; i < operands.inputs.size(); ++i)
    if (arrives(i)) return std::nullopt;
  for (std::size_t i = 0; i < changing.size(); ++i)
    if (loop->outputs_[operands.outputs.size() + i] == from) return changing[i];
  return std::nullopt;
}

void FusedRun::State::make_outputs(StreamRef stream) {
  const std::size_t outputs = operands.outputs.size();
  last_of.resize(outputs);
  next_of.resize(loop->form().states.size());
  for (std::size_t i = 0; i < next_of.size(); ++i) {
    if (!loop->form().states[i].changes) continue;
    next_of[i] = outputs + changing.size();
    changing.push_back(i);
  }
  const auto targets = [](const FusedLoop::Part& part) { return PooledVector<Target>(part.kernel ? part.kernel->outputs().size() : 0); };
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
    if (const auto state = last_alone(i)) {
      last_of[i] = *state;
      continue;
    }
    if (target.whole < 0) {
      target.whole = static_cast<std::int64_t>(whole.size());
      target.falls = operands.written[i].stride < 0;
      const std::shared_ptr<MemoryResource>& own = loop->output_memory_[i];
      whole.emplace_back(dtype, part.kernel->outputs()[place].dims.inserted(0, offset(operands.iterations)),
                         own != nullptr ? own : stream.memory());
      whole.back().storage()->mark_written();
    }
  }
  // Values of the iterations that `behind` reads are kept for a run of them.
  for (const Source& from : loop->behind_.inputs)
    if (from.from == From::step) step_targets[from.place].state = -1;
}

void FusedRun::State::make_parts(int threads, StreamRef stream) {
  const std::int64_t n = most_rows;
  std::int64_t pieces = std::max<std::int64_t>(1, (n + part_rows - 1) / part_rows);
  if (threads > 1 && n > 1 && offset(operands.iterations) * work >= 2 * thread_work)
    pieces = (std::max<std::int64_t>(pieces, threads) + threads - 1) / threads * threads;
  pieces = moves || loop->most_rows_ ? 1 : std::min(pieces, n);
  shares = threads > 1 && n <= shared_rows && worth_sharing();
  if (shares) pieces = 1;
  std::int64_t ahead_width = 1;
  if (loop->ahead_.kernel)
    for (const RowKernel::Port& port : loop->ahead_.kernel->outputs()) ahead_width += port.width;
  if (loop->behind_.kernel && loop->step_.kernel)
    for (const RowKernel::Port& port : loop->step_.kernel->outputs()) ahead_width += port.width;
  run_rows = std::max<std::int64_t>(8, std::min<std::int64_t>(256, run_bytes / (ahead_width * size)));
  PooledVector<std::int64_t> dealt(static_cast<std::size_t>(pieces));
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
    if (all[k] != &loop->step_) workspace = std::max(workspace, kernels[k]->plan().workspace_bytes());
  }
  for (const std::int64_t at : dealt) {
    Part part;
    part.first = n * at / pieces;
    part.last = n * (at + 1) / pieces;
    const std::int64_t count = part.last - part.first;
    const std::int64_t room = std::max(run_rows, count);
    part.workspace.resize(workspace, arena, stream);
    if (loop->step_.kernel) {
      part.step_workspace.resize(loop->step_.kernel->plan().workspace_bytes(), arena, stream);
      loop->step_.kernel->place(*step_weights, part.step_workspace.data());
    }
    part.held.resize(2 * operands.states.size());
    part.side.assign(operands.states.size(), 0);
    for (std::size_t i = 0; i < operands.states.size(); ++i) {
      const std::int64_t width = initial[i].dims().erased(0).elements();
      for (std::size_t side = 0; side < 2; ++side) {
        LineBuffer& held = part.held[2 * i + side];
        if (pieces > 1 || count * width * size < handed_on_bytes) {
          held.resize(count * width * size, arena, stream);
        } else {
          part.handed_on.emplace_back(dtype, DDim{count, width}, stream.memory());
          held.stand_in(part.handed_on.back());
        }
      }
      part.states.push_back({part.held[2 * i].data(), width});
    }
    for (int k = 0; k < 2; ++k) {
      PooledVector<LineBuffer>& buffers = k == 0 ? part.ahead : part.step;
      if (kernels[k] == nullptr) continue;
      buffers.resize(kernels[k]->outputs().size());
      const PooledVector<Target>& targets = k == 0 ? ahead_targets : step_targets;
      for (std::size_t i = 0; i < buffers.size(); ++i)
        if (targets[i].whole < 0 && targets[i].state < 0) buffers[i].resize(room * kernels[k]->outputs()[i].width * size, arena, stream);
    }
    part.picked.resize(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].any_apart(0, operands.iterations)) part.picked[i].resize(count * inputs[i].width * size, arena, stream);
    parts.push_back(std::move(part));
  }
  make_room_aside(loop->ahead_, ahead_targets, &Part::ahead_aside, stream);
  make_room_aside(loop->behind_, behind_targets, &Part::behind_aside, stream);
}

/// For rows of a run that lie in another order than that of the iterations.
void FusedRun::State::make_room_aside(const FusedLoop::Part& what, const PooledVector<Target>& targets,
                                      PooledVector<LineBuffer> Part::* room, StreamRef stream) {
  if (!what.kernel || !what.multiplies) return;
  for (Part& part : parts) {
    (part.*room).resize(what.inputs.size() + targets.size());
    const auto make = [&](std::size_t port, std::int64_t width) {
      (part.*room)[port].resize(std::max(run_rows, part.last - part.first) * width * size, arena, stream);
    };
    for (std::size_t i = 0; i < what.inputs.size(); ++i)
      if (!in_line(what.inputs[i], 0, operands.iterations)) make(i, what.kernel->inputs()[i].width);
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (!in_line(targets[i])) make(what.inputs.size() + i, what.kernel->outputs()[i].width);
  }
}

FusedRun::FusedRun(std::shared_ptr<const FusedLoop> loop, LoopOperands operands, StreamRef stream)
    : state_(make_pooled<State>()), stream_(stream) {
  State& state = *state_;
  state.loop = std::move(loop);
  state.operands = std::move(operands);
  for (const FusedLoop::Part* part : {&state.loop->ahead_, &state.loop->step_, &state.loop->behind_}) {
    if (!part->kernel) continue;
    state.dtype = part->kernel->plan().desc().dtype;
    for (const RowOp& op : part->kernel->plan().desc().ops) state.work += work_of(op, part->kernel->plan().desc());
  }
  state.size = static_cast<std::int64_t>(size_of(state.dtype));
  state.binder.emplace(state.loop->form(), state.operands, stream);
  state.read_inputs(stream);
  if (state.loop->most_rows_ && state.most_rows > *state.loop->most_rows_)
    refuse("an op looks along the rows, expected at most " + std::to_string(*state.loop->most_rows_) + " in an iteration, found " +
           std::to_string(state.most_rows));
  state.read_states(stream);
  state.read_shared(stream);
  state.binder->check_outputs(state.first_rows);
  state.make_outputs(stream);
  bool arrives = false;
  for (std::size_t i = 0; i < state.inputs.size(); ++i) arrives = arrives || state.arrives(i);
  state.bound = arrives ? 0 : state.operands.iterations;
}

}  // namespace millrace
