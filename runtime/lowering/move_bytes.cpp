// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/move_bytes.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }

class Mover {
 public:
  explicit Mover(Program& program) : program_(program), ops_(program.block(0).ops), readers_(lowering::reads_of(program)) {}

  void run() {
    for (std::size_t i = 0; i < ops_.size(); ++i)
      for (const VarId output : ops_[i].outputs) makers_[output] = i;
    std::vector<Op> made;
    for (const Op& op : ops_) {
      const std::optional<DType> to = made_bytes(op);
      if (!to || !is_move_of(op.inputs[0]) || !fits(op.inputs[0], op)) {
        made.push_back(op);
        continue;
      }
      last_ = &op;
      to_ = *to;
      bytes_of(op.inputs[0], made);
      made.back().outputs[0] = op.outputs[0];
    }
    ops_ = std::move(made);
    drop_idle();
  }

 private:
  const VarType& type(VarId var) const { return program_.var(var).type; }
  bool is_plain(VarId var) const { return type(var).is_tensor() && type(var).lod_depth == 0 && type(var).shape.has_value(); }
  const Op* maker(VarId var) const {
    const auto found = makers_.find(var);
    return found == makers_.end() ? nullptr : &ops_[found->second];
  }

  /// Whether a formula has as many values as x: each operand is one known number.
  bool is_of_numbers(const Op& op) const {
    return op.type == "arithmetic" && is_plain(op.inputs[0]) && std::all_of(op.inputs.begin() + 1, op.inputs.end(), [&](VarId operand) {
             const Tensor* const known = program_.constant(operand);
             return known != nullptr && known->elements() == 1 && known->rank() <= std::max(1, type(op.inputs[0]).rank());
           });
  }
  /// The bytes that an op makes of floats.
  std::optional<DType> made_bytes(const Op& op) const {
    if (!is_of_numbers(op) || type(op.inputs[0]).dtype != DType::f32 || !is_byte(type(op.outputs[0]).dtype)) return std::nullopt;
    return type(op.outputs[0]).dtype;
  }
  bool is_made_of_bytes(VarId var) const {
    const Op* const op = maker(var);
    return op != nullptr && is_of_numbers(*op) && is_byte(type(op->inputs[0]).dtype) && type(var).dtype == DType::f32;
  }

  /// The inputs that an op moves; none of another op. A move that leaves elements out would take the formula of all of them.
  std::size_t moved_inputs(const Op& op) const {
    if (op.type == "concat") return op.inputs.size();
    if (op.type != "gather" && !program_.registry().at(op.type).traits.view) return 0;
    const VarType &from = type(op.inputs[0]), &made = type(op.outputs[0]);
    return from.is_static() && made.is_static() && from.shape->elements() <= made.shape->elements() ? 1 : 0;
  }

  /// Whether moves alone, which nothing else reads, lie between `var` and floats that bytes made.
  bool is_move_of(VarId var) const {
    const Op* const op = maker(var);
    if (op == nullptr || op->outputs.size() != 1 || !is_plain(var) || type(var).dtype != DType::f32 || readers_.at(var) != 1) return false;
    const std::size_t inputs = moved_inputs(*op);
    return inputs > 0 && std::all_of(op->inputs.begin(), op->inputs.begin() + static_cast<std::ptrdiff_t>(inputs),
                                     [&](VarId input) { return is_made_of_bytes(input) || is_move_of(input); });
  }
  /// Whether both formulas together have few enough operands.
  bool fits(VarId var, const Op& last) const {
    const Op& op = *maker(var);
    if (is_made_of_bytes(var)) return op.inputs.size() + last.inputs.size() - 2 <= most_operands;
    return std::all_of(op.inputs.begin(), op.inputs.begin() + static_cast<std::ptrdiff_t>(moved_inputs(op)),
                       [&](VarId input) { return fits(input, last); });
  }

  /// `var` as bytes of the last formula, by ops that are appended to `made`.
  VarId bytes_of(VarId var, std::vector<Op>& made) {
    Op op = *maker(var);
    VarType as = type(var);
    as.dtype = to_;
    if (is_made_of_bytes(var)) {
      const auto steps = [](const Op& of) { return of.attributes.get<std::string>("steps"); };
      Attributes attributes;
      attributes.set("steps", steps(op) + (steps(op).empty() || steps(*last_).empty() ? "" : " ") + steps(*last_));
      attributes.set("to", to_);
      op.inputs.insert(op.inputs.end(), last_->inputs.begin() + 1, last_->inputs.end());
      op.attributes = std::move(attributes);
    } else {
      const std::size_t inputs = moved_inputs(op);
      std::map<VarId, VarId> moved;
      for (std::size_t i = 0; i < inputs; ++i) {
        const auto [place, fresh] = moved.try_emplace(op.inputs[i], no_var);
        if (fresh) place->second = bytes_of(op.inputs[i], made);
        op.inputs[i] = place->second;
      }
    }
    op.outputs[0] = program_.add_var(program_.var(var).name + "_bytes", as);
    const VarId out = op.outputs[0];
    made.push_back(std::move(op));
    return out;
  }

  /// Takes out formulas and moves that nothing reads any more.
  void drop_idle() {
    const std::map<VarId, int> before = std::exchange(readers_, lowering::reads_of(program_));
    for (std::size_t i = ops_.size(); i-- > 0;) {
      const Op& op = ops_[i];
      const bool idle = std::none_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) { return readers_[output] > 0; });
      const bool was_read = std::any_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) { return before.contains(output); });
      if (!idle || !was_read) continue;
      for (const VarId input : op.inputs)
        if (input != no_var) --readers_[input];
      ops_.erase(ops_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  Program& program_;
  std::vector<Op>& ops_;
  std::map<VarId, int> readers_;
  std::map<VarId, std::size_t> makers_;
  const Op* last_ = nullptr;
  DType to_ = DType::u8;
};

}  // namespace

void move_bytes(Program& program) {
  if (program.registry().find("arithmetic") != nullptr) Mover(program).run();
}

}  // namespace millrace
