// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_recurrent/device_lstm.h>

#include <algorithm>

#include <fmt/format.h>

#include <millrace/kernels/gather.h>
#include <millrace/runtime/loops/cuda_recurrent/internal/device_rows.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace {

DeviceLstm::DeviceLstm(const Program& program, int block, const Op& loop, std::shared_ptr<Device> device)
    : loop_(program, block, loop), device_(std::move(device)) {
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
  for (const std::int64_t rows : {1, 16, 64, 256}) text += "  " + schedule_lstm(plan_->desc(), rows, plan_->limits()).reason + "\n";
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

/// What the kernel takes of each step: x·W, and which rows step.
void DeviceLstm::take_steps(LstmSequenceRows& sequence, const Values& values, StreamRef stream) const {
  sequence.projection = project(values, stream);
  if (loop_.live != no_var) sequence.live = contiguous(value(values, loop_.live), stream);
}

/// All but that.
LstmSequenceRows DeviceLstm::sequence(const Rows& rows, StreamRef stream) const {
  LstmSequenceRows made;
  made.offsets = rows.offsets;
  made.places = rows.places;
  made.slots = rows.slots;
  made.steps_a_launch = iterations_a_launch;
  made.h = rows.states[loop_.h];
  made.c = rows.states[loop_.c];
  const DType dtype = plan_->desc().dtype;
  made.y = Tensor(dtype, DDim{rows.offsets.back(), plan_->desc().hidden}, stream.memory());
  if (loop_.keeps_c) made.c_steps = Tensor(dtype, made.y.dims(), stream.memory());
  made.h_out = Tensor(dtype, made.h.dims(), stream.memory());
  made.c_out = Tensor(dtype, made.c.dims(), stream.memory());
  return made;
}

/// What the kernel itself writes step by step.
bool DeviceLstm::of_cell(VarId var) const { return var == loop_.h_next || (loop_.keeps_c && var == loop_.c_next); }

/// Null where nobody but the ops behind the kernel sees what it writes, or the last iterations have no rows, of which it says nothing.
std::shared_ptr<Watermark> DeviceLstm::watermark(const Rows& rows, StreamRef stream) const {
  const bool seen = std::any_of(loop_.outputs().begin(), loop_.outputs().end(), [this](VarId var) { return of_cell(var); });
  if (!seen || rows.counts.back() == 0) return nullptr;
  return stream.watermark(static_cast<std::uint64_t>(rows.counts.size()));
}

std::optional<std::vector<SlotValue>> DeviceLstm::run(const FusedOperands& operands, StreamRef stream) const {
  if (operands.iterations <= 0) return std::nullopt;
  Rows rows{operands, loop_, stream, {}, {}, {}, {}, {}, {}, {}, {}};
  if (!rows.read()) return std::nullopt;
  Values values;
  const std::vector<Program::Port>& ports = loop_.step().inputs();
  for (std::size_t i = 0; i < rows.inputs.size(); ++i) values[ports[i].var] = rows.inputs[i];
  for (std::size_t i = 0; i < operands.shared.size(); ++i)
    values[ports[rows.inputs.size() + rows.states.size() + i].var] = brought(operands.shared[i], stream);
  run_piece(loop_.before(), before_, values);
  LstmSequenceRows sequence = this->sequence(rows, stream);
  take_steps(sequence, values, stream);
  const PackedLstmSequence weights = packed_ ? *packed_ : packed(values, stream);
  sequence.watermark = watermark(rows, stream);
  millrace::run(*plan_, weights, sequence, stream);
  values[loop_.h_next] = sequence.y;
  values[loop_.h_made] = sequence.y;
  if (loop_.keeps_c) values[loop_.c_next] = values[loop_.c_made] = *sequence.c_steps;
  run_piece(loop_.behind(), behind_, values);
  for (std::size_t i = 0; i < operands.outputs.size(); ++i) {
    const Tensor whole = values.at(loop_.outputs()[i]);
    const TensorArray& array = operands.outputs[i];
    const std::int64_t first = operands.written[i].first;
    const detail::FilledSlots slots{whole, rows.offsets, false, of_cell(loop_.outputs()[i]) ? sequence.watermark : nullptr};
    if (array.is_fixed() && first == 0 && array.size() == operands.iterations) {
      array.fill(slots.whole, slots.offsets, slots.watermark);
      continue;
    }
    for (std::int64_t t = 0; t < operands.iterations; ++t) array.write(first + t, LoDTensor(slots.slot(t)));
  }
  return last_states(rows, sequence, operands.iterations, stream);
}

std::vector<SlotValue> DeviceLstm::last_states(const Rows& rows, const LstmSequenceRows& sequence, std::int64_t iterations,
                                               StreamRef stream) const {
  std::vector<SlotValue> last(2);
  const std::vector<std::int64_t> places = rows.stayed(iterations - 1);
  const std::int64_t count = rows.counts[static_cast<std::size_t>(iterations - 1)];
  for (const auto& [state, tensor] : {std::pair{loop_.h, sequence.h_out}, {loop_.c, sequence.c_out}}) {
    const Tensor stayed = places.empty() ? tensor.rows(0, count) : gather_rows(tensor, places, stream);
    last[state] = SlotValue(LoDTensor(stayed), rows.order, iterations - 1);
  }
  return last;
}

}  // namespace millrace
