// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/recurrence_backward.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include <millrace/runtime/autodiff/internal/iteration_backward.h>
#include <millrace/runtime/autodiff/internal/memory_policy.h>
#include <millrace/runtime/autodiff/internal/recurrent_loop.h>
#include <millrace/runtime/autodiff/internal/runs_backward.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/lowering/internal/loop_place.h>
#include <millrace/runtime/lowering/keep_values.h>

namespace millrace::autodiff {
namespace {

using build::Var;
using Kind = ArrayGradient::Kind;

std::vector<std::int64_t> row_shape(const Program& program, VarId var) {
  const VarType& type = program.var(var).type;
  if (!type.shape || type.rank() == 0) refuse_recurrence("the extents of '" + program.var(var).name + "' are not known");
  std::vector<std::int64_t> extents(type.shape->begin() + 1, type.shape->end());
  for (const std::int64_t extent : extents)
    if (extent == DDim::unknown) refuse_recurrence("the extents of a row of '" + program.var(var).name + "' are not known");
  return extents;
}

bool has_kind(const ArrayGradients& arrays, VarId array, ArrayGradient::Kind kind) {
  const auto found = arrays.find(array);
  return found != arrays.end() &&
         std::any_of(found->second.begin(), found->second.end(), [kind](const ArrayGradient& each) { return each.kind == kind; });
}

/// Finds which values the backward loop reads. Its ops go to a copy of the program, which is dropped.
class Rehearsal : public Stage {
 public:
  Rehearsal(const Program& program, const RecurrentLoop& loop, const ArrayGradients& arrays, bool recompute)
      : Stage(program_, loop, recompute), program_(program), guard_(program_), at_(guard_, loop.block), arrays_(arrays) {}

  Program& program() { return program_; }
  VarId held(VarId forward) override {
    if (std::find(needed.begin(), needed.end(), forward) == needed.end()) needed.push_back(forward);
    return stand_in(program_.var(forward).type);
  }
  VarId flat_held(VarId forward) override { return held(forward); }
  VarId cut(VarId gradient) override { return gradient; }
  VarId incoming(VarId array) override {
    if (!has_kind(arrays_, array, Kind::packed) && !has_kind(arrays_, array, Kind::slots)) return no_var;
    return stand_in(program_.var(loop_.written.at(array)).type);
  }
  VarId memory(std::size_t state) override { return stand_in(program_.var(loop_.written.at(loop_.states[state].array)).type); }
  void update(std::size_t, VarId) override {}
  void accumulate(VarId, VarId) override {}
  std::size_t output(VarId rows) override {
    outputs_.push_back(rows);
    return outputs_.size() - 1;
  }
  VarId output_rows(std::size_t output) { return stand_in(program_.var(outputs_[output]).type); }

  std::vector<VarId> needed;

 private:
  VarId stand_in(VarType type) {
    type.ordered = false;
    return program_.add_var("", type, loop_.block);
  }

  Program program_;
  build::Guard guard_;
  build::BlockGuard at_;
  const ArrayGradients& arrays_;
  std::vector<VarId> outputs_;
};

/// A value of the forward loop's iterations: the slots that hold it, and the order they were made with.
struct KeptSlots {
  VarId array = no_var;
  VarId order = no_var;
  VarId rows = no_var;  ///< the same, packed, where they are at hand
};
using Kept = std::map<VarId, KeptSlots>;

/// The backward loop itself, and what stands behind it.
class LoopStage : public Stage {
 public:
  using Stage::Stage;
  /// Builds the loop around what `walk` appends.
  virtual void run(const std::function<void()>& walk) = 0;
  /// An output as the gradient of an array that the forward loop reads.
  virtual ArrayGradient source_gradient(VarId array, std::size_t output) = 0;
  /// The rows of all iterations of an output, in the order of `flat_held`.
  virtual VarId flat_output(std::size_t output) = 0;
  virtual VarId boot_gradient(std::size_t state) = 0;
  virtual const std::map<VarId, Var>& sums() const = 0;
  virtual VarId total(VarId of) const = 0;
  /// Takes out what nobody asked for.
  virtual void finish() {}

  VarId sum_of_rows(std::size_t output) {
    const auto [at, first] = row_sums_.emplace(output, no_var);
    if (first)
      at->second = emit1(staged_, "reduce", {flat_output(output)},
                         {{"kind", std::string("sum")}, {"axes", std::vector<std::int64_t>{0}}, {"keepdims", false}});
    return at->second;
  }
  std::size_t output(VarId rows) override {
    const auto found = std::find(outputs_.begin(), outputs_.end(), rows);
    if (found == outputs_.end()) outputs_.push_back(rows);
    return static_cast<std::size_t>(std::find(outputs_.begin(), outputs_.end(), rows) - outputs_.begin());
  }

 protected:
  /// Rows that were kept in another dtype have their own again.
  VarId like_kept(VarId forward, VarId rows) {
    const DType dtype = staged_.var(forward).type.dtype;
    return staged_.var(rows).type.dtype == dtype ? rows : build::cast(Var::of(rows), dtype).id();
  }

  std::vector<VarId> outputs_;

 private:
  std::map<std::size_t, VarId> row_sums_;
};

/// Windows of a truncation that overlap one another.
std::int64_t truncation_phases(const MemoryPolicy& memory) {
  return memory.kind == MemoryPolicy::Kind::truncate ? (memory.k2 + memory.k1 - 1) / memory.k1 : 1;
}

/// Over ragged rows: a DynamicRNN in the other direction.
class RaggedStage : public LoopStage {
 public:
  /// `phase`: of a truncation.
  RaggedStage(Program& program, const RecurrentLoop& loop, const ArrayGradients& arrays, const Kept& kept, const MemoryPolicy& memory,
              std::int64_t phase)
      : LoopStage(program, loop, memory.kind == MemoryPolicy::Kind::recompute),
        program_(program),
        kept_(kept),
        memory_(memory),
        phase_(phase),
        rnn_({.level = static_cast<int>(loop.level), .reverse = !loop.reverse}) {
    for (const auto& [array, value] : loop.written) {
      const auto found = arrays.find(array);
      if (found == arrays.end()) continue;
      for (const ArrayGradient& each : found->second) {
        std::map<VarId, VarId>& to = each.kind == Kind::last ? last_ : incoming_;
        const auto [at, first] = to.emplace(array, each.var);
        if (!first) at->second = emit1(program_, "add", {at->second, each.var});
      }
    }
  }

  void run(const std::function<void()>& walk) override {
    first_rows_ = first_rows();
    const bool cuts = memory_.kind == MemoryPolicy::Kind::truncate;
    const VarId flows = cuts ? window_rows(false) : no_var;
    // Where windows do not overlap, all rows feed theirs.
    const VarId feeds = cuts && memory_.k1 != memory_.k2 ? window_rows(true) : no_var;
    if (feeds != no_var) feed_last(feeds);
    const auto block = rnn_.block();
    first_step_ = rnn_.step_input(Var::of(first_rows_)).id();
    if (flows != no_var) flows_ = rnn_.step_input(Var::of(flows)).id();
    if (feeds != no_var) feeds_ = rnn_.step_input(Var::of(feeds)).id();
    walk();
    for (const VarId rows : outputs_) rnn_.output(Var::of(rows));
  }

  VarId held(VarId forward) override { return like_kept(forward, rnn_.step_slot(build::ArrayVar::of(Var::of(slots_of(forward)))).id()); }
  VarId flat_held(VarId forward) override { return like_kept(forward, emit1(program_, "tensor_array_concat", {slots_of(forward)})); }
  VarId cut(VarId gradient) override { return masked(flows_, gradient); }
  VarId incoming(VarId array) override {
    const auto found = incoming_.find(array);
    if (found == incoming_.end()) return no_var;
    const VarId step = found->second == first_rows_ ? first_step_ : rnn_.step_input(Var::of(found->second)).id();
    return masked(feeds_, step);
  }
  VarId memory(std::size_t state) override {
    if (const auto known = memories_.find(state); known != memories_.end()) return known->second.id();
    const VarId array = loop_.states[state].array;
    const VarId value = loop_.written.at(array);
    const auto last = last_.find(array);
    const Var made =
        last != last_.end() ? rnn_.memory(Var::of(last->second)) : rnn_.memory(program_.var(value).type.dtype, row_shape(program_, value));
    return memories_.emplace(state, made).first->second.id();
  }
  void update(std::size_t state, VarId gradient) override {
    memory(state);
    rnn_.update_memory(memories_.at(state), Var::of(gradient));
  }
  void accumulate(VarId of, VarId gradient) override {
    const Var sum = rnn_.memory(program_.var(of).type.dtype, row_shape(program_, of));
    rnn_.update_memory(sum, sum + Var::of(gradient));
    sums_.emplace(of, sum);
  }
  // ---- Behind the loop ----

  /// In the caller's order of sequences.
  ArrayGradient source_gradient(VarId array, std::size_t output) override {
    const VarId packed = *packed_outputs_.insert(rnn_.outputs().at(output).id()).first;
    return {Kind::packed, packed, no_var, loop_.orders.at(array)};
  }
  /// In the order of the slots of this loop, which costs no copy.
  VarId flat_output(std::size_t output) override {
    const auto [at, first] = flat_outputs_.emplace(output, no_var);
    if (first) at->second = emit1(program_, "tensor_array_concat", {rnn_.output_slots(output).var().id()});
    return at->second;
  }
  /// Outputs that nobody asked for in the caller's order are not packed.
  void finish() override {
    std::erase_if(program_.block(loop_.block).ops, [this](const Op& op) {
      const auto made = [&](const Var& output) { return op.outputs[0] == output.id(); };
      return op.type == "pack" && std::any_of(rnn_.outputs().begin(), rnn_.outputs().end(), made) &&
             !packed_outputs_.contains(op.outputs[0]);
    });
  }
  VarId boot_gradient(std::size_t state) override { return rnn_.last(memories_.at(state)).id(); }
  const std::map<VarId, Var>& sums() const override { return sums_; }
  VarId total(VarId of) const override { return rnn_.last(sums_.at(of)).id(); }

 private:
  VarId first_rows() const {
    if (!incoming_.empty()) return incoming_.begin()->second;
    for (const auto& [array, rows] : loop_.sources)
      if (rows != no_var) return rows;
    const VarId array = loop_.sources.begin()->first;  // another loop wrote it
    return emit1(program_, "pack", {array, loop_.orders.at(array)}, {{"level", loop_.level}}, program_.var(array).name);
  }
  /// The slots of a kept value in the order of this loop. Emitted in front of the loop.
  VarId slots_of(VarId forward) {
    const KeptSlots& kept = kept_.at(forward);
    if (kept.rows == first_rows_ && first_rows_ != no_var) return rnn_.input_slots().var().id();
    const auto [at, first] = slots_.emplace(kept.array, no_var);
    if (first) {
      const build::BlockGuard outside(build::Guard::current(), loop_.block);
      at->second = emit1(program_, "reorder_steps", {kept.array, kept.order, rnn_.order().var().id()}, kept_attributes(memory_, {}),
                         program_.var(kept.array).name);
    }
    return at->second;
  }
  /// The op run_rows for the windows of the phase.
  VarId window_rows(bool feeds) {
    return emit1(program_, "run_rows", {first_rows_},
                 {{"every", memory_.k1},
                  {"reach", memory_.k2},
                  {"phase", phase_},
                  {"phases", truncation_phases(memory_)},
                  {"level", loop_.level},
                  {"reverse", loop_.reverse},
                  {"feeds", feeds}});
  }
  /// `gradient` where `rows` are not 0; all of it without rows.
  VarId masked(VarId rows, VarId gradient) {
    if (rows == no_var) return gradient;
    const VarId none = emit1(program_, "constant", {}, {{"value", number(program_.var(gradient).type.dtype, 0)}});
    const VarId zero = emit1(program_, "constant", {}, {{"value", number(program_.var(rows).type.dtype, 0)}});
    VarId truth = build::greater(Var::of(rows), Var::of(zero)).id();
    if (const int rank = program_.var(gradient).type.rank(); rank != 2) {
      std::vector<std::int64_t> extents(static_cast<std::size_t>(rank), 1);
      extents[0] = 0;  // as many rows as there are
      truth = emit1(program_, "reshape", {truth}, {{"shape", extents}});
    }
    return emit1(program_, "where", {truth, gradient, none});
  }
  /// A last state belongs to the run of the last iteration of its sequence.
  void feed_last(VarId feeds) {
    if (last_.empty()) return;
    const std::string end = loop_.reverse ? "first" : "last";
    const double empty = phase_ == 0 ? 1 : 0;  // the boot of a sequence without rows
    const VarId pooled = emit1(program_, "sequence_pool", {feeds}, {{"kind", end}, {"level", loop_.level}, {"empty", empty}});
    const VarId fed = without_lod(program_, pooled);
    for (auto& [array, gradient] : last_) gradient = masked(fed, without_lod(program_, gradient));
  }

  Program& program_;
  const Kept& kept_;
  const MemoryPolicy memory_;
  const std::int64_t phase_;
  VarId first_rows_ = no_var;
  VarId first_step_ = no_var;  ///< of `first_rows_`
  VarId flows_ = no_var;
  VarId feeds_ = no_var;
  build::DynamicRNN rnn_;
  std::map<VarId, VarId> incoming_;
  std::map<VarId, VarId> last_;
  std::map<std::size_t, VarId> flat_outputs_;
  std::set<VarId> packed_outputs_;
  std::map<VarId, VarId> slots_;  ///< array of the forward loop → the same in the order of this one
  std::map<std::size_t, Var> memories_;
  std::map<VarId, Var> sums_;
};

/// Over the slots of dense tensors: a loop from the last slot to the first, which reads and writes the slots where they are.
class DenseStage : public LoopStage {
 public:
  DenseStage(Program& program, const RecurrentLoop& loop, const ArrayGradients& arrays, const Kept& kept, const MemoryPolicy& memory)
      : LoopStage(program, loop, memory.kind == MemoryPolicy::Kind::recompute), program_(program), arrays_(arrays), kept_(kept) {
    if (memory.kind == MemoryPolicy::Kind::truncate) refuse_recurrence("memory policy truncate over dense slots");
  }

  void run(const std::function<void()>& walk) override {
    n_ = build::ArrayVar::of(Var::of(loop_.sources.begin()->first)).size();
    rows_ = build::call1("shape", {Var::of(loop_.sources.begin()->second)}, {{"start", std::int64_t{1}}, {"end", std::int64_t{2}}},
                         "sequences");
    last_ = n_ - 1;
    Var step = build::constant(0);
    build::WhileLoop loop = build::while_loop({step});
    const auto frame = loop.frame();
    loop.break_if(equal(step, n_));
    previous_ = step - 1;
    slot_ = last_ - step;
    walk();
    for (const VarId rows : outputs_) {
      slots_.push_back(outside([&] { return build::ArrayVar::with_extents(n_, rows_, "outputs"); }));
      slots_.back().write(slot_, Var::of(rows));
    }
    for (const auto& [state, made] : memories_) made.slots.write(step, Var::of(made.next));
    step.update(step + 1);
  }

  VarId held(VarId forward) override { return like_kept(forward, build::ArrayVar::of(Var::of(kept_.at(forward).array)).read(slot_).id()); }
  VarId flat_held(VarId forward) override { return like_kept(forward, emit1(program_, "tensor_array_concat", {kept_.at(forward).array})); }
  VarId cut(VarId gradient) override { return gradient; }
  VarId incoming(VarId array) override {
    const auto found = arrays_.find(array);
    if (found == arrays_.end()) return no_var;
    VarId total = no_var;
    for (const ArrayGradient& each : found->second) {
      if (each.kind != Kind::slots) continue;
      const VarId read = build::ArrayVar::of(Var::of(each.var)).read(slot_).id();
      total = total == no_var ? read : emit1(program_, "add", {total, read});
    }
    return total;
  }
  VarId memory(std::size_t state) override {
    if (const auto known = memories_.find(state); known != memories_.end()) return known->second.value;
    const auto [array, boot] = loop_.states[state];
    Memory made;
    std::vector<std::int64_t> extents = row_shape(program_, loop_.written.at(array));
    extents.insert(extents.begin(), 0);  // as many rows as there are
    made.zero = outside([&] { return Var::of(emit1(program_, "reshape", {zeros_like(program_, boot)}, {{"shape", extents}}, "zeros")); });
    made.first = made.zero;
    if (const auto found = arrays_.find(array); found != arrays_.end())
      for (const ArrayGradient& each : found->second)
        if (each.kind == Kind::slot)
          made.first = outside([&] { return made.first.id() == made.zero.id() ? Var::of(each.var) : made.first + Var::of(each.var); });
    made.slots = outside([&] { return build::ArrayVar::with_extents(n_, rows_, "d_" + program_.var(array).name); });
    made.value = build::call1("tensor_array_read", {made.slots.var(), previous_, made.first}, {}, "d_state").id();
    return memories_.emplace(state, std::move(made)).first->second.value;
  }
  void update(std::size_t state, VarId gradient) override {
    memory(state);
    memories_.at(state).next = gradient;
  }
  void accumulate(VarId of, VarId) override { refuse_recurrence("'" + program_.var(of).name + "' is shrunk in a dense loop"); }

  // ---- Behind the loop ----

  ArrayGradient source_gradient(VarId, std::size_t output) override { return {Kind::slots, slots_.at(output).var().id()}; }
  VarId flat_output(std::size_t output) override {
    const auto [at, first] = flat_outputs_.emplace(output, no_var);
    if (first) at->second = slots_.at(output).concat().id();
    return at->second;
  }
  /// Without iterations the read of the last slot is one of the boot, and gives it its gradient: this is zero then.
  VarId boot_gradient(std::size_t state) override {
    const Memory& made = memories_.at(state);
    return made.slots.read(last_, made.zero).id();
  }
  const std::map<VarId, Var>& sums() const override { return sums_; }
  VarId total(VarId) const override { return no_var; }

 private:
  struct Memory {
    build::ArrayVar slots = build::ArrayVar::of(Var());
    Var zero, first;
    VarId value = no_var;
    VarId next = no_var;
  };
  /// Ops that `make` appends stand in front of the loop.
  template <class F>
  std::invoke_result_t<F> outside(F&& make) const {
    const build::BlockGuard around(build::Guard::current(), loop_.block);
    return make();
  }

  Program& program_;
  const ArrayGradients& arrays_;
  const Kept& kept_;
  Var n_, rows_, last_, previous_, slot_;
  std::map<std::size_t, Memory> memories_;
  std::vector<build::ArrayVar> slots_;
  std::map<std::size_t, VarId> flat_outputs_;
  std::map<VarId, Var> sums_;
};

/// The gradients of arrays must be of kinds that the loop takes.
void check_kinds(const Program& program, const RecurrentLoop& loop, const ArrayGradients& arrays) {
  const Kind whole = loop.dense ? Kind::slots : Kind::packed, end = loop.dense ? Kind::slot : Kind::last;
  for (const auto& [array, value] : loop.written) {
    const auto found = arrays.find(array);
    if (found == arrays.end()) continue;
    for (const ArrayGradient& each : found->second) {
      if (each.kind == whole) continue;
      const auto state = std::find_if(loop.states.begin(), loop.states.end(), [a = array](const auto& s) { return s.array == a; });
      const bool last = each.kind == end && state != loop.states.end() && state->boot == each.boot;
      if (!last || (loop.dense && !is_last_slot(program, loop, each.index)))
        refuse_recurrence("slots of an array that the loop writes are read one by one");
    }
  }
}

/// The values that the forward loop has to keep, and those that it reads.
Kept kept_slots(Program& program, const RecurrentLoop& loop, const std::vector<VarId>& needed, const MemoryPolicy& memory) {
  Kept all;
  std::vector<std::string> names;
  for (const VarId var : needed) {
    const auto& ops = program.block(loop.body).ops;
    const auto read =
        std::find_if(ops.begin(), ops.end(), [var](const Op& op) { return op.type == "tensor_array_read" && op.outputs[0] == var; });
    const auto source = read == ops.end() ? loop.sources.end() : loop.sources.find(read->inputs[0]);
    if (source != loop.sources.end())
      all[var] = {source->first, loop.dense ? no_var : loop.orders.at(source->first), source->second};
    else
      names.push_back(program.var(var).name);
  }
  if (names.empty()) return all;
  const std::vector<KeptValue> kept = keep_values(program, loop.body, names);
  for (const KeptValue& value : kept) {
    VarId order = no_var;
    for (const Op& op : program.block(loop.block).ops)
      if (!op.outputs.empty() && op.outputs[0] == value.array && op.inputs.size() > 1) order = op.inputs[1];
    if (order == no_var && !loop.dense) refuse_recurrence("the values that are kept have no order");
    all[value.var] = {value.array, order};
    for (Op& op : program.block(loop.body).ops)
      if (op.type == "tensor_array_write" && op.inputs[0] == value.array) op.attributes = kept_attributes(memory, std::move(op.attributes));
  }
  return all;
}

/// The values that the backward loop reads, and by state whether it is one of the backward loop's: one that no gradient reaches is none. Leaving one out
/// may leave out others.
std::pair<std::vector<VarId>, std::vector<bool>> rehearse(const Program& program, const std::set<VarId>& active, const RecurrentLoop& loop,
                                                          const ArrayGradients& arrays, bool recompute) {
  std::vector<bool> live(loop.states.size(), true);
  for (;;) {
    Rehearsal rehearsal(program, loop, arrays, recompute);
    BodyWalk walk(rehearsal.program(), active, loop, live, rehearsal);
    walk.run();
    std::vector<std::pair<VarId, VarId>> ignored;
    for (const Deferred& later : walk.deferred)
      add_weights(
          rehearsal.program(), active, later, loop.body, [&](VarId var) { return rehearsal.flat_value(var); },
          [&](std::size_t output) { return rehearsal.output_rows(output); }, ignored);
    bool stable = true;
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (!live[i] || walk.reached[i]) continue;
      if (has_kind(arrays, loop.states[i].array, loop.dense ? Kind::slot : Kind::last))
        refuse_recurrence("a last state does not depend on the state before");
      live[i] = false;
      stable = false;
    }
    if (stable) return {rehearsal.needed, live};
  }
}

/// While it lives, the types of a dense loop's values do not say how many rows an iteration has: rules are asked for the rows of all iterations, too.
class OpenRows {
 public:
  OpenRows(Program& program, const RecurrentLoop& loop) : program_(program) {
    if (!loop.dense) return;
    for (const VarId var : loop.rows) {
      VarType& type = program_.var(var).type;
      if (!type.is_tensor() || !type.shape || type.rank() == 0) continue;
      extents_.emplace_back(var, (*type.shape)[0]);
      (*type.shape)[0] = DDim::unknown;
    }
  }
  OpenRows(const OpenRows&) = delete;
  OpenRows& operator=(const OpenRows&) = delete;
  ~OpenRows() {
    for (const auto& [var, extent] : extents_) (*program_.var(var).type.shape)[0] = extent;
  }

 private:
  Program& program_;
  std::vector<std::pair<VarId, std::int64_t>> extents_;
};

/// One backward loop of the recurrence, and what stands behind it.
void add_gradients(Program& program, const std::set<VarId>& active, const RecurrentLoop& loop, const std::vector<bool>& live,
                   LoopStage& stage, LoopGradients& made) {
  BodyWalk walk(program, active, loop, live, stage);
  stage.run([&] { walk.run(); });
  for (const auto& [array, output] : walk.inputs) made.arrays.emplace_back(array, stage.source_gradient(array, output));
  for (std::size_t i = 0; i < loop.states.size(); ++i)
    if (live[i] && active.contains(loop.states[i].boot)) made.tensors.emplace_back(loop.states[i].boot, stage.boot_gradient(i));
  for (const auto& [var, sum] : stage.sums()) made.tensors.emplace_back(loop.statics.at(var), stage.total(var));
  for (const auto& [var, output] : walk.row_sums) made.tensors.emplace_back(var, stage.sum_of_rows(output));
  for (const Deferred& later : walk.deferred)
    add_weights(
        program, active, later, loop.body, [&](VarId var) { return stage.flat_value(var); },
        [&](std::size_t output) { return stage.flat_output(output); }, made.tensors);
  stage.finish();
}

}  // namespace

LoopGradients recurrence_backward(Program& program, const std::set<VarId>& active, int body, const ArrayGradients& arrays,
                                  const MemoryPolicy& memory) {
  build::Guard guard(program);
  const build::BlockGuard at(guard, lowering::find_loop(program, body).first);
  const RecurrentLoop loop = read_recurrent_loop(program, body);
  check_kinds(program, loop, arrays);
  const OpenRows open(program, loop);
  const bool recomputes = memory.kind == MemoryPolicy::Kind::recompute;
  if (recomputes) {  // a loop with values that cannot be kept has the general form under every policy, and so the same bits
    Program copy = program;
    kept_slots(copy, loop, rehearse(program, active, loop, arrays, false).first, MemoryPolicy{});
  }
  const auto [needed, live] = rehearse(program, active, loop, arrays, recomputes);
  if (recomputes) {
    try {
      Program copy = program;
      build::Guard in_copy(copy);
      const build::BlockGuard end(in_copy, loop.block);
      LoopGradients made = runs_backward(copy, active, loop, arrays, live, memory);
      program = std::move(copy);
      return made;
    } catch (const UnsupportedError&) {
      // The loop stays whole, and keeps the states of all iterations.
    }
  }
  const Kept kept = kept_slots(program, loop, needed, memory);
  LoopGradients made;
  for (std::int64_t phase = 0; phase < truncation_phases(memory); ++phase) {
    std::unique_ptr<LoopStage> stage;
    if (loop.dense)
      stage = std::make_unique<DenseStage>(program, loop, arrays, kept, memory);
    else
      stage = std::make_unique<RaggedStage>(program, loop, arrays, kept, memory, phase);
    add_gradients(program, active, loop, live, *stage, made);
  }
  return made;
}

}  // namespace millrace::autodiff
