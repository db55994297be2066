// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/passes.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>

#include <millrace/kernels/concat.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/internal/lstm_form.h>
#include <millrace/runtime/program/ops/internal/packing.h>

namespace millrace::passes {
namespace {

/// Copies a straight-line program op by op, some of them otherwise.
class Rewriter {
 public:
  explicit Rewriter(const Program& from) : from_(from), to_(from.shared_registry()) {
    to_.set_title(from.title());
    for (const Program::Port& port : from.inputs()) bind(port.var, to_.add_input(port.name, from.var(port.var).type));
    for (const auto& [var, value] : from.parameters()) bind(var, to_.add_parameter(from.var(var).name, value));
  }
  const Program& from() const { return from_; }
  Program& to() { return to_; }
  VarId at(VarId old) const { return old == no_var ? no_var : made_.at(old); }
  void bind(VarId old, VarId made) { made_[old] = made; }
  std::vector<VarId> emit(const std::string& type, std::vector<VarId> inputs, Attributes attributes = {}, const std::string& name = "") {
    return to_.append(0, Op{type, std::move(inputs), {}, std::move(attributes), {}}, {name});
  }
  void copy(const Op& op) {
    Op made{op.type, {}, {}, op.attributes, op.label};
    std::vector<std::string> names;
    for (const VarId input : op.inputs) made.inputs.push_back(at(input));
    for (const VarId output : op.outputs) names.push_back(from_.var(output).name);
    const std::vector<VarId> outputs = to_.append(0, std::move(made), names);
    for (std::size_t i = 0; i < outputs.size(); ++i) bind(op.outputs[i], outputs[i]);
  }
  Program finish() {
    for (const Program::Port& port : from_.outputs()) to_.add_output(port.name, at(port.var));
    return std::move(to_);
  }

 private:
  const Program& from_;
  Program to_;
  std::map<VarId, VarId> made_;
};

bool same(const Attribute& a, const Attribute& b) {
  if (a.index() != b.index()) return false;
  const auto* x = std::get_if<Tensor>(&a);
  if (x == nullptr) {
    return std::visit(
        [&b](const auto& left) {
          using T = std::decay_t<decltype(left)>;
          if constexpr (std::is_same_v<T, Tensor>)
            return false;
          else if constexpr (std::is_same_v<T, double>)
            return std::bit_cast<std::uint64_t>(left) == std::bit_cast<std::uint64_t>(std::get<double>(b));  // −0 is not +0
          else
            return left == std::get<T>(b);
        },
        a);
  }
  const Tensor& y = std::get<Tensor>(b);
  return x->dtype() == y.dtype() && x->dims() == y.dims() && x->is_contiguous() && y.is_contiguous() &&
         std::memcmp(x->raw(), y.raw(), x->bytes()) == 0;
}

bool same(const Attributes& a, const Attributes& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, value] : a) {
    const Attribute* other = b.find(name);
    if (other == nullptr || !same(value, *other)) return false;
  }
  return true;
}

/// The vars that depend on the inputs of `roots`.
std::set<VarId> dependent(const Program& program, std::set<VarId> roots) {
  for (const Op& op : program.block(0).ops)
    if (std::any_of(op.inputs.begin(), op.inputs.end(), [&](VarId input) { return roots.contains(input); }))
      roots.insert(op.outputs.begin(), op.outputs.end());
  return roots;
}

}  // namespace

Program share_expressions(const Program& step) {
  Rewriter rewriter(step);
  std::multimap<std::pair<std::string, std::vector<VarId>>, const Op*> known;
  for (const Op& op : step.block(0).ops) {
    if (!step.registry().at(op.type).pure) {
      rewriter.copy(op);
      continue;
    }
    std::pair<std::string, std::vector<VarId>> key(op.type, {});
    for (const VarId input : op.inputs) key.second.push_back(rewriter.at(input));
    const Op* first = nullptr;
    const auto [begin, end] = known.equal_range(key);
    for (auto at = begin; at != end && first == nullptr; ++at)
      if (same(at->second->attributes, op.attributes)) first = at->second;
    if (first == nullptr) {
      rewriter.copy(op);
      known.emplace(std::move(key), &op);
      continue;
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) rewriter.bind(op.outputs[i], rewriter.at(first->outputs[i]));
  }
  return rewriter.finish();
}

Program project_cells(const Program& step, std::size_t states_begin, std::size_t states_end) {
  std::set<VarId> states;
  for (std::size_t i = states_begin; i < states_end; ++i) states.insert(step.inputs()[i].var);
  states = dependent(step, std::move(states));
  Rewriter rewriter(step);
  for (const Op& op : step.block(0).ops) {
    if (op.type != "lstm_cell" || states.contains(op.inputs[ops::in_x]) || states.contains(op.inputs[ops::in_w])) {
      rewriter.copy(op);
      continue;
    }
    const std::string& name = step.var(op.outputs[0]).name;
    std::vector<VarId> inputs{
        rewriter.emit("matmul", {rewriter.at(op.inputs[ops::in_x]), rewriter.at(op.inputs[ops::in_w])}, {}, name + "_projection")[0]};
    for (std::size_t i = 1; i < op.inputs.size(); ++i)
      if (i != ops::in_w) inputs.push_back(rewriter.at(op.inputs[i]));
    const std::vector<VarId> made = rewriter.emit("lstm_cell_projected", std::move(inputs), op.attributes, name);
    for (std::size_t i = 0; i < made.size(); ++i) rewriter.bind(op.outputs[i], made[i]);
  }
  return rewriter.finish();
}

namespace {

/// Products of one thing with weights that stand before the first of them.
struct Family {
  std::vector<const Op*> members;
  std::vector<std::int64_t> widths;
};

/// Families of two or more, by their first member.
std::map<const Op*, Family> families(const Program& step) {
  std::map<std::pair<VarId, DType>, Family> by_input;  // of the same rows, and weights of the same dtype
  std::set<VarId> shared;                              // depends on no rows
  for (const Program::Port& port : step.inputs()) {
    const VarType& type = step.var(port.var).type;
    if (type.rank() == 0 || (*type.shape)[0] != DDim::unknown) shared.insert(port.var);
  }
  for (const Op& op : step.block(0).ops) {
    if (op.type != "matmul") continue;
    const VarType& weights = step.var(op.inputs[1]).type;
    const bool known = step.constant(op.inputs[1]) != nullptr || shared.contains(op.inputs[1]);
    if (!known || op.attributes.size() > 0 || weights.rank() != 2 || !weights.is_static() || step.var(op.inputs[0]).type.rank() < 2)
      continue;
    Family& family = by_input[{op.inputs[0], weights.dtype}];
    family.members.push_back(&op);
    family.widths.push_back((*weights.shape)[1]);
  }
  std::map<const Op*, Family> found;
  for (auto& [input, family] : by_input)
    if (family.members.size() > 1) found.emplace(family.members[0], std::move(family));
  return found;
}

}  // namespace

Program merge_products(const Program& step) {
  const std::map<const Op*, Family> merged = families(step);
  std::set<const Op*> done;
  Rewriter rewriter(step);
  for (const Op& op : step.block(0).ops) {
    if (done.contains(&op)) continue;
    const auto found = merged.find(&op);
    if (found == merged.end()) {
      rewriter.copy(op);
      continue;
    }
    const Family& family = found->second;
    const std::string name = step.var(op.outputs[0]).name + "_all";
    std::vector<Tensor> values;
    for (const Op* member : family.members) {
      const Tensor* value = step.constant(member->inputs[1]);
      if (value != nullptr) values.push_back(*value);
      done.insert(member);
    }
    VarId weights = no_var;
    if (values.size() == family.members.size()) {
      ops::PackingStream stream;
      weights = rewriter.to().add_parameter(name + "_weights", concat(values, 1, stream));
    } else {
      std::vector<VarId> parts;  // a literal may stand further behind
      for (const Op* member : family.members) {
        const Tensor* value = step.constant(member->inputs[1]);
        parts.push_back(value == nullptr ? rewriter.at(member->inputs[1]) : rewriter.to().add_parameter(name + "_part", *value));
      }
      weights = rewriter.emit("concat", parts, {{"axis", std::int64_t{1}}}, name + "_weights")[0];
    }
    const VarId all = rewriter.emit("matmul", {rewriter.at(op.inputs[0]), weights}, {}, name)[0];
    const std::vector<VarId> pieces = rewriter.emit("split", {all}, {{"axis", std::int64_t{-1}}, {"sizes", family.widths}});
    for (std::size_t i = 0; i < pieces.size(); ++i) rewriter.bind(family.members[i]->outputs[0], pieces[i]);
  }
  return rewriter.finish();
}

// ---- Phases ----

namespace {

using From = Source::From;

class Splitter {
 public:
  Splitter(const Program& step, std::size_t inputs, std::size_t states, std::size_t outputs)
      : step_(step), inputs_(inputs), states_(states), outputs_(outputs) {}

  Phases run() {
    find_levels();
    find_behind();
    sink_stretched();
    sink_views();
    // The outputs of each part are known once the inputs of all parts are.
    for (int level = invariant; level <= behind; ++level) parts_[level] = gather(level);
    Phases made{phase(invariant), phase(ahead), phase(iteration), phase(behind), {}};
    for (const Program::Port& port : step_.outputs()) made.outputs.push_back(source(port.var));
    return made;
  }

 private:
  enum Level { invariant, ahead, iteration, behind, levels };
  struct Part {
    std::vector<const Op*> ops;
    std::vector<VarId> reads;  // made elsewhere
    std::vector<VarId> gives;  // read elsewhere
  };

  void find_levels() {
    for (std::size_t i = 0; i < step_.inputs().size(); ++i)
      level_[step_.inputs()[i].var] = i < inputs_ ? ahead : i < inputs_ + states_ ? iteration : invariant;
    for (const Op& op : step_.block(0).ops) {
      int level = invariant;
      for (const VarId input : op.inputs)
        if (input != no_var && step_.constant(input) == nullptr) level = std::max(level, level_.at(input));
      for (const VarId output : op.outputs) level_[output] = level;
    }
  }

  /// Ops behind the states: those that no next state needs, when a product is among them.
  void find_behind() {
    std::set<VarId> needed;
    for (std::size_t i = outputs_; i < step_.outputs().size(); ++i) needed.insert(step_.outputs()[i].var);
    const std::vector<Op>& ops = step_.block(0).ops;
    std::vector<const Op*> rest;
    for (std::size_t i = ops.size(); i-- > 0;) {
      if (ops[i].type == "constant" || level_.at(ops[i].outputs[0]) != iteration) continue;
      if (std::any_of(ops[i].outputs.begin(), ops[i].outputs.end(), [&](VarId output) { return needed.contains(output); }))
        needed.insert(ops[i].inputs.begin(), ops[i].inputs.end());
      else
        rest.push_back(&ops[i]);
    }
    if (std::none_of(rest.begin(), rest.end(), [&](const Op* op) { return traits(*op).product; })) return;
    // A state is known in its own iteration alone.
    for (const Op* op : rest)
      for (const VarId input : op->inputs)
        for (std::size_t i = inputs_; i < inputs_ + states_; ++i)
          if (step_.inputs()[i].var == input) return;
    for (const Op* op : rest)
      for (const VarId output : op->outputs) level_[output] = behind;
  }

  /// A product of vectors, such as k ⊗ v, that iterations alone read is computed there: handed over, it takes more memory than they do, and more time than
  /// to compute it.
  void sink_stretched() {
    const std::vector<Op>& ops = step_.block(0).ops;
    for (std::size_t i = ops.size(); i-- > 0;) {
      if (traits(ops[i]).arithmetic == OpTraits::Arithmetic::none || level_.at(ops[i].outputs[0]) != ahead) continue;
      if (first_reader(ops[i].outputs[0]) != iteration) continue;
      std::int64_t given = 0;
      for (const VarId input : ops[i].inputs) given = given < 0 || row(input) < 0 ? -1 : given + row(input);
      if (given >= 0 && row(ops[i].outputs[0]) > given) level_[ops[i].outputs[0]] = iteration;
    }
  }
  /// Elements of a row of a var; −1 where they are not known.
  std::int64_t row(VarId var) const {
    const VarType& type = step_.var(var).type;
    if (!type.shape || type.rank() == 0 || (*type.shape)[0] != DDim::unknown) return -1;
    std::int64_t elements = 1;
    for (int axis = 1; axis < type.rank(); ++axis)
      elements = (*type.shape)[axis] < 0 ? -1 : elements < 0 ? -1 : elements * (*type.shape)[axis];
    return elements;
  }

  /// A view costs nothing in the part that reads it, and a copy where it is handed over.
  void sink_views() {
    const std::vector<Op>& ops = step_.block(0).ops;
    for (std::size_t i = ops.size(); i-- > 0;) {
      if (!traits(ops[i]).view || level_.at(ops[i].outputs[0]) != ahead) continue;
      int first = levels;
      for (const VarId output : ops[i].outputs) first = std::min(first, first_reader(output));
      if (first == iteration || first == behind)
        for (const VarId output : ops[i].outputs) level_[output] = iteration;
    }
  }
  /// The level of the first op that reads `var`; `ahead` for what the iteration gives.
  int first_reader(VarId var) const {
    int first = levels;
    for (const Op& op : step_.block(0).ops)
      if (std::find(op.inputs.begin(), op.inputs.end(), var) != op.inputs.end()) first = std::min(first, level_.at(op.outputs[0]));
    for (const Program::Port& port : step_.outputs())
      if (port.var == var) first = std::min<int>(first, ahead);
    return first;
  }

  const OpTraits& traits(const Op& op) const { return step_.registry().at(op.type).traits; }

  bool is_input(VarId var) const {
    return std::any_of(step_.inputs().begin(), step_.inputs().end(), [&](const auto& port) { return port.var == var; });
  }

  Part gather(int level) const {
    Part part;
    for (const Op& op : step_.block(0).ops) {
      if (op.type == "constant") continue;
      const int own = level_.at(op.outputs[0]);
      if (own == level) part.ops.push_back(&op);
      for (const VarId input : op.inputs) {
        if (input == no_var || step_.constant(input) != nullptr) continue;
        const bool made_here = !is_input(input) && level_.at(input) == level;
        if (own == level && !made_here) add(part.reads, input);
        if (own != level && made_here) add(part.gives, input);
      }
    }
    for (const Program::Port& port : step_.outputs())
      if (!is_input(port.var) && step_.constant(port.var) == nullptr && level_.at(port.var) == level) add(part.gives, port.var);
    return part;
  }
  static void add(std::vector<VarId>& vars, VarId var) {
    if (std::find(vars.begin(), vars.end(), var) == vars.end()) vars.push_back(var);
  }

  Source source(VarId var) const {
    for (std::size_t i = 0; i < step_.inputs().size(); ++i) {
      if (step_.inputs()[i].var != var) continue;
      if (i < inputs_) return {From::input, i};
      return i < inputs_ + states_ ? Source{From::state, i - inputs_} : Source{From::shared, i - inputs_ - states_};
    }
    if (step_.constant(var) != nullptr) throw UnsupportedError("'" + step_.var(var).name + "' is the same in every iteration");
    const int level = level_.at(var);
    const std::vector<VarId>& gives = parts_[level].gives;
    auto place = static_cast<std::size_t>(std::find(gives.begin(), gives.end(), var) - gives.begin());
    if (level == behind) place += parts_[iteration].gives.size();
    return {level == invariant ? From::invariant : level == ahead ? From::ahead : From::step, place};
  }

  Phase phase(int level) const {
    static constexpr const char* titles[levels]{"invariant", "ahead", "iteration", "behind"};
    const Part& part = parts_[level];
    Phase made{Program(step_.shared_registry()), {}};
    Program& program = made.program;
    program.set_title(step_.title() + ", " + titles[level]);
    std::map<VarId, VarId> to;
    for (const VarId var : part.reads) {
      to[var] = program.add_input(step_.var(var).name, step_.var(var).type);
      made.inputs.push_back(source(var));
    }
    for (const Op* op : part.ops) {
      Op copied{op->type, {}, {}, op->attributes, op->label};
      std::vector<std::string> names;
      for (const VarId input : op->inputs) {
        if (input != no_var && !to.contains(input)) to[input] = program.add_parameter(step_.var(input).name, *step_.constant(input));
        copied.inputs.push_back(input == no_var ? no_var : to.at(input));
      }
      for (const VarId output : op->outputs) names.push_back(step_.var(output).name);
      const std::vector<VarId> outputs = program.append(0, std::move(copied), names);
      for (std::size_t i = 0; i < outputs.size(); ++i) to[op->outputs[i]] = outputs[i];
    }
    for (const VarId var : part.gives) program.add_output(step_.var(var).name, to.at(var));
    return made;
  }

  const Program& step_;
  const std::size_t inputs_, states_, outputs_;
  std::map<VarId, int> level_;
  Part parts_[levels];
};

}  // namespace

Phases split(const Program& step, std::size_t inputs, std::size_t states, std::size_t outputs) {
  return Splitter(step, inputs, states, outputs).run();
}

}  // namespace millrace::passes
