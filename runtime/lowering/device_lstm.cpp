// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/device_lstm.h>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <millrace/kernels/concat.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

/// So many turns are one launch: others get the device in between.
constexpr std::int64_t turns_a_launch = 256;

Tensor brought(const Tensor& value, StreamRef stream) {
  if (value.place() == stream.place()) return value;
  Tensor there(value.dtype(), value.dims(), stream.memory());
  if (value.elements() > 0) copy(value, there, stream);
  return there;
}

}  // namespace

DeviceLstm::DeviceLstm(const Program& program, int block, const Op& loop, std::shared_ptr<Device> device)
    : loop_(program, block, loop), device_(std::move(device)) {
  for (const auto& [piece, executable] : {std::pair{&loop_.before(), &before_}, {&loop_.behind(), &behind_}}) {
    if (!piece->program) continue;
    executable->emplace(*piece->program, device_);
    if (!(*executable)->straight_line()) throw UnsupportedError("an op of its turn reads values on the host");
  }
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

// ---- What there is to work on ----

/// The rows of all turns, and who stands where.
struct DeviceLstm::Rows {
  const FusedOperands& operands;
  const LstmLoop& loop;
  StreamRef stream;
  std::optional<SequenceOrder> order;
  std::vector<std::int64_t> counts;   // by turn
  std::vector<std::int64_t> offsets;  // of the turns' rows
  std::vector<Tensor> inputs;         // of all turns, by input
  std::vector<Tensor> states;         // of the first turn
  std::vector<std::int64_t> places;   // as in LstmSequenceRows; empty: in order
  std::vector<std::int64_t> slots;    // by sequence, longest first: its row in the first turn
  std::vector<std::int64_t> last;     // by row of the last turn: its row in the first

  bool read() {
    for (std::size_t i = 0; i < operands.inputs.size(); ++i)
      if (!read_input(i)) return false;
    if (counts.empty() || counts[0] == 0 || !std::is_sorted(counts.rbegin(), counts.rend())) return false;
    if (counts.back() != counts[0] && !order) return false;
    offsets.assign(1, 0);
    for (const std::int64_t count : counts) offsets.push_back(offsets.back() + count);
    if (!read_states() || !check_outputs()) return false;
    if (counts.back() != counts[0] && !order->sorted()) find_places();
    return true;
  }

  bool read_input(std::size_t i) {
    const TensorArray& array = operands.inputs[i];
    const std::int64_t first = operands.read[i].first;
    const VarType& type = loop.form().step.var(loop.form().step.inputs()[i].var).type;
    if (i == 0) order = array.order();
    if (first < 0 || array.is_window() || first + operands.turns > array.size() || array.order() != order || (order && first != 0))
      return false;
    std::vector<std::int64_t> rows;
    Tensor all;
    if (const auto filled = array.filled()) {
      if (!fits(filled->items ? filled->whole.dims().erased(0) : filled->whole.dims(), filled->whole.dtype(), type)) return false;
      all = of_filled(*filled, first, rows);
    } else {
      std::vector<Tensor> parts;
      for (std::int64_t t = first; t < first + operands.turns; ++t) {
        const std::optional<LoDTensor> slot = array.peek(t);
        if (!slot || !slot->lod().empty() || !fits(slot->dims(), slot->dtype(), type)) return false;
        rows.push_back(slot->dims()[0]);
        parts.push_back(brought(slot->tensor(), stream));
      }
      all = concat(parts, 0, stream);
    }
    if (i > 0 && rows != counts) return false;
    counts = std::move(rows);
    inputs.push_back(brought(all, stream));
    return true;
  }
  static bool fits(const DDim& slot, DType dtype, const VarType& type) {
    return dtype == type.dtype && slot.rank() == type.rank() && slot.rank() > 0 && slot.erased(0) == type.shape->erased(0);
  }
  Tensor of_filled(const detail::FilledSlots& filled, std::int64_t first, std::vector<std::int64_t>& rows) const {
    const auto begin = filled.offsets[static_cast<std::size_t>(first)];
    const auto end = filled.offsets[static_cast<std::size_t>(first + operands.turns)];
    for (auto t = static_cast<std::size_t>(first); t < static_cast<std::size_t>(first + operands.turns); ++t)
      rows.push_back(filled.items ? filled.whole.dim(1) : filled.offsets[t + 1] - filled.offsets[t]);
    const Tensor part = filled.whole.rows(begin, end);
    if (!filled.items) return part;
    const DDim dims = part.dims().erased(0);
    const Tensor straight = part.is_contiguous() ? part : contiguous(part, stream);
    return straight.reshape(dims.erased(0).inserted(0, (end - begin) * dims[0]));
  }

  bool read_states() {
    const std::int64_t n = counts[0];
    const bool all_stay = counts.back() == n;
    for (std::size_t i = 0; i < operands.states.size(); ++i) {
      const SlotValue& given = operands.states[i];
      const bool shrinks = loop.form().states[i].shrinks;
      const VarType& type = loop.form().step.var(loop.form().step.inputs()[operands.inputs.size() + i].var).type;
      if (!given.lod().empty() || !fits(given.dims(), given.dtype(), type)) return false;
      Tensor held = given.tensor();
      if (order) {
        if (!shrinks && (!all_stay || held.dim(0) != n)) return false;
        if (given.has_order() && (given.order() != *order || given.turn() != -1)) return false;
        if (shrinks && held.dim(0) != order->sequences()) return false;
        if (shrinks && !given.has_order()) held = reorder(given, *order, stream).tensor();
        if (shrinks && !shrink_rows(*order, -1, 0).prefix) return false;
        if (shrinks) held = held.rows(0, n);
      }
      if (held.dim(0) != n) return false;
      states.push_back(brought(held, stream));
    }
    return true;
  }

  bool check_outputs() const {
    for (std::size_t i = 0; i < operands.outputs.size(); ++i) {
      const TensorArray& array = operands.outputs[i];
      const std::int64_t first = operands.written[i].first;
      if (array.is_window() || array.closed() || first < 0 || (array.is_fixed() && first + operands.turns > array.size())) return false;
      for (std::int64_t t = 0; t < operands.turns; ++t) {
        const SlotState slot = array.state(first + t);
        if (slot != SlotState::empty && slot != SlotState::waited) return false;
        if (array.order() && array.order()->live(first + t) != counts[static_cast<std::size_t>(t)]) return false;
      }
    }
    return true;
  }

  /// Sequences in the caller's order: the kernel wants the longest in front.
  void find_places() {
    const auto n = static_cast<std::size_t>(counts[0]);
    std::vector<std::vector<std::int64_t>> who{std::vector<std::int64_t>(n)};  // by turn and row: its row in the first turn
    std::iota(who[0].begin(), who[0].end(), 0);
    std::vector<std::int64_t> length(n, 1);
    for (std::size_t t = 1; t < counts.size(); ++t) {
      who.emplace_back();
      for (const std::int64_t row : shrink_rows(*order, static_cast<std::int64_t>(t) - 1, static_cast<std::int64_t>(t)).rows) {
        who[t].push_back(who[t - 1][static_cast<std::size_t>(row)]);
        ++length[static_cast<std::size_t>(who[t].back())];
      }
    }
    slots = who[0];
    std::sort(slots.begin(), slots.end(), [&](std::int64_t a, std::int64_t b) {
      const std::int64_t lengths[2] = {length[static_cast<std::size_t>(a)], length[static_cast<std::size_t>(b)]};
      return lengths[0] != lengths[1] ? lengths[0] > lengths[1] : a < b;
    });
    std::vector<std::size_t> number(n);
    for (std::size_t i = 0; i < n; ++i) number[static_cast<std::size_t>(slots[i])] = i;
    places.resize(static_cast<std::size_t>(offsets.back()));
    for (std::size_t t = 0; t < counts.size(); ++t)
      for (std::size_t row = 0; row < who[t].size(); ++row)
        places[static_cast<std::size_t>(offsets[t]) + number[static_cast<std::size_t>(who[t][row])]] = static_cast<std::int64_t>(row);
    last = who.back();
  }
};

// ---- The three pieces ----

Tensor DeviceLstm::value(const Values& values, VarId var) const {
  const auto constant = constants_.find(var);
  return constant != constants_.end() ? constant->second : values.at(var);
}

void DeviceLstm::run_piece(const LstmLoop::Piece& piece, const std::optional<Executable>& program, Values& values) const {
  if (!program) return;
  std::vector<Value> inputs;
  for (const VarId var : piece.inputs) inputs.emplace_back(values.at(var));
  const std::vector<Value> made = run_straight(*program, inputs);
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

LstmSequenceRows DeviceLstm::sequence(const Rows& rows, const Values& values, StreamRef stream) const {
  LstmSequenceRows made;
  made.projection = project(values, stream);
  made.offsets = rows.offsets;
  made.places = rows.places;
  made.slots = rows.slots;
  made.steps_a_launch = turns_a_launch;
  made.h = rows.states[loop_.h];
  made.c = rows.states[loop_.c];
  if (loop_.live != no_var) made.live = contiguous(value(values, loop_.live), stream);
  const DType dtype = plan_->desc().dtype;
  made.y = Tensor(dtype, DDim{rows.offsets.back(), plan_->desc().hidden}, stream.memory());
  if (loop_.keeps_c) made.c_steps = Tensor(dtype, made.y.dims(), stream.memory());
  made.h_out = Tensor(dtype, made.h.dims(), stream.memory());
  made.c_out = Tensor(dtype, made.c.dims(), stream.memory());
  return made;
}

/// What the kernel itself writes step by step.
bool DeviceLstm::of_cell(VarId var) const { return var == loop_.h_next || (loop_.keeps_c && var == loop_.c_next); }

/// Null where nobody but the ops behind the kernel sees what it writes, or the last turns have no rows, of which it says nothing.
std::shared_ptr<Watermark> DeviceLstm::watermark(const Rows& rows, StreamRef stream) const {
  const bool seen = std::any_of(loop_.outputs().begin(), loop_.outputs().end(), [this](VarId var) { return of_cell(var); });
  if (!seen || rows.counts.back() == 0) return nullptr;
  return stream.watermark(static_cast<std::uint64_t>(rows.counts.size()));
}

std::optional<std::vector<SlotValue>> DeviceLstm::run(const FusedOperands& operands, StreamRef stream) const {
  if (operands.turns <= 0) return std::nullopt;
  Rows rows{operands, loop_, stream, {}, {}, {}, {}, {}, {}, {}, {}};
  if (!rows.read()) return std::nullopt;
  Values values;
  const std::vector<Program::Port>& ports = loop_.step().inputs();
  for (std::size_t i = 0; i < rows.inputs.size(); ++i) values[ports[i].var] = rows.inputs[i];
  for (std::size_t i = 0; i < operands.shared.size(); ++i)
    values[ports[rows.inputs.size() + rows.states.size() + i].var] = brought(operands.shared[i], stream);
  run_piece(loop_.before(), before_, values);
  LstmSequenceRows sequence = this->sequence(rows, values, stream);
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
    if (array.is_fixed() && first == 0 && array.size() == operands.turns) {
      array.fill(slots.whole, slots.offsets, slots.watermark);
      continue;
    }
    for (std::int64_t t = 0; t < operands.turns; ++t) array.write(first + t, LoDTensor(slots.slot(t)));
  }
  std::vector<SlotValue> last(2);
  for (const auto& [state, tensor] : {std::pair{loop_.h, sequence.h_out}, {loop_.c, sequence.c_out}}) {
    const Tensor stayed = rows.last.empty() ? tensor.rows(0, rows.counts.back()) : gather_rows(tensor, rows.last, stream);
    last[state] = SlotValue(LoDTensor(stayed), rows.order, operands.turns - 1);
  }
  return last;
}

}  // namespace millrace
