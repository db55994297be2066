// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/loop_form.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/lowering/internal/array_order.h>
#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/vectorize.h>

namespace millrace {
namespace {

/// The meaning of a var of the loop's body.
struct Symbol {
  enum class Kind : std::uint8_t { outside, counter, rows, condition };
  Kind kind = Kind::outside;
  LoopForm::Index index = {};  // counter: an integer that is known for each iteration
  VarId var = no_var;          // rows: in the step program; outside: in the program
  LoopForm::Stop stop = {};    // condition: when it is true
  bool negated = false;        // condition
  bool shrunk = false;         // rows
};

/// The most that a counter may grow or fall by, and that a loop may look back into the arrays that it writes.
constexpr std::int64_t most_stride = 1 << 20;
constexpr std::int64_t most_lag = 1024;

constexpr bool may_count_by(std::int64_t stride) { return stride >= -most_stride && stride <= most_stride; }

class LoopReader {
  using Arithmetic = OpTraits::Arithmetic;
  using Comparison = OpTraits::Comparison;

 public:
  LoopReader(const Program& program, int block, const Op& loop, bool unbatched)
      : program_(program),
        outer_(block),
        loop_(loop),
        body_(program.block(loop.attributes.get<BlockId>("sub_block").index)),
        numbers_(program, block, loop),
        behind_(program, block, loop, true) {
    form_.unbatched = unbatched;
    form_.step = Program(program.shared_registry());
    form_.step.set_title(program.title() + ", one iteration");
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
    if (form_.stop.left.stride == 0) refuse("it ends by something else than a number of iterations");
    if (form_.inputs.empty() && form_.states.empty()) refuse("it has no rows");
    finish();
    const bool changes = std::any_of(form_.states.begin(), form_.states.end(), [](const auto& state) { return state.changes; });
    if (!changes && form_.outputs.empty()) refuse("it computes no rows");
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
      if (!written_.emplace(op.inputs[0], &op).second) refuse(op, "writes '" + name(op.inputs[0]) + "' a second time in an iteration");
      expect_own(op.inputs[0]);
    }
  }

  /// An array is the loop's own when it is made in the loop's block and nothing looks at it before the loop. Then nobody can wait for it to
  /// be written iteration by iteration.
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

  /// The difference between a counter's next value and its value; 0: no counter.
  std::int64_t stride_of(std::size_t at) const {
    if (!lowering::is_integer_scalar(program_.var(body_.params[at]).type)) return 0;
    std::int64_t stride = 0;
    VarId var = body_.results[at];
    for (std::size_t left = body_.ops.size(); var != body_.params[at]; --left) {
      const auto made = std::find_if(body_.ops.begin(), body_.ops.end(), [var](const Op& op) { return op.outputs == std::vector{var}; });
      const Arithmetic kind = left == 0 || made == body_.ops.end() ? Arithmetic::none : traits(*made).arithmetic;
      const bool moves = kind == Arithmetic::add || kind == Arithmetic::subtract;
      if (!moves && kind != Arithmetic::keep) return 0;
      const bool second = kind == Arithmetic::add && number(made->inputs[0]).has_value();
      var = made->inputs[second ? 1 : 0];
      if (!moves) continue;
      const auto by = number(made->inputs[second ? 0 : 1]);
      if (!by || !may_count_by(*by) || !may_count_by(stride)) return 0;
      stride += kind == Arithmetic::add ? *by : -*by;
    }
    return stride;
  }

  void read_carried() {
    for (std::size_t i = 0; i < body_.params.size(); ++i) {
      const VarId param = body_.params[i];
      if (const std::int64_t stride = stride_of(i); stride != 0) {
        form_.carried.push_back({true, 0, stride});
        std::optional<LoopForm::Index> index = numbers_.find(loop_.inputs[i]);
        if (!index) refuse("it counts from '" + name(loop_.inputs[i]) + "', which is no integer");
        index->stride = stride;
        index->var = param;
        symbols_[param] = {.kind = Symbol::Kind::counter, .index = *index};
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
    if (form_.unbatched) {
      if (!type.is_static()) refuse("'" + called + "' is of " + type.to_string() + ", and has no axis for sequences");
    } else {
      if (type.rank() == 0) refuse("'" + called + "' has no rows");
      (*type.shape)[0] = DDim::unknown;
    }
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
  const OpTraits& traits(const Op& op) const { return program_.registry().at(op.type).traits; }
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
    if (traits(op).forwards) {
      symbols_[op.outputs[0]] = at(op.inputs[0]);
      return;
    }
    if (eval_counter(op) || eval_condition(op)) return;
    eval_rows(op);
  }

  /// An integer that is known for each iteration.
  std::optional<LoopForm::Index> count(VarId var) const {
    const Symbol symbol = at(var);
    if (symbol.kind == Symbol::Kind::counter) return symbol.index;
    return is_outside(var) || program_.constant(var) != nullptr ? numbers_.find(var) : std::nullopt;
  }

  bool eval_counter(const Op& op) {
    if (op.outputs.size() != 1 || !lowering::is_integer_scalar(program_.var(op.outputs[0]).type)) return false;
    auto made = op.type == "tensor_array_size" ? numbers_.size_of(op.inputs[0])
                                               : lowering::linear(program_, op, [&](VarId input) { return count(input); });
    if (!made) return false;
    made->var = op.outputs[0];
    symbols_[op.outputs[0]] = {.kind = Symbol::Kind::counter, .index = *made};
    if (op.type != "tensor_array_size") same_each_iteration_[op.outputs[0]] = &op;
    return true;
  }

  /// Comparisons of integers that are known for each iteration.
  bool eval_condition(const Op& op) {
    if (op.type == "logical_not" && at(op.inputs[0]).kind == Symbol::Kind::condition) {
      Symbol made = at(op.inputs[0]);
      made.negated = !made.negated;
      symbols_[op.outputs[0]] = made;
      return true;
    }
    const Comparison comparison = traits(op).comparison;
    if (comparison == Comparison::none) return false;
    const auto a = count(op.inputs[0]);
    const auto b = count(op.inputs[1]);
    if (!a || !b) return false;
    std::optional<LoopForm::Index> left = lowering::sum(*a, *b, -1);
    if (!left || left->stride == 0) return false;
    Symbol made{.kind = Symbol::Kind::condition};
    if (comparison == Comparison::equal || comparison == Comparison::not_equal) {
      made.stop = {*left, false};
      made.negated = comparison == Comparison::not_equal;
    } else {
      // As "is beyond": at 0 and further on in the direction of the count. Its contrary holds until then.
      const bool rises = left->stride > 0;
      const bool up = comparison == Comparison::greater || comparison == Comparison::greater_equal;
      const bool at_zero = comparison == Comparison::less_equal || comparison == Comparison::greater_equal;
      made.negated = rises != up;
      const bool meets_zero = at_zero != made.negated;
      if (!meets_zero) left = lowering::sum(*left, lowering::number_index(1), rises ? -1 : 1);
      if (!left) return false;
      made.stop = {*left, true};
    }
    symbols_[op.outputs[0]] = made;
    return true;
  }

  void eval_break(const Op& op) {
    const Symbol condition = at(op.inputs[0]);
    if (condition.kind != Symbol::Kind::condition || condition.negated) refuse(op, "looks at something else than a number of iterations");
    if (form_.stop.left.stride != 0) refuse(op, "is the second one");
    if (!form_.inputs.empty() || !form_.outputs.empty() || rows_begun_) refuse(op, "stands behind other ops of the iteration");
    for (std::size_t i = 1; i < op.inputs.size(); ++i)
      if (op.inputs[i] != body_.params[i - 1]) refuse(op, "hands on something new");
    form_.stop = condition.stop;
  }

  void eval_read(const Op& op) {
    const VarId array = op.inputs[0];
    const Symbol index = at(op.inputs[1]);
    const VarId boot = op.inputs.size() > 2 ? op.inputs[2] : no_var;
    if (index.kind != Symbol::Kind::counter || index.index.stride == 0) refuse(op, "reads a slot whose number is no count of iterations");
    if (!is_outside(array)) refuse(op, "reads an array of its own iteration");
    if (boot != no_var && !is_outside(boot) && program_.constant(boot) == nullptr) refuse(op, "has a boot that its own iteration computes");
    const auto writer = written_.find(array);
    if (writer != written_.end()) return eval_earlier(op, array, index.index, boot, *writer->second);
    form_.inputs.push_back({array, index.index, boot, false});
    input_vars_.push_back(add_rows(name(op.outputs[0]), program_.var(op.outputs[0]).type));
    symbols_[op.outputs[0]] = {.kind = Symbol::Kind::rows, .var = input_vars_.back()};
  }

  /// A read of a slot that this loop wrote some iterations ago, or in this iteration.
  void eval_earlier(const Op& op, VarId array, const LoopForm::Index& index, VarId boot, const Op& writer) {
    const auto target = count_ahead(writer.inputs[1]);
    const auto distance = target ? target->ahead_of(index) : std::nullopt;
    const bool numbered = distance && *distance != std::numeric_limits<std::int64_t>::min() && *distance % index.stride == 0;
    if (!numbered) refuse(op, "reads a slot that another count numbers");
    const std::int64_t lag = *distance / index.stride;
    if (lag < 0) refuse(op, "reads a slot before it is written");
    if (lag > most_lag) refuse(op, "reads what was written more than " + std::to_string(most_lag) + " iterations ago");
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
      const auto slot = lowering::sum(*target, lowering::number_index(index.stride), -back);
      if (!slot) refuse(op, "reads a slot that no array has");
      state.index = *slot;
      const std::string called = back == 1 ? name(array) : fmt::format("{}_{}_ago", name(array), back);
      window.push_back(add_state(called, program_.var(op.outputs[0]).type, std::move(state)));
    }
    const std::size_t state = window[static_cast<std::size_t>(lag - 1)];
    if (boot != no_var && form_.states[state].boot != no_var && form_.states[state].boot != boot)
      refuse(op, "has another boot than a read before");
    if (boot != no_var) form_.states[state].boot = boot;
    symbols_[op.outputs[0]] = {.kind = Symbol::Kind::rows, .var = state_vars_[state]};
  }

  /// As `count`, for a var whose op may stand further down.
  std::optional<LoopForm::Index> count_ahead(VarId var) {
    if (const auto known = count(var)) return known;
    for (const Op& op : body_.ops) {
      if (op.outputs != std::vector{var}) continue;
      for (const VarId input : op.inputs)
        if (input != no_var && input != var) count_ahead(input);
      return eval_counter(op) ? count(var) : std::nullopt;
    }
    return std::nullopt;
  }

  void eval_write(const Op& op) {
    const Symbol index = at(op.inputs[1]);
    if (index.kind != Symbol::Kind::counter || index.index.stride == 0) refuse(op, "writes a slot whose number is no count of iterations");
    const Symbol value{.kind = Symbol::Kind::rows, .var = rows(op, op.inputs[2])};
    latest_[op.inputs[0]] = value;
    form_.outputs.push_back({op.inputs[0], index.index});
    output_vars_.push_back(value.var);
  }

  /// Rows leave with their sequences; which, the loop knows.
  void eval_shrink(const Op& op) {
    if (form_.unbatched) refuse(op, "leaves out sequences");
    const Symbol step = at(op.inputs[1]);
    if (step.kind != Symbol::Kind::rows) refuse(op, "looks at something else than a step");
    const Symbol x = at(op.inputs[0]);
    const VarId var = x.kind == Symbol::Kind::rows ? x.var : staying(op, op.inputs[0]);
    bool has_order = false;
    const auto mark = [&](const std::vector<VarId>& vars, auto& ports) {
      for (std::size_t i = 0; i < vars.size(); ++i) {
        if (vars[i] != var) continue;
        ports[i].shrinks = true;
        has_order = true;
      }
    };
    mark(state_vars_, form_.states);
    mark(input_vars_, form_.inputs);
    if (!has_order) refuse(op, "shrinks what the iteration computed, whose rows nobody knows to be those of the iteration before");
    symbols_[op.outputs[0]] = {.kind = Symbol::Kind::rows, .var = var, .shrunk = true};
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
    if (symbol.kind == Symbol::Kind::rows && !symbol.shrunk) whole_.insert(symbol.var);
    if (symbol.kind == Symbol::Kind::rows) return symbol.var;
    if (const auto same = same_each_iteration_.find(var); same != same_each_iteration_.end() && symbol.index.stride == 0) {
      eval_rows(*same->second);
      return at(var).var;
    }
    if (symbol.kind != Symbol::Kind::outside) refuse(op, "computes with '" + name(var) + "', a count of iterations");
    const auto known = shared_.find(var);
    if (known != shared_.end()) return known->second;
    if (const Tensor* value = program_.constant(var)) return shared_[var] = form_.step.add_parameter(name(var), *value);
    if (!is_outside(var)) refuse(op, "reads '" + name(var) + "', which this iteration does not know");
    const VarType& type = program_.var(var).type;
    if (!type.is_tensor() || type.lod_depth > 0 || !type.shape) refuse(op, "reads '" + name(var) + "' of " + type.to_string());
    if (form_.unbatched && !type.is_static()) refuse(op, "reads '" + name(var) + "' of " + type.to_string() + ", whose shape is open");
    if (type.rank() > 0 && (*type.shape)[0] == DDim::unknown) return *whole_.insert(staying(op, var)).first;
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
    if (!form_.unbatched) keep_rows(op, made);
    const std::vector<VarId> outputs = form_.step.append(0, std::move(made), names);
    for (std::size_t i = 0; i < outputs.size(); ++i) symbols_[op.outputs[i]] = {.kind = Symbol::Kind::rows, .var = outputs[i]};
  }

  /// Exporters write the extents of a batch that the file knows into reshapes and expansions: [2, 16] → [2, 4, 4]. The rows of the step program have any
  /// number, so the extent of axis 0 is the one that the op finds.
  void keep_rows(const Op& op, Op& made) {
    const VarType& from = program_.var(op.inputs[0]).type;
    const VarType& to = program_.var(op.outputs[0]).type;
    const VarType& rows = form_.step.var(made.inputs[0]).type;
    const bool fixed = from.is_static() && to.is_static() && from.rank() > 0 && to.rank() > 0 && (*from.shape)[0] == (*to.shape)[0];
    if (!fixed || rows.rank() == 0 || (*rows.shape)[0] != DDim::unknown) return;
    std::vector<std::int64_t> extents((*to.shape).begin(), (*to.shape).end());
    if (op.type == "reshape") {
      // 0 takes over the extent of the input, and any other 0 would, too.
      if (std::find(extents.begin(), extents.end(), 0) != extents.end()) return;
      extents[0] = 0;
      made.attributes.set("shape", extents);
    } else if (op.type == "expand" && from.rank() == to.rank()) {
      extents[0] = 1;
      made.inputs[1] = form_.step.add_parameter("extents", Tensor::from(extents, DDim{static_cast<std::int64_t>(extents.size())}));
    }
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
    // Nobody leaves out rows of what is looked at as it stands.
    for (std::size_t i = 0; i < state_vars_.size(); ++i) form_.states[i].shrinks &= !whole_.contains(state_vars_[i]);
    for (std::size_t i = 0; i < input_vars_.size(); ++i) form_.inputs[i].shrinks &= !whole_.contains(input_vars_[i]);
    for (std::size_t i = 0; i < body_.params.size(); ++i)
      if (!form_.carried[i].counter && body_.results[i] == body_.params[i] && form_.states[form_.carried[i].state].shrinks)
        refuse("it hands on '" + name(body_.params[i]) +
               "' as it is, which keeps all rows for its reader, and reads it without those that left");
    drop_unread();
    for (std::size_t i = 0; i < form_.outputs.size(); ++i)
      form_.step.add_output(fmt::format("{}_{}", name(form_.outputs[i].array), i), output_vars_[i]);
    for (std::size_t i = 0; i < form_.states.size(); ++i)
      if (form_.states[i].changes) form_.step.add_output("next " + form_.states[i].name + fmt::format("_{}", i), next_[i]);
    order_inputs();
  }

  /// An array that nothing but the loop reads need not be written: what it carried is carried. A write that may fail stays, since its error
  /// ends the run, whoever reads the array.
  void drop_unread() {
    for (std::size_t i = form_.outputs.size(); i-- > 0;) {
      if (!writes_free_slots(form_.outputs[i])) continue;
      if (is_read_elsewhere(form_.outputs[i].array, last_slot(form_.outputs[i]))) continue;
      form_.outputs[i].last_alone = true;
      if (is_read_elsewhere(form_.outputs[i].array, std::nullopt)) continue;
      form_.outputs.erase(form_.outputs.begin() + static_cast<std::ptrdiff_t>(i));
      output_vars_.erase(output_vars_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  /// The slot that the last iteration writes.
  std::optional<LoopForm::Index> last_slot(const LoopForm::Output& output) const {
    using lowering::sum;
    const LoopForm::Index& first = output.index;
    const LoopForm::Index& left = form_.stop.left;
    if ((left.stride != 1 && left.stride != -1) || !may_count_by(first.stride)) return std::nullopt;
    // The iterations are as many as `left` is from 0, so that the last slot is first + stride · (iterations − 1).
    const auto end = sum(first, left, left.stride > 0 ? -first.stride : first.stride);
    return end ? sum(*end, lowering::number_index(first.stride), -1) : std::nullopt;
  }
  /// Whether every iteration is known to write rows that fit the slot, which the array has and no op besides the loop writes.
  bool writes_free_slots(const LoopForm::Output& output) const {
    using lowering::number_index;
    using lowering::sum;
    const auto size = numbers_.size_of(output.array);
    const LoopForm::Index& first = output.index;
    // An order says how many rows a slot takes: those of an input's slot at the same place.
    if (const auto order = lowering::order_of(program_, output.array)) {
      const auto has_its_rows = [&](const LoopForm::StepInput& input) {
        const auto apart = input.index.ahead_of(first);
        return !input.shrinks && apart && *apart == 0 && lowering::order_of(program_, input.array) == order;
      };
      if (std::none_of(form_.inputs.begin(), form_.inputs.end(), has_its_rows)) return false;
    }
    const auto last = last_slot(output);
    if (!size || !last) return false;
    const LoopForm::Index& low = first.stride > 0 ? first : *last;
    const LoopForm::Index& high = first.stride > 0 ? *last : first;
    if (!is_below(number_index(-1), low) || !is_below(high, *size)) return false;
    for (const Block& block : program_.blocks()) {
      if (block.idx == body_.idx) continue;
      for (const Op& op : block.ops) {
        if (op.type != "tensor_array_write" || op.inputs[0] != output.array) continue;
        const auto other = numbers_.find(op.inputs[1]);
        if (!other || (!is_below(*other, low) && !is_below(high, *other))) return false;
      }
    }
    return true;
  }
  /// Whether a < b whatever the values outside are, both at their first iterations.
  static bool is_below(const LoopForm::Index& a, const LoopForm::Index& b) {
    const auto difference = lowering::sum(b, a, -1);
    return difference && difference->roots.terms.empty() && difference->roots.number > 0;
  }
  /// Whether anything but the loop reads the array, besides its slot `but` once the loop has ended.
  bool is_read_elsewhere(VarId array, const std::optional<LoopForm::Index>& but) const {
    const auto is_at = [&](const Op& op) {
      const auto slot = op.type == "tensor_array_read" && but ? behind_.find(op.inputs[1]) : std::nullopt;
      const auto apart = slot ? lowering::sum(*slot, *but, -1) : std::nullopt;
      return apart && apart->roots.terms.empty() && apart->roots.number == 0;
    };
    const auto reads = [&](const Op& op) {
      return op.type != "tensor_array_write" && op.type != "tensor_array_size" &&
             std::find(op.inputs.begin(), op.inputs.end(), array) != op.inputs.end() && !is_at(op);
    };
    for (const Block& block : program_.blocks()) {
      if (block.idx != body_.idx && std::any_of(block.ops.begin(), block.ops.end(), reads)) return true;
      if (std::find(block.results.begin(), block.results.end(), array) != block.results.end()) return true;
    }
    return std::any_of(program_.outputs().begin(), program_.outputs().end(), [&](const auto& port) { return port.var == array; });
  }

  /// The ports came as the body named them: step inputs, states, shared. What an unbatched form computes with slots and states is computed for N of them.
  void order_inputs() {
    Program ordered(form_.step.shared_registry());
    ordered.set_title(form_.step.title());
    Vectorizer to(form_.step, ordered);
    const auto add = [&](const std::vector<VarId>& vars, bool rows) {
      for (const VarId var : vars)
        for (const Program::Port& port : form_.step.inputs()) {
          if (port.var != var) continue;
          VarType type = form_.step.var(var).type;
          if (rows) type.shape = type.shape->inserted(0, DDim::unknown);
          to.bind(var, ordered.add_input(port.name, type), rows);
        }
    };
    add(input_vars_, form_.unbatched);
    add(state_vars_, form_.unbatched);
    add(shared_vars_, false);
    for (const auto& [var, value] : form_.step.parameters()) to.bind(var, ordered.add_parameter(form_.step.var(var).name, value), false);
    for (const Op& op : form_.step.block(0).ops) to.rewrite(op);
    for (const Program::Port& port : form_.step.outputs()) {
      if (form_.unbatched && !to.batched(port.var)) refuse("'" + port.name + "' is the same in every iteration");
      ordered.add_output(port.name, computed(ordered, to.get(port.var)));
    }
    form_.step = std::move(ordered);
  }

  /// A value that an iteration hands on as it came gets an op of its own.
  static VarId computed(Program& step, VarId var) {
    const std::vector<Program::Port>& ports = step.inputs();
    if (std::none_of(ports.begin(), ports.end(), [var](const auto& port) { return port.var == var; })) return var;
    return step.append(0, Op{"identity", {var}, {}, {}, {}})[0];
  }

  const Program& program_;
  const int outer_;
  const Op& loop_;
  const Block& body_;
  const lowering::OuterNumbers numbers_;
  const lowering::OuterNumbers behind_;
  LoopForm form_;
  std::map<VarId, Symbol> symbols_;
  std::map<VarId, const Op*> written_;
  std::map<VarId, Symbol> latest_;
  std::map<VarId, std::vector<std::size_t>> windows_;  // array → states, latest first
  std::map<VarId, VarId> shared_;
  std::map<VarId, VarId> staying_;
  std::set<VarId> whole_;                           // rows that are looked at before, or without, being shrunk
  std::map<VarId, const Op*> same_each_iteration_;  // integers of the body that no iteration changes
  std::vector<VarId> input_vars_, state_vars_, shared_vars_, output_vars_, next_;
  bool rows_begun_ = false;
};

std::vector<VarId> counted_vars(const LoopForm& form) {
  std::vector<VarId> vars;
  const auto add = [&](const LoopForm::Index& index) {
    for (const LoopForm::Index::Term& term : index.first.terms) vars.push_back(term.var);
  };
  add(form.stop.left);
  for (const LoopForm::StepInput& input : form.inputs) add(input.index);
  for (const LoopForm::Output& output : form.outputs) add(output.index);
  for (const LoopForm::State& state : form.states) add(state.index);
  std::sort(vars.begin(), vars.end());
  vars.erase(std::unique(vars.begin(), vars.end()), vars.end());
  return vars;
}

}  // namespace

LoopForm find_loop_form(const Program& program, int block, const Op& loop, bool unbatched) {
  LoopForm form = LoopReader(program, block, loop, unbatched).read();
  form.counted = counted_vars(form);
  return form;
}

}  // namespace millrace
