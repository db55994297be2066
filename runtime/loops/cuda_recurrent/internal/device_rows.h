// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/concat.h>
#include <millrace/runtime/array/slab.h>
#include <millrace/runtime/loops/binder.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/ragged.h>

namespace millrace {

/// Iterations of one launch: others get the device in between.
inline constexpr std::int64_t iterations_a_launch = 256;

inline std::vector<std::pair<TensorArray, LoopOperands::Slots>> written_slots(const LoopOperands& operands) {
  std::vector<std::pair<TensorArray, LoopOperands::Slots>> made;
  for (std::size_t i = 0; i < operands.outputs.size(); ++i) made.emplace_back(operands.outputs[i], operands.written[i]);
  return made;
}

inline Tensor brought(const Tensor& value, StreamRef stream) {
  if (value.place() == stream.place()) return value;
  Tensor there(value.dtype(), value.dims(), stream.memory());
  if (value.elements() > 0) copy(value, there, stream);
  return there;
}

/// The run ends before its last iteration, with a reason, where the device does not start a kernel or values do not fit.
template <class F>
bool unless_refused(std::string& reason, const F& work) {
  try {
    return work();
  } catch (const CudaError& error) {
    if (error.is_sticky()) throw;
    reason = error.what();
  } catch (const Error&) {
  }
  return false;
}

/// The rows of all iterations, and which sequence stands where.
struct DeviceRows {
  const LoopOperands& operands;
  const LoopForm& form;
  StreamRef stream;
  std::optional<SequenceOrder> order;
  std::vector<std::int64_t> counts;            // by iteration
  std::vector<std::int64_t> offsets;           // of the iterations' rows
  std::vector<Tensor> inputs;                  // of all iterations, by input
  std::vector<Tensor> states;                  // of the first iteration
  std::vector<std::int64_t> places;            // as in LstmSequenceRows; empty: in order
  std::vector<std::int64_t> slots;             // by sequence, longest first: its row in the first iteration
  std::vector<std::vector<std::int64_t>> who;  // by iteration and row: its row in the first iteration; empty: in order
  bool reversed = false;  // the iterations go from the last slot of their inputs to the first; rows stand in the slots' order

  /// Binds the operands. With `arriving`, the inputs' slots are still to come, and their numbers of rows alone are read. UnsupportedError names the values that do
  /// not fit.
  void read(bool arriving = false) {
    LoopBinder binder(form, operands, stream);
    reversed = operands.read[0].stride < 0;
    std::vector<std::vector<std::int64_t>> all;
    for (std::size_t i = 0; i < operands.inputs.size(); ++i) all.push_back(arriving ? binder.expected_rows(i) : read_input(binder, i));
    binder.set_rows(all);
    order = binder.order();
    counts = binder.rows();
    check_rows(binder, all);
    offsets.assign(1, 0);
    for (const std::int64_t count : counts) offsets.push_back(offsets.back() + count);
    for (std::size_t i = 0; i < operands.states.size(); ++i) {
      states.push_back(binder.state(i));
      if (states.back().dim(0) != counts[0]) throw UnsupportedError("a state has other rows than the first iteration");
    }
    binder.check_outputs();
    if (binder.ragged() && !order->sorted()) find_places();
  }

  /// The kernel takes the rows of all iterations as one tensor, and sequences that end, the longest in front.
  void check_rows(const LoopBinder& binder, const std::vector<std::vector<std::int64_t>>& all) const {
    if (counts.empty() || counts[0] == 0) throw UnsupportedError("iterations have no rows");
    for (const std::vector<std::int64_t>& rows : all)
      if (rows != counts) throw UnsupportedError("inputs differ in their rows");
    if (reversed && order)
      throw UnsupportedError("iterations go from the last slot to the first, and their rows have an order of sequences");
    for (const LoopOperands::Slots& read : operands.read) {
      const std::int64_t least = reversed ? read.first - operands.iterations + 1 : read.first;
      if (least < 0 || read.stride != stride()) throw UnsupportedError("an input is not read slot by slot");
      if (order && read.first != 0) throw UnsupportedError("an input with an order is not read from its first slot on");
    }
    if (binder.ragged() && !std::is_sorted(counts.rbegin(), counts.rend()))
      throw UnsupportedError("iterations have more rows than those before");
  }

  const VarType& type_of(std::size_t i) const { return form.step.var(form.step.inputs()[i].var).type; }

  /// Slots one behind the other are one tensor.
  std::vector<std::int64_t> read_input(const LoopBinder& binder, std::size_t i) {
    BoundInput bound = binder.input(i);
    if (reversed) std::reverse(bound.slots.begin(), bound.slots.end());
    const std::size_t first = reversed ? bound.begin.size() - 1 : 0, last = bound.begin.size() - 1 - first;
    if (bound.whole && bound.slots.empty() && operands.read[i].stride == stride())
      inputs.push_back(bound.whole->rows(bound.begin[first], bound.begin[last] + bound.rows[last]));
    else
      inputs.push_back(bound.whole ? *bound.whole : concat(bound.slots, 0, stream));  // with `whole`, check_rows refuses
    return std::move(bound.rows);
  }
  /// The rows of an input for the iterations from `begin` to `end`, whose slots are issued; they may be there before their array is.
  std::optional<Tensor> part(std::size_t i, std::int64_t begin, std::int64_t end) const {
    const TensorArray& array = operands.inputs[i];
    const std::int64_t first = operands.read[i].first + begin;
    const std::vector<std::int64_t> expected(counts.begin() + begin, counts.begin() + end);
    if (const auto filled = array.filling(); filled != nullptr && first + end - begin <= array.issued()) {
      std::vector<std::int64_t> rows;
      const Tensor made = of_filled(*filled, first, end - begin, rows);
      if (rows != expected || !fits(made.dims(), made.dtype(), type_of(i))) return std::nullopt;
      const auto until = static_cast<std::uint64_t>(first + end - begin);
      return brought(filled->watermark ? part_of(made, Point(filled->watermark, until)) : made, stream);
    }
    std::vector<Tensor> parts;
    for (std::int64_t t = begin; t < end; ++t) {
      const std::optional<LoDTensor> slot = array.peek(first + t - begin);
      if (!slot || !slot->lod().empty() || !fits(slot->dims(), slot->dtype(), type_of(i))) return std::nullopt;
      if (slot->dims()[0] != expected[static_cast<std::size_t>(t - begin)]) return std::nullopt;
      parts.push_back(brought(slot->tensor(), stream));
    }
    return parts.size() == 1 ? parts[0] : concat(parts, 0, stream);
  }
  static bool fits(const DDim& slot, DType dtype, const VarType& type) {
    return dtype == type.dtype && slot.rank() == type.rank() && slot.rank() > 0 && slot.erased(0) == type.shape->erased(0);
  }
  Tensor of_filled(const detail::FilledSlots& filled, std::int64_t first, std::int64_t iterations, std::vector<std::int64_t>& rows) const {
    const auto begin = filled.offsets[static_cast<std::size_t>(first)];
    const auto end = filled.offsets[static_cast<std::size_t>(first + iterations)];
    for (auto t = static_cast<std::size_t>(first); t < static_cast<std::size_t>(first + iterations); ++t)
      rows.push_back(filled.items ? filled.whole.dim(1) : filled.offsets[t + 1] - filled.offsets[t]);
    Tensor part = filled.whole.rows(begin, end);
    if (!filled.items) return part;
    const DDim dims = part.dims().erased(0);
    const Tensor straight = part.is_contiguous() ? part : contiguous(part, stream);
    return straight.reshape(dims.erased(0).inserted(0, (end - begin) * dims[0]));
  }

  /// Sequences in the caller's order: the kernel wants the longest in front.
  void find_places() {
    const auto n = static_cast<std::size_t>(counts[0]);
    who.assign(1, std::vector<std::int64_t>(n));
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
  }

  /// The distance between the slots that two successive iterations read, in every input.
  std::int64_t stride() const { return reversed ? -1 : 1; }
  /// The slot of the inputs that an iteration reads, counted from the first one that any reads.
  std::int64_t slot_of(std::int64_t iteration) const { return reversed ? operands.iterations - 1 - iteration : iteration; }

  /// For each row of an iteration, the row of its sequence in iteration 0. Empty: row i is row i of iteration 0.
  std::vector<std::int64_t> stayed(std::int64_t iteration) const {
    return who.empty() ? std::vector<std::int64_t>() : who[static_cast<std::size_t>(iteration)];
  }
};

}  // namespace millrace
