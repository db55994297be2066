// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_matrices.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/internal/append_op.h>
#include <millrace/runtime/lowering/internal/arithmetic_steps.h>
#include <millrace/runtime/lowering/internal/dense_loops.h>
#include <millrace/runtime/lowering/internal/matrix_states.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

using Ints = std::vector<std::int64_t>;

/// The op that reads a matrix.
constexpr const char* read_op = "reduce";

/// A function of each element of a var, by ops of the step in the order in which they are computed; views between them go.
struct Formula {
  VarId of = no_var;
  std::vector<const Op*> ops;
};

/// The iteration of a loop of matrices.
class MatrixIteration {
 public:
  explicit MatrixIteration(const lowering::DenseLoop& loop) : step_(loop.form.step), inputs_(loop.form.inputs.size()) {
    for (const Op& op : step_.block(0).ops)
      for (const VarId made : op.outputs) makers_[made] = &op;
    const Program::Port& state = step_.inputs()[inputs_];
    const MatrixStates matrices(step_, step_.var(state.var).type.dtype);
    const std::size_t ops = step_.block(0).ops.size();
    for (std::size_t i = 0; i < ops; ++i) {
      if (matrices.place(i) != MatrixStates::Place::member) continue;
      if (member) return;  // a second read
      member = matrices.member(i);
    }
    if (!member || member->added == no_var) return;
    const auto is_alone = [](const Formula& formula, VarId var) { return formula.ops.empty() && formula.of == var; };
    const auto is_next = [&](VarId var) { return is_alone(formula(var, member->next), member->next) && keeps_rows(var, member->next); };
    if (!is_alone(formula(member->state, state.var), state.var) || !std::all_of(loop.next.begin(), loop.next.end(), is_next)) return;
    key = formula(member->key);
    value = formula(member->added);
    query = formula(member->query);
    if (member->decay != no_var) decay = formula(member->decay);
    if (member->rate != no_var) rate = formula(member->rate);
    const VarId out = step_.outputs()[loop.output].var;
    read = formula(out, member->read);
    slot = step_.var(out).type.shape;
    fits = read.of == member->read && keeps_rows(out, read.of) && keeps_rows(member->state, state.var) && is_of_steps(key, member->key) &&
           is_of_steps(value, member->added) && is_of_steps(query, member->query) && (!decay || is_of_steps(*decay, member->decay)) &&
           (!rate || is_of_steps(*rate, member->rate));
  }

  bool fits = false;
  std::optional<MatrixStates::Member> member;
  Formula key, value, query, read;
  std::optional<Formula> decay, rate;
  std::optional<DDim> slot;  ///< extents of what an iteration writes

  std::int64_t heads() const {
    const DDim& form = *step_.var(member->state).type.shape;
    return form.slice(1, form.rank() - 2).elements();
  }
  /// The place of `var` among the inputs of steps.
  std::optional<std::size_t> place(VarId var) const {
    for (std::size_t i = 0; i < inputs_; ++i)
      if (step_.inputs()[i].var == var) return i;
    return std::nullopt;
  }
  /// The place among the inputs of an op of a formula of the number that it takes beside the element.
  std::optional<std::size_t> number_of(const Op& op) const {
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      if (is_number(op.inputs[i])) return i;
    return std::nullopt;
  }
  const Tensor& constant(VarId var) const { return *step_.constant(var); }

 private:
  /// Elements of a row; nothing where they are not known.
  std::optional<std::int64_t> elements(VarId var) const {
    const std::optional<DDim>& shape = step_.var(var).type.shape;
    if (!shape || shape->rank() < 2 || std::count(shape->begin() + 1, shape->end(), DDim::unknown) > 0) return std::nullopt;
    return shape->slice(1, shape->rank()).elements();
  }
  /// Whether views between the two did not move elements from row to row.
  bool keeps_rows(VarId a, VarId b) const { return elements(a).value_or(0) > 0 && elements(a) == elements(b); }
  bool is_of_steps(const Formula& formula, VarId var) const { return place(formula.of) && keeps_rows(formula.of, var); }

  bool is_number(VarId var) const {
    const Tensor* const known = step_.constant(var);
    return known != nullptr && known->elements() == 1 && known->rank() <= 1;
  }

  /// Ops from `stop`, or from an input, to `var`.
  Formula formula(VarId var, VarId stop = no_var) const {
    Formula made;
    while (var != stop) {
      const auto found = makers_.find(var);
      if (found == makers_.end()) break;
      const Op& op = *found->second;
      if (op.type == "reshape" || step_.registry().at(op.type).traits.forwards) {
        var = op.inputs[0];
        continue;
      }
      const bool alone = lowering::one_side(op.type) != nullptr;
      if (!alone && lowering::two_sides(op.type) == nullptr) break;
      const std::optional<std::size_t> number = alone ? std::nullopt : number_of(op);
      if (!alone && !number) break;
      made.ops.insert(made.ops.begin(), &op);
      var = op.inputs[number == std::optional<std::size_t>(0) ? 1 : 0];
    }
    made.of = var;
    return made;
  }

  const Program& step_;
  const std::size_t inputs_;
  std::map<VarId, const Op*> makers_;
};

class MatrixJoiner {
 public:
  explicit MatrixJoiner(Program& program) : program_(program), dense_(program) {}

  bool run() {
    std::vector<Op> made;
    for (const Op& op : program_.block(0).ops) {
      std::optional<lowering::DenseLoop> loop;
      if (lowering::DenseLoops::is_small(program_, op, read_op)) loop = dense_.find(op);
      if (loop && join(*loop, made)) {
        dense_.empty(*loop);
      } else if (!replace(op, made)) {
        made.push_back(op);
      }
    }
    if (joined_.empty()) return false;
    dense_.finish(std::move(made));
    return true;
  }

 private:
  struct Joined {
    VarId outputs = no_var, states = no_var;  ///< the arrays of the loop
    VarId out = no_var, last = no_var;        ///< what they hold
    bool turned = false;                      ///< whether sequences stand in front of steps in `out`
    DDim slot;                                ///< extents of a slot of the outputs
  };

  VarId emit(Op op, std::vector<Op>& made) { return lowering::append_op(program_, std::move(op), made); }

  bool join(const lowering::DenseLoop& loop, std::vector<Op>& made) {
    const MatrixIteration iteration(loop);
    if (!iteration.fits) return false;
    const auto input_of = [&](const Formula& formula) { return loop.inputs[*iteration.place(formula.of)]; };
    std::vector<const Formula*> formulas{&iteration.key, &iteration.value, &iteration.query};
    for (const std::optional<Formula>* each : {&iteration.decay, &iteration.rate})
      if (*each) formulas.push_back(&**each);
    if (!checks_stay(loop, iteration, formulas)) return false;
    const bool turned =
        std::all_of(formulas.begin(), formulas.end(), [&](const Formula* each) { return untransposed(input_of(*each)) != no_var; });
    const auto computed = [&](const Formula& formula) {
      const VarId x = input_of(formula);
      return apply(iteration, formula, turned ? untransposed(x) : x, made);
    };
    const VarId key = computed(iteration.key), value = computed(iteration.value), query = computed(iteration.query);
    const VarId decay = iteration.decay ? computed(*iteration.decay) : no_var, rate = iteration.rate ? computed(*iteration.rate) : no_var;
    Op op{"matrix_recurrence",
          {key, value, query, loop.boot, decay, rate},
          {},
          {{"heads", iteration.heads()}, {"corrects", iteration.member->corrected}, {"steps", std::int64_t{turned ? 1 : 0}}},
          {}};
    for (const VarType& type : program_.infer(0, op)) op.outputs.push_back(program_.add_var(op.type, type));
    const std::vector<VarId> results = op.outputs;
    made.push_back(std::move(op));
    joined_.push_back({loop.outputs, loop.states, apply(iteration, iteration.read, results[0], made), results[1], turned, *iteration.slot});
    return true;
  }

  /// Whether the op refuses what the loop refuses: it sees the extents of the inputs that it reads, and takes a state for each sequence, or one for all.
  bool checks_stay(const lowering::DenseLoop& loop, const MatrixIteration& iteration, const std::vector<const Formula*>& formulas) const {
    const DDim& first = *program_.var(loop.inputs[*iteration.place(formulas[0]->of)]).type.shape;
    const VarType& boot = program_.var(loop.boot).type;
    if (!boot.shape || boot.rank() == 0) return false;
    const std::int64_t states = (*boot.shape)[0];
    if (states != 1 && states != DDim::unknown && first[1] != DDim::unknown && states != first[1]) return false;
    for (std::size_t i = 0; i < loop.inputs.size(); ++i) {
      const bool used = std::any_of(formulas.begin(), formulas.end(), [&](const Formula* each) { return iteration.place(each->of) == i; });
      const DDim& extents = *program_.var(loop.inputs[i]).type.shape;
      for (int axis = 0; axis < 2 && !used; ++axis)
        if (extents[axis] == DDim::unknown || extents[axis] != first[axis]) return false;
    }
    return true;
  }

  /// The tensor of which `x` is the transpose that brought steps in front of sequences; none: it is no such transpose.
  VarId untransposed(VarId x) const {
    const Op* made = dense_.maker(x);
    if (made != nullptr && made->type == "same_steps") made = dense_.maker(made->inputs[0]);
    if (made == nullptr || made->type != "transpose") return no_var;
    Ints swapped(static_cast<std::size_t>(program_.var(x).type.rank()));
    for (std::size_t axis = 0; axis < swapped.size(); ++axis) swapped[axis] = static_cast<std::int64_t>(axis < 2 ? 1 - axis : axis);
    return made->attributes.get_or("perm", Ints{}) == swapped ? made->inputs[0] : no_var;
  }

  /// A formula of `x`, which stands in the place of what the formula begins with.
  VarId apply(const MatrixIteration& iteration, const Formula& formula, VarId x, std::vector<Op>& made) {
    for (const Op* const each : formula.ops) {
      Op op{each->type, {x}, {}, each->attributes, each->label};
      if (lowering::one_side(each->type) == nullptr) {
        const std::size_t number = *iteration.number_of(*each);
        const Tensor& value = iteration.constant(each->inputs[number]);
        op.inputs.insert(op.inputs.begin() + static_cast<std::ptrdiff_t>(number), program_.add_parameter("number", value));
      }
      x = emit(std::move(op), made);
    }
    return x;
  }

  /// Readers of the arrays of a loop that is an op: of its stacked outputs, or of its last state.
  bool replace(const Op& op, std::vector<Op>& made) {
    for (const Joined& loop : joined_) {
      if (op.type == "tensor_array_stack" && op.inputs[0] == loop.outputs) {
        const Attributes swapped{{"perm", Ints{1, 0, 2}}};
        if (loop.turned && loop.slot.rank() == 2) {  // next to the transpose that undoes it
          made.push_back({"transpose", {loop.out}, op.outputs, swapped, op.label});
          return true;
        }
        const VarId rows = loop.turned ? emit({"transpose", {loop.out}, {}, swapped, op.label}, made) : loop.out;
        Ints shape{0, 0};
        shape.insert(shape.end(), loop.slot.begin() + 1, loop.slot.end());
        made.push_back({"reshape", {rows}, op.outputs, {{"shape", shape}}, op.label});
        return true;
      }
      if (op.type == "tensor_array_read" && op.inputs[0] == loop.states) {
        made.push_back({"identity", {loop.last}, op.outputs, {}, op.label});
        return true;
      }
    }
    return false;
  }

  Program& program_;
  lowering::DenseLoops dense_;
  std::vector<Joined> joined_;
};

}  // namespace

bool join_matrices(Program& program) { return may_join_matrices(program) && MatrixJoiner(program).run(); }

bool may_join_matrices(const Program& program) {
  return program.registry().find("matrix_recurrence") != nullptr && lowering::DenseLoops::has_small(program, read_op);
}

}  // namespace millrace
