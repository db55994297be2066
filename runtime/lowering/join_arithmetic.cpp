// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_arithmetic.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/kernels/unary.h>
#include <millrace/runtime/lowering/internal/arithmetic_steps.h>
#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/internal/arithmetic_names.h>

namespace millrace {
namespace {

/// A step, and its operand where it takes one: a var, or a number that becomes a weight where the chain is written.
struct Step {
  ArithmeticStep kind;
  VarId operand = no_var;
  std::optional<double> number = std::nullopt;
};

/// Steps on `x`, of ops of the block.
struct Chain {
  VarId x = no_var;
  std::vector<Step> steps;
  std::vector<std::size_t> ops;
  std::optional<DType> to;  ///< bytes, which nothing continues

  std::size_t operands() const {
    return static_cast<std::size_t>(std::count_if(steps.begin(), steps.end(), [](const Step& step) { return has_operand(step.kind); }));
  }
};

class Joiner {
 public:
  explicit Joiner(Program& program) : program_(program), ops_(program.block(0).ops) {}

  void run() {
    skip_copies();
    readers_ = lowering::reads_of(program_);
    take_squares();
    if (program_.registry().find("conv_arithmetic") != nullptr)
      for (const Op& op : ops_)
        if (op.type == "conv" || op.type == "conv1d") convolved_.insert(op.outputs[0]);
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (std::optional<Chain> chain = chain_of(i)) chains_[ops_[i].outputs[0]] = std::move(*chain);
    std::set<std::size_t> gone;
    for (auto& [out, chain] : chains_) {
      if (chain.ops.size() < 2 && ops_[chain.ops[0]].type != "clip" && !follows_convolution(chain)) continue;
      drop_idle_steps(chain);
      write(chain);
      gone.insert(chain.ops.begin(), chain.ops.end() - 1);
    }
    std::vector<Op> left;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (!gone.contains(i)) left.push_back(std::move(ops_[i]));
    ops_ = std::move(left);
  }

 private:
  /// Readers of an identity read what it copies. It goes where nothing else reads it.
  void skip_copies() {
    std::map<VarId, VarId> copied;
    for (Op& op : ops_) {
      for (VarId& input : op.inputs)
        if (const auto found = copied.find(input); found != copied.end()) input = found->second;
      if (op.type == "identity" && type(op.inputs[0]) == type(op.outputs[0])) copied[op.outputs[0]] = op.inputs[0];
    }
    const std::map<VarId, int> reads = lowering::reads_of(program_);
    std::erase_if(ops_,
                  [&](const Op& op) { return op.type == "identity" && copied.contains(op.outputs[0]) && !reads.contains(op.outputs[0]); });
  }

  const VarType& type(VarId var) const { return program_.var(var).type; }
  bool fits(const Op& op) const {
    const VarType& out = type(op.outputs[0]);
    const auto plain = [&](VarId var) {
      return var == no_var || (type(var).is_tensor() && type(var).lod_depth == 0 && type(var).shape && type(var).dtype == out.dtype);
    };
    return (out.dtype == DType::f32 || out.dtype == DType::f64) && plain(op.outputs[0]) &&
           std::all_of(op.inputs.begin(), op.inputs.end(), plain);
  }

  /// The chain that ends with an op, as long as it is known so far; none of another kind of op.
  std::optional<Chain> chain_of(std::size_t at) {
    const Op& op = ops_[at];
    if (op.type == "cast") return converted(at);
    if (op.outputs.size() != 1 || op.inputs.empty() || op.inputs.size() > 3 || !fits(op)) return std::nullopt;
    if (op.type == "leaky_relu")
      return extended(at, op.inputs[0], {{ArithmeticStep::prelu, no_var, number(op, "alpha", default_params(Unary::leaky_relu).alpha)}});
    if (op.type == "elu")
      return extended(at, op.inputs[0], {{ArithmeticStep::elu, no_var, number(op, "alpha", default_params(Unary::elu).alpha)}});
    if (op.type == "prelu" && type(op.inputs[0]) == type(op.outputs[0]))
      return extended(at, op.inputs[0], {{ArithmeticStep::prelu, op.inputs[1]}});
    if (op.type == "hard_sigmoid") return hard_sigmoid(at);
    if (op.type == "gelu") {
      const bool exact = op.attributes.get_or("approximate", std::string("none")) == "none";
      return extended(at, op.inputs[0], {{exact ? ArithmeticStep::gelu : ArithmeticStep::gelu_tanh}});
    }
    if (const lowering::OneSide* const alone = lowering::one_side(op.type)) return extended(at, op.inputs[0], {{alone->step}});
    if (op.type == "clip") return clipped(at);
    if (is_square(op)) return extended(at, op.inputs[0], {{ArithmeticStep::square}});
    const lowering::TwoSides* const found = lowering::two_sides(op.type);
    if (found == nullptr || op.inputs[0] == op.inputs[1]) return std::nullopt;
    const auto begun = [&](VarId var) { return continues(at, var) || is_convolved(at, var); };
    const bool second = !begun(op.inputs[0]) && (begun(op.inputs[1]) || type(op.inputs[0]) != type(op.outputs[0]));
    return second ? extended(at, op.inputs[1], {{found->of_second, op.inputs[0]}})
                  : extended(at, op.inputs[0], {{found->of_first, op.inputs[1]}});
  }

  /// An attribute in the dtype of the result.
  double number(const Op& op, const char* name, double otherwise) const {
    const double value = op.attributes.get_or(name, otherwise);
    return type(op.outputs[0]).dtype == DType::f64 ? value : static_cast<double>(static_cast<float>(value));
  }

  /// A product, a sum and two bounds: the same where infinity stays infinity.
  std::optional<Chain> hard_sigmoid(std::size_t at) {
    const Op& op = ops_[at];
    const UnaryParams usual = default_params(Unary::hard_sigmoid);
    const double alpha = number(op, "alpha", usual.alpha), beta = number(op, "beta", usual.beta);
    if (!std::isfinite(alpha) || !std::isfinite(beta) || alpha == 0) return std::nullopt;
    return extended(at, op.inputs[0],
                    {{ArithmeticStep::mul, no_var, alpha},
                     {ArithmeticStep::add, no_var, beta},
                     {ArithmeticStep::maximum, no_var, 0.0},
                     {ArithmeticStep::minimum, no_var, 1.0}});
  }

  /// The convolution that makes `var`, which op `at` alone reads, in the extents of its result; the pass `join_convolutions` joins both.
  bool is_convolved(std::size_t at, VarId var) const {
    const Op& op = ops_[at];
    return convolved_.contains(var) && readers_.at(var) == std::count(op.inputs.begin(), op.inputs.end(), var) &&
           type(var) == type(op.outputs[0]);
  }
  /// Whether the one op of a chain can be part of a convolution.
  bool follows_convolution(const Chain& chain) const { return !chain.steps.empty() && is_convolved(chain.ops[0], chain.x); }

  /// A product of x with itself, or its power 2.
  bool is_square(const Op& op) const {
    if (op.type == "mul") return op.inputs[0] == op.inputs[1];
    if (op.type != "pow" || type(op.outputs[0]).dtype != DType::f32 || type(op.inputs[0]) != type(op.outputs[0])) return false;
    const Tensor* const power = program_.constant(op.inputs[1]);
    return power != nullptr && power->elements() == 1 && static_cast<double>(power->item()) == 2;
  }

  /// Extents of one element, which add no axis to `rank` others.
  static bool is_one(const DDim& dims, int rank) {
    return dims.rank() <= rank && std::all_of(dims.begin(), dims.end(), [](auto extent) { return extent == 1; });
  }

  std::optional<Chain> clipped(std::size_t at) {
    const Op& op = ops_[at];
    std::vector<Step> steps;
    for (std::size_t bound = 1; bound < op.inputs.size(); ++bound) {
      if (op.inputs[bound] == no_var) continue;
      if (!is_one(*type(op.inputs[bound]).shape, type(op.inputs[0]).rank())) return std::nullopt;
      steps.push_back({bound == 1 ? ArithmeticStep::maximum : ArithmeticStep::minimum, op.inputs[bound]});
    }
    if (steps.empty()) return std::nullopt;
    return extended(at, op.inputs[0], steps);
  }

  /// A chain of whole numbers as f32, or one that ends as bytes.
  std::optional<Chain> converted(std::size_t at) {
    const Op& op = ops_[at];
    const VarType &from = type(op.inputs[0]), &made = type(op.outputs[0]);
    const auto plain = [](const VarType& each) { return each.is_tensor() && each.lod_depth == 0 && each.shape; };
    const auto is_byte = [](const VarType& each) { return each.dtype == DType::u8 || each.dtype == DType::i8; };
    if (!plain(from) || !plain(made)) return std::nullopt;
    if (made.dtype == DType::f32 && (is_byte(from) || from.dtype == DType::i32)) return Chain{op.inputs[0], {}, {at}, std::nullopt};
    const auto chain = chains_.find(op.inputs[0]);
    if (from.dtype != DType::f32 || !is_byte(made) || chain == chains_.end() || readers_.at(op.inputs[0]) != 1) return std::nullopt;
    Chain bytes = std::move(chain->second);
    chains_.erase(chain);
    bytes.ops.push_back(at);
    bytes.to = made.dtype;
    return bytes;
  }

  /// Whether op `at` alone reads the chain that ends with `var`, in the extents of its result.
  bool continues(std::size_t at, VarId var) const {
    const Op& op = ops_[at];
    return chains_.contains(var) && readers_.at(var) == std::count(op.inputs.begin(), op.inputs.end(), var) &&
           type(var) == type(op.outputs[0]);
  }

  Chain extended(std::size_t at, VarId var, const std::vector<Step>& steps) {
    Chain chain{var, {}, {}, std::nullopt};
    if (continues(at, var) && chains_[var].operands() + steps.size() <= most_operands) {
      chain = std::move(chains_[var]);
      chains_.erase(var);
    }
    chain.steps.insert(chain.steps.end(), steps.begin(), steps.end());
    chain.ops.push_back(at);
    return chain;
  }

  /// A mean of squares as a sum of squares, which is divided: the squares are not written.
  void take_squares() {
    std::map<VarId, std::size_t> squares;
    std::set<std::size_t> gone;
    std::vector<Op> left;
    for (Op& op : ops_) {
      const auto square = op.inputs.empty() ? squares.end() : squares.find(op.inputs[0]);
      const std::optional<std::int64_t> count = square == squares.end() ? std::nullopt : elements_of_mean(op);
      if (!count) {
        if ((op.type == "mul" || op.type == "pow") && fits(op) && is_square(op) && readers_[op.outputs[0]] == 1)
          squares[op.outputs[0]] = left.size();
        left.push_back(std::move(op));
        continue;
      }
      gone.insert(square->second);
      const VarType made = type(op.outputs[0]);
      const VarId sum = program_.add_var("sum_square", made);
      const VarId elements = program_.add_parameter("elements", scalar(static_cast<double>(*count), made.dtype));
      const Op divided{"div", {sum, elements}, op.outputs, {}, op.label};
      op.inputs[0] = left[square->second].inputs[0];
      op.outputs[0] = sum;
      op.attributes.set("kind", std::string("sum_square"));
      ++readers_[sum];
      ++readers_[elements];
      left.push_back(std::move(op));
      left.push_back(divided);
    }
    ops_.clear();
    for (std::size_t i = 0; i < left.size(); ++i)
      if (!gone.contains(i)) ops_.push_back(std::move(left[i]));
  }

  /// The number of elements of each mean; nothing for another op, and where the number is not known or 0.
  std::optional<std::int64_t> elements_of_mean(const Op& op) const {
    if (op.type != "reduce" || op.attributes.get_or("kind", std::string("sum")) != "mean" || !fits(op)) return std::nullopt;
    const DDim& dims = *type(op.inputs[0]).shape;
    auto axes = op.attributes.get_or("axes", std::vector<std::int64_t>{});
    if (axes.empty())
      for (int axis = 0; axis < dims.rank(); ++axis) axes.push_back(axis);
    std::int64_t count = 1;
    for (const std::int64_t axis : axes) {
      const std::int64_t extent = dims[static_cast<int>(axis)];
      if (extent <= 0) return std::nullopt;
      count *= extent;
    }
    return count;
  }

  bool is_number(const Chain& chain, const Step& step, ArithmeticStep kind, double number) const {
    if (step.kind == kind && step.number) return *step.number == number;
    const Tensor* const known = step.kind == kind ? program_.constant(step.operand) : nullptr;
    return known != nullptr && known->elements() == 1 && known->rank() <= type(chain.x).rank() &&
           static_cast<double>(known->item()) == number;
  }

  /// Takes out bounds that a conversion to bytes has anyway, a sum with 0 in front of it, and a 0 that is taken off whole numbers.
  void drop_idle_steps(Chain& chain) const {
    std::vector<Step>& steps = chain.steps;
    if (chain.to) {
      const double least = *chain.to == DType::i8 ? -128 : 0;
      if (!steps.empty() && is_number(chain, steps.back(), ArithmeticStep::minimum, least + 255)) steps.pop_back();
      if (!steps.empty() && is_number(chain, steps.back(), ArithmeticStep::maximum, least)) steps.pop_back();
      if (!steps.empty() && is_number(chain, steps.back(), ArithmeticStep::add, 0)) steps.pop_back();
    }
    const bool whole = !is_floating(type(chain.x).dtype);
    if (whole && !steps.empty() && is_number(chain, steps.front(), ArithmeticStep::sub, 0)) steps.erase(steps.begin());
  }

  /// A number in f64, else in f32.
  static Tensor scalar(double value, DType dtype) {
    return dtype == DType::f64 ? Tensor::scalar(value) : Tensor::scalar(static_cast<float>(value));
  }

  /// Writes the chain in the place of the last of its ops.
  void write(const Chain& chain) {
    Op& last = ops_[chain.ops.back()];
    std::vector<VarId> inputs{chain.x};
    std::string steps;
    for (const Step& step : chain.steps) {
      if (step.number)
        inputs.push_back(program_.add_parameter(ops::name_of(step.kind), scalar(*step.number, type(last.outputs[0]).dtype)));
      else if (step.operand != no_var)
        inputs.push_back(step.operand);
      steps += (steps.empty() ? "" : " ") + ops::name_of(step.kind);
    }
    Attributes attributes;
    attributes.set("steps", steps);
    if (chain.to) attributes.set("to", *chain.to);
    last = Op{"arithmetic", std::move(inputs), last.outputs, std::move(attributes), last.label};
  }

  Program& program_;
  std::vector<Op>& ops_;
  std::map<VarId, int> readers_;
  std::set<VarId> convolved_;
  std::map<VarId, Chain> chains_;  // by the var that each ends with
};

}  // namespace

void join_arithmetic(Program& program) {
  if (program.registry().find("arithmetic") != nullptr) Joiner(program).run();
}

}  // namespace millrace
