// SPDX-License-Identifier: Apache-2.0
// A loop over an LSTM cell on a device, some iterations at a time.
#include <algorithm>
#include <cmath>

#include <millrace/runtime/loops/cuda_recurrent/internal/device_rows.h>

namespace millrace {
namespace {

/// What a run of iterations costs besides its iterations: a product, a kernel and a wait begin, and R comes on chip again. Of the first, an estimate.
constexpr double pass_ns = 20'000, bytes_a_ns = 1000;

}  // namespace

struct DeviceLstm::Run::State {
  State(const DeviceLstm& of, FusedOperands given, StreamRef where)
      : loop(of), operands(std::move(given)), stream(where), rows{operands, of.loop_, where, {}, {}, {}, {}, {}, {}, {}, {}} {}

  const DeviceLstm& loop;
  FusedOperands operands;
  StreamRef stream;
  Rows rows;
  Values shared;
  std::optional<PackedLstmSequence> weights;  // of all runs of iterations
  LstmSequenceRows whole;                     // all rows
  bool at_once = false;                       // every slot was issued when the run began
  std::shared_ptr<Watermark> marked;          // of all iterations; where slots come while the run goes on, of the last run of iterations
  std::int64_t done = 0;
  std::int64_t written = 0;

  std::size_t at(std::int64_t iteration) const { return static_cast<std::size_t>(iteration); }
  std::int64_t issued(std::int64_t end) const;
  LstmSequenceRows rows_of(Values& values, std::int64_t end);
  void write(std::int64_t end, bool whole_arrays);
};

bool DeviceLstm::may_pass() const {
  const std::vector<VarId>& outputs = loop_.outputs();
  return !behind_ && std::all_of(outputs.begin(), outputs.end(), [this](VarId var) { return of_cell(var); });
}

bool DeviceLstm::passes(const FusedOperands& operands) const {
  if (!may_pass() || operands.iterations <= 0) return false;
  const auto comes = [&](std::size_t i) {
    const std::int64_t first = operands.read[i].first;
    const TensorArray& array = operands.inputs[i];
    if (first < 0 || array.is_window() || first + operands.iterations > array.size()) return false;
    const auto filled = array.filled();
    return filled != nullptr && filled->watermark != nullptr && device_->stream_count() > 1;
  };
  for (std::size_t i = 0; i < operands.inputs.size(); ++i)
    if (comes(i)) return true;
  return false;
}

std::unique_ptr<DeviceLstm::Run> DeviceLstm::begin(FusedOperands operands, StreamRef stream) const {
  if (operands.iterations <= 0 || !may_pass()) return nullptr;
  auto state = std::make_unique<Run::State>(*this, std::move(operands), stream);
  if (!state->rows.read(true)) return nullptr;
  const std::vector<Program::Port>& ports = loop_.step().inputs();
  const std::size_t before = state->operands.inputs.size() + state->operands.states.size();
  for (std::size_t i = 0; i < state->operands.shared.size(); ++i)
    state->shared[ports[before + i].var] = brought(state->operands.shared[i], stream);
  state->whole = sequence(state->rows, stream);
  state->at_once = state->issued(state->operands.iterations) == state->operands.iterations;
  if (state->at_once) state->marked = watermark(state->rows, stream);
  return std::unique_ptr<Run>(new Run(std::move(state)));
}

DeviceLstm::Run::Run(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceLstm::Run::~Run() = default;
std::int64_t DeviceLstm::Run::iterations() const noexcept { return state_->operands.iterations; }
std::int64_t DeviceLstm::Run::turned() const noexcept { return state_->done; }

std::int64_t DeviceLstm::Run::at_once() const {
  const LstmSequencePlan& plan = *state_->loop.plan_;
  const LstmDesc& desc = plan.desc();
  const double step = std::max(1.0, schedule_lstm(desc, state_->rows.counts[0], plan.limits()).step_ns);
  const auto fetched = static_cast<double>(desc.hidden) * 4 * static_cast<double>(desc.hidden) * static_cast<double>(size_of(desc.dtype));
  const double cost = pass_ns + fetched / bytes_a_ns;
  const double best = std::ceil(std::sqrt(static_cast<double>(iterations()) * cost / step));
  return static_cast<std::int64_t>(std::clamp(best, 1.0, static_cast<double>(std::min(iterations(), iterations_a_launch))));
}

/// The iteration, up to `end`, before which all slots that are read are issued.
std::int64_t DeviceLstm::Run::State::issued(std::int64_t end) const {
  for (std::size_t i = 0; i < operands.inputs.size(); ++i) {
    const TensorArray& array = operands.inputs[i];
    if (array.filled()) continue;
    std::int64_t iteration = done;
    while (iteration < end && array.peek(operands.read[i].first + iteration)) ++iteration;
    end = std::min(end, iteration);
  }
  return end;
}

std::vector<std::pair<TensorArray, std::int64_t>> DeviceLstm::Run::next_slots() const {
  std::vector<std::pair<TensorArray, std::int64_t>> made;
  for (std::size_t i = 0; state_->done < iterations() && i < state_->operands.inputs.size(); ++i)
    made.emplace_back(state_->operands.inputs[i], state_->operands.read[i].first + state_->done);
  return made;
}

/// What the kernel works on for the iterations from `done` on that have rows, as if there were no others.
LstmSequenceRows DeviceLstm::Run::State::rows_of(Values& values, std::int64_t end) {
  const std::int64_t from = rows.offsets[at(done)], until = rows.offsets[at(end)];
  LstmSequenceRows made = whole;
  loop.run_piece(loop.loop_.before(), loop.before_, values);
  if (!weights) weights = loop.packed_ ? *loop.packed_ : loop.packed(values, stream);
  loop.take_steps(made, values, stream);
  made.y = whole.y.rows(from, until);
  if (whole.c_steps) made.c_steps = whole.c_steps->rows(from, until);
  made.offsets.assign(1, 0);
  for (std::int64_t iteration = done; iteration < end; ++iteration) made.offsets.push_back(rows.offsets[at(iteration) + 1] - from);
  if (!whole.places.empty()) made.places.assign(whole.places.begin() + from, whole.places.begin() + until);
  if (!whole.slots.empty()) made.slots.resize(at(rows.counts[at(done)]));
  if (done > 0) {
    made.h = made.h_out;
    made.c = made.c_out;
  }
  made.watermark = marked;
  made.steps_before = at_once ? done : 0;
  return made;
}

bool DeviceLstm::Run::advance(std::int64_t end) {
  State& state = *state_;
  end = state.issued(std::min(end, iterations()));
  if (end <= state.done) return false;
  Values values = state.shared;
  const std::vector<Program::Port>& ports = state.loop.loop_.step().inputs();
  for (std::size_t i = 0; i < state.operands.inputs.size(); ++i) {
    std::optional<Tensor> part = state.rows.part(i, state.done, end);
    if (!part) return false;
    values[ports[i].var] = *std::move(part);
  }
  std::int64_t live = end;
  while (live > state.done && state.rows.counts[state.at(live) - 1] == 0) --live;
  const bool seen =
      std::any_of(state.loop.loop_.outputs().begin(), state.loop.loop_.outputs().end(), [&](VarId var) { return state.loop.of_cell(var); });
  if (!state.at_once)
    state.marked = seen && live > state.done ? state.stream.watermark(static_cast<std::uint64_t>(live - state.done)) : nullptr;
  if (live > state.done) {
    const LstmSequenceRows rows = state.rows_of(values, end);
    millrace::run(*state.loop.plan_, *state.weights, rows, state.stream);
  }
  if (!state.at_once) state.write(end, false);
  state.done = end;
  return true;
}

/// The slots of the iterations from `written` on.
void DeviceLstm::Run::State::write(std::int64_t end, bool whole_arrays) {
  for (std::size_t i = 0; i < operands.outputs.size(); ++i) {
    const TensorArray& array = operands.outputs[i];
    const std::int64_t first = operands.written[i].first;
    const Tensor& made = loop.loop_.outputs()[i] == loop.loop_.h_next ? whole.y : *whole.c_steps;
    if (whole_arrays && array.is_fixed() && first == 0 && array.size() == operands.iterations) {
      array.fill(made, rows.offsets, marked);
      continue;
    }
    for (std::int64_t iteration = written; iteration < end; ++iteration) {
      const Tensor slot = made.rows(rows.offsets[at(iteration)], rows.offsets[at(iteration) + 1]);
      const auto step = static_cast<std::uint64_t>(at_once ? iteration + 1 : iteration - written + 1);
      const bool empty = slot.dim(0) == 0;
      array.write(first + iteration, LoDTensor(part_of(slot, empty ? Point() : marked ? Point(marked, step) : made.ready())));
    }
  }
  written = end;
}

std::vector<SlotValue> DeviceLstm::Run::finish() {
  State& state = *state_;
  if (state.written < state.done) state.write(state.done, state.done == iterations());
  return state.loop.last_states(state.rows, state.whole, state.done, state.stream);
}

}  // namespace millrace
