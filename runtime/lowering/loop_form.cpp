// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/loop_form.h>

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

/// What a var of the loop's body stands for.
struct Symbol {
  enum class Kind : std::uint8_t { outside, counter, rows, condition };
  Kind kind = Kind::outside;
  LoopForm::Index index = {};  // counter
  VarId var = no_var;          // rows: in the step program; outside: in the program
  VarId stop = no_var;         // condition: true when `index` has come to `stop`
  bool negated = false;        // condition
};

class LoopReader {
 public:
  LoopReader(const Program& program, int block, const Op& loop)
      : program_(program),
        outer_(block),
        loop_(loop),
        body_(program.block(loop.attributes.get<BlockId>("sub_block").index)),
        form_{{}, {}, {}, {}, {}, no_var, {}, Program(program.shared_registry())} {
    form_.step.set_title(program.title() + ", one turn");
  }

  LoopForm read() {
    if (loop_.attributes.get_or<std::int64_t>("condition", -1) >= 0) refuse("its condition is carried, and may depend on the rows");
    find_written();
    read_carried();
    for (const Op& op : body_.ops) {
      try {
        eval(op);
      } catch (const UnsupportedError&) {
        throw;
      } catch (const ProgramError& error) {
        refuse(error.what());
      }
    }
    if (form_.stop == no_var) refuse("it ends by something else than a number of turns");
    if (form_.inputs.empty() && form_.states.empty()) refuse("it has no rows");
    finish();
    return std::move(form_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw UnsupportedError(why); }
  [[noreturn]] void refuse(const Op& op, const std::string& why) const {
    throw UnsupportedError("op " + (op.label.empty() ? op.type : op.type + " '" + op.label + "'") + ": " + why);
  }

  // ---- Arrays ----

  /// Arrays that the body writes: each once, and nobody else while the loop runs.
  void find_written() {
    for (const Op& op : body_.ops) {
      if (op.attributes.has("sub_block") || op.attributes.has("then_block")) refuse(op, "has a block of its own");
      if (op.type == "tensor_array_append") refuse(op, "appends");
      if (op.type != "tensor_array_write") continue;
      if (!written_.emplace(op.inputs[0], &op).second) refuse(op, "writes '" + name(op.inputs[0]) + "' a second time in a turn");
      expect_own(op.inputs[0]);
    }
  }

  /// An array is the loop's own when it is made in the loop's block and nothing looks at it before the loop. Then nobody can wait for it to
  /// be written turn by turn.
  void expect_own(VarId array) const {
    if (program_.var(array).block != outer_) refuse("it writes '" + name(array) + "', an array from further out");
    bool made = false;
    for (const Op& op : program_.block(outer_).ops) {
      if (&op == &loop_) break;
      const bool makes = std::find(op.outputs.begin(), op.outputs.end(), array) != op.outputs.end();
      if (makes && op.type != "tensor_array") refuse("it writes '" + name(array) + "', which " + op.type + " made");
      if (makes && (op.attributes.has("window") || op.attributes.get_or("growable", false)))
        refuse("it writes '" + name(array) + "', whose size is open");
      made = made || makes;
      const bool uses = std::find(op.inputs.begin(), op.inputs.end(), array) != op.inputs.end();
      if ((uses && op.type != "tensor_array_write" && op.type != "tensor_array_size") || (!uses && sees(op, array)))
        refuse("op " + op.type + " before it looks at '" + name(array) + "', which it writes");
    }
    if (!made) refuse("it writes '" + name(array) + "', which was handed in");
    for (const VarId input : loop_.inputs)
      if (input == array) refuse("it carries '" + name(array) + "'");
  }
  bool sees(const Op& op, VarId var) const {
    for (const char* attribute : {"sub_block", "then_block", "else_block"}) {
      if (!op.attributes.has(attribute)) continue;
      for (const Op& inner : program_.block(op.attributes.get<BlockId>(attribute).index).ops)
        if (std::find(inner.inputs.begin(), inner.inputs.end(), var) != inner.inputs.end() || sees(inner, var)) return true;
    }
    return false;
  }

  // ---- Carried vars ----

  static bool is_integer_scalar(const VarType& type) {
    return type.is_tensor() && (type.dtype == DType::i64 || type.dtype == DType::i32) && type.is_scalar();
  }

  /// A counter is a number whose next value is itself plus one.
  bool is_counter(std::size_t at) const {
    if (!is_integer_scalar(program_.var(body_.params[at]).type)) return false;
    for (const Op& op : body_.ops) {
      if (op.outputs.size() != 1 || op.outputs[0] != body_.results[at] || op.type != "add") continue;
      for (const std::size_t side : {0, 1}) {
        const Tensor* one = program_.constant(op.inputs[1 - side]);
        if (op.inputs[side] == body_.params[at] && one != nullptr && one->elements() == 1 && one->item_int() == 1) return true;
      }
    }
    return false;
  }

  void read_carried() {
    for (std::size_t i = 0; i < body_.params.size(); ++i) {
      const VarId param = body_.params[i];
      if (is_counter(i)) {
        form_.carried.push_back({true, 0});
        symbols_[param] = {.kind = Symbol::Kind::counter, .index = {i, 0}};
        continue;
      }
      const VarType& type = program_.var(param).type;
      if (!type.is_tensor()) refuse("it carries '" + name(param) + "', which is no tensor");
      if (!is_floating(type.dtype)) refuse("it carries '" + name(param) + "' of " + type.to_string());
      form_.carried.push_back({false, form_.states.size()});
      add_state(name(param), type, {.name = {}, .initial = loop_.inputs[i], .changes = true});
      symbols_[param] = {.kind = Symbol::Kind::rows, .var = state_vars_.back()};
    }
  }

  std::size_t add_state(const std::string& called, const VarType& type, LoopForm::State state) {
    state.name = called;
    form_.states.push_back(std::move(state));
    state_vars_.push_back(add_rows(called, type));
    next_.push_back(no_var);
    return form_.states.size() - 1;
  }

  /// An input of the step program with rows along axis 0. The ports are put in order at the end.
  VarId add_rows(const std::string& called, VarType type) {
    if (type.lod_depth > 0) refuse("'" + called + "' has sub-sequences");
    if (!type.shape) refuse("nobody knows the rank of '" + called + "'");
    if (type.rank() == 0) refuse("'" + called + "' has no rows");
    (*type.shape)[0] = DDim::unknown;
    return form_.step.add_input(port_name(called), VarType(type.dtype, *type.shape));
  }
  std::string port_name(const std::string& wanted) const {
    std::string made = wanted;
    for (int i = 2;
         std::any_of(form_.step.inputs().begin(), form_.step.inputs().end(), [&](const auto& port) { return port.name == made; }); ++i)
      made = wanted + "_" + std::to_string(i);
    return made;
  }

  // ---- Ops ----

  const std::string& name(VarId var) const { return program_.var(var).name; }
  bool is_outside(VarId var) const { return program_.var(var).block != body_.idx; }

  Symbol at(VarId var) const {
    const auto found = symbols_.find(var);
    if (found != symbols_.end()) return found->second;
    return {.kind = Symbol::Kind::outside, .var = var};
  }

  std::optional<std::int64_t> number(VarId var) const {
    const Tensor* value = program_.constant(var);
    if (value == nullptr || value->elements() != 1 || is_floating(value->dtype())) return std::nullopt;
    return value->item_int();
  }

  void eval(const Op& op) {
    if (op.type == "constant") return;
    if (op.type == "break_if") return eval_break(op);
    if (op.type == "tensor_array_read") return eval_read(op);
    if (op.type == "tensor_array_write") return eval_write(op);
    if (op.type == "shrink") return eval_shrink(op);
    if (op.type == "identity" || op.type == "drop_lod") {
      symbols_[op.outputs[0]] = at(op.inputs[0]);
      return;
    }
    if (eval_counter(op) || eval_condition(op)) return;
    eval_rows(op);
  }

  /// Sums of a counter and a number.
  bool eval_counter(const Op& op) {
    if ((op.type != "add" && op.type != "sub") || op.outputs.size() != 1) return false;
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      const Symbol counter = at(op.inputs[side]);
      const auto offset = number(op.inputs[1 - side]);
      if (counter.kind != Symbol::Kind::counter || !offset || (op.type == "sub" && side == 1)) continue;
      Symbol made = counter;
      made.index.offset += op.type == "add" ? *offset : -*offset;
      symbols_[op.outputs[0]] = made;
      return true;
    }
    return false;
  }

  /// Comparisons of a counter with a number of turns.
  bool eval_condition(const Op& op) {
    if (op.type == "logical_not" && at(op.inputs[0]).kind == Symbol::Kind::condition) {
      Symbol made = at(op.inputs[0]);
      made.negated = !made.negated;
      symbols_[op.outputs[0]] = made;
      return true;
    }
    const bool equal = op.type == "equal" || op.type == "not_equal";
    const bool order = op.type == "less" || op.type == "greater_equal";
    const bool turned = op.type == "greater" || op.type == "less_equal";
    if (!equal && !order && !turned) return false;
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      const Symbol counter = at(op.inputs[side]);
      const VarId other = op.inputs[1 - side];
      if (counter.kind != Symbol::Kind::counter || !is_outside(other) || (order && side == 1) || (turned && side == 0)) continue;
      if (!is_integer_scalar(program_.var(other).type)) continue;
      Symbol made{.kind = Symbol::Kind::condition, .index = counter.index};
      made.stop = other;
      made.negated = op.type == "not_equal" || op.type == "less" || op.type == "greater";
      symbols_[op.outputs[0]] = made;
      return true;
    }
    return false;
  }

  void eval_break(const Op& op) {
    const Symbol condition = at(op.inputs[0]);
    if (condition.kind != Symbol::Kind::condition || condition.negated) refuse(op, "looks at something else than a number of turns");
    if (form_.stop != no_var) refuse(op, "is the second one");
    if (!form_.inputs.empty() || !form_.outputs.empty() || rows_begun_) refuse(op, "stands behind other ops of the turn");
    for (std::size_t i = 1; i < op.inputs.size(); ++i)
      if (op.inputs[i] != body_.params[i - 1]) refuse(op, "hands on something new");
    form_.stop = condition.stop;
    form_.stop_at = condition.index;
  }

  void eval_read(const Op& op) {
    const VarId array = op.inputs[0];
    const Symbol index = at(op.inputs[1]);
    const VarId boot = op.inputs.size() > 2 ? op.inputs[2] : no_var;
    if (index.kind != Symbol::Kind::counter) refuse(op, "reads a slot whose number is no count of turns");
    if (!is_outside(array)) refuse(op, "reads an array of its own turn");
    if (boot != no_var && !is_outside(boot) && program_.constant(boot) == nullptr) refuse(op, "has a boot that its own turn computes");
    const auto writer = written_.find(array);
    if (writer != written_.end()) return eval_earlier(op, array, index.index, boot, *writer->second);
    if (boot != no_var) refuse(op, "reads what stood before the first slot of an array that the loop does not write");
    form_.inputs.push_back({array, index.index});
    input_vars_.push_back(add_rows(name(op.outputs[0]), program_.var(op.outputs[0]).type));
    symbols_[op.outputs[0]] = {.kind = Symbol::Kind::rows, .var = input_vars_.back()};
  }

  /// What this loop wrote some turns ago, or in this turn.
  void eval_earlier(const Op& op, VarId array, LoopForm::Index index, VarId boot, const Op& writer) {
    const auto target = writer_index(writer);
    if (!target || target->carried != index.carried) refuse(op, "reads a slot that another count numbers");
    const std::int64_t lag = target->offset - index.offset;
    if (lag < 0) refuse(op, "reads a slot before it is written");
    if (lag == 0) {
      const auto latest = latest_.find(array);
      if (latest == latest_.end()) refuse(op, "reads a slot before it is written");
      symbols_[op.outputs[0]] = latest->second;
      return;
    }
    std::vector<std::size_t>& window = windows_[array];
    while (std::cmp_less(window.size(), lag)) {
      const auto back = static_cast<std::int64_t>(window.size()) + 1;
      LoopForm::State state;
      state.array = array;
      state.index = {target->carried, target->offset - back};
      const std::string called = back == 1 ? name(array) : fmt::format("{}_{}_ago", name(array), back);
      window.push_back(add_state(called, program_.var(op.outputs[0]).type, std::move(state)));
    }
    const std::size_t state = window[static_cast<std::size_t>(lag - 1)];
    if (boot != no_var && form_.states[state].boot != no_var && form_.states[state].boot != boot)
      refuse(op, "has another boot than a read before");
    if (boot != no_var) form_.states[state].boot = boot;
    symbols_[op.outputs[0]] = {.kind = Symbol::Kind::rows, .var = state_vars_[state]};
  }

  /// The index of a write, which may stand behind the reads: known when it is a sum of a counter and numbers.
  std::optional<LoopForm::Index> writer_index(const Op& writer) {
    const Symbol index = at(writer.inputs[1]);
    if (index.kind == Symbol::Kind::counter) return index.index;
    for (const Op& op : body_.ops)
      if (std::find(op.outputs.begin(), op.outputs.end(), writer.inputs[1]) != op.outputs.end() && eval_counter(op))
        return at(writer.inputs[1]).index;
    return std::nullopt;
  }

  void eval_write(const Op& op) {
    const Symbol index = at(op.inputs[1]);
    if (index.kind != Symbol::Kind::counter) refuse(op, "writes a slot whose number is no count of turns");
    const Symbol value{.kind = Symbol::Kind::rows, .var = rows(op, op.inputs[2])};
    latest_[op.inputs[0]] = value;
    form_.outputs.push_back({op.inputs[0], index.index});
    output_vars_.push_back(value.var);
  }

  /// Rows leave with their sequences; which, the loop knows.
  void eval_shrink(const Op& op) {
    const Symbol step = at(op.inputs[1]);
    if (step.kind != Symbol::Kind::rows) refuse(op, "looks at something else than a step");
    const Symbol x = at(op.inputs[0]);
    const VarId var = x.kind == Symbol::Kind::rows ? x.var : staying(op, op.inputs[0]);
    for (std::size_t i = 0; i < state_vars_.size(); ++i)
      if (state_vars_[i] == var) form_.states[i].shrinks = true;
    symbols_[op.outputs[0]] = {.kind = Symbol::Kind::rows, .var = var};
  }

  /// One row for each sequence, from outside: a state that does not change.
  VarId staying(const Op& op, VarId var) {
    if (!is_outside(var) || program_.constant(var) != nullptr) refuse(op, "shrinks what has no order");
    const auto known = staying_.find(var);
    if (known != staying_.end()) return known->second;
    const std::size_t state = add_state(name(var), program_.var(var).type, {.name = {}, .initial = var, .changes = false});
    return staying_[var] = state_vars_[state];
  }

  /// The var of the step program: rows, a weight, or what is the same for all rows.
  VarId rows(const Op& op, VarId var) {
    if (var == no_var) return no_var;
    const Symbol symbol = at(var);
    if (symbol.kind == Symbol::Kind::rows) return symbol.var;
    if (symbol.kind != Symbol::Kind::outside) refuse(op, "computes with '" + name(var) + "', a count of turns");
    const auto known = shared_.find(var);
    if (known != shared_.end()) return known->second;
    if (const Tensor* value = program_.constant(var)) return shared_[var] = form_.step.add_parameter(name(var), *value);
    if (!is_outside(var)) refuse(op, "reads '" + name(var) + "', which this turn does not know");
    const VarType& type = program_.var(var).type;
    if (!type.is_tensor() || type.lod_depth > 0 || !type.shape) refuse(op, "reads '" + name(var) + "' of " + type.to_string());
    if (type.rank() > 0 && (*type.shape)[0] == DDim::unknown) return staying(op, var);
    form_.shared.push_back(var);
    shared_vars_.push_back(form_.step.add_input(port_name(name(var)), VarType(type.dtype, *type.shape)));
    return shared_[var] = shared_vars_.back();
  }

  void eval_rows(const Op& op) {
    const OpDef& def = program_.registry().at(op.type);
    if (!def.prepare || !def.pure) refuse(op, "is no op of rows alone");
    rows_begun_ = true;
    Op made{op.type, {}, {}, op.attributes, op.label};
    std::vector<std::string> names;
    for (const VarId input : op.inputs) made.inputs.push_back(rows(op, input));
    for (const VarId output : op.outputs) names.push_back(name(output));
    const std::vector<VarId> outputs = form_.step.append(0, std::move(made), names);
    for (std::size_t i = 0; i < outputs.size(); ++i) symbols_[op.outputs[i]] = {.kind = Symbol::Kind::rows, .var = outputs[i]};
  }

  // ---- The end ----

  void finish() {
    for (std::size_t i = 0; i < body_.params.size(); ++i) {
      if (form_.carried[i].counter) continue;
      const std::size_t state = form_.carried[i].state;
      if (body_.results[i] == body_.params[i])
        form_.states[state].changes = false;
      else
        next_[state] = rows({}, body_.results[i]);
    }
    for (const auto& [array, window] : windows_) {
      for (std::size_t lag = 0; lag < window.size(); ++lag)
        next_[window[lag]] = lag == 0 ? latest_.at(array).var : state_vars_[window[lag - 1]];
      if (std::none_of(form_.outputs.begin(), form_.outputs.end(), [&, held = array](const auto& output) { return output.array == held; }))
        refuse("it reads '" + name(array) + "' and never writes it");
    }
    drop_unread();
    for (std::vector<VarId>* given : {&output_vars_, &next_})
      for (VarId& var : *given)
        if (var != no_var) var = computed(var);
    for (std::size_t i = 0; i < form_.outputs.size(); ++i)
      form_.step.add_output(fmt::format("{}_{}", name(form_.outputs[i].array), i), output_vars_[i]);
    for (std::size_t i = 0; i < form_.states.size(); ++i)
      if (form_.states[i].changes) form_.step.add_output("next " + form_.states[i].name + fmt::format("_{}", i), next_[i]);
    order_inputs();
  }

  /// What a turn hands on as it came gets an op of its own.
  VarId computed(VarId var) {
    const std::vector<Program::Port>& ports = form_.step.inputs();
    if (std::none_of(ports.begin(), ports.end(), [var](const auto& port) { return port.var == var; })) return var;
    return form_.step.append(0, Op{"identity", {var}, {}, {}, {}})[0];
  }

  /// An array that nothing but the loop reads need not be written: what it carried is carried.
  void drop_unread() {
    for (std::size_t i = form_.outputs.size(); i-- > 0;) {
      if (is_read_elsewhere(form_.outputs[i].array)) continue;
      form_.outputs.erase(form_.outputs.begin() + static_cast<std::ptrdiff_t>(i));
      output_vars_.erase(output_vars_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  bool is_read_elsewhere(VarId array) const {
    const auto reads = [&](const Op& op) {
      return op.type != "tensor_array_write" && op.type != "tensor_array_size" &&
             std::find(op.inputs.begin(), op.inputs.end(), array) != op.inputs.end();
    };
    for (const Block& block : program_.blocks()) {
      if (block.idx != body_.idx && std::any_of(block.ops.begin(), block.ops.end(), reads)) return true;
      if (std::find(block.results.begin(), block.results.end(), array) != block.results.end()) return true;
    }
    return std::any_of(program_.outputs().begin(), program_.outputs().end(), [&](const auto& port) { return port.var == array; });
  }

  /// The ports came as the body named them: step inputs, states, shared.
  void order_inputs() {
    Program ordered(form_.step.shared_registry());
    ordered.set_title(form_.step.title());
    std::map<VarId, VarId> to;
    const auto add = [&](VarId var) {
      for (const Program::Port& port : form_.step.inputs())
        if (port.var == var) to[var] = ordered.add_input(port.name, form_.step.var(var).type);
    };
    for (const auto* vars : {&input_vars_, &state_vars_, &shared_vars_})
      for (const VarId var : *vars) add(var);
    for (const auto& [var, value] : form_.step.parameters()) to[var] = ordered.add_parameter(form_.step.var(var).name, value);
    for (const Op& op : form_.step.block(0).ops) {
      Op made{op.type, {}, {}, op.attributes, op.label};
      std::vector<std::string> names;
      for (const VarId input : op.inputs) made.inputs.push_back(input == no_var ? no_var : to.at(input));
      for (const VarId output : op.outputs) names.push_back(form_.step.var(output).name);
      const std::vector<VarId> outputs = ordered.append(0, std::move(made), names);
      for (std::size_t i = 0; i < outputs.size(); ++i) to[op.outputs[i]] = outputs[i];
    }
    for (const Program::Port& port : form_.step.outputs()) ordered.add_output(port.name, to.at(port.var));
    form_.step = std::move(ordered);
  }

  const Program& program_;
  const int outer_;
  const Op& loop_;
  const Block& body_;
  LoopForm form_;
  std::map<VarId, Symbol> symbols_;
  std::map<VarId, const Op*> written_;
  std::map<VarId, Symbol> latest_;
  std::map<VarId, std::vector<std::size_t>> windows_;  // array → states, latest first
  std::map<VarId, VarId> shared_;
  std::map<VarId, VarId> staying_;
  std::vector<VarId> input_vars_, state_vars_, shared_vars_, output_vars_, next_;
  bool rows_begun_ = false;
};

}  // namespace

LoopForm find_loop_form(const Program& program, int block, const Op& loop) { return LoopReader(program, block, loop).read(); }

}  // namespace millrace
