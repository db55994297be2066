// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/shrink.h>

#include <millrace/kernels/gather.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

LoDTensor take_rows(const LoDTensor& x, const RowSelection& chosen, StreamRef stream) {
  if (chosen.prefix) return LoDTensor(x.tensor().rows(0, chosen.count()), chosen.lod);
  return LoDTensor(gather_rows(x.tensor(), chosen.rows, stream), chosen.lod);
}

}  // namespace

SlotValue reorder(const LoDTensor& x, const SequenceOrder& order, StreamRef stream) {
  return SlotValue(take_rows(x, reorder_rows(order, x.rows(), x.lod()), stream), order, -1);
}

SlotValue shrink(const LoDTensor& state, const SequenceOrder& order, std::int64_t from, std::int64_t to, StreamRef stream) {
  return SlotValue(take_rows(state, shrink_rows(order, from, to, state.rows(), state.lod()), stream), order, to);
}

SlotValue shrink(const SlotValue& state, const SlotValue& step_input, StreamRef stream) {
  if (!state.has_order() || !step_input.has_order())
    throw ArgumentError("shrink: expected two values read from arrays made with an order, found state " + state.to_string() +
                        ", and step input " + step_input.to_string());
  if (!(state.order() == step_input.order()))
    throw ArgumentError("shrink: expected one order, found state " + state.to_string() + ", and step input " + step_input.to_string());
  return shrink(state, state.order(), state.iteration(), step_input.iteration(), stream);
}

}  // namespace millrace
