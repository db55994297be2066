// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/internal/loop_numbers.h>

#include <algorithm>
#include <set>
#include <string>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {

std::optional<std::int64_t> LoopForm::Index::ahead_of(const Index& other) const {
  const auto difference = lowering::sum(*this, other, -1);
  if (!difference || difference->stride != 0 || !difference->roots.terms.empty()) return std::nullopt;
  return difference->roots.number;
}

namespace lowering {
namespace {

using Index = LoopForm::Index;

/// Sums of sums outside a loop are followed so far, and are numbers of their own behind that.
constexpr int most_depth = 32;

/// a + times · b.
bool add_to(std::int64_t& a, std::int64_t times, std::int64_t b) {
  std::int64_t scaled = 0;
  return !__builtin_mul_overflow(times, b, &scaled) && !__builtin_add_overflow(a, scaled, &a);
}

bool has_block(const Op& op, int block) {
  for (const char* attribute : {"sub_block", "then_block", "else_block"})
    if (op.attributes.has(attribute) && op.attributes.get<BlockId>(attribute).index == block) return true;
  return false;
}

bool is_number(const Index& index) { return index.stride == 0 && index.roots.terms.empty(); }

/// a + times · b, into a.
bool add_to(Index::Sum& a, std::int64_t times, const Index::Sum& b) {
  if (!add_to(a.number, times, b.number)) return false;
  for (const Index::Term& term : b.terms) {
    const auto at = std::lower_bound(a.terms.begin(), a.terms.end(), term.var, [](const auto& each, VarId var) { return each.var < var; });
    const auto found = at != a.terms.end() && at->var == term.var ? at : a.terms.insert(at, {term.var, 0});
    if (!add_to(found->times, times, term.times)) return false;
    if (found->times == 0) a.terms.erase(found);
  }
  return true;
}

Index of(VarId var) { return {0, {0, {{var, 1}}}, {0, {{var, 1}}}, no_var}; }

}  // namespace

bool is_integer_scalar(const VarType& type) {
  return type.is_tensor() && (type.dtype == DType::i64 || type.dtype == DType::i32) && type.is_scalar();
}

Index number_index(std::int64_t number) { return {0, {number, {}}, {number, {}}, no_var}; }

std::optional<Index> sum(const Index& a, const Index& b, std::int64_t times) {
  Index made = a;
  made.var = no_var;
  if (!add_to(made.stride, times, b.stride) || !add_to(made.first, times, b.first) || !add_to(made.roots, times, b.roots))
    return std::nullopt;
  return made;
}

std::optional<std::int64_t> first_value(const Index& index, std::span<const VarId> counted, std::span<const std::int64_t> numbers) {
  std::int64_t value = index.first.number;
  for (const Index::Term& term : index.first.terms) {
    const auto at = static_cast<std::size_t>(std::find(counted.begin(), counted.end(), term.var) - counted.begin());
    if (!add_to(value, term.times, numbers[at])) return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> value_at(std::int64_t first, std::int64_t stride, std::int64_t iteration) {
  return add_to(first, stride, iteration) ? std::optional(first) : std::nullopt;
}

std::optional<std::int64_t> iterations_until(const LoopForm::Stop& stop, std::int64_t first) {
  // Turned round so that it falls to 0.
  std::int64_t left = first;
  std::int64_t stride = stop.left.stride;
  if (stride > 0 && (__builtin_sub_overflow(std::int64_t{0}, first, &left) || __builtin_sub_overflow(std::int64_t{0}, stride, &stride)))
    return std::nullopt;
  if (left <= 0 && (stop.beyond || left == 0)) return 0;
  if (left < 0 || stride >= -1) return left < 0 ? std::nullopt : std::optional(left);
  if (!stop.beyond && left % stride != 0) return std::nullopt;
  const std::int64_t whole = -(left / stride);
  return left % stride == 0 ? whole : whole + 1;
}

std::optional<Index> linear(const Program& program, const Op& op, const std::function<std::optional<Index>(VarId)>& at) {
  using Arithmetic = OpTraits::Arithmetic;
  const Arithmetic kind = program.registry().at(op.type).traits.arithmetic;
  if (kind == Arithmetic::none) return std::nullopt;
  if (kind == Arithmetic::keep || kind == Arithmetic::negate) {
    const auto x = at(op.inputs[0]);
    return !x || kind == Arithmetic::keep ? x : sum({}, *x, -1);
  }
  const auto a = at(op.inputs[0]);
  const auto b = at(op.inputs[1]);
  if (!a || !b) return std::nullopt;
  if (kind != Arithmetic::multiply) return sum(*a, *b, kind == Arithmetic::add ? 1 : -1);
  if (is_number(*b)) return sum({}, *a, b->roots.number);
  return is_number(*a) ? sum({}, *b, a->roots.number) : std::nullopt;
}

OuterNumbers::OuterNumbers(const Program& program, int block, const Op& loop, bool behind) : program_(program) {
  int child = loop.attributes.get<BlockId>("sub_block").index;
  for (int at = block; at >= 0; child = at, at = program.block(at).parent_idx) {
    for (const Op& op : program.block(at).ops) {
      if (&op == &loop && behind) continue;
      if (&op == &loop || has_block(op, child)) break;
      for (const VarId output : op.outputs) makers_[output] = &op;
    }
  }
}

std::optional<Index> OuterNumbers::find(VarId var) const {
  std::optional<Index> made = root(var, 0);
  if (made && !made->roots.terms.empty()) made->first = {0, {{var, 1}}};
  return made;
}

std::optional<Index> OuterNumbers::size_of(VarId array) const {
  std::optional<Index> made = root_size(array, 0);
  if (made) made->first = {0, {{array, 1}}};
  return made;
}

std::optional<Index> OuterNumbers::root(VarId var, int depth) const {
  if (var == no_var || !is_integer_scalar(program_.var(var).type)) return std::nullopt;
  if (const Tensor* value = program_.constant(var)) return number_index(value->item_int());
  const auto maker = makers_.find(var);
  if (maker != makers_.end() && depth < most_depth)
    if (auto made = computed(*maker->second, depth)) return made;
  return of(var);
}

std::optional<Index> OuterNumbers::computed(const Op& op, int depth) const {
  if (op.type == "tensor_array_size") return root_size(op.inputs[0], depth + 1);
  return linear(program_, op, [&](VarId input) { return root(input, depth + 1); });
}

std::optional<Index> OuterNumbers::root_size(VarId array, int depth) const {
  const auto maker = makers_.find(array);
  if (maker == makers_.end() || depth >= most_depth) return std::nullopt;
  const Op& op = *maker->second;
  if (op.type == "tensor_array") {
    if (op.attributes.has("window") || op.attributes.get_or("growable", false) || op.inputs.empty() || op.inputs[0] == no_var)
      return std::nullopt;
    return root(op.inputs[0], depth + 1);
  }
  if (op.type == "reorder_steps") return root_size(op.inputs[0], depth + 1);
  static const std::set<std::string> whole{"unpack", "split_lod_tensor_to_timesteps", "tensor_array_unstack"};
  if (!whole.contains(op.type)) return std::nullopt;
  return of(array);
}

}  // namespace lowering
}  // namespace millrace
