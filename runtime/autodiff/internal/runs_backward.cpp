// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/runs_backward.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <millrace/runtime/autodiff/internal/activity.h>
#include <millrace/runtime/autodiff/internal/gradient_sums.h>
#include <millrace/runtime/autodiff/internal/in_block.h>
#include <millrace/runtime/autodiff/internal/memory_policy.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/internal/loop_place.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::autodiff {
namespace {

using build::Var;
using Kind = ArrayGradient::Kind;

VarId whole_number(std::int64_t value) { return build::constant(value).id(); }

/// `x`, whose number of rows may change from run to run.
VarId any_rows(VarId x) { return build::varying(Var::of(x), {0}).id(); }

/// A loop over the runs, whose iterations are numbered from 0.
class RunLoop {
 public:
  RunLoop(Program& program, int around) : program_(program), around_(around), block_(program.add_block(around)) {
    index_ = carry(whole_number(0), "run");
  }

  int block() const { return block_; }
  VarId index() const { return index_; }
  /// A value that one run hands to the next; `initial` is of the block around.
  VarId carry(VarId initial, std::string name) {
    VarType type = program_.var(initial).type;
    type.ordered = false;
    const VarId param = program_.add_var(std::move(name), std::move(type), block_);
    program_.block(block_).params.push_back(param);
    initial_.push_back(initial);
    return param;
  }
  void next(VarId param, VarId value) { next_[param] = value; }

  /// Appends the loop, of `count` runs, and gives what its last run hands on, by parameter.
  std::map<VarId, VarId> finish(VarId count) {
    const std::vector<VarId> params = program_.block(block_).params;
    in_block(block_, [&] {
      next(index_, emit1(program_, "add", {index_, whole_number(1)}));
      const std::size_t end = program_.block(block_).ops.size();
      Op stop{"break_if", {emit1(program_, "equal", {index_, count})}, {}, {}, {}};
      stop.inputs.insert(stop.inputs.end(), params.begin(), params.end());
      emit(program_, std::move(stop));
      std::vector<Op>& ops = program_.block(block_).ops;
      std::rotate(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(end), ops.end());
    });
    std::vector<std::string> names;
    for (const VarId param : params) {
      program_.block(block_).results.push_back(next_.at(param));
      names.push_back(program_.var(param).name);
    }
    const std::vector<VarId> last = in_block(around_, [&] {
      return emit(program_,
                  Op{"while",
                     initial_,
                     {},
                     {{"sub_block", BlockId{block_}}, {"max_trips", std::int64_t{-1}}, {"parallel_iterations", std::int64_t{1}}},
                     {}},
                  names);
    });
    std::map<VarId, VarId> made;
    for (std::size_t i = 0; i < params.size(); ++i) made[params[i]] = last[i];
    return made;
  }

 private:
  Program& program_;
  const int around_;
  const int block_;
  VarId index_ = no_var;
  std::vector<VarId> initial_;
  std::map<VarId, VarId> next_;
};

/// The iterations of one run: the ops of the forward loop's body, in their order, in a DynamicRNN over the rows of the run, whose sequences stand by rank.
/// Gradients are summed in the reverse order of ops, so that a run has the bits of the whole loop.
class Run {
 public:
  /// `rows`: by array that the loop reads; `begin`: by state, its value in front of the run; `outputs`: arrays that are written, besides those of states.
  Run(Program& program, const RecurrentLoop& loop, const std::map<VarId, VarId>& rows, const std::vector<VarId>& begin,
      const std::vector<VarId>& outputs)
      : program_(program), loop_(loop), begin_(begin), rnn_({.reverse = loop.reverse}), memories_(begin.size()) {
    const auto block = rnn_.block();
    body_ = build::Guard::current().block();
    for (const auto& [array, x] : rows) steps_[array] = rnn_.step_input(Var::of(x)).id();
    const std::vector<Op> ops = program.block(loop.body).ops;
    find_needed(ops, outputs);
    for (const Op& op : ops) add(op, outputs);
  }

  int body() const { return body_; }
  /// An output of the iterations as rows of the run, and as an array.
  VarId rows(VarId array) const {
    if (const auto output = outputs_.find(array); output != outputs_.end()) return rnn_.outputs().at(output->second).id();
    return emit1(program_, "pack", {array_of_state(*loop_.state_of(array)), order()}, {{"level", std::int64_t{0}}});
  }
  VarId slots(VarId array) const { return rnn_.output_slots(outputs_.at(array)).var().id(); }
  VarId last(std::size_t state) const { return rnn_.last(*memories_.at(state)).id(); }
  VarId order() const { return rnn_.order().var().id(); }
  VarId array_of_state(std::size_t state) const { return maker(read_of(state)).inputs[0]; }
  VarId array_of_source(VarId array) const { return maker(steps_.at(array)).inputs[0]; }

  /// Adds the vars of the run that stand for active ones.
  void add_active(std::set<VarId>& active) const {
    for (const auto& [forward, made] : values_)
      if (active.contains(forward)) active.insert(made);
    for (const auto& [array, step] : steps_)
      if (active.contains(array)) active.insert(array_of_source(array));
  }

 private:
  const Op& maker(VarId var) const {
    const std::vector<Op>& ops = program_.block(body_).ops;
    return *std::find_if(ops.begin(), ops.end(), [&](const Op& op) { return !op.outputs.empty() && op.outputs[0] == var; });
  }
  /// A memory is the read of a slot, shrunk.
  VarId read_of(std::size_t state) const { return maker(memories_.at(state)->id()).inputs[0]; }

  bool is_written(VarId array, const std::vector<VarId>& outputs) const {
    return loop_.state_of(array) || std::find(outputs.begin(), outputs.end(), array) != outputs.end();
  }

  void find_needed(const std::vector<Op>& ops, const std::vector<VarId>& outputs) {
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      if (op->type == "tensor_array_write") {
        if (is_written(op->inputs[0], outputs)) needed_.insert(op->inputs[2]);
      } else if (op->type == "shrink") {
        if (is_needed(*op)) needed_.insert(op->inputs[0]);
      } else if (op->type != "tensor_array_read" && is_needed(*op)) {
        needed_.insert(op->inputs.begin(), op->inputs.end());
      }
    }
  }
  bool is_needed(const Op& op) const {
    return std::any_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) { return needed_.contains(output); });
  }

  void add(const Op& op, const std::vector<VarId>& outputs) {
    if (op.type == "tensor_array_write") return add_write(op, outputs);
    if (!is_needed(op) || op.type == "constant") return;
    if (op.type == "tensor_array_read") return add_read(op);
    if (op.type == "shrink") return add_shrink(op);
    bool blocks = false;
    for_each_sub_block(op, [&](int) { blocks = true; });
    const OpDef& def = program_.registry().at(op.type);
    if (blocks || !def.prepare || !def.pure) refuse_recurrence("op " + op.type + " in a run of iterations");
    Op again{op.type, {}, {}, op.attributes, op.label};
    for (const VarId input : op.inputs) again.inputs.push_back(at(input));
    const std::vector<VarId> made = emit(program_, std::move(again));
    for (std::size_t i = 0; i < made.size(); ++i) values_[op.outputs[i]] = made[i];
  }
  void add_write(const Op& op, const std::vector<VarId>& outputs) {
    const VarId array = op.inputs[0];
    if (!is_written(array, outputs)) return;
    const Var value = Var::of(at(op.inputs[2]));
    if (const std::optional<std::size_t> state = loop_.state_of(array)) {
      rnn_.update_memory(memory(*state), value);
    } else {
      outputs_.emplace(array, outputs_.size());
      rnn_.output(value);
    }
  }
  /// A slot that is read twice is read twice in a run too.
  void add_read(const Op& op) {
    VarId made = no_var;
    if (const auto step = steps_.find(op.inputs[0]); step != steps_.end()) {
      made = step->second;
    } else {
      if (loop_.lag.at(op.outputs[0]) == 0) refuse_recurrence("a slot that the iteration itself writes is read");
      const std::size_t state = *loop_.state_of(op.inputs[0]);
      memory(state);
      made = read_of(state);
    }
    if (!read_.insert(made).second) made = emit1(program_, "tensor_array_read", std::vector<VarId>(maker(made).inputs));
    values_[op.outputs[0]] = made;
  }
  void add_shrink(const Op& op) {
    const VarId of = at(op.inputs[0]);
    for (const std::optional<Var>& memory : memories_)
      if (memory && maker(memory->id()).inputs[0] == of && shrunk_.insert(of).second) {
        values_[op.outputs[0]] = memory->id();
        return;
      }
    values_[op.outputs[0]] = emit1(program_, "shrink", {of, steps_.begin()->second});
  }
  const Var& memory(std::size_t state) {
    if (!memories_[state]) memories_[state] = rnn_.memory(Var::of(begin_[state]));
    return *memories_[state];
  }

  /// A value of the forward iteration in the iteration of the run.
  VarId at(VarId forward) {
    if (forward == no_var || program_.var(forward).block != loop_.body) return forward;
    if (const auto known = values_.find(forward); known != values_.end()) return known->second;
    if (const Tensor* number = program_.constant(forward)) return values_[forward] = build::constant(Tensor(*number)).id();
    refuse_recurrence("'" + program_.var(forward).name + "' counts iterations");
  }

  Program& program_;
  const RecurrentLoop& loop_;
  const std::vector<VarId> begin_;
  build::DynamicRNN rnn_;
  int body_ = 0;
  std::set<VarId> needed_;        ///< values of the forward iteration
  std::map<VarId, VarId> steps_;  ///< array that the loop reads → its rows in an iteration
  std::vector<std::optional<Var>> memories_;
  std::map<VarId, std::size_t> outputs_;  ///< array that is written → output of the DynamicRNN
  std::set<VarId> read_, shrunk_;         ///< reads of the DynamicRNN that stand for one of the forward iteration, as they are and shrunk
  std::map<VarId, VarId> values_;         ///< value of the forward iteration → that of the run's
};

class Runs {
 public:
  Runs(Program& program, const std::set<VarId>& active, const RecurrentLoop& loop, const ArrayGradients& arrays,
       const std::vector<bool>& live, const MemoryPolicy& memory)
      : program_(program), active_(active), loop_(loop), arrays_(arrays), live_(live), memory_(memory) {}

  LoopGradients build() {
    check();
    find_readers();
    forward();
    return backward();
  }

 private:
  using Ops = std::vector<Op>;

  std::string name(VarId var) const { return program_.var(var).name; }
  Ops& ops() { return program_.block(loop_.block).ops; }
  static Ops::iterator maker_in(Ops& ops, VarId var) {
    return std::find_if(ops.begin(), ops.end(),
                        [var](const Op& op) { return std::find(op.outputs.begin(), op.outputs.end(), var) != op.outputs.end(); });
  }

  void check() {
    if (loop_.dense || loop_.level != 0 || !loop_.statics.empty() || loop_.states.empty())
      refuse_recurrence("a loop over other rows than those of sequences, or with static inputs, under recompute");
    if (loop_.dtype != DType::f32 && loop_.dtype != DType::f64) refuse_recurrence("a loop of " + std::string(name_of(loop_.dtype)));
    for (const auto& [array, rows] : loop_.sources)
      if (rows == no_var || program_.var(rows).type.lod_depth != 1)
        refuse_recurrence("'" + program_.var(array).name + "' holds no rows of one level");
    const auto unpack = maker_in(ops(), loop_.orders.at(loop_.sources.begin()->first));
    if (unpack == ops().end() || unpack->type != "unpack" || !unpack->attributes.get_or("sort_by_length", true))
      refuse_recurrence("the longest sequences do not come first");
  }

  /// Finds the ops that read arrays of the loop: they will read those of the runs.
  void find_readers() {
    for (const auto& [array, value] : loop_.written) {
      for (const Program::Port& port : program_.outputs())
        if (port.var == array) refuse_recurrence("'" + port.name + "' is an output");
      for (std::size_t block = 0; block < program_.blocks().size(); ++block)
        for (const Op& op : std::as_const(program_).block(static_cast<int>(block)).ops)
          if (std::find(op.inputs.begin(), op.inputs.end(), array) != op.inputs.end()) take_reader(static_cast<int>(block), op, array);
    }
  }
  void take_reader(int block, const Op& op, VarId array) {
    if (block == loop_.body) return;
    const std::optional<std::size_t> state = loop_.state_of(array);
    const bool packs = block == loop_.block && op.type == "pack" && op.attributes.get_or("level", std::int64_t{0}) == 0;
    const bool lasts = block == loop_.block && op.type == "last_rows" && state && op.inputs[2] == loop_.states[*state].boot;
    if (!packs && !lasts) refuse_recurrence("op " + op.type + " reads slots of '" + program_.var(array).name + "'");
    if (packs)
      packed_[array].push_back(op.outputs[0]);
    else
      last_.emplace_back(*state, op.outputs[0]);
  }

  // ---- Forward ----

  VarId slots(const std::string& name) { return emit1(program_, "tensor_array", {}, {{"growable", true}, {"name", name}}, name); }
  Attributes every() const { return {{"every", memory_.every}}; }
  /// A row for each sequence, given in the caller's order, by rank.
  VarId ranked(VarId x) {
    const VarId plain = without_lod(program_, x);
    return any_rows(emit1(program_, "gather", {plain, emit1(program_, "reorder_rows", {plain, order_})}, {{"axis", std::int64_t{0}}}));
  }
  /// The inverse; `like`: such rows in the caller's order.
  VarId in_order(VarId x, VarId like) { return emit1(program_, "reorder_gradient", {x, like, order_}); }
  VarId run_of(VarId rows, VarId run) { return emit1(program_, "sequence_run", {rows, order_, run}, every(), program_.var(rows).name); }
  std::map<VarId, VarId> sources_of(VarId run) {
    std::map<VarId, VarId> rows;
    for (const auto& [array, x] : loop_.sources) rows[array] = run_of(x, run);
    return rows;
  }
  VarId run_before_end(VarId index) { return emit1(program_, "sub", {emit1(program_, "sub", {count_, whole_number(1)}), index}); }

  /// The order of the sequences alone: the slots of all iterations are not made any more.
  void make_order() {
    const VarId known = loop_.orders.at(loop_.sources.begin()->first);
    const Op unpack = *maker_in(ops(), known);
    Attributes attributes;
    for (const char* name : {"level", "sort_by_length", "reverse"})
      if (unpack.attributes.has(name)) attributes.set(name, *unpack.attributes.find(name));
    order_ = emit1(program_, "sequence_order", {unpack.inputs[0]}, attributes, "order");
    Op made = std::move(ops().back());
    ops().pop_back();
    auto at = ops().insert(std::next(maker_in(ops(), known)), std::move(made));
    for (++at; at != ops().end(); ++at)
      for (const auto& [array, order] : loop_.orders)
        if (at->type == "constant_rows" && at->inputs[0] == order) at->inputs[0] = order_;
  }

  void forward() {
    make_order();
    const std::size_t begin = ops().size();
    count_ = emit1(program_, "run_count", {order_}, every(), "runs");
    std::vector<VarId> outputs;
    for (const auto& [array, readers] : packed_) outputs.push_back(array);
    RunLoop runs(program_, loop_.block);
    std::vector<VarId> states, arrays;
    for (const RecurrentLoop::State& state : loop_.states) {
      const VarId boot = ranked(state.boot);
      states.push_back(runs.carry(boot, name(state.array)));
      kept_.push_back(slots("kept." + program_.var(state.array).name));
    }
    for (const VarId array : outputs) arrays.push_back(slots("runs." + program_.var(array).name));
    in_block(runs.block(), [&] {
      const auto write = [&](VarId array, VarId value, Attributes attributes) {
        attributes.set("share", true);
        emit(program_, Op{"tensor_array_write", {array, runs.index(), value}, {}, std::move(attributes), {}});
      };
      for (std::size_t i = 0; i < states.size(); ++i) write(kept_[i], states[i], kept_attributes(memory_, {}));
      const Run run(program_, loop_, sources_of(run_before_end(runs.index())), states, outputs);
      for (std::size_t i = 0; i < outputs.size(); ++i) write(arrays[i], run.rows(outputs[i]), {});
      for (std::size_t i = 0; i < states.size(); ++i) runs.next(states[i], run.last(i));
    });
    const std::map<VarId, VarId> ends = runs.finish(count_);
    move_to_loop(begin);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      for (const VarId reader : packed_.at(outputs[i])) replace(reader, "join_runs", {arrays[i], order_});
    for (const auto& [state, reader] : last_)
      replace(reader, "reorder_gradient", {ends.at(states[state]), loop_.states[state].boot, order_});
    drop_arrays();
  }
  /// Takes out the arrays of the whole loop, of which nothing reads a slot any more.
  void drop_arrays() {
    const auto is_read = [&](VarId var) {
      for (const Program::Port& port : program_.outputs())
        if (port.var == var) return true;
      for (const Block& block : program_.blocks()) {
        if (block.idx == loop_.body) continue;
        if (std::find(block.results.begin(), block.results.end(), var) != block.results.end()) return true;
        for (const Op& op : block.ops)
          if (std::find(op.inputs.begin(), op.inputs.end(), var) != op.inputs.end()) return true;
      }
      return false;
    };
    const auto is_own = [&](VarId array) { return loop_.written.contains(array) || loop_.sources.contains(array); };
    for (std::size_t i = ops().size(); i-- > 0;) {
      const Op& op = ops()[i];
      const bool array = (op.type == "tensor_array" || op.type == "unpack") && is_own(op.outputs[0]);
      const bool size = op.type == "tensor_array_size" && is_own(op.inputs[0]);
      if ((array || size) && std::none_of(op.outputs.begin(), op.outputs.end(), is_read))
        ops().erase(ops().begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  /// The ops from `begin` on stand where the loop stood.
  void move_to_loop(std::size_t begin) {
    std::size_t place = lowering::find_loop(program_, loop_.body).second;
    ops().erase(ops().begin() + static_cast<std::ptrdiff_t>(place));
    std::rotate(ops().begin() + static_cast<std::ptrdiff_t>(place), ops().begin() + static_cast<std::ptrdiff_t>(begin) - 1, ops().end());
  }
  void replace(VarId output, const char* type, std::vector<VarId> inputs) {
    Op& op = *maker_in(ops(), output);
    op = Op{type, std::move(inputs), {output}, {}, op.label};
  }

  // ---- Backward ----

  /// A sum over the rows of all runs: a product, or the rows themselves.
  struct Sum {
    VarId of = no_var;
    VarId gradient = no_var;       ///< of a run; two biases have one
    VarId total = no_var;          ///< parameter of the loop
    VarId b = no_var, a = no_var;  ///< rows of a run; without a product there is no `a`
  };
  /// Rows of a run, and those in front of it that fill no block yet.
  struct Blocks {
    VarId left = no_var;   ///< parameter of the loop
    VarId whole = no_var;  ///< the rows of whole blocks
  };

  LoopGradients backward() {
    RunLoop runs(program_, loop_.block);
    std::vector<VarId> states(loop_.states.size(), no_var);
    for (std::size_t i = 0; i < states.size(); ++i)
      if (live_[i]) {
        const VarId last = begin_of(i);
        states[i] = runs.carry(last, "d_" + name(loop_.states[i].array));
      }
    in_block(runs.block(), [&] { backward_of_run(runs, states); });
    const std::map<VarId, VarId> ends = runs.finish(count_);
    LoopGradients made;
    for (const auto& [array, slots] : sources_)
      made.arrays.emplace_back(array,
                               ArrayGradient{Kind::packed, emit1(program_, "join_runs", {slots, order_}), no_var, loop_.orders.at(array)});
    for (std::size_t i = 0; i < states.size(); ++i)
      if (live_[i] && active_.contains(loop_.states[i].boot))
        made.tensors.emplace_back(loop_.states[i].boot, in_order(ends.at(states[i]), loop_.states[i].boot));
    for (const Sum& each : sums_) {
      std::vector<VarId> inputs{ends.at(each.total), ends.at(blocks_.at(each.b).left)};
      if (each.a != no_var) inputs.push_back(ends.at(blocks_.at(each.a).left));
      made.tensors.emplace_back(each.of, emit1(program_, "add_row_products", std::move(inputs)));
    }
    return made;
  }

  /// The gradient of a state behind the last run.
  VarId begin_of(std::size_t state) {
    VarId total = no_var;
    if (const auto found = arrays_.find(loop_.states[state].array); found != arrays_.end())
      for (const ArrayGradient& each : found->second)
        if (each.kind == Kind::last) total = total == no_var ? each.var : emit1(program_, "add", {total, each.var});
    const VarType& value = program_.var(loop_.written.at(loop_.states[state].array)).type;
    std::vector<std::int64_t> row = row_extents(value, loop_.states[state].array);
    if (total == no_var)
      return emit1(program_, "constant_rows", {order_}, {{"dtype", value.dtype}, {"shape", std::move(row)}, {"value", 0.0}});
    row.insert(row.begin(), 0);  // as many rows as there are
    return any_rows(emit1(program_, "reshape", {ranked(total)}, {{"shape", std::move(row)}}));
  }

  void backward_of_run(RunLoop& runs, const std::vector<VarId>& states) {
    const VarId slot = run_before_end(runs.index());
    std::vector<VarId> begin;
    for (const VarId kept : kept_) begin.push_back(emit1(program_, "tensor_array_read", {kept, slot}));
    // Gradients of a state's array go to the state of the run. Other arrays are outputs of it.
    std::vector<VarId> outputs;
    for (const auto& [array, value] : loop_.written)
      if (arrays_.contains(array) && !loop_.state_of(array)) outputs.push_back(array);
    const Run run(program_, loop_, sources_of(runs.index()), begin, outputs);
    ArrayGradients gradients;
    for (const auto& [array, value] : loop_.written) {
      if (!arrays_.contains(array)) continue;
      const std::optional<std::size_t> state = loop_.state_of(array);
      const VarId here = state ? run.array_of_state(*state) : run.slots(array);
      for (const ArrayGradient& each : arrays_.at(array))
        if (each.kind == Kind::packed) gradients[here].push_back({Kind::packed, run_of(each.var, runs.index()), no_var, run.order()});
    }
    std::set<VarId> active = active_;
    run.add_active(active);
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (!live_[i]) continue;
      gradients[run.array_of_state(i)].push_back({Kind::last, states[i], begin[i], run.order()});
      active.insert(begin[i]);
    }
    const LoopGradients found = recurrence_backward(program_, active, run.body(), gradients, {});
    for (const int block : {run.body(), runs.block()})  // the values of a run are kept by the policy of the loop
      for (Op& op : program_.block(block).ops)
        if (op.attributes.has("kept")) op.attributes = kept_attributes(memory_, std::move(op.attributes));
    for (const auto& [array, gradient] : found.arrays)
      for (const auto& [source, rows] : loop_.sources) {
        if (run.array_of_source(source) != array) continue;
        const VarId pieces =
            in_block(loop_.block, [&, of = source] { return build::ArrayVar(Var::of(count_), "d_" + name(of)).var().id(); });
        emit(program_, Op{"tensor_array_write", {pieces, slot, gradient.var}, {}, {{"share", true}}, {}});
        sources_.emplace_back(source, pieces);
      }
    for (const auto& [var, gradient] : found.tensors) {
      const auto state = std::find(begin.begin(), begin.end(), var);
      if (state != begin.end())
        runs.next(states[static_cast<std::size_t>(state - begin.begin())], gradient);
      else
        sums_.push_back(summed(runs, var, gradient));
    }
  }

  /// Takes the op that sums over the rows of a run out of it, and adds those rows to the sum over all runs.
  Sum summed(RunLoop& runs, VarId of, VarId gradient) {
    Ops& block = program_.block(runs.block()).ops;
    for (const Sum& each : sums_)
      if (each.gradient == gradient) return {of, gradient, each.total, each.b, each.a};
    const auto found = maker_in(block, gradient);
    const VarType type = program_.var(gradient).type;
    if (found == block.end() || !type.is_static() || type.rank() == 0 || type.dtype != loop_.dtype) refuse(of);
    const Op op = *found;
    const bool product = op.type == "gemm" && op.inputs.size() == 2 && op.attributes.get_or("trans_a", false) &&
                         !op.attributes.get_or("trans_b", false) && op.attributes.get_or("alpha", 1.0) == 1.0;
    const bool sum = op.type == "reduce" && op.attributes.get<std::string>("kind") == "sum" && !op.attributes.get_or("keepdims", true) &&
                     op.attributes.get<std::vector<std::int64_t>>("axes") == std::vector<std::int64_t>{0};
    if (!product && !sum) refuse(of);
    block.erase(found);
    Sum made{of, gradient, no_var, op.inputs[product ? 1 : 0], product ? op.inputs[0] : no_var};
    const VarId zero = in_block(loop_.block, [&] { return begin_of_sum(type); });
    made.total = runs.carry(zero, "d_" + name(of));
    std::vector<VarId> inputs{made.total, whole_blocks(runs, made.b)};
    if (product) inputs.push_back(whole_blocks(runs, made.a));
    runs.next(made.total, emit1(program_, "add_row_products", std::move(inputs)));
    return made;
  }
  /// The beginning of a sum: −0, to which a term adds its own bits; 0 where there are no rows at all.
  VarId begin_of_sum(VarType type) {
    if (zero_ == no_var) {
      const VarId rows = without_lod(program_, loop_.sources.begin()->second);
      const VarId count = emit1(program_, "shape", {rows}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
      const VarId none = build::equal(Var::of(count), Var::of(whole_number(0))).id();
      const auto constant = [&](double value) { return build::constant(number(type.dtype, value)).id(); };
      zero_ = emit1(program_, "where", {none, constant(0.0), constant(-0.0)});
    }
    const std::vector<std::int64_t> extents(type.shape->begin(), type.shape->end());
    const Tensor shape = Tensor::from(extents, DDim{static_cast<std::int64_t>(extents.size())});
    return emit1(program_, "expand", {zero_, build::constant(shape).id()});
  }
  VarId whole_blocks(RunLoop& runs, VarId rows) {
    if (const auto known = blocks_.find(rows); known != blocks_.end()) return known->second.whole;
    const VarId left = runs.carry(in_block(loop_.block, [&] { return no_rows(rows); }), "rows");
    const std::vector<VarId> made = emit(program_, Op{"whole_blocks", {left, rows}, {}, {}, {}});
    runs.next(left, made[1]);
    blocks_[rows] = {left, made[0]};
    return made[0];
  }
  [[noreturn]] void refuse(VarId of) const {
    refuse_recurrence("the gradient of '" + program_.var(of).name + "' is neither a product nor a sum of rows");
  }
  VarId no_rows(VarId like) {
    std::vector<std::int64_t> extents = row_extents(program_.var(like).type, like);
    extents.insert(extents.begin(), 0);
    return any_rows(build::constant(Tensor(program_.var(like).type.dtype, DDim(extents))).id());
  }
  std::vector<std::int64_t> row_extents(const VarType& type, VarId of) const {
    std::vector<std::int64_t> extents;
    if (type.rank() > 0) extents.assign(type.shape->begin() + 1, type.shape->end());
    if (type.rank() == 0 || std::find(extents.begin(), extents.end(), DDim::unknown) != extents.end())
      refuse_recurrence("the extents of a row of '" + program_.var(of).name + "' are not known");
    return extents;
  }

  Program& program_;
  const std::set<VarId>& active_;
  const RecurrentLoop& loop_;
  const ArrayGradients& arrays_;
  const std::vector<bool>& live_;
  const MemoryPolicy& memory_;
  std::map<VarId, std::vector<VarId>> packed_;       ///< array that the loop writes → outputs of pack
  std::vector<std::pair<std::size_t, VarId>> last_;  ///< state, output of last_rows
  VarId order_ = no_var;
  VarId count_ = no_var;
  std::vector<VarId> kept_;  ///< by state: array of its values in front of each run
  VarId zero_ = no_var;
  std::vector<std::pair<VarId, VarId>> sources_;  ///< array that the loop reads, the gradients of its runs
  std::vector<Sum> sums_;
  std::map<VarId, Blocks> blocks_;  ///< by rows of a run that a sum is made of
};

}  // namespace

LoopGradients runs_backward(Program& program, const std::set<VarId>& active, const RecurrentLoop& loop, const ArrayGradients& arrays,
                            const std::vector<bool>& live, const MemoryPolicy& memory) {
  return Runs(program, active, loop, arrays, live, memory).build();
}

bool goes_over_runs(const Program& program, int body) {
  const std::vector<Op>& ops = program.block(body).ops;
  return std::any_of(ops.begin(), ops.end(), [](const Op& op) { return op.type == "sequence_run"; });
}

}  // namespace millrace::autodiff
