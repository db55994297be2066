// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/scanned_states.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include <millrace/runtime/models/import/with_onnx/loop_body.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

namespace millrace::importing {
namespace {

/// Whether a graph within a node reads `name`.
bool reads_inside(const onnx::NodeProto& proto, const std::string& name) {
  return std::any_of(proto.attribute().begin(), proto.attribute().end(), [&](const onnx::AttributeProto& attribute) {
    return attribute.has_g() && std::any_of(attribute.g().node().begin(), attribute.g().node().end(), [&](const onnx::NodeProto& inner) {
             return std::find(inner.input().begin(), inner.input().end(), name) != inner.input().end() || reads_inside(inner, name);
           });
  });
}
bool gives(const onnx::GraphProto& graph, const std::string& name) {
  return std::any_of(graph.output().begin(), graph.output().end(), [&](const auto& output) { return output.name() == name; });
}
/// The nodes of a graph that read `name`; nothing where graphs within them do.
std::optional<std::vector<const onnx::NodeProto*>> readers(const onnx::GraphProto& graph, const std::string& name) {
  std::vector<const onnx::NodeProto*> found;
  for (const onnx::NodeProto& proto : graph.node()) {
    if (reads_inside(proto, name)) return std::nullopt;
    if (std::find(proto.input().begin(), proto.input().end(), name) != proto.input().end()) found.push_back(&proto);
  }
  return found;
}

bool is_any(const onnx::NodeProto* proto, std::initializer_list<std::string_view> ops) {
  return std::any_of(ops.begin(), ops.end(), [&](std::string_view op) { return is_node(proto, op); });
}

/// Whether nothing but the extents of a value is read, by itself or by a part of it; `but` reads more.
bool only_extents(const onnx::GraphProto& graph, const std::string& name, const onnx::NodeProto* but, int depth = 0) {
  constexpr int deepest = 16;
  const auto all = readers(graph, name);
  return depth < deepest && all &&
         std::all_of(
             all->begin(), all->end(),
             [&](const onnx::NodeProto* reader) {
               if (reader == but || is_any(reader, {"Shape", "Size"})) return true;
               return is_any(reader, {"Slice", "Gather", "Identity", "Squeeze", "Unsqueeze", "Transpose"}) && reader->input(0) == name &&
                      std::count(reader->input().begin(), reader->input().end(), name) == 1 && !gives(graph, reader->output(0)) &&
                      only_extents(graph, reader->output(0), but, depth + 1);
             });
}

/// The indices of a ScatterND that writes one place of an axis, and all of the others: one number for each of the first axes, which runs along that axis of the
/// indices where it is no count of iterations.
class Place {
 public:
  Place(const LoopBody& body, std::string data) : body_(body), data_(std::move(data)) {}

  /// The axis whose place is the count of the iteration.
  std::optional<std::int64_t> axis(const std::string& indices) const {
    std::vector<std::string> numbers{indices};
    const onnx::NodeProto* joined = body_.maker(body_.source(indices));
    if (is_node(joined, "Concat")) numbers.assign(joined->input().begin(), joined->input().end());
    std::optional<std::int64_t> found;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (!is_count(numbers[i])) {
        if (!runs_along(numbers[i], i, numbers.size())) return std::nullopt;
      } else if (found) {
        return std::nullopt;
      } else {
        found = static_cast<std::int64_t>(i);
      }
    }
    return found;
  }

 private:
  bool is_count(const std::string& name) const {
    return body_.source(name, {"Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Expand"}) == body_.count();
  }

  /// Whether the numbers are 0, 1, .. for the extent of axis `axis`, along that axis of as many as `axes`.
  bool runs_along(const std::string& given, std::size_t axis, std::size_t axes) const {
    const onnx::NodeProto* last = body_.maker(body_.source(given));
    if (!is_node(last, "Unsqueeze")) return false;
    const auto behind = body_.integers(last->input_size() > 1 ? last->input(1) : "");
    if (!behind || behind->size() != 1 || (behind->front() != -1 && std::cmp_not_equal(behind->front(), axes))) return false;
    const onnx::NodeProto* laid = body_.maker(body_.source(last->input(0), {"Identity", "Expand", "Cast"}));
    std::string numbers = last->input(0);
    if (is_node(laid, "Reshape")) {
      const auto shape = body_.integers(laid->input(1));
      if (!shape || std::cmp_greater(shape->size(), axes)) return false;
      for (std::size_t i = 0; i < shape->size(); ++i)
        if ((*shape)[i] != (i + axes - shape->size() == axis ? -1 : 1)) return false;
      if (axes - shape->size() > axis) return false;
      numbers = laid->input(0);
    } else if (axis + 1 != axes) {
      return false;  // without axes behind it, a list runs along the last axis
    }
    for (;;) {
      const onnx::NodeProto* proto = body_.maker(numbers = body_.source(numbers, {"Identity", "Expand", "Cast"}));
      if (is_node(proto, "Range")) return is_all_of(*proto, axis);
      if (!is_node(proto, "Slice") || !is_all(*proto)) return false;
      numbers = proto->input(0);
    }
  }

  bool is_all(const onnx::NodeProto& slice) const {
    if (slice.input_size() < 3) return false;
    const auto starts = body_.integers(slice.input(1)), ends = body_.integers(slice.input(2));
    const bool stepped = slice.input_size() > 4 && !slice.input(4).empty();
    const auto steps = stepped ? body_.integers(slice.input(4)) : std::nullopt;
    return starts && ends && (steps || !stepped) && is_whole(*starts, *ends, steps);
  }

  bool is_all_of(const onnx::NodeProto& range, std::size_t axis) const {
    const auto begin = body_.integers(range.input(0)), step = body_.integers(range.input(2));
    const onnx::NodeProto* pick = body_.maker(body_.source(range.input(1), {"Identity", "Cast", "Squeeze", "Unsqueeze"}));
    if (!begin || !step || *begin != Ints{0} || *step != Ints{1} || !is_node(pick, "Gather")) return false;
    const auto picked = body_.integers(pick->input(1));
    const onnx::NodeProto* shape = body_.maker(body_.source(pick->input(0)));
    return picked && picked->size() == 1 && std::cmp_equal(picked->front(), axis) && is_node(shape, "Shape") &&
           shape->attribute_size() == 0 && body_.source(shape->input(0)) == data_;
  }

  const LoopBody& body_;
  std::string data_;
};

onnx::NodeProto copy_of(const std::string& from, const std::string& to) {
  onnx::NodeProto made;
  made.set_op_type("Identity");
  made.set_name(to);
  made.add_input(from);
  made.add_output(to);
  return made;
}

}  // namespace

VarId first_axis_at(Importer& to, VarId x, int axis, const std::string& name) {
  if (axis == 0) return to.emit1("identity", {x}, {}, name);
  Ints perm;
  for (int i = 1; i < to.rank(x); ++i) perm.push_back(i);
  perm.insert(perm.begin() + axis, 0);
  return to.emit1("transpose", {x}, {{"perm", perm}}, name);
}

ScannedStates::ScannedStates(Importer& to, const Node& node, const onnx::GraphProto& body) : to_(to), node_(node), body_(body) {
  for (std::size_t i = node.inputs() > 2 ? node.inputs() - 2 : 0; i-- > 0;) {
    State state{.at = i};
    if (to.other_form(body, word(state)) != nullptr) continue;
    if (is_list(state) || is_joined(state) || is_placed(state)) states_.push_back(state);
  }
  if (!states_.empty()) make_form();
}

/// Whether an op of the body alone makes the state, and nothing inside reads what it makes.
bool ScannedStates::is_handed_on_alone(const State& state) const {
  const std::string& handed_on = body_.output(1 + static_cast<int>(state.at)).name();
  const auto further = readers(body_, handed_on);
  return state.op != nullptr && state.op->output(0) == handed_on && further && further->empty() &&
         std::count_if(body_.output().begin(), body_.output().end(), [&](const auto& output) { return output.name() == handed_on; }) == 1;
}

/// An empty list to whose end an iteration puts one more element; outside, its elements are joined.
bool ScannedStates::is_list(State& state) const {
  const VarType& type = to_.type(to_.in(node_, 2 + state.at));
  const std::string& taken = body_.input(2 + static_cast<int>(state.at)).name();
  if (!type.is_list() || !type.empty || !node_.wants(state.at)) return false;
  const auto inner = readers(body_, taken);
  if (!inner || inner->size() != 1) return false;
  state.op = inner->front();
  if (!is_node(state.op, "SequenceInsert") || state.op->input_size() != 2 || state.op->input(1) == taken || !is_handed_on_alone(state))
    return false;
  const auto outer = readers(to_.graph(), node_.output(state.at));
  if (!outer || outer->empty() || gives(to_.graph(), node_.output(state.at))) return false;
  state.axis = Node(*outer->front()).integer("axis", 0);
  state.new_axis = Node(*outer->front()).flag("new_axis", false);
  return std::all_of(outer->begin(), outer->end(), [&](const onnx::NodeProto* reader) {
    const Node read(*reader);
    const bool stacked = read.flag("new_axis", false);
    return is_node(reader, "ConcatFromSequence") && stacked == state.new_axis && (stacked || read.integer("axis", 0) == state.axis);
  });
}

/// A tensor to whose end an iteration puts a piece.
bool ScannedStates::is_joined(State& state) const {
  const VarType& type = to_.type(to_.in(node_, 2 + state.at));
  const std::string& taken = body_.input(2 + static_cast<int>(state.at)).name();
  const auto inner = readers(body_, taken);
  if (!type.is_tensor() || type.rank() < 1 || !inner || inner->size() != 1) return false;
  state.op = inner->front();
  if (!is_node(state.op, "Concat") || state.op->input_size() != 2 || state.op->input(0) != taken || state.op->input(1) == taken)
    return false;
  state.kind = Kind::joined;
  state.axis = axis_of("attribute axis", Node(*state.op).integer("axis", 0), type.rank());
  return is_handed_on_alone(state);
}

/// A tensor of as many places along an axis as there are iterations, each of which writes one.
bool ScannedStates::is_placed(State& state) const {
  const VarId first = to_.in(node_, 2 + state.at);
  const std::string& taken = body_.input(2 + static_cast<int>(state.at)).name();
  const LoopBody body(to_, body_);
  state.op = body.maker(body_.output(1 + static_cast<int>(state.at)).name());
  if (!is_node(state.op, "ScatterND") || state.op->attribute_size() > 0 || state.op->input(0) != taken || state.op->input(2) == taken ||
      !is_handed_on_alone(state) || !only_extents(body_, taken, state.op))
    return false;
  const auto axis = Place(body, taken).axis(state.op->input(1));
  if (!axis || !to_.type(first).is_tensor() || *axis >= to_.type(first).rank()) return false;
  state.kind = Kind::placed;
  state.axis = *axis;
  // Places that no iteration writes would keep what they have.
  const LoopBody::Condition again = body.condition();
  const Tensor* begins = to_.known(node_, 1);
  const bool begun =
      !node_.has(1) || (begins != nullptr && begins->dtype() == DType::boolean && begins->elements() == 1 && begins->item() != 0.0);
  if (!begun || !(again.handed_on || again.known == true) || !node_.has(0)) return false;
  const auto trips = to_.elements(to_.in(node_, 0));
  const std::int64_t extent = (*to_.type(first).shape)[static_cast<int>(*axis)];
  if (!trips || trips->size() != 1) return false;
  if (extent >= 0) return trips->front().number == extent;
  return trips->front().of != no_var && to_.same_extent(trips->front().of, trips->front().axis, first, static_cast<int>(*axis));
}

std::string ScannedStates::name_of(const State& state) const {
  if (state.kind == Kind::list) return node_.output(state.at);
  return name_beside(node_, std::to_string(state.at) + " pieces");
}

/// The name of the piece without its axis of one element, in the graph of the form.
std::string ScannedStates::squeezed(onnx::GraphProto& graph, const State& state) const {
  const std::string name = name_of(state) + " piece", axes = name + " axes";
  onnx::NodeProto& squeeze = *graph.add_node();
  squeeze.set_op_type("Squeeze");
  squeeze.set_name(name);
  squeeze.add_input(state.piece());
  squeeze.add_output(name);
  if (to_.opset() < 13) {
    onnx::AttributeProto& attribute = *squeeze.add_attribute();
    attribute.set_name("axes");
    attribute.set_type(onnx::AttributeProto::INTS);
    attribute.add_ints(state.axis);
  } else {
    squeeze.add_input(axes);
    onnx::TensorProto& list = *graph.add_initializer();
    list.set_name(axes);
    list.set_data_type(onnx::TensorProto::INT64);
    list.add_dims(1);
    list.add_int64_data(state.axis);
  }
  return name;
}

void ScannedStates::make_form() {
  std::string kind = "scanned";
  for (const State& state : states_) {
    kind += " " + std::to_string(state.at);
    if (state.kind != Kind::list) to_.pieces_of()[name_of(state)] = {to_.in(node_, 2 + state.at), state.axis};
    if (state.kind != Kind::placed) continue;
    to_.bind(Node(copy_of("", name_of(state) + " outside")), 0, to_.in(node_, 2 + state.at));
  }
  std::unique_ptr<onnx::NodeProto>& form = to_.other_form(body_, kind);
  form_ = form.get();
  if (form_ != nullptr) return;
  form = std::make_unique<onnx::NodeProto>(node_.proto());
  onnx::GraphProto& graph = body_of(*form);
  while (form->output_size() + 1 < graph.output_size()) form->add_output("");  // the last ones may be left out where nobody reads them
  auto& nodes = *graph.mutable_node();
  std::vector<onnx::NodeProto> values;  // of the states whose extents are read
  for (const State& state : states_) {
    graph.add_output()->set_name(state.new_axis ? state.piece() : squeezed(graph, state));
    form->add_output(name_of(state));
    erase_state(*form, state.at);
    nodes.erase(std::find_if(nodes.begin(), nodes.end(),
                             [&](const auto& each) { return each.output_size() == 1 && each.output(0) == state.op->output(0); }));
    if (state.kind == Kind::placed) values.push_back(copy_of(name_of(state) + " outside", state.op->input(0)));
  }
  for (const onnx::NodeProto& value : values) *nodes.Add() = value;
  std::rotate(nodes.begin(), nodes.end() - std::ssize(values), nodes.end());
  form_ = form.get();
}

/// The piece of one iteration that the pieces of all are made of.
VarId ScannedStates::piece_of(VarId pieces) const {
  const VarId array = to_.maker(to_.copied(pieces))->inputs.at(0);
  for (const Block& block : to_.program().blocks())
    for (const Op& op : block.ops)
      if (op.type == "tensor_array_write" && op.inputs.at(0) == array) return op.inputs.at(2);
  return no_var;
}

/// Whether the state can be made of the pieces: each has one element along its axis, and a place as many as it takes along the others.
bool ScannedStates::makes(const State& state, VarId pieces) const {
  if (state.new_axis) return true;
  const VarId piece = piece_of(pieces);
  const Op* squeeze = piece == no_var ? nullptr : to_.maker(piece);
  if (squeeze != nullptr && squeeze->type == "squeeze") {
    const VarType& type = to_.type(squeeze->inputs[0]);
    const std::int64_t axis = state.axis < 0 ? state.axis + type.rank() : state.axis;
    if (axis < 0 || axis >= type.rank() || (*type.shape)[static_cast<int>(axis)] != 1) return false;
  }
  if (state.kind == Kind::list) return to_.type(pieces).rank() > 0;
  const VarId first = to_.in(node_, 2 + state.at);
  const int rank = to_.type(first).rank();
  if (piece == no_var || to_.type(piece).rank() != rank - 1) return false;
  for (int axis = 0; state.kind == Kind::placed && axis < rank; ++axis) {
    if (axis == state.axis) continue;
    const int own = axis < state.axis ? axis : axis - 1;
    const std::int64_t extent = (*to_.type(first).shape)[axis];
    if (extent >= 0 ? extent != (*to_.type(piece).shape)[own] : !to_.same_extent(first, axis, piece, own)) return false;
  }
  return true;
}

void ScannedStates::refuse(const std::vector<State>& states) {
  for (const State& state : states) to_.other_form(body_, word(state)) = std::make_unique<onnx::NodeProto>();
  to_.again();
}

void ScannedStates::bind() {
  for (const State& state : states_) {
    if (!node_.wants(state.at)) continue;
    const VarId pieces = to_.named(name_of(state));
    if (!makes(state, pieces)) {
      refuse({state});
      throw ProgramError("expected pieces of one element along the axis that joins them, found " + to_.type(pieces).to_string());
    }
    if (state.kind == Kind::list) {
      to_.stacked_lists().insert(pieces);
      continue;
    }
    const VarId first = to_.in(node_, 2 + state.at);
    const bool alone = state.kind == Kind::placed || (*to_.type(first).shape)[static_cast<int>(state.axis)] == 0;
    const VarId made = first_axis_at(to_, pieces, static_cast<int>(state.axis), alone ? node_.output(state.at) : "");
    to_.bind(node_, state.at, alone ? made : to_.emit1("concat", {first, made}, {{"axis", state.axis}}, node_.output(state.at)));
  }
}

}  // namespace millrace::importing
