// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/axes.h>

#include <millrace/runtime/models/import/with_onnx/shapes.h>

namespace millrace::importing {
namespace {

VarId axes_below(Importer& to, std::int64_t count) {
  Ints all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(i);
  return to.literal(all);
}

}  // namespace

VarId list_input(Importer& to, const Node& node, std::size_t input) {
  const VarId list = whole_numbers(to, to.in(node, input));
  return to.type(list).rank() == 1 ? list : to.emit1("reshape", {list}, {{"shape", Ints{-1}}});
}

NamedAxes::NamedAxes(Importer& to, VarId axes, int rank) : to_(to), axes_(axes), count_((*to.type(axes).shape)[0]) {
  const VarId places = to.emit1("mod", {axes, number(to, rank)});
  const VarId each = to.emit1("reshape", {axes_below(to, rank)}, {{"shape", Ints{rank, 1}}});
  const VarId hits = to.emit1("cast", {to.emit1("equal", {each, places})}, {{"to", DType::i64}});
  const VarId found = to.emit1("reduce", {hits}, {{"kind", std::string("sum")}, {"axes", Ints{1}}, {"keepdims", false}});
  mask_ = to.emit1("greater", {found, number(to, 0)});
}

void NamedAxes::all_if_none() {
  if (count_ > 0) return;
  const VarId none = to_.emit1("equal", {to_.emit1("size", {axes_}), number(to_, 0)});
  mask_ = to_.emit1("logical_or", {mask_, none});
}

VarId NamedAxes::where_true(VarId mask) const { return to_.emit1("reshape", {to_.emit1("non_zero", {mask})}, {{"shape", Ints{-1}}}); }

VarId swapped_with_last(Importer& to, VarId x, VarId axis) {
  const int rank = to.rank(x);
  const VarId at = to.emit1("mod", {axis, number(to, rank)});
  const VarId places = axes_below(to, rank);
  const VarId last = number(to, rank - 1);
  const VarId moved = to.emit1("where", {to.emit1("equal", {places, last}), at, places});
  return to.emit1("transpose_by", {x, to.emit1("where", {to.emit1("equal", {places, at}), last, moved})});
}

VarId with_rank(Importer& to, VarId x, std::int64_t rank) {
  if (to.type(x).rank() >= 0 || rank < 0) return x;
  return to.emit1("reshape", {x}, {{"shape", Ints(static_cast<std::size_t>(rank), 0)}});
}

}  // namespace millrace::importing
