// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/importer.h>

#include <algorithm>
#include <utility>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/lowering/drop_unread.h>
#include <millrace/runtime/models/import/lists_to_arrays.h>
#include <millrace/runtime/models/import/with_onnx/element_types.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/settings.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>

namespace millrace::importing {
namespace {

using internal::printable;

/// 6 is what PyTorch wrote at first. Older models are read where each of their ops means what it means since.
constexpr std::int64_t oldest_opset = 6;
constexpr std::string_view never_changed[] = {
    "ArgMax",        "ArgMin",     "Constant",  "DepthToSpace", "Flatten",   "Gather",    "GlobalAveragePool",
    "GlobalMaxPool", "Identity",   "LRN",       "LogSoftmax",   "Not",       "ReduceL1",  "ReduceL2",
    "ReduceMax",     "ReduceMean", "ReduceMin", "ReduceProd",   "ReduceSum", "Shape",     "Size",
    "Softmax",       "Softplus",   "Softsign",  "Squeeze",      "Transpose", "Unsqueeze", "SpaceToDepth",
};
constexpr std::int64_t newest_opset = 28;
/// Constants of at most so many elements are literals in the text of a program; larger ones are stored beside it, as
/// weights are. A setting (settings.h) is a literal of any size, since the weights of a program are trained.
constexpr std::int64_t largest_literal = 32;

/// Names of a file may hold anything; an error is one line.
std::string one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return text;
}

/// Attributes that change nothing of what a program computes here. (Rules read the others, or they are refused.)
struct IdleAttribute {
  std::string_view op;  ///< empty: every op
  const char* name;
  std::int64_t before = newest_opset + 1;  ///< idle in opsets before this one
};
constexpr IdleAttribute idle_attributes[] = {
    {"", "consumed_inputs", 6},  // where memory was used again
    {"", "broadcast", 7},        // shapes say so
    {"RNN", "output_sequence", 7},
    {"GRU", "output_sequence", 7},
    {"LSTM", "output_sequence", 7},
    {"Dropout", "ratio"},  // of training
    {"Dropout", "seed"},
    {"Dropout", "is_test", 7},
    {"BatchNormalization", "momentum"},
    {"GroupNormalization", "stash_type"},  // means are computed in f32, or in the dtype of X if that is wider
    {"RMSNormalization", "stash_type"},
    {"SimplifiedLayerNormalization", "stash_type"},
    {"MaxPool", "storage_order"},  // of the places, where somebody reads them
    {"Cast", "round_mode"},        // of powers of two, which no program here has
    {"CastLike", "round_mode"},
};

void pass_over_idle_attributes(const Node& node, std::int64_t opset) {
  for (const IdleAttribute& idle : idle_attributes)
    if ((idle.op.empty() || idle.op == node.qualified_op()) && opset < idle.before) node.pass_over(idle.name);
}

bool default_domain(const std::string& domain) { return domain.empty() || domain == "ai.onnx"; }

/// Nodes by the op that they need and that there is no rule for.
void collect_missing(const onnx::GraphProto& graph, std::map<std::string, std::vector<std::string>>& missing) {
  for (const onnx::NodeProto& proto : graph.node()) {
    const Node node(proto);
    if (find_rule(node.qualified_op()) == nullptr) missing[node.qualified_op()].push_back(printable(node.label()));
    for (const onnx::AttributeProto& attribute : proto.attribute())
      if (attribute.has_g()) collect_missing(attribute.g(), missing);
  }
}

/// The names that nodes of the graph read, and those of the graphs inside it.
void add_reads(const onnx::GraphProto& graph, std::set<std::string>& read) {
  for (const onnx::NodeProto& proto : graph.node()) {
    read.insert(proto.input().begin(), proto.input().end());
    for (const onnx::AttributeProto& attribute : proto.attribute()) {
      if (!attribute.has_g()) continue;
      add_reads(attribute.g(), read);
      for (const onnx::ValueInfoProto& output : attribute.g().output()) read.insert(output.name());
    }
  }
}

}  // namespace

const Rule* find_rule(std::string_view onnx) {
  for (const std::span<const Rule> family :
       {elementwise_rules(), reduce_rules(),    linear_rules(), window_rules(),          norm_rules(),
        einsum_rules(),      pick_rules(),      shape_rules(),  piece_rules(),           recurrent_rules(),
        control_rules(),     list_rules(),      curve_rules(),  quantized_rules(),       signal_rules(),
        loss_rules(),        attention_rules(), layout_rules(), state_rules(),           bit_rules(),
        image_rules(),       grid_rules(),      fold_rules(),   unique_rules(),          det_rules(),
        qlinear_rules(),     fused_rules(),     random_rules(), joined_attention_rules()})
    for (const Rule& rule : family)
      if (rule.onnx == onnx) return &rule;
  return nullptr;
}

void Importer::needs_extent(VarId x, int axis, std::int64_t extent) {
  const std::optional<DDim>& shape = type(x).shape;
  if (block() != 0 || extent < 0 || !shape || shape->rank() <= axis || axis < 0 || (*shape)[axis] >= 0) return;
  const Element from = origin(x, axis);
  for (const Program::Port& port : program_.inputs()) {
    if (port.var != from.of || !type(port.var).shape || from.axis < 0) continue;
    if ((*type(port.var).shape)[from.axis] < 0 && needed_extents_[port.name].emplace(from.axis, extent).second) again_ = true;
  }
}

std::vector<VarId> Importer::counters() const {
  std::vector<VarId> made;
  int last = 0;
  for (const Scope& scope : scopes_) {
    if (scope.block == std::exchange(last, scope.block)) continue;
    const std::vector<VarId>& params = program_.block(scope.block).params;
    if (!params.empty() && type(params[0]).dtype == DType::i64 && type(params[0]).rank() == 0) made.push_back(params[0]);
  }
  return made;
}

Tensor scalar_of(DType dtype, double value) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) { return Tensor::scalar(convert_element<T>(value)); });
}

Importer::Importer(Source& source, const OnnxOptions& options, const onnx::ModelProto& model)
    : source_(source), options_(options), model_(model), program_(options.registry) {}

Program Importer::run() {
  if (!model_.has_graph()) throw ParseError(source_.name() + ": expected an ONNX model, found no graph");
  check_opset(model_);
  check_ops();
  settings_ = settings_of(model_.graph());
  for (;;) {
    try {
      Program made = attempt();
      if (!again_) return made;
    } catch (const Error&) {
      if (!again_) throw;  // else of what was taken for known, and is not
    }
  }
}

Program Importer::attempt() {
  const onnx::GraphProto& graph = model_.graph();
  again_ = false;
  program_ = Program(options_.registry);
  values_.clear();
  notes_ = {};
  scopes_.clear();
  scopes_.emplace_back();
  scopes_.back().graph = &graph;
  if (!graph.name().empty()) program_.set_title(graph.name());
  initializers(graph);
  inputs(graph);
  nodes(graph);
  const std::vector<VarId> results = outputs(graph);
  for (int i = 0; i < graph.output_size(); ++i) {
    try {
      program_.add_output(graph.output(i).name(), results[static_cast<std::size_t>(i)]);
    } catch (const Error& error) {
      fail(error.what());
    }
  }
  drop_unread_views(program_);
  lists_to_arrays(program_);
  return std::move(program_);
}

void Importer::check_opset(const onnx::ModelProto& model) {
  for (const onnx::OperatorSetIdProto& set : model.opset_import())
    if (default_domain(set.domain())) opset_ = set.version();
  const auto& nodes = model.graph().node();
  // A graph of other domains' ops alone needs no opset of ONNX's: their names are what is missing.
  if (opset_ == 0 && std::none_of(nodes.begin(), nodes.end(), [](const onnx::NodeProto& node) { return default_domain(node.domain()); }))
    opset_ = newest_opset;
  const bool old = opset_ > 0 && std::all_of(nodes.begin(), nodes.end(), [](const onnx::NodeProto& node) {
                     return std::find(std::begin(never_changed), std::end(never_changed), node.op_type()) != std::end(never_changed);
                   });
  if ((opset_ < oldest_opset && !old) || opset_ > newest_opset)
    throw UnsupportedError(source_.name() + ": expected opset " + std::to_string(oldest_opset) + " to " + std::to_string(newest_opset) +
                           ", found " + (opset_ == 0 ? std::string("none") : std::to_string(opset_)));
}

void Importer::check_ops() const {
  std::map<std::string, std::vector<std::string>> missing;
  collect_missing(model_.graph(), missing);
  if (missing.empty()) return;
  std::string text;
  for (const auto& [op, labels] : missing) {
    text += (text.empty() ? "" : "; ") + printable(op) + (labels.size() == 1 ? " (node " : " (nodes ");
    for (std::size_t i = 0; i < labels.size(); ++i) text += (i == 0 ? "" : ", ") + labels[i];
    text += ")";
  }
  throw UnsupportedError(source_.name() + ": expected ops that this library has, found " + std::to_string(missing.size()) +
                         " that it has not: " + text);
}

std::string Importer::node_prefix() const {
  return node_ == nullptr ? "" : "node " + printable(node_->label()) + " (" + node_->op() + "): ";
}

void Importer::fail(const std::string& what) const { throw ProgramError(one_line(source_.name() + ": " + node_prefix() + what)); }

void Importer::inputs(const onnx::GraphProto& graph) {
  Scope& scope = scopes_.back();
  const auto add = [&](const std::string& name, VarType type, std::vector<std::string> extents) {
    try {
      define(name, program_.add_input(name, std::move(type), std::move(extents)));
    } catch (const ArgumentError& error) {
      fail(error.what());
    }
  };
  for (const onnx::ValueInfoProto& input : graph.input()) {
    if (scope.known.contains(input.name())) continue;  // an initializer gives it a value
    const std::string where = source_.name() + ": input " + printable(input.name());
    VarType type = type_of_onnx(input.type(), where);
    std::vector<std::string> names = extents_of_onnx(input.type());
    for (const auto& [axis, extent] : needed_extents_[input.name()]) {
      (*type.shape)[axis] = extent;
      if (!names.empty()) names.at(static_cast<std::size_t>(axis)).clear();
    }
    if (scope.vars.contains(input.name())) fail("input " + printable(input.name()) + ": expected each name once, found it twice");
    const auto bound = options_.constants.find(input.name());
    if (const auto preset = defaults_.find(input.name()); preset != defaults_.end()) {
      const Known& known = preset->second;
      add(input.name(), VarType(known.value.dtype(), known.value.dims()), {});
      set_element(scope.vars.at(input.name()), known.element);
    } else if (bound == options_.constants.end()) {
      add(input.name(), type, std::move(names));
      if (input.type().has_tensor_type()) set_element(scope.vars.at(input.name()), held_type(input.type().tensor_type().elem_type()));
    } else {
      if (!fits(VarType(bound->second.dtype(), bound->second.dims()), type))
        throw ProgramError(where + ": expected a constant of " + type.to_string() + ", found " + bound->second.to_string());
      scope.known[input.name()] = {bound->second, false};
    }
  }
  for (const auto& [name, value] : options_.constants)
    if (!scope.known.contains(name))
      throw ProgramError(source_.name() + ": expected an input " + printable(name) + " to make constant, found none of that name");
}

void Importer::initializers(const onnx::GraphProto& graph) {
  Scope& scope = scopes_.back();
  for (const onnx::TensorProto& proto : graph.initializer()) {
    const bool weight = proto.data_type() == onnx::TensorProto::FLOAT || proto.dims_size() > 1;
    if (!scope.known
             .emplace(proto.name(), Known{held_tensor_of(proto, "initializer " + printable(proto.name())), weight,
                                          held_type(proto.data_type()), settings_.contains(proto.name())})
             .second)
      fail("initializer " + printable(proto.name()) + ": the name is there twice");
  }
  if (graph.sparse_initializer_size() > 0)
    throw UnsupportedError(source_.name() +
                           ": expected dense initializers, found a sparse one: " + printable(graph.sparse_initializer(0).values().name()));
  if (scopes_.size() > 1) return;
  for (const auto& [name, value] : options_.constants) {
    const auto found = scope.known.find(name);
    if (found != scope.known.end()) found->second.value = value;
  }
  for (const onnx::ValueInfoProto& input : graph.input()) {
    if (!options_.inputs.contains(input.name()) || options_.constants.contains(input.name())) continue;
    const auto found = scope.known.find(input.name());
    if (found == scope.known.end()) continue;
    if (options_.defaults != nullptr) options_.defaults->insert_or_assign(input.name(), found->second.value.read_only());
    defaults_.insert_or_assign(input.name(), std::move(found->second));
    scope.known.erase(found);
  }
}

Tensor Importer::tensor_of(const onnx::TensorProto& proto, const std::string& what) {
  const std::string where = source_.name() + ": " + node_prefix() + what;
  try {
    return tensor_of_onnx(proto, source_, where);
  } catch (const OverflowError& error) {
    throw ParseError(where + ": " + error.what());
  }
}

Tensor Importer::held_tensor_of(const onnx::TensorProto& proto, const std::string& what) {
  const ElementType* type = held_type(proto.data_type());
  return type == nullptr ? tensor_of(proto, what) : held_tensor(proto, *type, source_.name() + ": " + node_prefix() + what);
}

const Importer::Dequantized* Importer::dequantized(VarId var) const {
  const auto found = notes_.dequantized.find(var);
  return found == notes_.dequantized.end() ? nullptr : &found->second;
}

const ElementType* Importer::element(VarId var) const {
  const auto found = notes_.elements.find(var);
  return found == notes_.elements.end() ? nullptr : found->second;
}

void Importer::set_element(VarId var, const ElementType* type) {
  if (type != nullptr) notes_.elements[var] = type;
}

/// The element type of a value by its name. A value that the file holds does not become a var by being looked at.
const ElementType* Importer::element_named(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->vars.find(name); found != scope->vars.end()) return element(found->second);
    if (const auto found = scope->known.find(name); found != scope->known.end()) return found->second.element;
  }
  return nullptr;
}

/// The type that decides of the outputs of `node`, where an input has one without a dtype: then `rule` says how.
const ElementType* Importer::element_in(const Node& node, const ElementRule*& rule) {
  const ElementType* found = nullptr;
  for (std::size_t i = 0; i < node.inputs(); ++i) {
    const ElementType* type = node.has(i) ? element_named(node.input(i)) : nullptr;
    if (type == nullptr) continue;
    rule = element_rule(node.qualified_op());
    if (rule == nullptr || (type->onnx == wrapped_uint64 && !rule->any_bits))
      throw UnsupportedError("input " + printable(node.input(i)) + ": expected elements that have a dtype, found " + type->name +
                             (rule == nullptr ? "" : " that may be beyond 9223372036854775807"));
    if (i == rule->from || found == nullptr) found = type;
  }
  return found;
}

/// Outputs with the dtype of the input are of its type.
void Importer::give_elements(const Node& node, const ElementRule& rule, const ElementType& type) {
  if (rule.kind == ElementRule::Kind::reads) return;
  const bool computes = rule.kind == ElementRule::Kind::computes;
  const ElementType* made = computes && type.onnx == onnx::TensorProto::UINT64 ? held_type(wrapped_uint64) : &type;
  for (std::size_t i = 0; i < node.outputs(); ++i) {
    const auto found = node.wants(i) ? scopes_.back().vars.find(node.output(i)) : scopes_.back().vars.end();
    if (found == scopes_.back().vars.end() || this->type(found->second).dtype != type.held) continue;
    if (computes) found->second = narrowed(*this, found->second, type);
    set_element(found->second, made);
  }
}

/// Exporters leave loops and branches behind that nobody reads: of the checks of a scripted function, for instance. They would keep the loop around them from
/// being one of rows.
void Importer::nodes(const onnx::GraphProto& graph) {
  std::set<std::string> read;
  for (const onnx::ValueInfoProto& output : graph.output()) read.insert(output.name());
  add_reads(graph, read);
  for (const onnx::NodeProto& proto : graph.node()) {
    const bool control =
        default_domain(proto.domain()) && (proto.op_type() == "Loop" || proto.op_type() == "If" || proto.op_type() == "Scan");
    const bool used = std::any_of(proto.output().begin(), proto.output().end(), [&](const auto& name) { return read.contains(name); });
    if (used || !control) node(proto);
  }
}

void Importer::node(const onnx::NodeProto& proto) {
  const Node node(proto);
  const Rule* rule = find_rule(node.qualified_op());
  struct Back {
    const Node*& now;
    const Node* outer;
    ~Back() { now = outer; }
  } const back{node_, std::exchange(node_, &node)};
  const std::string prefix = source_.name() + ": ";
  // An error of a node inside a sub-graph names that node already.
  const auto complete = [&](const Error& error) {
    const std::string what = error.what();
    return one_line(what.starts_with(prefix) ? what : prefix + node_prefix() + what);
  };
  try {
    pass_over_idle_attributes(node, opset_);
    const ElementRule* element = nullptr;
    const ElementType* type = element_in(node, element);
    rule->apply(*this, node, rule->op);
    if (type != nullptr) give_elements(node, *element, *type);
    node.expect_all_read();
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(complete(error));
  } catch (const ParseError& error) {
    throw ParseError(complete(error));
  } catch (const IoError& error) {
    throw IoError(complete(error));
  } catch (const Error& error) {
    throw ProgramError(complete(error));
  }
}

std::vector<VarId> Importer::outputs(const onnx::GraphProto& graph) {
  std::vector<VarId> results;
  for (const onnx::ValueInfoProto& output : graph.output()) {
    const VarId found = find(output.name());
    if (found == no_var) fail("output " + printable(output.name()) + ": expected a node that gives it, found none");
    if (scopes_.size() > 1 && element(found) != nullptr)
      throw UnsupportedError("output " + printable(output.name()) + ": expected elements that have a dtype, found " + element(found)->name);
    // A result from outside the block, or straight from its inputs, gets an op of the block.
    const bool made_here =
        program_.var(found).block == block() && program_.constant(found) == nullptr &&
        std::none_of(program_.inputs().begin(), program_.inputs().end(), [&](const auto& port) { return port.var == found; });
    results.push_back(made_here ? found : emit1("identity", {found}, {}, output.name()));
  }
  return results;
}

std::vector<VarId> Importer::enter(const std::vector<Param>& params) {
  Scope scope;
  scope.block = program_.add_block(block());
  scopes_.push_back(std::move(scope));
  std::vector<VarId> vars;
  for (const Param& param : params) vars.push_back(program_.add_var(param.name, param.type, block()));
  program_.block(block()).params = vars;
  return vars;
}

std::vector<VarId> Importer::body(const onnx::GraphProto& graph, const std::vector<VarId>& inputs) {
  if (std::cmp_not_equal(inputs.size(), graph.input_size()))
    throw ProgramError("expected a sub-graph of " + std::to_string(inputs.size()) + " inputs, found " + std::to_string(graph.input_size()));
  scopes_.back().graph = &graph;
  for (int i = 0; i < graph.input_size(); ++i) define(graph.input(i).name(), inputs[static_cast<std::size_t>(i)]);
  initializers(graph);
  nodes(graph);
  return outputs(graph);
}

VarId Importer::step_read(VarId x, int axis, VarId index) {
  const VarType type = program_.var(index).type;  // a copy: ops are appended below
  if (!type.is_tensor() || (type.dtype != DType::i64 && type.dtype != DType::i32) || type.rank() > 1) return no_var;
  VarId count = source(index);
  if (const Op* op = maker(count); op != nullptr && op->type == "cast" && program_.var(count).type.dtype == DType::i32)
    count = source(op->inputs[0]);
  x = values_.copied(x);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (scope->count != count || count == no_var) continue;
    const auto found = scope->steps.find({x, axis});
    if (found == scope->steps.end()) return no_var;
    const VarId read = emit1("tensor_array_read", {found->second, count});
    return type.rank() == 0 ? read : emit1("unsqueeze", {read}, {{"axes", Ints{axis}}});
  }
  return no_var;
}

const Cuts& Importer::cuts() {
  if (!cuts_) cuts_.emplace(model_.graph());
  return *cuts_;
}

VarId Importer::add_param(const std::string& name, const VarType& type) {
  const VarId made = program_.add_var(name, type, block());
  program_.block(block()).params.push_back(made);
  return made;
}

std::vector<VarId> Importer::inlined(const onnx::GraphProto& graph) {
  Scope scope;
  scope.block = block();
  scopes_.push_back(std::move(scope));
  std::vector<VarId> results = body(graph, {});
  scopes_.pop_back();
  return results;
}

void Importer::back_to(const Mark& mark) { scopes_.resize(mark.scopes); }

int Importer::leave(std::vector<VarId> results) {
  const int left = block();
  program_.block(left).results = std::move(results);
  scopes_.pop_back();
  return left;
}

// ---- names

VarId Importer::make_var(Scope& scope, const std::string& name) {
  const Known& known = scope.known.at(name);
  const bool as_weight = !known.setting && (known.weight || known.value.elements() > largest_literal);
  const VarId made = as_weight
                         ? program_.add_parameter(name, known.value)
                         : program_.append(scope.block, Op{"constant", {}, {}, {{"value", known.value.read_only()}}, {}}, {name}).at(0);
  scope.vars.emplace(name, made);
  set_element(made, known.element);
  return made;
}

VarId Importer::find(const std::string& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->vars.find(name); found != scope->vars.end()) return found->second;
    if (scope->known.contains(name)) return make_var(*scope, name);
  }
  return no_var;
}

void Importer::define(const std::string& name, VarId var) {
  Scope& scope = scopes_.back();
  if (scope.known.contains(name) || !scope.vars.emplace(name, var).second)
    fail("expected each value once, found " + printable(name) + " twice");
}

VarId Importer::in(const Node& node, std::size_t input) {
  if (!node.has(input)) throw ProgramError("expected input " + std::to_string(input) + ", found none");
  const VarId found = find(node.input(input));
  if (found == no_var)
    throw ProgramError("input " + printable(node.input(input)) + ": expected a value that is given before it is read, found none");
  return found;
}

std::vector<VarId> Importer::all_in(const Node& node) {
  std::vector<VarId> vars;
  for (std::size_t i = 0; i < node.inputs(); ++i) vars.push_back(in_or_none(node, i));
  return vars;
}

const Tensor* Importer::known(const Node& node, std::size_t input) { return node.has(input) ? known(node.input(input)) : nullptr; }

const Tensor* Importer::known(const std::string& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->known.find(name); found != scope->known.end()) return &found->second.value;
    if (const auto found = scope->vars.find(name); found != scope->vars.end()) return values_.tensor(found->second);
  }
  return nullptr;
}

std::optional<Ints> Importer::known_integers(const Node& node, std::size_t input) {
  const Tensor* value = known(node, input);
  if (value == nullptr) return std::nullopt;
  if (value->dtype() == DType::i64) return value->to_vector<std::int64_t>();
  if (value->dtype() != DType::i32)
    throw ProgramError("input " + printable(node.input(input)) + ": expected i64 or i32, found " + value->to_string());
  const std::vector<std::int32_t> narrow = value->to_vector<std::int32_t>();
  return Ints(narrow.begin(), narrow.end());
}

Ints Importer::needed_integers(const Node& node, std::size_t input, const Ints& otherwise) {
  if (!node.has(input)) return otherwise;
  if (const std::optional<Ints> values = known_integers(node, input)) return *values;
  throw UnsupportedError("input " + printable(node.input(input)) + ": expected a value that the file holds, found one that a run computes");
}

int Importer::rank(VarId var) const {
  if (type(var).rank() < 0)
    throw UnsupportedError("expected a known rank, found " + printable(program_.var(var).name) + " of " + type(var).to_string());
  return type(var).rank();
}

// ---- ops

std::vector<VarId> Importer::emit(const std::string& op, std::vector<VarId> inputs, Attributes attributes,
                                  const std::vector<std::string>& names) {
  Op made{op, std::move(inputs), {}, std::move(attributes), {}};
  std::vector<VarId> outputs = program_.append(block(), std::move(made), names);
  if (node_ != nullptr) program_.block(block()).ops.back().label = node_->label();  // errors of the import name the node themselves
  for (const VarId output : outputs) values_.made_by(output, block(), program_.block(block()).ops.size() - 1);
  return outputs;
}

VarId Importer::emit1(const std::string& op, std::vector<VarId> inputs, Attributes attributes, const std::string& name) {
  return emit(op, std::move(inputs), std::move(attributes), {name}).at(0);
}

VarId Importer::squeezed(VarId x, Ints axes, const std::string& name) {
  const int rank = program_.var(x).type.rank();
  for (std::int64_t& axis : axes) axis = rank >= 0 && axis < 0 ? axis + rank : axis;
  std::sort(axes.begin(), axes.end());
  for (const Op* op = values_.maker(x); op != nullptr && op->type == "unsqueeze" && !axes.empty(); op = values_.maker(x)) {
    Ints given = op->attributes.get<Ints>("axes");
    for (std::int64_t& axis : given) axis = axis < 0 ? axis + rank : axis;
    std::sort(given.begin(), given.end());
    // The same axes, and no others: what is squeezed beside them, or stays, is left to ops.
    if (given != axes) break;
    x = op->inputs[0];
    axes.clear();
  }
  if (axes.empty()) return x;
  // The squeeze of a reshape is a reshape without the axes, where no place behind them is copied.
  const Op* op = values_.maker(x);
  if (op == nullptr || op->type != "reshape" || rank < 0) return emit1("squeeze", {x}, {{"axes", axes}}, name);
  Ints shape = op->attributes.get<Ints>("shape");
  const VarId from = op->inputs[0];
  const auto behind = shape.begin() + std::clamp<std::int64_t>(axes[0], 0, rank);
  const bool moves = std::find(behind, shape.end(), 0) != shape.end();
  const bool ones = std::all_of(axes.begin(), axes.end(),
                                [&](std::int64_t axis) { return axis >= 0 && axis < rank && shape[static_cast<std::size_t>(axis)] == 1; });
  const bool twice = std::adjacent_find(axes.begin(), axes.end()) != axes.end();
  if (moves || !ones || twice) return emit1("squeeze", {x}, {{"axes", axes}}, name);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) shape.erase(shape.begin() + *axis);
  return emit1("reshape", {from}, {{"shape", shape}}, name);
}

void Importer::give(const Node& node, const std::string& op, std::vector<VarId> inputs, Attributes attributes) {
  bind(node, 0, emit1(op, std::move(inputs), std::move(attributes), node.wants(0) ? node.output(0) : ""));
}

void Importer::bind(const Node& node, std::size_t output, VarId var) {
  if (!node.wants(output)) return;
  // Extents that are known take the rows out of what is computed of them.
  const VarType& made = program_.var(var).type;
  const bool number = made.is_tensor() && (made.dtype == DType::i64 || made.dtype == DType::boolean) && program_.constant(var) == nullptr;
  const Tensor* value = number ? values_.tensor(var) : nullptr;
  define(node.output(output), value == nullptr ? extent_alone(var) : literal(*value, node.output(output)));
}

/// One extent that exporters pick from a whole shape, by whatever ops, is asked for alone: the others may be known only at the end of a live
/// sequence.
VarId Importer::extent_alone(VarId var) {
  const VarType& type = program_.var(var).type;
  if (!type.is_tensor() || (type.dtype != DType::i64 && type.dtype != DType::i32) || type.rank() > 1) return var;
  const auto list = values_.elements(var);
  if (!list || list->size() != 1 || list->front().of == no_var || !values_.picks(var)) return var;
  const Element extent = list->front();
  const Attributes one{{"start", std::int64_t{extent.axis}}, {"end", std::int64_t{extent.axis} + 1}};
  const DType dtype = type.dtype;
  VarId made = emit1("shape", {extent.of}, one);
  if (program_.var(var).type.rank() == 0) made = emit1("reshape", {made}, {{"shape", Ints{}}});
  return dtype == DType::i64 ? made : emit1("cast", {made}, {{"to", dtype}});
}

void Importer::bind_constant(const Node& node, Tensor value, const ElementType* type) {
  if (!node.wants(0)) return;
  Scope& scope = scopes_.back();
  if (scope.vars.contains(node.output(0)) || !scope.known.emplace(node.output(0), Known{std::move(value), false, type}).second)
    fail("expected each value once, found " + printable(node.output(0)) + " twice");
}

VarId Importer::literal(Tensor value, const std::string& name) {
  return emit1("constant", {}, {{"value", value.read_only()}}, name.empty() ? "value" : name);
}

}  // namespace millrace::importing
