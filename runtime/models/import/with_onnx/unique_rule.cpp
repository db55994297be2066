// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Unique, by sorting: `top_k` of all elements keeps equal ones in order. Rows are told apart column by column.
namespace millrace::importing {
namespace {

/// Columns beyond which a loop goes over them.
constexpr std::int64_t most_columns = 16;

const Attributes first_axis{{"axis", std::int64_t{0}}};

VarId where_true(Importer& to, VarId mask) { return to.emit1("reshape", {to.emit1("non_zero", {mask})}, {{"shape", Ints{-1}}}); }
VarId at(Importer& to, VarId list, VarId places) { return to.emit1("gather", {list, places}, first_axis); }
VarId with_one_behind(Importer& to, VarId list, VarId last) { return to.emit1("concat", {list, as_list(to, last)}, first_axis); }

/// Equal elements of a list [n], sorted.
struct Groups {
  VarId numbers;  ///< [n]: which group each element is in
  VarId first;    ///< [groups]: its first element
  VarId counts;   ///< [groups]
};

/// Element i goes to place `places[i]`.
VarId scattered(Importer& to, VarId places, VarId values) {
  return to.emit1("scatter_elements", {to.emit1("mul", {places, number(to, 0)}), places, values}, first_axis);
}

Groups groups_of(Importer& to, VarId elements) {
  const VarId list = sortable(to, elements);
  const VarId n = extent_of(to, list, 0);
  const std::vector<VarId> sorted = to.emit("top_k", {list, n}, {{"axis", std::int64_t{0}}, {"largest", false}});
  const VarId i = count_to(to, n);
  const VarId before = at(to, sorted[0], to.emit1("maximum", {to.emit1("sub", {i, number(to, 1)}), number(to, 0)}));
  VarId begins = to.emit1("logical_or", {to.emit1("equal", {i, number(to, 0)}), to.emit1("not_equal", {sorted[0], before})});
  if (is_floating(to.type(list).dtype)) {
    // Two NaN are one element.
    const VarId both = to.emit1("logical_and", {to.emit1("is_nan", {sorted[0]}), to.emit1("is_nan", {before})});
    const VarId inner = to.emit1("logical_and", {both, to.emit1("greater", {i, number(to, 0)})});
    begins = to.emit1("logical_and", {begins, to.emit1("logical_not", {inner})});
  }
  const VarId number_of = to.emit1("cumsum", {to.emit1("cast", {begins}, {{"to", DType::i64}})}, first_axis);
  const VarId starts = where_true(to, begins);
  const VarId ends =
      with_one_behind(to, to.emit1("slice", {starts}, {{"starts", Ints{1}}, {"ends", Ints{INT64_MAX}}, {"axes", Ints{0}}}), n);
  // Without elements there is no group, and `ends` has one place more than `starts`.
  const VarId lengths = to.emit1("sub", {at(to, ends, count_to(to, extent_of(to, starts, 0))), starts});
  return {scattered(to, sorted[1], to.emit1("sub", {number_of, number(to, 1)})), at(to, sorted[1], starts), lengths};
}

/// The groups by the columns so far, each cut up by column `k` of the rows.
Groups cut_up(Importer& to, VarId numbers, VarId rows, VarId k) {
  const Groups next = groups_of(to, to.emit1("gather", {rows, k}, {{"axis", std::int64_t{1}}}));
  const VarId wide = to.emit1("mul", {numbers, extent_of(to, next.first, 0)});
  return groups_of(to, to.emit1("add", {wide, next.numbers}));
}

/// Groups of rows [n, m], where m is large or a run finds it: a loop over the columns carries the groups. Without columns all rows are equal.
Groups groups_by_loop(Importer& to, VarId rows) {
  const VarId columns = extent_of(to, rows, 1), zero = number(to, 0), n = extent_of(to, rows, 0);
  const VarId none = to.emit1("expand", {zero, as_list(to, n)});
  const std::vector<VarId> params = to.enter({{"column", VarType(DType::i64, DDim{})},
                                              {"more", VarType(DType::boolean, DDim{})},
                                              {"groups", VarType(DType::i64, DDim{DDim::unknown})}});
  const VarId next = to.emit1("add", {params[0], number(to, 1)});
  const VarId numbers = cut_up(to, params[2], rows, params[0]).numbers;
  const int body = to.leave({next, to.emit1("less", {next, columns}), numbers});
  const VarId last = to.emit("while", {zero, to.emit1("less", {zero, columns}), none},
                             {{"sub_block", BlockId{body}}, {"condition", std::int64_t{1}}}, {"column", "more", "groups"})[2];
  return groups_of(to, last);
}

/// Groups of rows [n, m].
Groups groups_of_rows(Importer& to, VarId rows) {
  const std::int64_t columns = (*to.type(rows).shape)[1];
  if (columns < 1 || columns > most_columns) return groups_by_loop(to, rows);
  Groups all = groups_of(to, to.emit1("gather", {rows, number(to, 0)}, {{"axis", std::int64_t{1}}}));
  for (std::int64_t k = 1; k < columns; ++k) all = cut_up(to, all.numbers, rows, number(to, k));
  return all;
}

/// The groups in the order of their first elements.
Groups in_order(Importer& to, const Groups& groups) {
  const VarId count = extent_of(to, groups.first, 0);
  const std::vector<VarId> sorted = to.emit("top_k", {groups.first, count}, {{"axis", std::int64_t{0}}, {"largest", false}});
  const VarId places = scattered(to, sorted[1], count_to(to, count));
  return {at(to, places, groups.numbers), sorted[0], at(to, groups.counts, sorted[1])};
}

void unique(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const bool flat = !node.has_attribute("axis");
  const std::int64_t axis = flat ? 0 : axis_of("attribute axis", node.integer("axis", 0), to.rank(x));
  const VarId over = flat ? to.emit1("reshape", {x}, {{"shape", Ints{-1}}}) : x;
  Groups groups;
  if (to.rank(over) == 1) {
    groups = groups_of(to, over);
  } else {
    Ints perm{axis};
    for (int i = 0; i < to.rank(over); ++i)
      if (i != axis) perm.push_back(i);
    const VarId front = to.emit1("transpose", {over}, {{"perm", perm}});
    const VarId rows = reshaped(to, front, {extent_at(to, front, 0), product(to, front, 1, to.rank(front))});
    groups = groups_of_rows(to, rows);
  }
  if (!node.flag("sorted", true)) groups = in_order(to, groups);
  to.bind(node, 0, to.emit1("gather", {over, groups.first}, {{"axis", axis}}));
  to.bind(node, 1, groups.first);
  to.bind(node, 2, groups.numbers);
  to.bind(node, 3, groups.counts);
}

constexpr Rule unique_table[] = {
    {"Unique", unique},
};

}  // namespace

std::span<const Rule> unique_rules() { return unique_table; }

}  // namespace millrace::importing
