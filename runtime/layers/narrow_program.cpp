// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gates.h>
#include <millrace/runtime/layers/narrow.h>

namespace millrace::layers {
namespace {

using build::Var;

/// An i32 sum holds so many products (kernels/int8.h).
constexpr std::int64_t most_k = 131071;

/// Walks through the blocks of a program and rewrites the products in them.
class Narrower {
 public:
  Narrower(Program& program, DType dtype) : program_(program), dtype_(dtype) {}

  std::int64_t run() {
    for (std::size_t block = 0; block < program_.blocks().size(); ++block) narrow_block(static_cast<int>(block));
    remove_unread();
    return count_;
  }

 private:
  /// The wide matrices that nothing reads any more.
  void remove_unread() {
    std::set<VarId> read;
    for (const Program::Port& port : program_.outputs()) read.insert(port.var);
    for (const Block& block : program_.blocks()) {
      read.insert(block.results.begin(), block.results.end());
      for (const Op& op : block.ops) read.insert(op.inputs.begin(), op.inputs.end());
    }
    for (const auto& [wide, narrow] : made_)
      if (!read.contains(wide.first)) program_.remove_constant(wide.first);
  }

  void narrow_block(int block) {
    std::vector<Op> ops = std::move(program_.block(block).ops);
    program_.block(block).ops.clear();
    for (Op& op : ops) {
      build::Guard guard(program_);
      const build::BlockGuard at(guard, block);
      if (narrow_op(op))
        ++count_;
      else
        program_.append_raw(block, std::move(op));
    }
  }

  bool narrow_op(const Op& op) {
    if (dtype_ == DType::bf16) return replace(op, op.type == "lstm_cell" ? 3 : 1, op.type == "lstm_cell" ? 4 : 1);
    if (op.type == "matmul") return matmul(op);
    if (op.type == "gemm") return gemm(op);
    return op.type == "lstm_cell" && cell(op);
  }

  /// The matrix that `var` always holds, where it can be narrow.
  bool narrows(VarId var) const {
    const Tensor* value = var == no_var ? nullptr : program_.constant(var);
    return value != nullptr && value->dtype() == DType::f32 && value->rank() == 2 && value->elements() > 0 &&
           (dtype_ != DType::i8 || std::max(value->dim(0), value->dim(1)) <= most_k);
  }
  bool has_rows(VarId var) const { return program_.constant(var) == nullptr && program_.var(var).type.rank() > 0; }

  Matrix narrow(VarId var, bool transposed_of = false) {
    const auto [at, fresh] = made_.try_emplace({var, transposed_of}, no_var, no_var);
    if (fresh) {
      const Tensor& value = *program_.constant(var);
      const std::string name = program_.var(var).name + (dtype_ == DType::bf16 ? "_bf16" : "_int8");
      const NarrowMatrix held = narrowed(transposed_of ? transposed(value) : value, dtype_);
      at->second.first = program_.add_parameter(name, held.values);
      if (held.scales) at->second.second = program_.add_parameter(name + "_scale", *held.scales);
    }
    return {of(at->second.first), of(at->second.second)};
  }
  static Var of(VarId var) { return var == no_var ? Var() : Var::of(var); }
  Var input(const Op& op, std::size_t at) const { return at < op.inputs.size() ? of(op.inputs[at]) : Var(); }

  /// The same op with other matrices as inputs first … last.
  bool replace(const Op& op, std::size_t first, std::size_t last) {
    if (op.type != "matmul" && op.type != "gemm" && op.type != "lstm_cell") return false;
    for (std::size_t at = first; at <= last; ++at)
      if (!narrows(op.inputs[at])) return false;
    if (!has_rows(op.inputs[0])) return false;
    Op same = op;
    for (std::size_t at = first; at <= last; ++at) same.inputs[at] = narrow(op.inputs[at]).values.id();
    program_.append_raw(build::Guard::current().block(), std::move(same));
    return true;
  }

  /// The vars of `made` take the place of the outputs of `op`.
  void hand_over(const Op& op, const std::vector<Var>& made) {
    const int block = build::Guard::current().block();
    for (std::size_t i = 0; i < made.size(); ++i) {
      Op same{"identity", {made[i].id()}, {op.outputs[i]}, {}, op.label};
      program_.append_raw(block, std::move(same));
    }
  }

  bool matmul(const Op& op) {
    if (!narrows(op.inputs[1]) || !has_rows(op.inputs[0])) return false;
    hand_over(op, {product(of(op.inputs[0]), narrow(op.inputs[1]))});
    return true;
  }

  bool gemm(const Op& op) {
    const Var added = input(op, 2);
    const double beta = op.attributes.get_or("beta", 1.0);
    if (!narrows(op.inputs[1]) || !has_rows(op.inputs[0]) || op.attributes.get_or("alpha", 1.0) != 1 ||
        op.attributes.get_or("trans_a", false) || (added.defined() && beta != 1))
      return false;
    const Var made = product(of(op.inputs[0]), narrow(op.inputs[1], op.attributes.get_or("trans_b", false)));
    hand_over(op, {added.defined() ? made + added : made});
    return true;
  }

  bool cell(const Op& op) {
    if (!narrows(op.inputs[3]) || !narrows(op.inputs[4])) return false;
    const Var xw = product(of(op.inputs[0]), narrow(op.inputs[3]));
    const Var hr = product(of(op.inputs[1]), narrow(op.inputs[4]));
    hand_over(op, build::call("lstm_gates", {xw, hr, of(op.inputs[2]), input(op, 5), input(op, 6)}, op.attributes, {"h", "c"}));
    return true;
  }

  Program& program_;
  DType dtype_;
  std::int64_t count_ = 0;
  std::map<std::pair<VarId, bool>, std::pair<VarId, VarId>> made_;
};

}  // namespace

std::int64_t narrow_weights(Program& program, DType dtype) {
  if (dtype != DType::bf16 && dtype != DType::i8)
    throw DTypeError("narrow weights: expected bf16 or i8, found " + std::string(name_of(dtype)));
  return Narrower(program, dtype).run();
}

}  // namespace millrace::layers
