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
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/array/slab.h>
#include <millrace/runtime/loops/cuda_recurrent/device_lstm.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/ragged.h>

namespace millrace {

/// So many iterations are one launch: others get the device in between.
inline constexpr std::int64_t iterations_a_launch = 256;

inline constexpr const char* does_not_fit = "what it works on does not fit: slots that are not there yet, or extents that differ";

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
struct DeviceLstm::Rows {
  const LoopOperands& operands;
  const LstmLoop& loop;
  StreamRef stream;
  std::optional<SequenceOrder> order;
  std::vector<std::int64_t> counts;            // by iteration
  std::vector<std::int64_t> offsets;           // of the iterations' rows
  std::vector<Tensor> inputs;                  // of all iterations, by input
  std::vector<Tensor> states;                  // of the first iteration
  std::vector<std::int64_t> places;            // as in LstmSequenceRows; empty: in order
  std::vector<std::int64_t> slots;             // by sequence, longest first: its row in the first iteration
  std::vector<std::vector<std::int64_t>> who;  // by iteration and row: its row in the first iteration; empty: in order

  /// With `arriving`, of the inputs only how many rows they will have.
  bool read(bool arriving = false) {
    for (std::size_t i = 0; i < operands.inputs.size(); ++i)
      if (!(arriving ? expect_input(i) : read_input(i))) return false;
    if (counts.empty() || counts[0] == 0 || !std::is_sorted(counts.rbegin(), counts.rend())) return false;
    if (counts.back() != counts[0] && !order) return false;
    offsets.assign(1, 0);
    for (const std::int64_t count : counts) offsets.push_back(offsets.back() + count);
    if (!read_states() || !check_outputs()) return false;
    if (counts.back() != counts[0] && !order->sorted()) find_places();
    return true;
  }

  bool may_read(std::size_t i) {
    const TensorArray& array = operands.inputs[i];
    const std::int64_t first = operands.read[i].first;
    if (i == 0) order = array.order();
    return first >= 0 && !array.is_window() && first + operands.iterations <= array.size() && array.order() == order &&
           (!order || first == 0);
  }
  const VarType& type_of(std::size_t i) const { return loop.form().step.var(loop.form().step.inputs()[i].var).type; }

  bool read_input(std::size_t i) {
    const TensorArray& array = operands.inputs[i];
    const std::int64_t first = operands.read[i].first;
    const VarType& type = type_of(i);
    if (!may_read(i)) return false;
    std::vector<std::int64_t> rows;
    Tensor all;
    if (const auto filled = array.filled()) {
      if (!fits(filled->items ? filled->whole.dims().erased(0) : filled->whole.dims(), filled->whole.dtype(), type)) return false;
      all = of_filled(*filled, first, operands.iterations, rows);
    } else {
      std::vector<Tensor> parts;
      for (std::int64_t t = first; t < first + operands.iterations; ++t) {
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
  /// As many rows an iteration as the order says; without one, as many as the first has.
  bool expect_input(std::size_t i) {
    if (!may_read(i)) return false;
    const std::optional<LoDTensor> slot = operands.inputs[i].peek(operands.read[i].first);
    if (!slot || !slot->lod().empty() || !fits(slot->dims(), slot->dtype(), type_of(i))) return false;
    std::vector<std::int64_t> rows;
    for (std::int64_t t = 0; t < operands.iterations; ++t) rows.push_back(order ? order->live(t) : slot->dims()[0]);
    if (i > 0 && rows != counts) return false;
    counts = std::move(rows);
    return true;
  }
  /// The rows of an input for the iterations from `begin` to `end`, whose slots are issued; they may be there before their array is.
  std::optional<Tensor> part(std::size_t i, std::int64_t begin, std::int64_t end) const {
    const TensorArray& array = operands.inputs[i];
    const std::int64_t first = operands.read[i].first + begin;
    const std::vector<std::int64_t> expected(counts.begin() + begin, counts.begin() + end);
    if (const auto filled = array.filled()) {
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
        if (given.has_order() && (given.order() != *order || given.iteration() != -1)) return false;
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
      if (array.is_window() || array.closed() || first < 0 || (array.is_fixed() && first + operands.iterations > array.size()))
        return false;
      for (std::int64_t t = 0; t < operands.iterations; ++t) {
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

  /// By row of an iteration: its row in the first. Empty: the same.
  std::vector<std::int64_t> stayed(std::int64_t iteration) const {
    return who.empty() ? std::vector<std::int64_t>() : who[static_cast<std::size_t>(iteration)];
  }
};

}  // namespace millrace
