// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Det, by elimination: the row with the greatest element of a column is taken away from the rows that are left.
namespace millrace::importing {
namespace {

/// Matrices of so many rows are taken apart in line, others in a loop.
constexpr std::int64_t most_in_line = 4;

/// Matrices of which some rows are done with.
struct Elimination {
  VarId rows;     ///< [.., M, M]
  VarId left;     ///< [.., M], bool: the rows that are left
  VarId product;  ///< [.., 1]: the pivots so far, with their sign
};

/// The elimination of column `k`, an i64 scalar.
Elimination eliminated(Importer& to, const Formula& f, const Elimination& from, VarId k, VarId size) {
  const Attributes last{{"axis", std::int64_t{-1}}};
  const VarId column = to.emit1("gather", {from.rows, k}, last);
  // NaN counts as the greatest: no other row may hide it.
  const VarId height = f.where(to.emit1("is_nan", {column}), f.number(std::numeric_limits<double>::infinity()), f.op("abs", column));
  const VarId place = to.emit1("argmax", {f.where(from.left, height, f.number(-1))}, {{"axis", std::int64_t{-1}}, {"keepdims", true}});
  const VarId places = count_to(to, size);
  const VarId taken = f.op("equal", places, place);
  const VarId pivot = to.emit1("gather_elements", {column, place}, last);
  const VarId row = f.reduced("sum", f.where(f.unsqueezed(taken, {-1}), from.rows, f.number(0)), {-2}, true);
  // A row that moves to the front passes the rows before it that are left.
  const VarId passed = f.cast(f.op("logical_and", from.left, f.op("less", places, place)), DType::i64);
  const VarId odd = to.emit1("mod", {f.reduced("sum", passed, {-1}, true), number(to, 2)});
  const VarId sign = f.where(f.op("equal", odd, number(to, 0)), f.number(1), f.number(-1));
  const VarId left = f.op("logical_and", from.left, to.emit1("logical_not", {taken}));
  const VarId counts = f.op("logical_and", left, f.op("not_equal", pivot, 0.0));
  const VarId factor = f.where(counts, f.over(column, pivot), f.number(0));
  return {f.minus(from.rows, f.times(f.unsqueezed(factor, {-1}), row)), left, f.times(f.times(from.product, pivot), sign)};
}

Elimination by_loop(Importer& to, const Formula& f, const Elimination& start, VarId size) {
  const VarId zero = number(to, 0);
  const std::vector<VarId> params = to.enter({{"column", VarType(DType::i64, DDim{})},
                                              {"more", VarType(DType::boolean, DDim{})},
                                              {"rows", to.type(start.rows)},
                                              {"left", to.type(start.left)},
                                              {"product", to.type(start.product)}});
  const Elimination made = eliminated(to, f, {params[2], params[3], params[4]}, params[0], size);
  const VarId next = to.emit1("add", {params[0], number(to, 1)});
  const int body = to.leave({next, to.emit1("less", {next, size}), made.rows, made.left, made.product});
  const std::vector<VarId> last =
      to.emit("while", {zero, to.emit1("less", {zero, size}), start.rows, start.left, start.product},
              {{"sub_block", BlockId{body}}, {"condition", std::int64_t{1}}}, {"column", "more", "rows", "left", "product"});
  return {last[2], last[3], last[4]};
}

/// [.., M, M] → [..]
void det(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  if (rank < 2 || !is_floating(to.type(x).dtype)) throw ProgramError("expected matrices of floats, found " + to.type(x).to_string());
  const std::int64_t rows = (*to.type(x).shape)[rank - 2], columns = (*to.type(x).shape)[rank - 1];
  if (rows >= 0 && columns >= 0 && rows != columns) throw ProgramError("expected square matrices, found " + to.type(x).to_string());
  const Formula f(to, computed_in(to.type(x).dtype));
  std::vector<Extent> extents;
  for (int axis = 0; axis < rank - 2; ++axis) extents.push_back(extent_at(to, x, axis));
  extents.resize(static_cast<std::size_t>(rank), rows >= 0 ? extent_at(to, x, rank - 2) : extent_at(to, x, rank - 1));
  const VarId square = reshaped(to, f.taken(x), extents, true);  // which refuses a matrix of other columns than rows in a run
  const VarId size = value_of(to, extents.back());
  const VarId none = f.reduced("sum", f.where(f.op("equal", square, square), f.number(0), f.number(0)), {-1}, false);  // [.., M]
  Elimination now{square, f.op("equal", none, 0.0), f.plus(f.reduced("sum", none, {-1}, true), 1.0)};
  if (extents.back().known > most_in_line || extents.back().known < 0)
    now = by_loop(to, f, now, size);
  else
    for (std::int64_t k = 0; k < extents.back().known; ++k) now = eliminated(to, f, now, number(to, k), size);
  to.give(node, "squeeze", {f.cast(now.product, to.type(x).dtype)}, {{"axes", Ints{-1}}});
}

constexpr Rule det_table[] = {
    {"Det", det},
};

}  // namespace

std::span<const Rule> det_rules() { return det_table; }

}  // namespace millrace::importing
