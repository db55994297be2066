// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

namespace millrace::importing {
namespace {

void gather_nd(Importer& to, const Node& node, const char* op) {
  to.give(node, op, {to.in(node, 0), to.in(node, 1)}, {{"batch_dims", node.integer("batch_dims", 0)}});
}

void scatter(Importer& to, const Node& node, const char* op) {
  Attributes attributes{{"reduction", node.word("reduction", "none", {"none", "add", "mul", "min", "max"})}};
  if (node.op() != "ScatterND") attributes.set("axis", node.integer("axis", 0));
  to.give(node, op, {to.in(node, 0), to.in(node, 1), to.in(node, 2)}, attributes);
}

/// Updates [B, …, S, …] over a cache [B, …, M, …], from place write_indices[b] on along `axis`.
void tensor_scatter(Importer& to, const Node& node, const char*) {
  const VarId cache = to.in(node, 0), update = to.in(node, 1);
  const int rank = to.rank(cache);
  const int axis = axis_of("attribute axis", node.integer("axis", -2), rank);
  if (axis == 0) throw ProgramError("attribute axis: expected another than that of the batch, found 0");
  const bool circular = node.word("mode", "linear", {"linear", "circular"}) == "circular";
  const auto shaped = [&](VarId list, int at) {
    Ints shape(static_cast<std::size_t>(rank), 1);
    shape[static_cast<std::size_t>(at)] = -1;
    return to.emit1("reshape", {list}, {{"shape", shape}});
  };
  VarId places = shaped(to.emit1("range", {number(to, 0), extent_of(to, update, axis), number(to, 1)}), axis);
  if (node.has(2)) places = to.emit1("add", {places, shaped(whole_numbers(to, to.in(node, 2)), 0)});
  if (circular) places = to.emit1("mod", {places, extent_of(to, cache, axis)});
  const VarId everywhere = to.emit1("expand", {places, to.emit1("shape", {update})});
  to.give(node, "scatter_elements", {cache, everywhere, update}, {{"axis", std::int64_t{axis}}, {"reduction", std::string("none")}});
}

/// K was an attribute up to opset 9.
void top_k(Importer& to, const Node& node, const char* op) {
  const std::optional<Ints> known = to.opset() < 10 ? Ints{node.integer("k", 0)} : to.known_integers(node, 1);
  const VarId count = known && known->size() == 1 ? number(to, known->front()) : to.emit1("reshape", {to.in(node, 1)}, {{"shape", Ints{}}});
  node.flag("sorted", true);  // where it says 0, any order is right
  const VarId x = to.in(node, 0);
  const std::vector<VarId> made =
      to.emit(op, {sortable(to, x), count}, {{"axis", node.integer("axis", -1)}, {"largest", node.flag("largest", true)}});
  const DType dtype = to.type(x).dtype;
  to.bind(node, 0, to.type(made[0]).dtype == dtype ? made[0] : to.emit1("cast", {made[0]}, {{"to", dtype}}));
  to.bind(node, 1, made[1]);
}

void non_zero(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0)}); }

/// The entries where a list of bools is true; without an axis of all elements.
void compress(Importer& to, const Node& node, const char*) {
  const VarId places = to.emit1("reshape", {to.emit1("non_zero", {to.in(node, 1)})}, {{"shape", Ints{-1}}});
  const bool flat = !node.has_attribute("axis");
  const VarId x = flat ? to.emit1("reshape", {to.in(node, 0)}, {{"shape", Ints{-1}}}) : to.in(node, 0);
  to.give(node, "gather", {x, places}, {{"axis", flat ? std::int64_t{0} : node.integer("axis", 0)}});
}

/// A list [n] along axis `axis` of `rank`, the others 1.
VarId along(Importer& to, VarId list, int axis, int rank) {
  Ints shape(static_cast<std::size_t>(rank), 1);
  shape[static_cast<std::size_t>(axis)] = -1;
  return to.emit1("reshape", {list}, {{"shape", shape}});
}

/// Elements above or below a diagonal become zero: column − row is compared with k.
void trilu(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  VarId k = node.has(1) ? to.in(node, 1) : number(to, 0);
  if (to.type(k).rank() != 0) k = to.emit1("reshape", {k}, {{"shape", Ints{}}});
  const VarId row = along(to, count_to(to, extent_of(to, x, -2)), 0, 2);
  const VarId column = along(to, count_to(to, extent_of(to, x, -1)), 1, 2);
  const VarId apart = to.emit1("sub", {column, row});
  const VarId kept = to.emit1(node.flag("upper", true) ? "greater_equal" : "less_equal", {apart, k});
  to.give(node, "where", {kept, x, to.literal(scalar_of(to.type(x).dtype, 0))});
}

/// Whether lengths are the extent of x along `time` for all sequences, as exporters of TensorFlow write a reversal.
bool are_all_steps(Importer& to, VarId lengths, VarId x, int time) {
  const Op* op = to.maker(lengths);
  while (op != nullptr && (op->type == "identity" || op->type == "cast")) op = to.maker(op->inputs[0]);
  if (op == nullptr || op->type != "expand") return false;
  const auto length = to.elements(op->inputs[0]);
  if (!length || length->size() != 1) return false;
  const Element& one = length->front();
  if (one.number) return *one.number == (*to.type(x).shape)[time];
  return one.of != no_var && to.origin(one.of, one.axis) == to.origin(x, time);
}

/// Row t of a sequence of length n comes from row n − 1 − t, those behind its end stay: a gather along the axis of time.
void reverse_sequence(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  const auto batch = static_cast<int>(node.integer("batch_axis", 1));
  const auto time = static_cast<int>(node.integer("time_axis", 0));
  if (batch < 0 || time < 0 || batch > 1 || time > 1 || batch == time || rank < 2)
    throw ProgramError("expected a time_axis and a batch_axis, one 0 and the other 1, found " + std::to_string(time) + " and " +
                       std::to_string(batch) + " of " + to.type(x).to_string());
  if (are_all_steps(to, to.in(node, 1), x, time)) return to.give(node, "reverse", {x}, {{"axis", std::int64_t{time}}});
  const VarId lengths = along(to, whole_numbers(to, to.in(node, 1)), batch, rank);
  const VarId steps = along(to, count_to(to, extent_of(to, x, time)), time, rank);
  const VarId mirrored = to.emit1("sub", {to.emit1("sub", {lengths, number(to, 1)}), steps});
  const VarId from = to.emit1("where", {to.emit1("less", {steps, lengths}), mirrored, steps});
  const VarId everywhere = to.emit1("expand", {from, to.emit1("shape", {x})});
  VarId made = to.emit1("gather_elements", {x, everywhere}, {{"axis", std::int64_t{time}}});
  if (to.type(x) != to.type(made)) {  // extents that the file says
    Ints extents;
    for (const std::int64_t extent : *to.type(x).shape) extents.push_back(std::max<std::int64_t>(extent, 0));
    made = to.emit1("reshape", {made}, {{"shape", extents}});
  }
  to.give(node, "identity", {made});
}

/// 1 at the first greatest element along an axis. Up to opset 12 the axes from `axis` on were one.
void hardmax(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const bool flat = to.opset() < 13;
  const VarId over = flat ? to.emit1("flatten", {x}, {{"axis", node.integer("axis", 1)}}) : x;
  const std::int64_t axis = flat ? 1 : node.integer("axis", -1);
  const int rank = to.rank(over);
  const int at = static_cast<int>(axis < 0 ? axis + rank : axis);
  if (at < 0 || at >= rank)
    throw ProgramError("attribute axis: expected one of rank " + std::to_string(rank) + ", found " + std::to_string(axis));
  // One element more than there are, which is the greatest of none alone: an axis may be empty.
  const auto with_one = [&] {
    Ints pads(2 * static_cast<std::size_t>(rank), 0);
    pads[static_cast<std::size_t>(rank + at)] = 1;
    return to.emit1("pad", {over},
                    {{"pads", pads}, {"mode", std::string("constant")}, {"value", -std::numeric_limits<double>::infinity()}});
  };
  const VarId some = (*to.type(over).shape)[at] > 0 ? over : with_one();
  const VarId best = to.emit1("argmax", {some}, {{"axis", std::int64_t{at}}, {"keepdims", true}, {"select_last", false}});
  const VarId places = along(to, count_to(to, extent_of(to, over, at)), at, rank);
  const VarId hot = to.emit1("cast", {to.emit1("equal", {places, best})}, {{"to", to.type(x).dtype}});
  if (!flat) return to.give(node, "identity", {hot});
  to.give(node, "reshape_to", {hot, to.emit1("shape", {x})}, {{"allowzero", true}});
}

/// Ones on a diagonal of a matrix of the extents of the input.
void eye_like(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  if (to.rank(x) != 2) throw ProgramError("expected a matrix, found " + to.type(x).to_string());
  const DType dtype = node.has_attribute("dtype") ? dtype_attribute(node, "dtype") : to.type(x).dtype;
  const VarId row = along(to, count_to(to, extent_of(to, x, 0)), 0, 2);
  const VarId column = along(to, count_to(to, extent_of(to, x, 1)), 1, 2);
  const VarId apart = to.emit1("sub", {column, row});
  to.give(node, "cast", {to.emit1("equal", {apart, number(to, node.integer("k", 0))})}, {{"to", dtype}});
}

constexpr Rule pick_table[] = {
    {"GatherND", gather_nd, "gather_nd"},
    {"ScatterND", scatter, "scatter_nd"},
    {"ScatterElements", scatter, "scatter_elements"},
    {"Scatter", scatter, "scatter_elements"},
    {"TensorScatter", tensor_scatter},
    {"TopK", top_k, "top_k"},
    {"NonZero", non_zero, "non_zero"},
    {"Compress", compress},
    {"Trilu", trilu},
    {"ReverseSequence", reverse_sequence},
    {"Hardmax", hardmax},
    {"EyeLike", eye_like},
};

}  // namespace

std::span<const Rule> pick_rules() { return pick_table; }

}  // namespace millrace::importing
