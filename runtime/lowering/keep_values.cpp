// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/keep_values.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/spell_cells.h>
#include <millrace/runtime/lowering/internal/array_order.h>
#include <millrace/runtime/lowering/internal/loop_place.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace lowering {

std::pair<int, std::size_t> find_loop(const Program& program, int body) {
  for (const Block& block : program.blocks())
    for (std::size_t i = 0; i < block.ops.size(); ++i)
      if (block.ops[i].type == "while" && block.ops[i].attributes.get<BlockId>("sub_block").index == body) return {block.idx, i};
  throw ProgramError("expected the body of a loop, found block " + std::to_string(body));
}

DType kept_dtype(const LoopForm& form) {
  DType dtype = DType::f32;
  for (const Program::Port& port : form.step.inputs()) {
    const VarType& type = form.step.var(port.var).type;
    if (is_floating(type.dtype) && type.rank() > 0 && (*type.shape)[0] == DDim::unknown) dtype = type.dtype;
  }
  return dtype;
}

std::set<VarId> row_vars(const Program& program, int body, const LoopForm& form) {
  const Block& block = program.block(body);
  std::set<VarId> found;
  for (std::size_t i = 0; i < block.params.size(); ++i)
    if (!form.carried[i].counter) found.insert(block.params[i]);
  const auto outer_rows = [&](VarId var) {
    const VarDef& def = program.var(var);
    return def.block != body && program.constant(var) == nullptr && def.type.is_tensor() && def.type.rank() > 0 &&
           (*def.type.shape)[0] == DDim::unknown;
  };
  for (const Op& op : block.ops) {
    const bool rows = op.type == "tensor_array_read" || std::any_of(op.inputs.begin(), op.inputs.end(), [&](VarId input) {
                        return input != no_var && (found.contains(input) || outer_rows(input));
                      });
    if (rows) found.insert(op.outputs.begin(), op.outputs.end());
  }
  return found;
}

}  // namespace lowering

namespace {

using build::Var;

class Keeper {
 public:
  Keeper(Program program, int body, const std::vector<std::string>& names) : program_(std::move(program)), body_(body), names_(names) {
    std::tie(block_, place_) = lowering::find_loop(program_, body);
  }

  std::vector<KeptValue> run() {
    find_values();
    const Op& loop = program_.block(block_).ops[place_];
    const LoopForm form = find_loop_form(program_, block_, loop);
    check_values(form);
    // An array with an order takes the slots that the order has; else the iterations are counted from 0.
    const std::optional<std::size_t> ordered = ordered_input(form);
    make_arrays(form, ordered);
    write(ordered ? slot_of(form.inputs[*ordered].index) : iteration_of(form));
    return values_;
  }
  Program take() { return std::move(program_); }

 private:
  Block& body() { return program_.block(body_); }
  Op& loop() { return program_.block(block_).ops[place_]; }
  const std::string& name(VarId var) const { return program_.var(var).name; }

  // ---- Which values ----

  bool in_body(VarId var) const { return var != no_var && program_.var(var).block == body_; }

  void find_values() {
    for (const std::string& wanted : names_) {
      VarId found = program_.find_var(wanted);
      const std::size_t dot = wanted.rfind('.');
      if (!in_body(found) && dot != std::string::npos) {
        const VarId cell = program_.find_var(wanted.substr(0, dot));
        if (in_body(cell) && layers::spell_cell(program_, cell)) found = program_.find_var(wanted);
      }
      if (!in_body(found))
        throw ProgramError("keep_values: expected the name of a value of block " + std::to_string(body_) + ", found '" + wanted + "'");
      for (const KeptValue& other : values_)
        if (other.var == found) throw ProgramError("keep_values: '" + wanted + "' is asked for a second time");
      values_.push_back({wanted, found, no_var});
    }
  }

  /// Vars with rows of sequences that have ended: states of the iteration before, until they are shrunk.
  std::set<VarId> wide_vars(const std::set<VarId>& rows) {
    std::set<VarId> written;
    std::set<VarId> wide;
    for (const Op& op : body().ops)
      if (op.type == "tensor_array_write") written.insert(op.inputs[0]);
    for (const Op& op : body().ops) {
      const bool earlier = op.type == "tensor_array_read" && written.contains(op.inputs[0]);
      const auto in = [&](const std::set<VarId>& set) {
        return std::any_of(op.inputs.begin(), op.inputs.end(), [&](VarId input) { return set.contains(input) && rows.contains(input); });
      };
      std::set<VarId> narrow = rows;
      for (const VarId var : wide) narrow.erase(var);
      if (earlier || (op.type != "shrink" && in(wide) && !in(narrow))) wide.insert(op.outputs.begin(), op.outputs.end());
    }
    return wide;
  }

  void check_values(const LoopForm& form) {
    const std::set<VarId> rows = lowering::row_vars(program_, body_, form);
    const std::set<VarId> wide = ordered_input(form) ? wide_vars(rows) : std::set<VarId>{};
    dtype_ = lowering::kept_dtype(form);
    for (const KeptValue& value : values_) {
      const VarType& type = program_.var(value.var).type;
      const std::string what = "keep_values: '" + value.name + "' of " + type.to_string();
      if (!rows.contains(value.var)) throw UnsupportedError(what + " depends on no rows: it is computed again, not kept");
      if (wide.contains(value.var)) throw UnsupportedError(what + " holds rows of sequences that have ended: keep what shrink makes of it");
      if (!type.is_tensor() || type.lod_depth > 0 || !type.shape || type.rank() == 0)
        throw UnsupportedError(what + " has no rows that an array could hold");
      if (type.dtype != dtype_ && type.dtype != DType::boolean && type.dtype != DType::bf16)
        throw UnsupportedError(what + " cannot be kept among rows of " + std::string(name_of(dtype_)));
    }
  }

  // ---- Which slots ----

  /// The ops that `make` appends stand in front of the loop.
  template <class F>
  auto before_loop(F&& make) {
    std::vector<Op> ops = std::exchange(program_.block(block_).ops, {});
    const auto at = ops.begin() + static_cast<std::ptrdiff_t>(place_);
    program_.block(block_).ops.assign(std::make_move_iterator(ops.begin()), std::make_move_iterator(at));
    build::Guard guard(program_);
    const build::BlockGuard in(guard, block_);
    auto made = make();
    place_ = program_.block(block_).ops.size();
    for (auto op = at; op != ops.end(); ++op) program_.append_raw(block_, std::move(*op));
    return made;
  }

  std::optional<std::size_t> ordered_input(const LoopForm& form) const {
    for (std::size_t i = 0; i < form.inputs.size(); ++i)
      if (program_.var(form.inputs[i].array).type.ordered) return i;
    return std::nullopt;
  }

  VarId order_of(VarId array) const {
    if (const auto order = lowering::order_of(program_, array)) return *order;
    throw UnsupportedError("keep_values: nobody knows the order of '" + name(array) + "', which the loop reads");
  }

  std::optional<std::int64_t> start_of(std::size_t carried) {
    const Tensor* value = program_.constant(loop().inputs[carried]);
    return value == nullptr ? std::nullopt : std::optional(value->item_int());
  }

  static std::function<Var()> slot_of(const LoopForm::Index& index) {
    return [var = index.var] { return Var::of(var); };
  }
  /// Made in the body: how many iterations there were before.
  std::function<Var()> iteration_of(const LoopForm& form) {
    for (std::size_t i = 0; i < form.carried.size(); ++i) {
      const std::optional<std::int64_t> first = form.carried[i].stride == 1 ? start_of(i) : std::nullopt;
      if (!first || *first == std::numeric_limits<std::int64_t>::min()) continue;
      return [this, i, first] {
        Var counter = Var::of(body().params[i]);
        if (*first == 0) return counter;
        const auto offset =
            counter.type().dtype == DType::i64 ? Tensor::scalar(-*first) : Tensor::scalar(static_cast<std::int32_t>(-*first));
        return add(counter, build::constant(offset));
      };
    }
    const std::size_t place = add_counter();
    return [this, place] { return Var::of(body().params[place]); };
  }

  /// A count of iterations beside those that the loop has; its place among what is carried.
  std::size_t add_counter() {
    const std::size_t place = loop().inputs.size();
    const VarType type(DType::i64, DDim{});
    const VarId zero = before_loop([] { return build::constant(0).id(); });
    const VarId iteration = program_.add_var("iteration", type, body_);
    const VarId behind = program_.add_var("iterations", type, block_);
    body().params.push_back(iteration);
    build::Guard guard(program_);
    const build::BlockGuard at(guard, body_);
    body().results.push_back(add(Var::of(iteration), build::constant(1)).id());
    for (Op& op : body().ops)
      if (op.type == "break_if") op.inputs.push_back(iteration);
    loop().inputs.push_back(zero);
    loop().outputs.push_back(behind);
    return place;
  }

  // ---- Rewriting ----

  static Var as_index(const Var& x) { return x.type().dtype == DType::i64 ? x : cast(x, DType::i64); }

  /// The number of iterations; none when the loop is at its end already.
  static Var iterations_of(const LoopForm& form) {
    const LoopForm::Index& left = form.stop.left;
    if (left.stride != 1 && left.stride != -1)
      throw UnsupportedError("keep_values: the loop counts in steps of " + std::to_string(left.stride) + ", not of 1");
    std::optional<Var> iterations;
    for (const LoopForm::Index::Term& term : left.first.terms) {
      const Var value = Var::of(term.var).type().is_array() ? build::call1("tensor_array_size", {Var::of(term.var)}, {}, "size")
                                                            : as_index(Var::of(term.var));
      const std::int64_t times = -term.times * left.stride;
      if (!iterations && times == 1)
        iterations = value;
      else if (!iterations)
        iterations = value * build::constant(times);
      else
        iterations = times == 1 ? *iterations + value : times == -1 ? *iterations - value : *iterations + value * build::constant(times);
    }
    const std::int64_t offset = -left.first.number * left.stride;
    if (!iterations)
      iterations = build::constant(offset);
    else if (offset != 0)
      iterations = *iterations + build::constant(offset);
    return maximum(*iterations, build::constant(0));
  }

  /// The extents that arrays of the loop were made with, where they say how many rows there are and no more: those of a dense batch.
  VarId extents_of(const LoopForm& form) const {
    for (const LoopForm::Output& output : form.outputs)
      for (const Op& op : program_.block(block_).ops) {
        if (op.type != "tensor_array" || op.outputs[0] != output.array || op.inputs.size() < 3 || op.inputs[2] == no_var) continue;
        const VarType& type = program_.var(op.inputs[2]).type;
        if (type.shape && *type.shape == DDim{1}) return op.inputs[2];
      }
    return no_var;
  }

  void make_arrays(const LoopForm& form, std::optional<std::size_t> ordered) {
    const VarId array = ordered ? form.inputs[*ordered].array : no_var;
    const VarId order = ordered ? order_of(array) : no_var;
    const VarId extents = ordered ? no_var : extents_of(form);
    const std::vector<VarId> made = before_loop([&] {
      const Var size = ordered ? build::call1("tensor_array_size", {Var::of(array)}, {}, "size") : iterations_of(form);
      std::vector<VarId> arrays;
      for (const KeptValue& value : values_) {
        std::vector<VarId> inputs{size.id()};
        if (order != no_var || extents != no_var) inputs.push_back(order);
        if (extents != no_var) inputs.push_back(extents);
        const std::string called = "kept." + value.name;
        Op op{"tensor_array", std::move(inputs), {}, {{"name", called}}, {}};
        arrays.push_back(program_.append(block_, std::move(op), {called})[0]);
      }
      return arrays;
    });
    for (std::size_t i = 0; i < made.size(); ++i) values_[i].array = made[i];
  }

  /// Appends the writes of the kept values behind all ops of the body.
  void write(const std::function<Var()>& number) {
    build::Guard guard(program_);
    const build::BlockGuard at(guard, body_);
    const Var slot = number();
    for (const KeptValue& value : values_) {
      const Var x = Var::of(value.var);
      const Var held = x.type().dtype == dtype_ ? x : cast(x, dtype_);
      build::call("tensor_array_write", {Var::of(value.array), slot, held}, {{"share", true}});
    }
  }

  Program program_;
  const int body_;
  const std::vector<std::string>& names_;
  int block_ = 0;
  std::size_t place_ = 0;
  DType dtype_ = DType::f32;
  std::vector<KeptValue> values_;
};

}  // namespace

std::vector<KeptValue> keep_values(Program& program, int body, const std::vector<std::string>& names) {
  Keeper keeper(program, body, names);
  std::vector<KeptValue> values = keeper.run();
  program = keeper.take();
  return values;
}

std::vector<KeptValue> keep_values(Program& program, const std::vector<std::string>& names) {
  std::map<int, std::vector<std::string>> by_body;
  for (const std::string& name : names) {
    VarId var = program.find_var(name);
    if (var == no_var) var = program.find_var(name.substr(0, name.rfind('.')));
    if (var == no_var) throw ProgramError("keep_values: expected the name of a value of a loop, found '" + name + "'");
    by_body[program.var(var).block].push_back(name);
  }
  Program made = program;
  std::vector<KeptValue> values;
  for (const auto& [body, of_body] : by_body)
    for (KeptValue& value : keep_values(made, body, of_body)) values.push_back(std::move(value));
  program = std::move(made);
  return values;
}

}  // namespace millrace
