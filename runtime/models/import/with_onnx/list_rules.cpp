// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>

/// ONNX sequences are lists, ONNX optionals are optionals: values that never change.
namespace millrace::importing {
namespace {

void give_all_in(Importer& to, const Node& node, const char* op) { to.give(node, op, to.all_in(node)); }

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
    if (node.integer("axis", 0) == 0) {
      static_cast<void>(node.flag("new_axis", false));
      return to.give(node, "identity", {x});
    }
    const int rank = to.rank(x), axis = axis_of("attribute axis", node.integer("axis", 0), rank);
    static_cast<void>(node.flag("new_axis", false));
    Ints perm;
    for (int i = 1; i < rank; ++i) perm.push_back(i);
    perm.insert(perm.begin() + axis, 0);
    return to.give(node, "transpose", {x}, {{"perm", perm}});
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
    {"SequenceAt", give_all_in, "list_at"},
    {"SequenceLength", give_all_in, "list_length"},
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
