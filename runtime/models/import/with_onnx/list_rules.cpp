// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/scanned_states.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>

/// ONNX sequences are lists, ONNX optionals are optionals: values that never change.
namespace millrace::importing {
namespace {

void give_all_in(Importer& to, const Node& node, const char* op) { to.give(node, op, to.all_in(node)); }

/// A list whose elements the import knows one by one: exporters write `chunk`, `split`, `unbind` and `hstack` of scripts by lists, which loops of rows cannot have.
class KnownList {
 public:
  /// None where a run alone knows the number of elements.
  static std::optional<KnownList> of(Importer& to, VarId list) {
    const Op* op = to.maker(to.copied(list));
    if (op == nullptr) return std::nullopt;
    KnownList made;
    if (op->type == "list_of" && !op->inputs.empty()) {
      made.elements_ = op->inputs;
      return made;
    }
    return op->type == "list_split" && made.take_split(to, list, *op) ? std::optional(made) : std::nullopt;
  }

  std::int64_t size() const { return whole_ == no_var ? std::ssize(elements_) : std::ssize(sizes_); }
  VarId at(Importer& to, std::int64_t place) const {
    const auto index = static_cast<std::size_t>(place);
    if (whole_ == no_var) return elements_[index];
    const std::int64_t begin = std::accumulate(sizes_.begin(), sizes_.begin() + place, std::int64_t{0});
    const VarId part = to.emit1("slice", {whole_}, {{"starts", Ints{begin}}, {"ends", Ints{begin + sizes_[index]}}, {"axes", Ints{axis_}}});
    return keeps_axis_ ? part : to.squeezed(part, {axis_});
  }

 private:
  bool take_split(Importer& to, VarId list, const Op& op) {
    whole_ = op.inputs[0];
    const VarType &x = to.type(whole_), &part = to.type(list);
    if (!x.is_tensor() || !x.shape || !part.shape) return false;
    axis_ = axis_of("attribute axis", op.attributes.get_or("axis", std::int64_t{0}), x.rank());
    keeps_axis_ = part.rank() == x.rank();
    const std::int64_t extent = (*x.shape)[static_cast<int>(axis_)];
    const bool given = op.inputs.size() > 1 && op.inputs[1] != no_var;
    const auto lengths = given ? to.elements(op.inputs[1]) : std::vector<Element>{{1}};
    if (extent < 0 || extent > most_parts || !lengths) return false;
    for (const Element& each : *lengths) sizes_.push_back(each.number.value_or(-1));
    if (std::any_of(sizes_.begin(), sizes_.end(), [](std::int64_t size) { return size < 0; })) return false;
    if (given && to.type(op.inputs[1]).rank() > 0) return std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0}) == extent;
    if (sizes_.size() != 1 || sizes_[0] < 1) return false;
    sizes_.assign(static_cast<std::size_t>(extent / sizes_[0]), sizes_[0]);
    const std::int64_t rest = extent - std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
    if (rest > 0) sizes_.push_back(rest);
    return true;
  }

  static constexpr std::int64_t most_parts = 1 << 16;
  std::vector<VarId> elements_;
  VarId whole_ = no_var;  ///< or parts of it, of these sizes along the axis
  std::int64_t axis_ = 0;
  bool keeps_axis_ = true;
  Ints sizes_;
};

void at(Importer& to, const Node& node, const char* op) {
  const auto place = to.known_integers(node, 1);
  const auto list = place && place->size() == 1 ? KnownList::of(to, to.in(node, 0)) : std::nullopt;
  if (list && place->front() >= -list->size() && place->front() < list->size()) {
    const std::int64_t from_front = place->front() < 0 ? place->front() + list->size() : place->front();
    return to.give(node, "identity", {list->at(to, from_front)});
  }
  give_all_in(to, node, op);
}

void length(Importer& to, const Node& node, const char* op) {
  const auto list = KnownList::of(to, to.in(node, 0));
  if (list) return to.bind_constant(node, Tensor::scalar(list->size()));
  give_all_in(to, node, op);
}

void empty(Importer& to, const Node& node, const char*) {
  const auto element = static_cast<int>(node.integer("dtype", onnx::TensorProto::FLOAT));
  to.give(node, "list_of", {}, {{"dtype", dtype_of_onnx(element, "attribute dtype")}});
}

void construct(Importer& to, const Node& node, const char* op) {
  if (node.inputs() == 0) throw ProgramError("expected at least one element, found none");
  give_all_in(to, node, op);
}

void split(Importer& to, const Node& node, const char* op) {
  Attributes attributes{{"axis", node.integer("axis", 0)}};
  if (!node.flag("keepdims", true)) attributes.set("keepdims", false);
  to.give(node, op, to.all_in(node), attributes);
}

void concat(Importer& to, const Node& node, const char*) {
  if (!node.has_attribute("axis")) throw ProgramError("attribute axis: expected a number, found none");
  if (const VarId x = to.in(node, 0); to.stacked_lists().contains(x)) {
    static_cast<void>(node.flag("new_axis", false));
    if (node.integer("axis", 0) == 0) return to.give(node, "identity", {x});
    const int axis = axis_of("attribute axis", node.integer("axis", 0), to.rank(x));
    return to.bind(node, 0, first_axis_at(to, x, axis, node.wants(0) ? node.output(0) : ""));
  }
  constexpr std::int64_t few = 256;
  if (const auto list = KnownList::of(to, to.in(node, 0)); list && list->size() > 0 && list->size() <= few) {
    std::vector<VarId> parts;
    for (std::int64_t i = 0; i < list->size(); ++i) parts.push_back(list->at(to, i));
    const Ints axes{node.integer("axis", 0)};
    if (node.flag("new_axis", false))
      for (VarId& part : parts) part = to.emit1("unsqueeze", {part}, {{"axes", axes}});
    return to.give(node, "concat", parts, {{"axis", axes[0]}});
  }
  to.give(node, node.flag("new_axis", false) ? "list_stack" : "list_concat", {to.in(node, 0)}, {{"axis", node.integer("axis", 0)}});
}

// ---- SequenceMap, as a loop over the elements

struct Map {
  VarId length = no_var;
  VarId step = no_var;
  std::vector<VarId> results;
  int block = -1;
};

/// The body for one element: what it gives goes to the end of a list that the loop carries.
Map map_iteration(Importer& to, const Node& node) {
  const onnx::GraphProto& graph = node.graph("body");
  if (std::cmp_not_equal(graph.input_size(), node.inputs()) || std::cmp_not_equal(graph.output_size(), node.outputs()))
    throw ProgramError("attribute body: expected a graph of " + std::to_string(node.inputs()) + " inputs and " +
                       std::to_string(node.outputs()) + " outputs, found " + std::to_string(graph.input_size()) + " and " +
                       std::to_string(graph.output_size()));
  const std::vector<VarId> outer = to.all_in(node);
  Map map;
  map.length = to.emit1("list_length", {outer.at(0)}, {}, "n");
  const std::vector<VarId> params = to.enter({{"step", VarType(DType::i64, DDim{})}, {"more", VarType(DType::boolean, DDim{})}});
  map.step = params[0];
  std::vector<VarId> inputs;
  for (const VarId var : outer) inputs.push_back(to.type(var).is_list() ? to.emit1("list_at", {var, map.step}) : var);
  map.results = to.body(graph, inputs);
  const VarId next = to.emit1("add", {map.step, to.literal(Tensor::scalar<std::int64_t>(1))});
  std::vector<VarId> handed_on{next, to.emit1("less", {next, map.length})};
  for (const VarId result : map.results) {
    if (!to.type(result).is_tensor())
      throw ProgramError("attribute body: expected outputs that are tensors, found " + to.type(result).to_string());
    handed_on.push_back(to.emit1("list_insert", {to.add_param("mapped", VarType::list_of(to.type(result))), result}));
  }
  map.block = to.leave(handed_on);
  return map;
}

void map(Importer& to, const Node& node, const char*) {
  if (!node.has(0) || !to.type(to.in(node, 0)).is_list()) throw ProgramError("expected a sequence as input 0, found another value");
  const Map map = map_iteration(to, node);
  const VarId zero = to.literal(Tensor::scalar<std::int64_t>(0));
  std::vector<VarId> initial{zero, to.emit1("less", {zero, map.length})};
  std::vector<std::string> names{"step", "more"};
  for (std::size_t i = 0; i < map.results.size(); ++i) {
    initial.push_back(to.emit1("list_of", {}, {{"dtype", to.type(map.results[i]).dtype}}));
    names.push_back(node.output(i));
  }
  const std::vector<VarId> last =
      to.emit("while", initial,
              {{"sub_block", BlockId{map.block}}, {"condition", std::int64_t{1}}, {"parallel_iterations", std::int64_t{8}}}, names);
  for (std::size_t i = 0; i < map.results.size(); ++i) to.bind(node, i, last[i + 2]);
}

// ---- Optionals

void optional_of(Importer& to, const Node& node, const char* op) {
  if (node.has(0)) return to.give(node, op, {to.in(node, 0)});
  const onnx::TypeProto* type = node.type("type");
  if (type == nullptr) throw ProgramError("expected an input or the attribute type, found neither");
  const VarType held = type_of_onnx(*type, "attribute type");
  if (!held.is_tensor() && !held.is_list())
    throw UnsupportedError("attribute type: expected a tensor or a sequence, found " + held.to_string());
  to.give(node, op, {}, {{"dtype", held.dtype}, {"list", held.is_list()}});
}

/// A value that is no optional is always there.
void optional_get(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0);
  to.give(node, to.type(x).is_optional() ? op : "identity", {x});
}

void optional_has(Importer& to, const Node& node, const char* op) {
  if (!node.has(0)) return to.bind_constant(node, Tensor::scalar(false));
  const VarId x = to.in(node, 0);
  if (!to.type(x).is_optional()) return to.bind_constant(node, Tensor::scalar(true));
  to.give(node, op, {x});
}

constexpr Rule list_table[] = {
    {"SequenceEmpty", empty},
    {"SequenceConstruct", construct, "list_of"},
    {"SequenceInsert", give_all_in, "list_insert"},
    {"SequenceErase", give_all_in, "list_erase"},
    {"SequenceAt", at, "list_at"},
    {"SequenceLength", length, "list_length"},
    {"SplitToSequence", split, "list_split"},
    {"ConcatFromSequence", concat},
    {"SequenceMap", map},
    {"Optional", optional_of, "optional_of"},
    {"OptionalGetElement", optional_get, "optional_get"},
    {"OptionalHasElement", optional_has, "optional_has"},
};

}  // namespace

std::span<const Rule> list_rules() { return list_table; }

}  // namespace millrace::importing
