// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/recurrent.h>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>

namespace millrace::layers {
namespace {

std::string text(const Var& var) { return "'" + var.name() + "' of " + var.type().to_string(); }

/// The first state of a dense input's loop: a row for each sequence. Broadcasting would take one row for any number of sequences, and many
/// rows for one sequence.
Var fitting(const Var& given, const Var& x) {
  if (!given.defined() || given.type().rank() != 2 || (*given.type().shape)[1] < 0 || x.type().rank() < 3) return given;
  const std::int64_t sequences = (*x.type().shape)[1];
  const std::int64_t rows = (*given.type().shape)[0];
  const std::int64_t width = (*given.type().shape)[1];
  if (sequences >= 0 && sequences == rows) return given;
  if (sequences >= 0 && rows >= 0)
    throw ProgramError("unroll: expected an initial state for each of the " + std::to_string(sequences) + " sequences of " + text(x) +
                       ", found " + text(given));
  const Var count = build::call1("shape", {x}, {{"start", std::int64_t{1}}, {"end", std::int64_t{2}}});
  const Var dims = build::concat({count, build::constant(Tensor::from<std::int64_t>({width}))}, 0);
  return build::reshape(build::call1("reshape_to", {given, dims}, {{"allowzero", true}}), {0, width});
}

template <class RNN>
Unrolled visit(RNN& rnn, const RowsCell& cell, const std::vector<Var>& inputs, const Var& mask, const std::vector<CellState>& states) {
  const DType dtype = inputs[0].type().dtype;
  std::vector<Var> memories;
  {
    const auto block = rnn.block();
    std::vector<Var> rows;
    for (const Var& x : inputs) rows.push_back(rnn.step_input(x));
    const Var live = mask.defined() ? rnn.step_input(mask) : Var();
    for (const CellState& state : states)
      memories.push_back(state.initial.defined() ? rnn.memory(state.initial) : rnn.memory(dtype, {state.width}));
    const CellStep next = cell(rows, memories);
    if (next.states.size() != states.size())
      throw ProgramError("unroll: expected " + std::to_string(states.size()) + " states from the cell, found " +
                         std::to_string(next.states.size()));
    for (std::size_t i = 0; i < states.size(); ++i)
      rnn.update_memory(memories[i], live.defined() ? where(live, next.states[i], memories[i]) : next.states[i]);
    const Var zero = live.defined() ? cast(build::constant(0.0), next.output.type().dtype) : Var();
    rnn.output(live.defined() ? where(live, next.output, zero) : next.output);
  }
  Unrolled made{rnn.outputs()[0], {}};
  for (const Var& memory : memories) made.last.push_back(rnn.last(memory));
  return made;
}

Unrolled visit(const RowsCell& cell, const std::vector<Var>& inputs, const Var& lengths, const std::vector<CellState>& states,
               bool reverse) {
  const Var& x = inputs.at(0);
  const VarType& type = x.type();
  if (type.lod_depth > 0) {
    if (lengths.defined())
      throw ProgramError("unroll: expected lengths with a dense [T, N, C] input, found them with " + text(x) + ", whose LoD says them");
    build::DynamicRNN rnn({.level = type.lod_depth - 1, .reverse = reverse});
    return visit(rnn, cell, inputs, Var(), states);
  }
  if (type.rank() >= 0 && type.rank() < 3)
    throw ProgramError("unroll: expected rows with LoD, or a dense [T, N, C] input, found " + text(x));
  const Var mask = lengths.defined() ? build::call1("step_mask", {x, lengths}) : Var();
  std::vector<CellState> begin = states;
  for (CellState& state : begin) state.initial = fitting(state.initial, x);
  build::StaticRNN rnn({.reverse = reverse});
  return visit(rnn, cell, inputs, mask, begin);
}

}  // namespace

Var apply(const Activation& activation, const Var& x) {
  Attributes attributes;
  if (activation.alpha) attributes.set("alpha", *activation.alpha);
  if (activation.beta) attributes.set("beta", *activation.beta);
  return build::call1(activation.name, {x}, attributes);
}

Unrolled unroll(const Cell& cell, const Sequences& sequences, const std::vector<CellState>& states, bool reverse) {
  const RowsCell of_one = [&cell](const std::vector<Var>& rows, const std::vector<Var>& before) { return cell(rows[0], before); };
  return visit(of_one, {sequences.x}, sequences.lengths, states, reverse);
}

Unrolled unroll_together(const RowsCell& cell, const std::vector<Var>& inputs, const std::vector<CellState>& states) {
  return visit(cell, inputs, Var(), states, false);
}

Stacked stack(std::size_t layers, Direction direction, Sequences sequences,
              const std::function<Unrolled(std::size_t k, const Sequences&, bool reverse)>& run) {
  Stacked made;
  const std::size_t count = directions(direction);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::vector<Var> outputs;
    for (std::size_t d = 0; d < count; ++d) {
      Unrolled unrolled = run(layer * count + d, sequences, d == 1 || direction == Direction::reverse);
      outputs.push_back(std::move(unrolled.output));
      made.last.push_back(std::move(unrolled.last));
    }
    sequences.x = count == 1 ? outputs[0] : build::concat(outputs, -1);
  }
  made.output = sequences.x;
  return made;
}

}  // namespace millrace::layers
