// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/lowering/internal/symbol.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::lowering {

/// Evaluates a whole program symbolically for one step of one sequence. Constants are folded, values known at the start go into
/// the start program, the others into the step program; loops over time become states, other loops are unrolled, branches are chosen.
class StepBuilder {
 public:
  /// `axis`: along which axis the rows of live inputs lie when no input has LoD (−1: the graph is one step already). `extent`: along which
  /// extent of that name they lie instead, wherever an input has it; inputs without it are given at the start.
  StepBuilder(const Program& program, const RecurrenceOptions& options, int axis, std::string extent = "");
  Recurrence build();

 private:
  using Kind = Symbol::Kind;

  // Inputs and outputs (step_builder.cpp).
  void bind_inputs();
  void bind_live(const Program::Port& port);
  void bind_given(const Program::Port& port);
  int axis_of(const Program::Port& port) const;
  bool is_live(const Program::Port& port) const;
  void bind_state_inputs();
  void add_outputs();
  void add_output(const Program::Port& port, const Symbol& symbol);
  void add_taken_outputs();

  // Ops (step_ops.cpp; those along the rows in step_sequences.cpp).
  void find_used();
  bool unused(const Op& op) const;
  void eval_block(int block);
  void eval(const Op& op, int block);
  void eval_generic(const Op& op, int block);
  bool eval_squeeze(const Op& op, const Symbol& x, int block);
  void bind_final(const Op& op, const Symbol& input);
  void bind_decided_late(const Op& op, const std::vector<int>& blocks, const Symbol& decision);
  bool is_inside(int block, const std::vector<int>& blocks) const;
  bool eval_control(const Op& op);

  // Lists of extents, one of which is the length of the sequence (step_extents.cpp).
  bool eval_extents(const Op& op);
  bool eval_shape(const Op& op);
  bool eval_list(const Op& op);
  bool eval_equal(const Op& op);
  bool eval_range(const Op& op);
  void eval_expand(const Op& op, const Symbol& list);
  void eval_reshape_to(const Op& op, const Symbol& list);
  bool eval_reshape(const Op& op);
  bool reshape_rows(const Op& op, const Symbol& x, std::vector<std::int64_t> extents, std::vector<std::int64_t> marks);
  Symbol as_list(const Symbol& symbol) const;
  Symbol as_rows(const Symbol& value, int axis);
  bool eval_pool(const Op& op, const std::vector<Symbol>& inputs);
  std::vector<Symbol> apply(const std::string& type, const std::vector<Symbol>& inputs, const Attributes& attributes, int rows);
  std::vector<Symbol> emit(const Op& op, const std::vector<Symbol>& inputs);
  std::vector<Tensor> fold(const Op& op, const std::vector<const Tensor*>& inputs) const;
  std::vector<int> follow_rows(const Op& op, int block, const std::vector<Symbol>& inputs) const;
  void eval_conv(const Op& op, const std::vector<Symbol>& inputs);
  void eval_sequence_conv(const Op& op, const std::vector<Symbol>& inputs);
  bool eval_running_sum(const Op& op, const Symbol& x);
  void eval_branch(const Op& op);
  void eval_array_op(const Op& op);
  void eval_same_steps(const Op& op);
  bool eval_ordered(const Op& op);
  void eval_read(const Op& op);
  void eval_write(const Op& op, const Symbol& index, const Symbol& value);
  void eval_joined(const Op& op);
  Symbol row_of(const ArrayModel& array, std::int64_t offset);
  Symbol earlier(ArrayModel& array, std::int64_t lag, const Symbol& boot);

  // Sequences that have more or fewer rows than steps (step_padding.cpp).
  bool eval_padding(const Op& op, const std::vector<Symbol>& inputs);
  bool eval_pad(const Op& op, const Symbol& x);
  bool eval_cut(const Op& op, const Symbol& x);
  bool eval_joined_rows(const Op& op, const std::vector<Symbol>& inputs);
  void align(std::vector<Symbol>& inputs);
  Symbol row_before(const Symbol& x);
  Symbol rows_before(const Symbol& x, std::int64_t count);
  void take_before(Symbol& made, const Symbol& row) const;
  Symbol delayed(const Symbol& x, std::int64_t steps);
  Symbol begun(const Symbol& x, std::int64_t steps, const Symbol& before);
  Symbol padded(const Symbol& x, std::int64_t before, std::int64_t behind, const std::string& why);
  Symbol zeros_like(const Symbol& x, int axis, std::int64_t extent);
  std::string named(const Op& op) const;
  void expect_row_each_step(const Op& op, const Symbol& symbol) const;
  void expect_same_rows(const Op& op, const std::vector<Symbol>& inputs) const;
  bool changes_rows_before(const Op& op, const std::vector<Symbol>& inputs) const;
  std::vector<Symbol> made_of_rows_before(const Op& op, const std::vector<Symbol>& inputs);

  // Loops (step_loops.cpp).
  void eval_while(const Op& op);
  std::optional<int> level_over_time(const Op& op);
  void eval_over_time(const Op& op);
  std::optional<Symbol> late_value(const Op& op, const Block& body);
  std::optional<std::size_t> carry(const Op& op, const Block& body, std::size_t index);
  void unroll(const Op& op);
  void find_writes(const Block& body);
  std::optional<Symbol> counter_param(const Block& body, std::size_t index, const Symbol& initial) const;

  // Symbols.
  const Symbol& at(VarId var);
  Symbol input(const Op& op, std::size_t index) { return index < op.inputs.size() ? at(op.inputs[index]) : Symbol(); }
  void bind(VarId var, Symbol symbol) { symbols_[var] = std::move(symbol); }
  /// The symbol as a var of the program of `phase`; a state carries there what is known earlier.
  VarId var_in(int phase, const Symbol& symbol);
  VarId materialize(int phase, const Symbol& constant);
  VarType type_of(const Symbol& symbol) const;
  const Program& program_of(const Symbol& symbol) const { return programs_[static_cast<std::size_t>(symbol.phase)]; }
  Symbol counter_value(const Symbol& counter);
  /// `initial` again whenever a sequence of `level` opens (0: the session starts).
  std::size_t add_state(const std::string& name, const std::string& origin, const Symbol& initial, int level);
  Symbol state_at(std::size_t state, int phase, int rows, int clock) const;
  void add_next(int phase);
  Recurrence::Boundary& boundary(int phase) {
    return made_.boundaries.at(static_cast<std::size_t>(phase < depth_ ? phase - 1 : phase - 2));
  }
  int item_begins(int level) const noexcept { return level + 1; }               ///< the phase in which an item of `level` begins
  int item_ends(int level) const noexcept { return 2 * depth_ - level - 1; }    ///< and ends
  int sequence_closes(int level) const noexcept { return 2 * depth_ - level; }  ///< the phase in which a sequence of `level` closes
  [[noreturn]] void refuse(const Op& op, const std::string& why) const;

  const Program& program_;
  const RecurrenceOptions& options_;
  const int axis_;
  const std::string extent_;
  bool ragged_ = false;  ///< live inputs have LoD: rows are peers in a batch, and must stay apart
  int depth_ = 1;        ///< levels of the live rows
  int loop_level_ = -1;  ///< over whose items the innermost loop over time goes
  Recurrence made_;
  std::vector<bool> used_;         ///< vars that an output, a loop or an effect comes from
  std::vector<Program> programs_;  // by phase; 0: at the start
  std::map<VarId, Symbol> symbols_;
  std::vector<std::vector<VarId>> state_vars_;              // by phase
  std::vector<Symbol> initial_;                             // constant or session
  std::vector<std::map<int, Symbol>> next_;                 // the next value of the state, by phase
  std::map<std::pair<int, VarId>, std::size_t> kept_;       // phase and var → the state that carries it
  std::map<std::pair<int, std::string>, VarId> constants_;  // by phase
  std::vector<Tensor> alive_;                               // keeps the storage that the map names by its address
  std::map<int, std::size_t> counts_;                       // the states that count items of a level, once somebody needs them
  std::string at_end_because_;                              ///< of the first output that is known only at the end
  std::vector<std::string> path_;                           // loops we are in, for messages
};

}  // namespace millrace::lowering
