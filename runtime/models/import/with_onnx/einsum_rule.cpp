// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cctype>
#include <map>
#include <string>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Einsum as transposes, products and sums: operands are joined two at a time, by one `matmul`, or by a `mul` where nothing is summed over.
namespace millrace::importing {
namespace {

/// A letter for each axis. Axes of an ellipsis have letters of their own, below those of the equation.
using Labels = std::string;

struct Operand {
  VarId var;
  Labels labels;
};

struct Equation {
  std::vector<Labels> inputs;
  Labels output;
  bool has_output = false;
};

[[noreturn]] void refuse(const std::string& text) {
  throw ParseError("attribute equation: expected letters, commas, ... and at most one ->, found " + internal::printable(text));
}

Equation parse(const std::string& given) {
  std::string text;
  for (const char c : given)
    if (c != ' ') text += c;
  Equation equation;
  const std::size_t arrow = text.find("->");
  equation.has_output = arrow != std::string::npos;
  if (equation.has_output) equation.output = text.substr(arrow + 2);
  std::string inputs = text.substr(0, arrow);
  for (const char c : inputs + equation.output)
    if (std::isalpha(static_cast<unsigned char>(c)) == 0 && c != ',' && c != '.') refuse(given);
  for (std::size_t begin = 0;;) {
    const std::size_t end = inputs.find(',', begin);
    equation.inputs.push_back(inputs.substr(begin, end - begin));
    if (end == std::string::npos) return equation;
    begin = end + 1;
  }
}

/// The letters of an ellipsis of `count` axes, aligned at the right.
Labels ellipsis(int count) {
  Labels letters;
  for (int i = count; i > 0; --i) letters += static_cast<char>(i);
  return letters;
}

/// Axes that `...` stands for, or −1 without one. ParseError for dots that are no ellipsis.
int dots(const std::string& term, int rank) {
  const std::size_t at = term.find('.');
  if (at == std::string::npos) return -1;
  if (term.compare(at, 3, "...") != 0 || term.find('.', at + 3) != std::string::npos) refuse(term);
  return rank - static_cast<int>(term.size() - 3);
}

Labels spelled(const std::string& term, int count) {
  const std::size_t at = term.find('.');
  return at == std::string::npos ? term : term.substr(0, at) + ellipsis(count) + term.substr(at + 3);
}

bool has(const Labels& labels, char label) { return labels.find(label) != Labels::npos; }

VarId summed(Importer& to, VarId x, int axis) {
  return to.emit1("reduce", {x}, {{"kind", std::string("sum")}, {"axes", Ints{axis}}, {"keepdims", false}});
}

/// [n] along one axis of two or more that are compared.
VarId counted_along(Importer& to, VarId x, std::size_t axis) {
  Ints shape(static_cast<std::size_t>(to.rank(x)) - axis, 1);
  shape[0] = -1;
  const VarId count = to.emit1("range", {number(to, 0), extent_of(to, x, static_cast<int>(axis)), number(to, 1)});
  return to.emit1("reshape", {count}, {{"shape", shape}});
}

/// A letter that an operand has twice names its diagonal.
void take_diagonals(Importer& to, Operand& operand) {
  for (std::size_t b = 1; b < operand.labels.size(); ++b) {
    const std::size_t a = operand.labels.find(operand.labels[b]);
    if (a == b) continue;
    const VarId same = to.emit1("equal", {counted_along(to, operand.var, a), counted_along(to, operand.var, b)});
    const VarId zero = to.literal(scalar_of(to.type(operand.var).dtype, 0));
    operand.var = summed(to, to.emit1("where", {same, operand.var, zero}), static_cast<int>(b));
    operand.labels.erase(b--, 1);
  }
}

/// Sums over the letters that are not among `kept`.
void sum_out(Importer& to, Operand& operand, const Labels& kept) {
  for (std::size_t axis = operand.labels.size(); axis-- > 0;) {
    if (has(kept, operand.labels[axis])) continue;
    operand.var = summed(to, operand.var, static_cast<int>(axis));
    operand.labels.erase(axis, 1);
  }
}

VarId permuted(Importer& to, const Operand& operand, const Labels& order) {
  if (order == operand.labels) return operand.var;
  Ints perm;
  for (const char label : order) perm.push_back(static_cast<std::int64_t>(operand.labels.find(label)));
  return to.emit1("transpose", {operand.var}, {{"perm", perm}});
}

/// The axes behind `batch` as two: the first `count` of them, and the rest.
VarId as_matrices(Importer& to, VarId x, int batch, int count) {
  const int rank = to.rank(x);
  std::vector<Extent> extents;
  for (int axis = 0; axis < batch; ++axis) extents.push_back(extent_at(to, x, axis));
  extents.push_back(product(to, x, batch, batch + count));
  extents.push_back(product(to, x, batch + count, rank));
  return count == 1 && rank == batch + 2 ? x : reshaped(to, x, extents);
}

Labels filtered(const Labels& labels, const auto& keeps) {
  Labels made;
  for (const char label : labels)
    if (keeps(label)) made += label;
  return made;
}

/// All products of elements behind `batch` axes that both have: those of `a` stand in front.
VarId spread_product(Importer& to, VarId a, VarId b, int batch) {
  Ints behind, between;
  for (int axis = batch; axis < to.rank(b); ++axis) behind.push_back(axis - batch + to.rank(a));
  for (int axis = batch; axis < to.rank(a); ++axis) between.push_back(axis);
  if (!behind.empty()) a = to.emit1("unsqueeze", {a}, {{"axes", behind}});
  if (!between.empty() && std::ssize(between) < to.rank(a)) b = to.emit1("unsqueeze", {b}, {{"axes", between}});
  return to.emit1("mul", {a, b});
}

/// Both operands as one; letters that are not among `kept` are summed over.
Operand contracted(Importer& to, Operand a, Operand b, const Labels& kept) {
  sum_out(to, a, kept + b.labels);
  sum_out(to, b, kept + a.labels);
  const Labels batch = filtered(a.labels, [&](char label) { return has(b.labels, label) && has(kept, label); });
  const Labels sums = filtered(a.labels, [&](char label) { return has(b.labels, label) && !has(kept, label); });
  const Labels left = filtered(a.labels, [&](char label) { return !has(b.labels, label); });
  const Labels right = filtered(b.labels, [&](char label) { return !has(a.labels, label); });
  const VarId first = permuted(to, a, batch + left + sums);
  const VarId second = permuted(to, b, batch + sums + right);
  const int axes = static_cast<int>(batch.size());
  if (sums.empty()) return {spread_product(to, first, second, axes), batch + left + right};
  const auto size = [](const Labels& labels) { return static_cast<int>(labels.size()); };
  VarId made = to.emit1("matmul", {as_matrices(to, first, axes, size(left)), as_matrices(to, second, axes, size(sums))});
  if (left.size() != 1 || right.size() != 1) {
    std::vector<Extent> extents;
    for (int axis = 0; axis < axes; ++axis) extents.push_back(extent_at(to, made, axis));
    for (int axis = 0; axis < size(left); ++axis) extents.push_back(extent_at(to, first, axes + axis));
    for (int axis = 0; axis < size(right); ++axis) extents.push_back(extent_at(to, second, axes + size(sums) + axis));
    made = reshaped(to, made, extents);
  }
  return {made, batch + left + right};
}

/// The order of products that takes the fewest multiplications, by the extents that are known; the first of equal ones from the left.
class Order {
 public:
  Order(Importer& to, const std::vector<Operand>& operands, const Labels& output) : to_(to), operands_(operands), output_(output) {
    for (const Operand& operand : operands)
      for (std::size_t axis = 0; axis < operand.labels.size(); ++axis) {
        double& extent = extents_.try_emplace(operand.labels[axis], 0).first->second;
        extent = std::max(extent, static_cast<double>((*to.type(operand.var).shape)[static_cast<int>(axis)]));
      }
    for (auto& [label, extent] : extents_)
      if (extent <= 0) extent = usual;
  }

  Operand run() {
    const std::size_t count = operands_.size();
    if (count > most) {
      Operand all = operands_[0];
      for (std::size_t i = 1; i < count; ++i) {
        Labels kept = output_;
        for (std::size_t behind = i + 1; behind < count; ++behind) kept += operands_[behind].labels;
        all = contracted(to_, all, operands_[i], kept);
      }
      return all;
    }
    plans_.resize(std::size_t{1} << count);
    for (std::size_t set = 1; set < plans_.size(); ++set) plan(set);
    return made(plans_.size() - 1);
  }

 private:
  static constexpr std::size_t most = 8;  // operands whose orders are all tried
  static constexpr double usual = 32;     // of an extent that a run knows
  /// A set of operands as one: its letters, and the second of the two sets that it is made of; 0: it is one operand.
  struct Plan {
    Labels labels;
    double cost = 0;
    std::size_t second = 0;
  };

  double size(const Labels& labels) const {
    double all = 1;
    for (const char label : labels) all *= extents_.at(label);
    return all;
  }
  /// The letters that the result has, or an operand outside the set.
  Labels kept_beside(std::size_t set) const {
    Labels kept = output_;
    for (std::size_t i = 0; i < operands_.size(); ++i)
      if ((set >> i & 1) == 0) kept += operands_[i].labels;
    return kept;
  }
  void plan(std::size_t set) {
    Plan& best = plans_[set];
    if ((set & (set - 1)) == 0) {
      best.labels = operands_[static_cast<std::size_t>(std::countr_zero(set))].labels;
      return;
    }
    const Labels kept = kept_beside(set);
    const auto consider = [&](std::size_t second) {
      const Plan &a = plans_[set ^ second], &b = plans_[second];
      const Labels all = a.labels + filtered(b.labels, [&](char label) { return !has(a.labels, label); });
      const double cost = a.cost + b.cost + size(all);
      if (best.second == 0 || cost < best.cost) best = {filtered(all, [&](char label) { return has(kept, label); }), cost, second};
    };
    consider(std::bit_floor(set));
    const std::size_t others = set & (set - 1);  // the first operand is in front
    for (std::size_t second = others; second > 0; second = (second - 1) & others) consider(second);
  }
  Operand made(std::size_t set) const {
    const std::size_t second = plans_[set].second;
    if (second == 0) return operands_[static_cast<std::size_t>(std::countr_zero(set))];
    return contracted(to_, made(set ^ second), made(second), kept_beside(set));
  }

  Importer& to_;
  const std::vector<Operand>& operands_;
  const Labels& output_;
  std::map<char, double> extents_;
  std::vector<Plan> plans_;  // by set
};

/// The letters in the order of the alphabet that one operand alone has once: what an equation without -> gives.
Labels implicit_output(const std::vector<Operand>& operands, int most) {
  Labels all;
  for (const Operand& operand : operands) all += operand.labels;
  Labels letters = filtered(all, [&](char label) { return label > max_rank && std::count(all.begin(), all.end(), label) == 1; });
  std::sort(letters.begin(), letters.end());
  return ellipsis(most) + letters;
}

std::vector<Operand> read_operands(Importer& to, const Node& node, const Equation& equation, int& most) {
  if (equation.inputs.size() != node.inputs())
    throw ProgramError("attribute equation: expected a term for each of " + std::to_string(node.inputs()) + " inputs, found " +
                       std::to_string(equation.inputs.size()));
  std::vector<Operand> operands;
  for (std::size_t i = 0; i < node.inputs(); ++i) {
    const VarId x = to.in(node, i);
    const int rank = to.rank(x);
    const int count = dots(equation.inputs[i], rank);
    const Labels labels = spelled(equation.inputs[i], count);
    if (std::cmp_not_equal(labels.size(), rank))
      throw ProgramError("attribute equation: expected a term for " + to.type(x).to_string() + ", found " +
                         internal::printable(equation.inputs[i]));
    most = std::max(most, count);
    operands.push_back({x, labels});
  }
  return operands;
}

void einsum(Importer& to, const Node& node, const char*) {
  const Equation equation = parse(node.text("equation", ""));
  int most = 0;
  std::vector<Operand> operands = read_operands(to, node, equation, most);
  if (equation.has_output) dots(equation.output, 0);
  const Labels output = equation.has_output ? spelled(equation.output, most) : implicit_output(operands, most);
  Labels all;
  for (const Operand& operand : operands) all += operand.labels;
  for (const char label : output)
    if (!has(all, label) || std::count(output.begin(), output.end(), label) != 1)
      throw ProgramError("attribute equation: expected each letter of the result once, and in an input, found " +
                         internal::printable(equation.output));
  for (Operand& operand : operands) take_diagonals(to, operand);
  Operand result = Order(to, operands, output).run();
  sum_out(to, result, output);
  to.give(node, "identity", {permuted(to, result, output)});
}

constexpr Rule einsum_table[] = {{"Einsum", einsum}};

}  // namespace

std::span<const Rule> einsum_rules() { return einsum_table; }

}  // namespace millrace::importing
