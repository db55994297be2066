// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/with_onnx/exporter.h>

#include <algorithm>
#include <bit>
#include <limits>

#include <millrace/runtime/models/export/with_onnx/rules.h>
#include <millrace/runtime/program/fold_constants.h>
#include <millrace/runtime/program/ops/internal/inference.h>

namespace millrace::exporting {
namespace {

/// An op that reads what could not be exported.
struct Poisoned {};
const std::string poison = "?";

std::string label_of(const Program& program, const Op& op) {
  if (!op.label.empty()) return "'" + op.label + "'";
  return op.outputs.empty() ? "no output" : "'" + program.var(op.outputs[0]).name + "'";
}

void set(onnx::AttributeProto& to, const Setting& from) {
  if (const auto* whole = std::get_if<std::int64_t>(&from)) {
    to.set_type(onnx::AttributeProto::INT);
    to.set_i(*whole);
  } else if (const auto* real = std::get_if<double>(&from)) {
    to.set_type(onnx::AttributeProto::FLOAT);
    to.set_f(static_cast<float>(*real));
  } else if (const auto* text = std::get_if<std::string>(&from)) {
    to.set_type(onnx::AttributeProto::STRING);
    to.set_s(*text);
  } else if (const auto* list = std::get_if<Ints>(&from)) {
    to.set_type(onnx::AttributeProto::INTS);
    to.mutable_ints()->Add(list->begin(), list->end());
  } else {
    to.set_type(onnx::AttributeProto::TENSOR);
    *to.mutable_t() = tensor_proto(std::get<Tensor>(from), "");
  }
}

}  // namespace

const Rule* find_rule(std::string_view op) {
  for (const std::span<const Rule> family :
       {elementwise_rules(), linear_rules(), shape_rules(), array_rules(), sequence_rules(), decoding_rules(), list_rules()})
    for (const Rule& rule : family)
      if (rule.op == op) return &rule;
  return nullptr;
}

Exporter::Exporter(Program program, bool plain_names, bool batched, bool initial)
    : program_(std::move(program)), plain_names_(plain_names), initial_(initial), batched_(batched) {
  fold_constants(program_);
  for (const Block& block : program_.blocks()) {
    for (const Op& op : block.ops) {
      for (const VarId output : op.outputs) makers_[output] = &op;
      if (op.type == "identity" && !is_value(type(op, 0))) aliases_[op.outputs[0]] = op.inputs[0];
      if (op.type != "while") continue;
      const Block& body = program_.block(op.attributes.get<BlockId>("sub_block").index);
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        if (is_value(type(op, i))) continue;
        aliases_[body.params[i]] = op.inputs[i];
        aliases_[op.outputs[i]] = op.inputs[i];
      }
    }
  }
}

onnx::ModelProto Exporter::run() {
  model_.set_producer_name("millrace");
  onnx::GraphProto& graph = *model_.mutable_graph();
  graph.set_name(program_.title());
  enter(&graph, "");
  check_ops();
  claim_ports();
  if (batched_) {
    batch();
  } else {
    inputs();
    block(0);
    outputs();
  }
  if (!refused_.empty()) {
    std::string text;
    for (const auto& [what, labels] : refused_) {
      text += (text.empty() ? "" : "; ") + what + " (";
      for (std::size_t i = 0; i < labels.size(); ++i) text += (i == 0 ? "" : ", ") + labels[i];
      text += ")";
    }
    throw UnsupportedError("program '" + program_.title() + "': expected ops that ONNX has, found " + std::to_string(refused_.size()) +
                           " that it has not: " + text);
  }
  drop_unused();
  model_.set_ir_version(opset_ > 24 ? 13 : opset_ > 18 ? 9 : 8);
  onnx::OperatorSetIdProto& set = *model_.add_opset_import();
  set.set_domain("");
  set.set_version(opset_);
  return std::move(model_);
}

// ---- Ports ----

std::string plain(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

/// Keeps a name of a port for itself.
std::string Exporter::claimed(const std::string& name) {
  if (!taken_.insert(name).second)
    throw UnsupportedError("program '" + program_.title() + "': expected names of inputs and outputs that differ, found '" + name +
                           "' twice");
  return name;
}

std::string Exporter::input_name(const Program::Port& port) const {
  const auto& outputs = program_.outputs();
  const bool given_back =
      initial_ && std::any_of(outputs.begin(), outputs.end(), [&](const Program::Port& output) { return output.name == port.name; });
  const std::string name = (given_back ? "initial_" : "") + port.name;
  return plain_names_ ? plain(name) : name;
}

void Exporter::claim_ports() {
  for (const Program::Port& port : program_.inputs()) claimed(input_name(port));
  for (const Program::Port& port : program_.outputs()) claimed(plain_names_ ? plain(port.name) : port.name);
}

void Exporter::inputs() {
  for (const Program::Port& port : program_.inputs()) {
    const VarType& of = type(port.var);
    if (!is_value(of) || of.lod_depth > 1)
      throw UnsupportedError("program '" + program_.title() + "': input '" + port.name +
                             "': expected a value of at most one level of LoD (in ONNX one sequence, [T, …]), found " + of.to_string());
    const std::string name = input_name(port);
    bind(port.var, name);
    describe(scope().graph->add_input(), name, port_type(port), name, port.extents);
  }
}

/// An input that has a row for each sequence has one.
VarType Exporter::port_type(const Program::Port& port) const {
  VarType of = type(port.var);
  if (of.lod_depth > 0 || of.rank() < 1) return of;
  const auto per_sequence = [&](const Op& op) {
    if (op.type == "reorder") return op.inputs[0] == port.var;
    if (op.type == "last_rows") return op.inputs[2] == port.var;
    return op.type == "tensor_array_read" && has(op, 2) && op.inputs[2] == port.var && type(op, 0).ordered;
  };
  for (const Block& block : program_.blocks())
    if ((*of.shape)[0] == DDim::unknown && std::any_of(block.ops.begin(), block.ops.end(), per_sequence)) (*of.shape)[0] = 1;
  return of;
}

/// The value of a var, or nothing where an op was refused, which is named.
std::string Exporter::exported(VarId var) {
  try {
    return name(var);
  } catch (const Poisoned&) {
    return {};
  }
}

void Exporter::give_port(const std::string& port, const std::string& value, const VarType& of) {
  onnx::NodeProto& node = *raw_node("Identity");
  node.add_input(value);
  node.add_output(port);
  describe(scope().graph->add_output(), port, of, port);
}

void Exporter::outputs() {
  for (const Program::Port& port : program_.outputs()) {
    const VarType& of = type(port.var);
    if (!is_value(of)) {
      refused_["an output that is an array or an order: " + of.to_string()].push_back("'" + port.name + "'");
      continue;
    }
    const std::string value = exported(port.var);
    if (!value.empty()) give_port(plain_names_ ? plain(port.name) : port.name, value, of);
  }
}

/// Extents of one name are equal: this one has a name of its own.
std::string Exporter::unnamed_extent(const std::string& prefix, int axis) const {
  std::string made = prefix + "_" + std::to_string(axis);
  const auto taken = [&made](const Program::Port& port) {
    return std::find(port.extents.begin(), port.extents.end(), made) != port.extents.end();
  };
  while (std::any_of(program_.inputs().begin(), program_.inputs().end(), taken)) made += "_";
  return made;
}

onnx::ValueInfoProto* Exporter::describe(onnx::ValueInfoProto* info, const std::string& name, const VarType& type,
                                         const std::string& dim_prefix, const std::vector<std::string>& extents) {
  info->set_name(name);
  onnx::TypeProto* of = info->mutable_type();
  if (type.is_optional()) of = of->mutable_optional_type()->mutable_elem_type();
  if (type.is_list() || type.kind == VarKind::optional_list) of = of->mutable_sequence_type()->mutable_elem_type();
  onnx::TypeProto::Tensor& tensor = *of->mutable_tensor_type();
  tensor.set_elem_type(onnx_type(type.dtype));
  if (!type.shape || type.empty) return info;
  onnx::TensorShapeProto& shape = *tensor.mutable_shape();
  for (int axis = 0; axis < type.rank(); ++axis) {
    onnx::TensorShapeProto::Dimension& dim = *shape.add_dim();
    if ((*type.shape)[axis] != DDim::unknown)
      dim.set_dim_value((*type.shape)[axis]);
    else if (const std::string named = std::cmp_less(axis, extents.size()) ? extents[static_cast<std::size_t>(axis)] : ""; !named.empty())
      dim.set_dim_param(named);
    else if (!dim_prefix.empty())
      dim.set_dim_param(unnamed_extent(dim_prefix, axis));
  }
  return info;
}

// ---- Ops ----

void Exporter::check_ops() const {
  auto& refused = const_cast<Exporter*>(this)->refused_;
  for (const Block& block : program_.blocks())
    for (const Op& op : block.ops)
      if (find_rule(op.type) == nullptr) refused[op.type].push_back(label_of(program_, op));
}

void Exporter::block(int index) {
  for (const Op& each : program_.block(index).ops) op(each);
}

void Exporter::op(const Op& op) {
  const Rule* rule = find_rule(op.type);
  try {
    if (rule == nullptr) throw Poisoned();
    rule->apply(*this, op, rule->onnx);
    return;
  } catch (const Poisoned&) {
  } catch (const UnsupportedError& error) {
    refused_[op.type + ": " + error.what()].push_back(label_of(program_, op));
  }
  for (const VarId output : op.outputs) bind(output, poison);
}

const Op* Exporter::maker(VarId var) const {
  const auto found = makers_.find(var);
  return found == makers_.end() ? nullptr : found->second;
}

Names Exporter::all_in(const Op& op) {
  Names names;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) names.push_back(in(op, i));
  while (!names.empty() && names.back().empty()) names.pop_back();
  return names;
}

std::string Exporter::name(VarId var) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto found = scope->names.find(var); found != scope->names.end()) {
      if (found->second == poison) throw Poisoned();
      return found->second;
    }
  const auto known = constants_.find(var);
  if (known != constants_.end()) return known->second;
  const Tensor* value = program_.constant(var);
  if (value == nullptr) throw Poisoned();
  return constants_[var] = constant(*value, program_.var(var).name);
}

std::optional<Ints> Exporter::known(const Op& op, std::size_t input) const {
  if (!has(op, input)) return std::nullopt;
  const Tensor* value = program_.constant(op.inputs[input]);
  return value == nullptr ? std::nullopt : std::optional(ops::integers_of(*value));
}

int Exporter::rank(const Op& op, std::size_t input) const {
  const VarType& of = type(op, input);
  if (of.rank() < 0) throw UnsupportedError("expected a known rank, found " + of.to_string());
  return of.rank();
}

onnx::NodeProto* Exporter::raw_node(const std::string& onnx) {
  onnx::NodeProto* node = scope().graph->add_node();
  node->set_op_type(onnx);
  return node;
}

Names Exporter::nodes(const std::string& onnx, Names inputs, std::size_t outputs, const Settings& settings, const std::string& hint) {
  onnx::NodeProto& node = *raw_node(onnx);
  for (std::string& input : inputs) node.add_input(std::move(input));
  for (const auto& [name, value] : settings) {
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(name);
    set(attribute, value);
  }
  Names made;
  for (std::size_t i = 0; i < outputs; ++i) {
    made.push_back(fresh(hint.empty() ? onnx : hint));
    node.add_output(made.back());
  }
  return made;
}

void Exporter::give(const Op& op, const std::string& onnx, Names inputs, const Settings& settings) {
  while (!inputs.empty() && inputs.back().empty()) inputs.pop_back();
  bind(op.outputs.at(0), node(onnx, std::move(inputs), settings, program_.var(op.outputs[0]).name));
}

void Exporter::give_typed(const Op& op, const std::string& onnx, const VarType& held) {
  const std::string made = node(onnx, {}, {}, program_.var(op.outputs.at(0)).name);
  onnx::GraphProto& graph = *scope().graph;
  onnx::AttributeProto& attribute = *graph.mutable_node(graph.node_size() - 1)->add_attribute();
  attribute.set_name("type");
  attribute.set_type(onnx::AttributeProto::TYPE_PROTO);
  onnx::ValueInfoProto described;
  *attribute.mutable_tp() = describe(&described, "", held)->type();
  bind(op.outputs[0], made);
}

std::string Exporter::fresh(const std::string& hint) {
  std::string made = hint;
  for (int number = 1; !taken_.insert(made).second; ++number) made = hint + "_" + std::to_string(number);
  return made;
}

// ---- Constants: initializers of the outermost graph ----

std::string Exporter::constant(const Tensor& value, const std::string& hint) {
  const std::string made = fresh(hint.empty() ? "constant" : hint);
  *scopes_.front().graph->add_initializer() = tensor_proto(value, made);
  return made;
}

std::string Exporter::ints(const Ints& list) {
  std::string& made = small_["list " + ops::list_text(list)];
  if (made.empty()) made = constant(Tensor::from<std::int64_t>(list, DDim{static_cast<std::int64_t>(list.size())}), "list");
  return made;
}

std::string Exporter::whole(std::int64_t value) {
  std::string& made = small_["whole " + std::to_string(value)];
  if (made.empty()) made = constant(Tensor::scalar(value), "number");
  return made;
}

std::string Exporter::number(DType dtype, double value) {
  std::string& made = small_[std::string(name_of(dtype)) + " " + std::to_string(std::bit_cast<std::uint64_t>(value))];
  if (made.empty())
    made =
        constant(visit_dtype(dtype, [&]<class T>(std::type_identity<T>) { return Tensor::scalar(convert_element<T>(value)); }), "number");
  return made;
}

std::string Exporter::scalar(VarId var) {
  const std::string value = name(var);
  return type(var).rank() == 0 ? value : node("Reshape", {value, ints({})});
}

std::string Exporter::length_of(const std::string& tensor, int axis) {
  const std::string extent = node("Shape", {tensor}, {{"start", std::int64_t{axis}}, {"end", std::int64_t{axis} + 1}});
  return node("Reshape", {extent, ints({})}, {}, "length");
}

std::string Exporter::flipped(const std::string& tensor, std::int64_t axis) {
  return node("Slice", {tensor, ints({-1}), ints({std::numeric_limits<std::int64_t>::min()}), ints({axis}), ints({-1})}, {}, "reversed");
}

std::string Exporter::cast(const std::string& tensor, DType to) { return node("Cast", {tensor}, {{"to", std::int64_t{onnx_type(to)}}}); }

std::string Exporter::gathered(const std::string& tensor, const std::string& index) {
  return node("Gather", {tensor, index}, {{"axis", std::int64_t{0}}});
}

std::string Exporter::joined(const Names& tensors, std::int64_t axis) { return node("Concat", tensors, {{"axis", axis}}); }

// ---- Graphs ----

void Exporter::enter(onnx::GraphProto* graph, const std::string& name) {
  if (!name.empty()) graph->set_name(fresh(name));
  scopes_.emplace_back();
  scopes_.back().graph = graph;
}

onnx::GraphProto* Exporter::subgraph(onnx::NodeProto* node, const std::string& attribute) {
  onnx::AttributeProto& made = *node->add_attribute();
  made.set_name(attribute);
  made.set_type(onnx::AttributeProto::GRAPH);
  return made.mutable_g();
}

std::string Exporter::own(const std::string& value) {
  const onnx::GraphProto& graph = *scope().graph;
  const auto gives = [&](const onnx::NodeProto& node) {
    return std::find(node.output().begin(), node.output().end(), value) != node.output().end();
  };
  const bool taken = std::any_of(graph.output().begin(), graph.output().end(), [&](const auto& info) { return info.name() == value; });
  if (!taken && std::any_of(graph.node().begin(), graph.node().end(), gives)) return value;
  return node("Identity", {value});
}

namespace {

void collect_used(const onnx::GraphProto& graph, std::set<std::string>& used) {
  for (const onnx::NodeProto& node : graph.node()) {
    used.insert(node.input().begin(), node.input().end());
    for (const onnx::AttributeProto& attribute : node.attribute())
      if (attribute.has_g()) collect_used(attribute.g(), used);
  }
  for (const onnx::ValueInfoProto& output : graph.output()) used.insert(output.name());
}

template <class List, class Keep>
bool keep_only(List& list, Keep keep) {
  const int size = list.size();
  int kept = 0;
  for (int i = 0; i < size; ++i) {
    if (!keep(list.Get(i))) continue;
    if (kept != i) list.SwapElements(kept, i);
    ++kept;
  }
  list.DeleteSubrange(kept, size - kept);
  return kept != size;
}

bool drop_unused_in(onnx::GraphProto& graph, const std::set<std::string>& used) {
  const auto is_used = [&](const std::string& name) { return used.contains(name); };
  bool changed = keep_only(*graph.mutable_node(),
                           [&](const onnx::NodeProto& node) { return std::any_of(node.output().begin(), node.output().end(), is_used); });
  changed = keep_only(*graph.mutable_initializer(), [&](const onnx::TensorProto& tensor) { return is_used(tensor.name()); }) || changed;
  for (onnx::NodeProto& node : *graph.mutable_node())
    for (onnx::AttributeProto& attribute : *node.mutable_attribute())
      if (attribute.has_g()) changed = drop_unused_in(*attribute.mutable_g(), used) || changed;
  return changed;
}

}  // namespace

/// Nodes that nothing reads, such as `step - 1` where the slot of the step before is carried.
void Exporter::drop_unused() {
  for (bool changed = true; changed;) {
    std::set<std::string> used;
    collect_used(model_.graph(), used);
    changed = drop_unused_in(*model_.mutable_graph(), used);
  }
}

}  // namespace millrace::exporting
