// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/lstm_loop.h>

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include <millrace/runtime/lowering/passes.h>
#include <millrace/runtime/program/op_def.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/internal/lstm_form.h>

namespace millrace {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw UnsupportedError(why); }
std::string label(const Op& op) { return "op " + (op.label.empty() ? op.type : op.type + " '" + op.label + "'"); }
bool reads(const Op& op, VarId var) { return std::find(op.inputs.begin(), op.inputs.end(), var) != op.inputs.end(); }

}  // namespace

/// Takes the iteration apart.
struct LstmLoop::Reader {
  LstmLoop& made;
  const Program& step;
  std::size_t inputs, states;
  std::vector<const Op*> needed;  // ops that an output or a next state comes of
  std::set<VarId> of_states;      // the vars that depend on a state
  const Op* cell = nullptr;
  std::vector<const Op*> holds;  // of h and c, where a mask holds them
  std::map<VarId, VarId> shown;  // another name of a state → the state

  explicit Reader(LstmLoop& loop) : made(loop), step(loop.step_), inputs(loop.form_.inputs.size()), states(loop.form_.states.size()) {}

  VarId state(std::size_t i) const { return step.inputs()[inputs + i].var; }
  VarId next(std::size_t i) const { return step.outputs()[made.form_.outputs.size() + i].var; }

  void read() {
    if (inputs == 0) refuse("no rows come in");
    for (const LoopForm::StepInput& input : made.form_.inputs)
      if (input.index.stride != 1 || input.shrinks || input.boot != no_var) refuse("it reads other slots than one after the other");
    for (const LoopForm::Output& output : made.form_.outputs)
      if (output.index.stride != 1) refuse("it writes other slots than one after the other");
    if (states != 2 || !made.form_.states[0].changes || !made.form_.states[1].changes)
      refuse(fmt::format("its turn carries {} states, and an LSTM's two", states));
    find_needed();
    find_cell();
    std::vector<const Op*> ahead, after;
    for (const Op* op : needed) {
      if (op == cell || shown.contains(op->outputs[0]) || std::find(holds.begin(), holds.end(), op) != holds.end()) continue;
      const bool later = of_states.contains(op->outputs[0]);
      if (later) check_masked(*op);
      made.keeps_c = made.keeps_c || (later && (reads(*op, made.c_next) || reads(*op, made.c_made)));
      (later ? after : ahead).push_back(op);
    }
    find_pieces(ahead, after);
  }

  void find_needed() {
    std::set<VarId> wanted;
    for (const Program::Port& port : step.outputs()) wanted.insert(port.var);
    const std::vector<Op>& ops = step.block(0).ops;
    for (std::size_t i = ops.size(); i-- > 0;) {
      const Op& op = ops[i];
      if (op.type == "constant" || std::none_of(op.outputs.begin(), op.outputs.end(), [&](VarId id) { return wanted.contains(id); }))
        continue;
      wanted.insert(op.inputs.begin(), op.inputs.end());
      needed.insert(needed.begin(), &op);
    }
  }

  void find_cell() {
    for (std::size_t i = 0; i < states; ++i) of_states.insert(state(i));
    for (const Op* op : needed) {
      if (std::none_of(op->inputs.begin(), op->inputs.end(), [&](VarId id) { return of_states.contains(id); })) continue;
      of_states.insert(op->outputs.begin(), op->outputs.end());
      if (std::any_of(op->inputs.begin(), op->inputs.end(), [&](VarId id) { return shown.contains(id); }))
        refuse(label(*op) + " looks at a copy of the state");
      const bool direct = reads(*op, state(0)) || reads(*op, state(1));
      if (!direct) continue;
      if (step.registry().at(op->type).traits.forwards) {
        shown[op->outputs[0]] = op->inputs[0];
        continue;
      }
      if (cell != nullptr && is_hold(*op)) {
        holds.push_back(op);
        continue;
      }
      if (op->type != "lstm_cell") refuse(label(*op) + " looks at the state: the only cell with a kernel is lstm_cell");
      if (cell != nullptr) refuse(label(*op) + " is a second cell");
      cell = op;
    }
    if (cell == nullptr) refuse("no op looks at the states");
    made.h = cell->inputs[ops::in_h] == state(0) ? 0 : 1;
    made.c = 1 - made.h;
    made.h_made = cell->outputs[0];
    made.c_made = cell->outputs[1];
    made.h_before = state(made.h);
    made.c_before = state(made.c);
    made.h_next = next(made.h);
    made.c_next = next(made.c);
    if (cell->inputs[ops::in_h] != state(made.h) || cell->inputs[ops::in_c] != state(made.c) || !goes_on())
      refuse(label(*cell) + ": its h and c are not what it makes of the iteration before");
    const auto input = [&](std::size_t at) { return at < cell->inputs.size() ? cell->inputs[at] : no_var; };
    made.x = input(ops::in_x);
    made.w = input(ops::in_w);
    made.r = input(ops::in_r);
    made.bias = input(ops::in_bias);
    made.peepholes = input(ops::in_peephole);
    made.cell_ = ops::lstm_form(*cell, 2);
    made.cell_.dtype = step.var(made.x).type.dtype;
    if (made.cell_.dtype == DType::f64) refuse(label(*cell) + ": there is no kernel in f64");
  }

  /// where(mask, what the cell makes, the state): the mask says which rows step.
  bool is_hold(const Op& op) const {
    if (op.type != "where" || of_states.contains(op.inputs[0])) return false;
    return (op.inputs[1] == cell->outputs[0] && op.inputs[2] == cell->inputs[ops::in_h]) ||
           (op.inputs[1] == cell->outputs[1] && op.inputs[2] == cell->inputs[ops::in_c]);
  }

  /// The next states are what the cell makes, or both are held by one mask.
  bool goes_on() {
    if (holds.empty()) return made.h_next == made.h_made && made.c_next == made.c_made;
    if (holds.size() != 2 || holds[0]->inputs[0] != holds[1]->inputs[0]) return false;
    for (const auto& [from, to] : {std::pair{made.h_made, made.h_next}, {made.c_made, made.c_next}})
      if (std::none_of(holds.begin(), holds.end(), [&](const Op* op) { return op->inputs[1] == from && op->outputs[0] == to; }))
        return false;
    made.live = holds[0]->inputs[0];
    const VarType& mask = step.var(made.live).type;
    if (mask.dtype != DType::boolean || mask.rank() != 2 || (*mask.shape)[1] != 1 || step.constant(made.live) != nullptr)
      refuse(label(*holds[0]) + ": expected a mask of bool [rows, 1], which holds whole rows");
    return true;
  }

  /// Refuses an op that reads the cell's result for rows that do not step: behind the kernel these rows hold the value that the mask lets through.
  void check_masked(const Op& op) const {
    if (made.live == no_var) return;
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      if ((op.inputs[i] == made.h_made || op.inputs[i] == made.c_made) && (op.type != "where" || i != 1 || op.inputs[0] != made.live))
        refuse(label(op) + " looks at what the cell makes of rows that do not step");
  }

  void find_pieces(const std::vector<const Op*>& ahead, const std::vector<const Op*>& after) {
    std::set<VarId> wanted{made.x, made.w, made.r, made.bias, made.peepholes, made.live};
    for (const Op* op : after) wanted.insert(op->inputs.begin(), op->inputs.end());
    std::set<VarId> given;
    for (std::size_t i = 0; i < made.form_.outputs.size(); ++i) {
      VarId var = step.outputs()[i].var;
      if (const auto state = shown.find(var); state != shown.end()) var = state->second;
      if (made.live != no_var && (var == made.h_made || var == made.c_made))
        refuse("'" + step.var(var).name + "' is written for rows that do not step");
      made.keeps_c = made.keeps_c || var == made.c_next || var == made.c_before;
      if (step.constant(var) != nullptr) refuse("'" + step.var(var).name + "' is the same in every iteration");
      made.outputs_.push_back(var);
      given.insert(var);
    }
    wanted.insert(given.begin(), given.end());
    std::map<VarId, int> axes;  // along which rows lie; −1: none
    for (std::size_t i = 0; i < step.inputs().size(); ++i) axes[step.inputs()[i].var] = i < inputs + states ? 0 : -1;
    for (const VarId var : {made.h_next, made.c_next, made.h_made, made.c_made}) axes[var] = 0;
    made.before_ = piece(ahead, wanted, axes);
    made.behind_ = piece(after, given, axes);
    const auto axis = [&](VarId var) { return var == no_var || step.constant(var) != nullptr ? -1 : axes.at(var); };
    for (const VarId var : {made.w, made.r, made.bias, made.peepholes})
      if (axis(var) >= 0) refuse(label(*cell) + ": its weights depend on the rows");
    if (axis(made.x) != 0) refuse(label(*cell) + ": its X is the same in every iteration");
    if (made.live != no_var && axis(made.live) != 0) refuse(label(*holds[0]) + ": its mask is the same in every iteration");
    for (const VarId var : made.outputs_)
      if (axis(var) != 0) refuse("'" + step.var(var).name + "' is the same in every iteration");
  }

  /// `ops` as a program that gives those of `wanted` that it makes.
  Piece piece(const std::vector<const Op*>& ops, const std::set<VarId>& wanted, std::map<VarId, int>& axes) const {
    Piece piece;
    if (ops.empty()) return piece;
    Program& program = piece.program.emplace(step.shared_registry());
    std::map<VarId, VarId> to;
    for (const Op* op : ops) {
      follow(*op, axes);
      Op copied{op->type, {}, {}, op->attributes, op->label};
      std::vector<std::string> names;
      for (const VarId input : op->inputs) {
        if (input != no_var && !to.contains(input)) {
          const Tensor* value = step.constant(input);
          to[input] = value != nullptr ? program.add_parameter(step.var(input).name, *value)
                                       : program.add_input(step.var(input).name, step.var(input).type);
          if (value == nullptr) piece.inputs.push_back(input);
        }
        copied.inputs.push_back(input == no_var ? no_var : to.at(input));
      }
      for (const VarId output : op->outputs) names.push_back(step.var(output).name);
      const std::vector<VarId> outputs = program.append(0, std::move(copied), names);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        to[op->outputs[i]] = outputs[i];
        if (!wanted.contains(op->outputs[i])) continue;
        program.add_output(step.var(op->outputs[i]).name, outputs[i]);
        piece.outputs.push_back(op->outputs[i]);
      }
    }
    return piece;
  }

  /// Rows of all iterations stand in one tensor: an op must treat each alone, and say nothing of their number.
  void follow(const Op& op, std::map<VarId, int>& axes) const {
    std::vector<int> of_inputs;
    for (const VarId input : op.inputs) of_inputs.push_back(input == no_var || step.constant(input) != nullptr ? -1 : axes.at(input));
    std::vector<int> made_axes(op.outputs.size(), -1);
    if (std::any_of(of_inputs.begin(), of_inputs.end(), [](int axis) { return axis >= 0; })) {
      const OpDef& def = step.registry().at(op.type);
      if (!def.follow_rows) refuse(label(op) + ": nobody said how it treats rows");
      try {
        made_axes = def.follow_rows(InferContext(step, op, 0), of_inputs);
      } catch (const UnsupportedError& error) {
        refuse(label(op) + ": " + error.what());
      }
      if (std::any_of(made_axes.begin(), made_axes.end(), [](int axis) { return axis != 0; }))
        refuse(label(op) + " does not keep the rows apart");
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) axes[op.outputs[i]] = made_axes.at(i);
  }
};

LstmLoop::LstmLoop(const Program& program, int block, const Op& loop)
    : form_(find_loop_form(program, block, loop)), step_(passes::share_expressions(form_.step)) {
  Reader(*this).read();
}

std::string LstmLoop::to_string() const {
  const auto count = [](const Piece& piece) {
    if (!piece.program) return std::size_t{0};
    const std::vector<Op>& ops = piece.program->block(0).ops;
    return static_cast<std::size_t>(std::count_if(ops.begin(), ops.end(), [](const Op& op) { return op.type != "constant"; }));
  };
  return fmt::format(
      "backend: fused, because its turn is one lstm_cell of {} between ops that treat each row alone{}\n"
      "  for the rows of all iterations, before the cell: {} ops and x·W\n  iteration by iteration, as one kernel: the cell\n"
      "  for the rows of all iterations, behind it: {} ops\n",
      name_of(cell_.dtype), live == no_var ? "" : ", with a mask that holds the states of rows", count(before_), count(behind_));
}

}  // namespace millrace
