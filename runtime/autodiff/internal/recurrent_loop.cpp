// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/recurrent_loop.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include <millrace/runtime/lowering/internal/loop_numbers.h>
#include <millrace/runtime/lowering/internal/loop_place.h>

namespace millrace::autodiff {

void refuse_recurrence(const std::string& why) { throw UnsupportedError("append_backward: " + why); }

namespace {

class LoopReader {
 public:
  LoopReader(Program& program, int body) : program_(program) {
    loop_.body = body;
    std::tie(loop_.block, place_) = lowering::find_loop(program, body);
  }

  RecurrentLoop read() {
    const LoopForm form = find_loop_form(program_, loop_.block, program_.block(loop_.block).ops[place_]);
    const Op loop = program_.block(loop_.block).ops[place_];
    loop_.rows = lowering::row_vars(program_, loop_.body, form);
    loop_.dtype = lowering::kept_dtype(form);
    for (const LoopForm::Carried& carried : form.carried)
      if (!carried.counter) refuse_recurrence("a loop over ragged rows carries a tensor");
    if (loop.attributes.get_or<std::int64_t>("max_trips", -1) >= 0) refuse_recurrence("the loop has a trip limit");
    for (const Op& op : program_.block(loop_.body).ops)
      if (op.type == "tensor_array_write") read_write(loop, op);
    for (const Op& op : program_.block(loop_.body).ops) {
      if (op.type == "tensor_array_read") read_read(loop, op);
      if (op.type == "shrink" && outside(op.inputs[0])) read_static(op.inputs[0]);
    }
    check_all_steps(form);
    if (loop_.dense)
      for (const RecurrentLoop::State& state : loop_.states) check_boot(state.boot);
    return std::move(loop_);
  }

 private:
  bool outside(VarId var) const { return program_.var(var).block != loop_.body; }
  const std::string& name(VarId var) const { return program_.var(var).name; }

  const Op& maker(VarId var) const {
    for (const Op& op : program_.block(program_.var(var).block).ops)
      if (std::find(op.outputs.begin(), op.outputs.end(), var) != op.outputs.end()) return op;
    refuse_recurrence("'" + name(var) + "' is handed in");
  }

  /// The difference between `index` and the number of iterations before.
  std::int64_t offset(const Op& loop, VarId index) const {
    const Block& body = program_.block(loop_.body);
    for (std::size_t i = 0; i < body.params.size(); ++i) {
      if (body.params[i] != index) continue;
      const Tensor* first = program_.constant(loop.inputs[i]);
      if (first == nullptr || stride(body, i) != 1) break;
      return first->item_int();
    }
    if (!outside(index)) {
      const Op& op = maker(index);
      const auto number = [&](std::size_t input) { return program_.constant(op.inputs.at(input)); };
      if (op.type == "identity") return offset(loop, op.inputs[0]);
      if (op.type == "add" && number(1) != nullptr) return offset(loop, op.inputs[0]) + number(1)->item_int();
      if (op.type == "add" && number(0) != nullptr) return offset(loop, op.inputs[1]) + number(0)->item_int();
      if (op.type == "sub" && number(1) != nullptr) return offset(loop, op.inputs[0]) - number(1)->item_int();
    }
    refuse_recurrence("'" + name(index) + "' is no count of iterations from 0");
  }
  std::int64_t stride(const Block& body, std::size_t param) const {
    const VarId next = body.results[param];
    if (outside(next) || next == body.params[param]) return 0;
    const Op& op = maker(next);
    if (op.type == "identity" && !outside(op.inputs[0])) return stride_of(maker(op.inputs[0]), body.params[param]);
    return stride_of(op, body.params[param]);
  }
  std::int64_t stride_of(const Op& op, VarId param) const {
    if (op.type != "add" && op.type != "sub") return 0;
    for (const std::size_t at : {std::size_t{0}, std::size_t{1}}) {
      const Tensor* by = program_.constant(op.inputs[1 - at]);
      if (op.inputs[at] == param && by != nullptr && by->elements() == 1)
        return op.type == "add" ? by->item_int() : at == 0 ? -by->item_int() : 0;
    }
    return 0;
  }

  void read_write(const Op& loop, const Op& op) {
    if (offset(loop, op.inputs[1]) != 0) refuse_recurrence("slots of '" + name(op.inputs[0]) + "' are not numbered as the iterations are");
    loop_.written[op.inputs[0]] = op.inputs[2];
  }

  void read_read(const Op& loop, const Op& op) {
    const VarId array = op.inputs[0];
    const VarId boot = op.inputs.size() > 2 ? op.inputs[2] : no_var;
    const std::int64_t at = offset(loop, op.inputs[1]);
    if (!loop_.written.contains(array)) {
      if (at != 0 || boot != no_var) refuse_recurrence("'" + name(array) + "' is read at other slots than those of the iteration");
      read_source(array);
      return;
    }
    loop_.lag[op.outputs[0]] = static_cast<int>(-at);
    if (at == 0) return;
    if (at != -1 || boot == no_var) refuse_recurrence("'" + name(array) + "' is read further back, or without a boot");
    for (const RecurrentLoop::State& state : loop_.states) {
      if (state.array == array && state.boot != boot) refuse_recurrence("'" + name(array) + "' has two boots");
      if (state.array == array) return;
    }
    loop_.states.push_back({array, boot});
  }

  void read_source(VarId array) {
    const Op& op = maker(array);
    const VarType& type = program_.var(array).type;
    if (op.type == "tensor_array_unstack") return read_dense_source(array, op);
    if (loop_.dense) refuse_recurrence("the loop reads dense slots and ragged rows");
    if (!type.ordered || type.lod_depth > 0) refuse_recurrence("'" + name(array) + "' holds no rows of ragged sequences");
    const bool unpacks = op.type == "unpack";
    const VarId order = unpacks ? op.outputs[1] : op.inputs.at(op.type == "reorder_steps" ? 2 : 1);
    const Op& unpack = unpacks ? op : maker(order);
    if (unpack.type != "unpack") refuse_recurrence("the order of '" + name(array) + "' is handed in");
    const std::int64_t level = unpack.attributes.get_or("level", std::int64_t{0});
    const bool reverse = unpack.attributes.get_or("reverse", false);
    if (!loop_.sources.empty() && (level != loop_.level || reverse != loop_.reverse))
      refuse_recurrence("the loop reads sequences in two orders");
    loop_.level = level;
    loop_.reverse = reverse;
    if (first_ == no_var) first_ = array;
    loop_.sources.emplace(array, unpacks ? op.inputs[0] : no_var);
    loop_.orders[array] = order;
  }

  /// The tensor that says how many steps and sequences there are: x of `same_steps(y, x)`, of a reversal, and of itself.
  VarId base_of(VarId var) const {
    if (program_.parameter(var) != nullptr) return var;
    for (const Op& op : program_.block(program_.var(var).block).ops) {
      if (op.outputs.empty() || op.outputs[0] != var) continue;
      if (op.type == "reverse" || op.type == "identity") return base_of(op.inputs[0]);
      if (op.type == "same_steps") return base_of(op.inputs[1]);
    }
    return var;
  }

  void read_dense_source(VarId array, const Op& unstack) {
    if (unstack.attributes.get_or("axis", std::int64_t{0}) != 0) refuse_recurrence("'" + name(array) + "' holds no steps of [T, N, …]");
    const VarId x = unstack.inputs[0];
    if (program_.var(x).type.rank() < 2) refuse_recurrence("the slots of '" + name(array) + "' have no rows");
    if (first_ != no_var && (!loop_.dense || base_of(x) != base_))
      refuse_recurrence("'" + name(array) + "' may have other steps than the first");
    loop_.dense = true;
    base_ = base_of(x);
    if (first_ == no_var) first_ = array;
    loop_.sources.emplace(array, x);
  }

  /// A boot of one row would be stretched, and its gradient is a sum: only boots that are known to have a row for each sequence.
  void check_boot(VarId boot) const {
    const VarType &rows = program_.var(boot).type, &x = program_.var(base_).type;
    const bool known = rows.shape && rows.rank() > 0 && x.shape && x.rank() > 1 && (*rows.shape)[0] != DDim::unknown;
    if (known && (*rows.shape)[0] == (*x.shape)[1]) return;
    VarId at = boot;
    for (const Op* op = maker_of(at); op != nullptr; op = maker_of(at)) {
      if (op->type == "shape") {
        const bool sequences = op->attributes.get_or("start", std::int64_t{0}) == 1 && op->attributes.get_or("end", std::int64_t{0}) == 2;
        if (sequences && base_of(op->inputs[0]) == base_) return;
        break;
      }
      static const std::set<std::string> passed{"reshape", "cast", "identity", "constant_of_shape", "concat"};
      if (!passed.contains(op->type)) break;
      at = op->inputs[0];
    }
    refuse_recurrence("'" + name(boot) + "' is not known to have a row for each sequence");
  }
  const Op* maker_of(VarId var) const {
    for (const Op& op : program_.block(program_.var(var).block).ops)
      if (std::find(op.outputs.begin(), op.outputs.end(), var) != op.outputs.end()) return op.inputs.empty() ? nullptr : &op;
    return nullptr;
  }

  void read_static(VarId var) {
    const Op& op = maker(var);
    const VarType& type = program_.var(var).type;
    if (op.type != "reorder" || type.lod_depth > 0) refuse_recurrence("'" + name(var) + "' has no row for each sequence");
    loop_.statics[var] = op.inputs[0];
  }

  /// The loop goes through all steps of the sequences.
  void check_all_steps(const LoopForm& form) {
    if (first_ == no_var) refuse_recurrence("the loop reads no ragged rows");
    const lowering::OuterNumbers numbers(program_, loop_.block, program_.block(loop_.block).ops[place_]);
    const auto steps = numbers.size_of(first_);
    const LoopForm::Index& left = form.stop.left;
    const bool all = steps && steps->roots.number == 0 && left.roots.number == 0 && (left.stride == 1 || left.stride == -1) &&
                     left.roots.terms.size() == steps->roots.terms.size() &&
                     std::equal(left.roots.terms.begin(), left.roots.terms.end(), steps->roots.terms.begin(),
                                [&](const auto& a, const auto& b) { return a.var == b.var && a.times == -left.stride * b.times; });
    if (!all) refuse_recurrence("the loop may end before its sequences do");
  }

  Program& program_;
  std::size_t place_ = 0;
  RecurrentLoop loop_;
  VarId first_ = no_var;
  VarId base_ = no_var;  ///< dense: says how many steps and sequences there are
};

}  // namespace

std::optional<std::size_t> RecurrentLoop::state_of(VarId array) const {
  for (std::size_t i = 0; i < states.size(); ++i)
    if (states[i].array == array) return i;
  return std::nullopt;
}

RecurrentLoop read_recurrent_loop(Program& program, int body) { return LoopReader(program, body).read(); }

bool is_last_slot(const Program& program, const RecurrentLoop& loop, VarId index) {
  const std::vector<Op>& ops = program.block(loop.block).ops;
  const lowering::OuterNumbers numbers(program, loop.block, ops[lowering::find_loop(program, loop.body).second]);
  const auto size = numbers.size_of(loop.sources.begin()->first);
  // The number may be computed behind the loop, of one in front of it.
  std::int64_t offset = 0;
  const auto maker = [&](VarId var) {
    return std::find_if(ops.begin(), ops.end(), [var](const Op& op) { return !op.outputs.empty() && op.outputs[0] == var; });
  };
  for (auto op = maker(index); op != ops.end() && op->type == "sub"; op = maker(index)) {
    const Tensor* by = program.constant(op->inputs[1]);
    if (by == nullptr || by->elements() != 1) return false;
    offset -= by->item_int();
    index = op->inputs[0];
  }
  const auto found = numbers.find(index);
  return size && found && found->stride == 0 && found->roots.terms == size->roots.terms &&
         found->roots.number + offset == size->roots.number - 1;
}

}  // namespace millrace::autodiff
