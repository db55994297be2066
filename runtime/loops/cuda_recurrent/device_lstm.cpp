// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_recurrent/device_lstm.h>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <millrace/kernels/gather.h>
#include <millrace/runtime/loops/cuda_recurrent/internal/whole_run.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/multiprocessor_reserve.h>

namespace millrace {

DeviceLstm::DeviceLstm(const LoopSite& site)
    : loop_(*site.program, site.block, *site.op),
      device_(site.device),
      beside_(std::min(site.beside, static_cast<int>(device_->stream_count()))),
      has_stream_(site.among < beside_) {
  for (const auto& [piece, made] : {std::pair{&loop_.before(), &before_}, {&loop_.behind(), &behind_}})
    if (piece->program) made->emplace(*piece->program, device_);
  const auto type = [&](VarId var) -> const VarType& { return loop_.step().var(var).type; };
  LstmDesc desc = loop_.cell();
  if (!type(loop_.w).is_static() || !type(loop_.r).is_static()) throw UnsupportedError("nobody knows the extents of its weights");
  desc.input = (*type(loop_.w).shape)[0];
  desc.hidden = (*type(loop_.r).shape)[0];
  desc.weights = type(loop_.w).dtype;
  plan_ = make_lstm_sequence(desc, device_->place(), uses_tf32(*device_));
  const DType sums = DType::f32;
  projection_ = make_gemm_plan({desc.input, 4 * desc.hidden, desc.dtype, sums, desc.weights}, device_->place());
  const StreamRef stream = device_->stream(0);
  bool known = true;
  for (const VarId var : {loop_.w, loop_.r, loop_.bias, loop_.peepholes}) {
    if (var == no_var) continue;
    const Tensor* constant = loop_.step().constant(var);
    if (constant != nullptr) constants_[var] = brought(*constant, stream);
    known = known && (constant != nullptr || var == loop_.w);
  }
  if (known) packed_ = packed({}, stream);
  if (constants_.contains(loop_.w)) packed_w_ = pack(*projection_, constants_.at(loop_.w), stream);
}

std::string DeviceLstm::to_string() const {
  std::string text = loop_.to_string();
  for (const std::int64_t rows : {1, 16, 64, 256}) text += "  " + schedule(rows).reason + "\n";
  return text;
}

// ---- The three pieces ----

Tensor DeviceLstm::value(const Values& values, VarId var) const {
  const auto constant = constants_.find(var);
  return constant != constants_.end() ? constant->second : values.at(var);
}

void DeviceLstm::run_piece(const LstmLoop::Piece& piece, const std::optional<StraightProgram>& program, Values& values) const {
  if (!program) return;
  std::vector<Value> inputs;
  for (const VarId var : piece.inputs) inputs.emplace_back(values.at(var));
  const std::vector<Value> made = program->run(inputs);
  for (std::size_t i = 0; i < made.size(); ++i) values[piece.outputs[i]] = made[i].tensor().tensor();
}

/// x·W as sums in f32, whatever the dtype: rounded in between, it would be another result than the cell's.
Tensor DeviceLstm::project(const Values& values, StreamRef stream) const {
  const Tensor x = value(values, loop_.x);
  Tensor made(DType::f32, DDim{x.dim(0), 4 * plan_->desc().hidden}, stream.memory());
  const PackedMatrix w = packed_w_ ? *packed_w_ : pack(*projection_, value(values, loop_.w), stream);
  millrace::run(*projection_, w, x, made, stream);
  return made;
}

PackedLstmSequence DeviceLstm::packed(const Values& values, StreamRef stream) const {
  const auto vector = [&](VarId var) { return var == no_var ? std::nullopt : std::optional(value(values, var)); };
  const std::optional<Tensor> bias = vector(loop_.bias), peepholes = vector(loop_.peepholes);
  return pack(*plan_, value(values, loop_.r), bias ? &*bias : nullptr, peepholes ? &*peepholes : nullptr, stream);
}

/// Sets the kernel's inputs of each step: x·W, and which rows step.
void DeviceLstm::take_steps(LstmSequenceRows& sequence, const Values& values, StreamRef stream) const {
  sequence.projection = project(values, stream);
  if (loop_.live != no_var) sequence.live = contiguous(value(values, loop_.live), stream);
}

/// The loops of the group have the device at the same time. Rows count by eights, so that most numbers of them share what the plan remembers.
LstmSchedule DeviceLstm::schedule(std::int64_t sequences) const {
  const int reserved = reserved_multiprocessors(std::get<CudaPlace>(plan_->place()).index);
  return plan_->schedule((sequences + 7) / 8 * 8, reserved, true, beside_);
}

/// The kernel's other operands; `y` and `c_steps`: rows that are there.
LstmSequenceRows DeviceLstm::sequence(const DeviceRows& rows, StreamRef stream, const std::optional<Tensor>& y,
                                      const std::optional<Tensor>& c_steps) const {
  LstmSequenceRows made;
  made.offsets = rows.offsets;
  made.places = rows.places;
  made.slots = rows.slots;
  made.steps_a_launch = iterations_a_launch;
  made.h = rows.states[loop_.h];
  made.c = rows.states[loop_.c];
  const DType dtype = plan_->desc().dtype;
  made.y = y ? *y : Tensor(dtype, DDim{rows.offsets.back(), plan_->desc().hidden}, stream.memory());
  if (loop_.keeps_c) made.c_steps = c_steps ? *c_steps : Tensor(dtype, made.y.dims(), stream.memory());
  made.h_out = Tensor(dtype, made.h.dims(), stream.memory());
  made.c_out = Tensor(dtype, made.c.dims(), stream.memory());
  return made;
}

/// Whether the kernel itself writes `var` step by step.
bool DeviceLstm::of_cell(VarId var) const { return var == loop_.h_next || (loop_.keeps_c && var == loop_.c_next); }

/// Null where only the ops behind the kernel read its outputs, or where the last iterations have no rows, which raise no watermark.
std::shared_ptr<Watermark> DeviceLstm::watermark(const DeviceRows& rows, StreamRef stream) const {
  const bool seen = std::any_of(loop_.outputs().begin(), loop_.outputs().end(), [this](VarId var) { return of_cell(var); });
  if (!seen || rows.counts.back() == 0) return nullptr;
  return stream.watermark(static_cast<std::uint64_t>(rows.counts.size()));
}

class DeviceLstm::Run final : public WholeRun {
 public:
  Run(const DeviceLstm& loop, LoopOperands operands, StreamRef stream) : WholeRun(loop.form(), std::move(operands), stream), loop_(loop) {}

  std::vector<SlotValue> finish() override { return loop_.last_states(rows_, sequence_, iterations(), stream_); }

 private:
  /// Room for the rows of all steps behind those of `before`. A step's state before it is the row of its sequence in the step before, so
  /// both lie in one tensor.
  Tensor room_behind(const Tensor& before) const {
    const std::int64_t first = before.dim(0);
    Tensor made(before.dtype(), DDim{first + rows_.offsets.back(), before.dim(1)}, stream_.memory());
    Tensor front = made.rows(0, first);
    copy(before, front, stream_);
    return made;
  }
  /// The states before each iteration, in the order of its rows.
  Tensor states_before(const Tensor& room) const {
    const std::vector<std::int64_t>& counts = rows_.counts;
    if (counts.front() == counts.back()) return room.rows(0, rows_.offsets.back());
    std::vector<std::int64_t> from(static_cast<std::size_t>(counts[0])), place(from.size());  // place: by row of the first iteration
    std::iota(from.begin(), from.end(), 0);
    std::iota(place.begin(), place.end(), 0);
    for (std::size_t t = 1; t < counts.size(); ++t) {
      const std::int64_t begin = counts[0] + rows_.offsets[t - 1];
      const std::vector<std::int64_t> who = rows_.stayed(static_cast<std::int64_t>(t));
      for (std::int64_t row = 0; row < counts[t]; ++row) {
        const auto sequence = static_cast<std::size_t>(who.empty() ? row : who[static_cast<std::size_t>(row)]);
        from.push_back(begin + place[sequence]);
        place[sequence] = row;
      }
    }
    return gather_rows(room, from, stream_);
  }
  Tensor behind(const Tensor& room) const { return room.rows(rows_.counts[0], room.dim(0)); }
  bool writes(VarId var) const {
    const std::vector<VarId>& outputs = loop_.loop_.outputs();
    return std::find(outputs.begin(), outputs.end(), var) != outputs.end();
  }

  void enqueue() override {
    Values values;
    const LstmLoop& loop = loop_.loop_;
    const std::vector<Program::Port>& ports = loop.step().inputs();
    for (std::size_t i = 0; i < rows_.inputs.size(); ++i) values[ports[i].var] = rows_.inputs[i];
    for (std::size_t i = 0; i < operands_.shared.size(); ++i)
      values[ports[rows_.inputs.size() + rows_.states.size() + i].var] = brought(operands_.shared[i], stream_);
    loop_.run_piece(loop.before(), loop_.before_, values);
    std::optional<Tensor> h_room, c_room, y, c_steps;
    if (writes(loop.h_before)) y = behind(h_room.emplace(room_behind(rows_.states[loop.h])));
    if (writes(loop.c_before)) c_steps = behind(c_room.emplace(room_behind(rows_.states[loop.c])));
    sequence_ = loop_.sequence(rows_, stream_, y, c_steps);
    loop_.take_steps(sequence_, values, stream_);
    const PackedLstmSequence weights = loop_.packed_ ? *loop_.packed_ : loop_.packed(values, stream_);
    sequence_.watermark = loop_.watermark(rows_, stream_);
    const LstmSchedule schedule = loop_.schedule(rows_.counts[0]);
    millrace::run(*loop_.plan_, weights, sequence_, stream_, &schedule);
    values[loop.h_next] = sequence_.y;
    values[loop.h_made] = sequence_.y;
    if (loop.keeps_c) values[loop.c_next] = values[loop.c_made] = *sequence_.c_steps;
    if (h_room) values[loop.h_before] = states_before(*h_room);
    if (c_room) values[loop.c_before] = states_before(*c_room);
    loop_.run_piece(loop.behind(), loop_.behind_, values);
    for (std::size_t i = 0; i < operands_.outputs.size(); ++i) {
      const VarId output = loop.outputs()[i];
      write(i, values.at(output), loop_.of_cell(output) ? sequence_.watermark : nullptr);
    }
  }

  const DeviceLstm& loop_;
  LstmSequenceRows sequence_;
};

std::unique_ptr<LoopRun> DeviceLstm::prepare(LoopOperands operands, StreamRef stream) const {
  for (std::size_t i = 0; i < operands.inputs.size(); ++i)
    if (begins_early(operands.inputs[i], operands.read[i], operands.iterations)) return begin_passing(std::move(operands), stream);
  return std::make_unique<Run>(*this, std::move(operands), stream);
}

std::vector<SlotValue> DeviceLstm::last_states(const DeviceRows& rows, const LstmSequenceRows& sequence, std::int64_t iterations,
                                               StreamRef stream) const {
  std::vector<SlotValue> last(2);
  last[loop_.h] = last_state(rows, loop_.h, sequence.h_out, iterations - 1, stream);
  last[loop_.c] = last_state(rows, loop_.c, sequence.c_out, iterations - 1, stream);
  return last;
}

}  // namespace millrace
