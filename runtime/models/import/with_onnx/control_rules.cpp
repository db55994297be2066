// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/counted_loop.h>
#include <millrace/runtime/models/import/with_onnx/loop_body.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/scanned_states.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>

namespace millrace::importing {
namespace {

VarId scalar(Importer& to, VarId x) { return to.type(x).rank() == 0 ? x : to.emit1("reshape", {x}, {{"shape", Ints{}}}); }

const onnx::GraphProto& branch_graph(const Node& node, const char* name) {
  const onnx::GraphProto& graph = node.graph(name);
  if (std::cmp_not_equal(graph.output_size(), node.outputs()))
    throw ProgramError("attribute " + std::string(name) + ": expected " + std::to_string(node.outputs()) + " outputs, found " +
                       std::to_string(graph.output_size()));
  return graph;
}

/// Where the condition follows from the file, as for exporters that ask whether an extent is 1, the other branch may not
/// even fit.
bool took_branch(Importer& to, const Node& node) {
  const Tensor* condition = to.known(node, 0);
  if (condition == nullptr || condition->dtype() != DType::boolean || condition->elements() != 1) return false;
  const bool chosen = condition->item() != 0.0;
  branch_graph(node, chosen ? "else_branch" : "then_branch");
  const std::vector<VarId> results = to.inlined(branch_graph(node, chosen ? "then_branch" : "else_branch"));
  for (std::size_t i = 0; i < results.size(); ++i) to.bind(node, i, results[i]);
  return true;
}

void branch(Importer& to, const Node& node, const char* op) {
  VarId condition = to.in(node, 0);
  if (took_branch(to, node) || took_steps(to, node)) return;
  if (to.type(condition).rank() > 1) condition = scalar(to, condition);
  const auto block = [&](const char* name) {
    to.enter({});
    return to.leave(to.body(branch_graph(node, name), {}));
  };
  const int then_block = block("then_branch");
  const int else_block = block("else_branch");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < node.outputs(); ++i) names.push_back(node.output(i));
  const std::vector<VarId> results =
      to.emit(op, {condition}, {{"then_block", BlockId{then_block}}, {"else_block", BlockId{else_block}}}, names);
  for (std::size_t i = 0; i < results.size(); ++i) to.bind(node, i, results[i]);
}

// ---- Loop and Scan as `while`: a step that counts from 0, then what the body hands on

/// A loop while it is built.
struct While {
  const onnx::GraphProto& graph;
  std::size_t states = 0;                             ///< values that the node hands in and gets back
  std::vector<VarId> initial;                         ///< the inputs: the step, perhaps the condition, the states
  std::vector<Importer::Param> carried;               ///< their names and types in the body
  std::vector<const onnx::ValueInfoProto*> declared;  ///< the graph's declaration of each, or null
  std::int64_t condition = -1;                        ///< index of the carried condition
  std::int64_t max_trips = -1;

  int block = -1;
  std::vector<VarId> params;    ///< the carried vars, in the body
  std::vector<VarId> results;   ///< the outputs of the graph, in the body
  std::set<std::size_t> given;  ///< states that are optionals, and that every iteration gives a value

  While(const onnx::GraphProto& body, std::size_t count) : graph(body), states(count) {}
  void carry(VarId from, std::string name, VarType type) {
    initial.push_back(from);
    carried.push_back({std::move(name), std::move(type)});
    declared.push_back(nullptr);
  }
  void carry_states(Importer& to, const std::vector<VarId>& from, int first_name) {
    for (std::size_t i = 0; i < states; ++i) {
      const onnx::ValueInfoProto& input = graph.input(first_name + static_cast<int>(i));
      carry(from[i], input.name(), to.type(from[i]));
      declared.back() = &input;
    }
  }
  /// Outputs of the graph from `first` on are handed on to the next iteration.
  auto next_states(std::size_t first) const { return std::span(results).subspan(first, states); }
  std::set<std::size_t> layers = {};  ///< states that are carried without the axis of layers and directions, of extent 1
};

/// Leaves the loop at the start of an iteration.
void leave_if(Importer& to, const While& loop, VarId condition) {
  std::vector<VarId> inputs = {condition};
  inputs.insert(inputs.end(), loop.params.begin(), loop.params.end());
  to.emit("break_if", inputs);
}

/// Ends the body: the next step, perhaps the condition, the states.
std::vector<VarId> end_iteration(Importer& to, While& loop, VarId condition, std::span<const VarId> states) {
  std::vector<VarId> next = {to.emit1("add", {loop.params[0], number(to, 1)})};
  if (loop.condition >= 0) next.push_back(scalar(to, condition));
  next.insert(next.end(), states.begin(), states.end());
  loop.block = to.leave(next);
  return next;
}

/// Appends the loop and returns the states as it leaves them.
std::vector<VarId> finish(Importer& to, const While& loop) {
  Attributes attributes{{"sub_block", BlockId{loop.block}}, {"max_trips", loop.max_trips}, {"parallel_iterations", std::int64_t{8}}};
  if (loop.condition >= 0) attributes.set("condition", loop.condition);
  const std::vector<VarId> all = to.emit("while", loop.initial, attributes);
  std::vector<VarId> last(all.end() - static_cast<std::ptrdiff_t>(loop.states), all.end());
  for (const std::size_t i : loop.given) last[i] = to.emit1("optional_get", {last[i]});
  return last;
}

/// Widens the types of `params` to what the body hands on. False when nothing had to change: then the body stands. An extent that is known of
/// the values that go in, and not of those that come out, becomes unknown: else all iterations would have the shape of the first one.
/// (A rank that inference lost is taken to stay.)
bool widen(Importer& to, std::vector<Importer::Param>& params, const std::vector<VarId>& results) {
  bool changed = false;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const VarType& found = to.type(results[i]);
    const bool fitting = fits(found, params[i].type);
    if (!fitting && (found.kind != params[i].type.kind || found.dtype != params[i].type.dtype))
      throw ProgramError("expected a body that hands on " + internal::printable(params[i].name) + " as " + params[i].type.to_string() +
                         ", found " + found.to_string());
    if (fitting && !found.shape) continue;
    const VarType wider = common(params[i].type, found);
    changed = changed || wider != params[i].type;
    params[i].type = wider;
  }
  return changed;
}

/// Takes the ranks of a list that is empty when the loop begins from the graph's declaration, the one place that has
/// them. False when that tells nothing new.
bool take_declared(While& loop) {
  bool changed = false;
  for (std::size_t i = 0; i < loop.carried.size(); ++i) {
    VarType& type = loop.carried[i].type;
    if (!type.empty || loop.declared[i] == nullptr || !loop.declared[i]->has_type()) continue;
    VarType said = type_of_onnx(loop.declared[i]->type(), "input " + internal::printable(loop.carried[i].name));
    if (said.kind != type.kind || said.dtype != type.dtype || !said.shape) continue;
    for (int axis = 0; axis < said.rank(); ++axis) (*said.shape)[axis] = DDim::unknown;
    type = said;
    changed = true;
  }
  return changed;
}

/// The open extents of the states that an iteration gets, as places: those that the first iteration gets, unless an iteration was seen to change them.
std::vector<std::pair<std::size_t, int>> kept_extents(Importer& to, const While& loop) {
  std::vector<std::pair<std::size_t, int>> kept;
  for (std::size_t i = 0; i < loop.carried.size(); ++i) {
    const VarType &type = loop.carried[i].type, &first = to.type(loop.initial[i]);
    if (!type.is_tensor() || !type.shape || first.rank() != type.rank()) continue;
    for (int axis = 0; axis < type.rank(); ++axis)
      if ((*type.shape)[axis] == DDim::unknown && !to.changed_extents(loop.graph).contains({i, axis})) kept.emplace_back(i, axis);
  }
  return kept;
}
void take_extents(Importer& to, const While& loop) {
  for (const auto& [i, axis] : kept_extents(to, loop)) to.take_extent(loop.params[i], axis, to.origin(loop.initial[i], axis));
}
/// By induction, extents that the first iteration hands on are those of every iteration. Where one is another, the model is imported again without it.
void check_extents(Importer& to, const While& loop, const std::vector<VarId>& next) {
  for (const auto& [i, axis] : kept_extents(to, loop)) {
    if (to.type(next[i]).rank() == to.type(loop.initial[i]).rank() && to.same_extent(next[i], axis, loop.initial[i], axis)) continue;
    to.changed_extents(loop.graph).insert({i, axis});
    to.again();
  }
}

/// Imports the body by `attempt` until the types that the loop carries hold for every iteration. A change of shape from iteration
/// to iteration is legal in ONNX, and known only once the body was seen: then the body is imported again, with wider types.
/// Types only widen, so this ends.
template <class F>
void settle(Importer& to, While& loop, F&& attempt) {
  std::vector<VarType>& learned = to.widened(loop.graph);
  for (std::size_t i = 0; i < learned.size(); ++i)
    if (loop.carried[i].type.dtype == learned[i].dtype && loop.carried[i].type.kind == learned[i].kind)
      loop.carried[i].type = common(loop.carried[i].type, learned[i]);
  const Importer::Mark before = to.mark();
  for (;;) {
    try {
      const std::vector<VarId> next = attempt();
      if (!widen(to, loop.carried, next)) return check_extents(to, loop, next);
    } catch (const UnsupportedError&) {
      if (!take_declared(loop)) throw;
      to.back_to(before);
    }
    learned.clear();
    for (const Importer::Param& param : loop.carried) learned.push_back(param.type);
    to.again();
  }
}

/// The extent of a slot along an axis in the first iteration, as places outside whose extents are broadcast.
class FirstExtent {
 public:
  FirstExtent(Importer& to, const While& loop) : to_(to), loop_(loop) {}

  /// Adds the places that the extent of `var` along an axis comes from. False where something inside decides it.
  bool add(VarId var, int axis) {
    if (!seen_.insert({var, axis}).second) return true;
    Element place = element_at(to_, var, axis);
    const auto param = std::find(loop_.params.begin(), loop_.params.end(), place.of);
    if (is_inside(place) && param != loop_.params.end()) {
      const VarId first = loop_.initial[static_cast<std::size_t>(param - loop_.params.begin())];
      if (to_.type(first).rank() != to_.type(place.of).rank()) return false;
      place = element_at(to_, first, place.axis);
    }
    if (!is_inside(place)) return add_place(place), true;
    const std::vector<Element> from = seen_.size() < most ? to_.broadcast_from(place.of, place.axis) : std::vector<Element>();
    return !from.empty() && std::all_of(from.begin(), from.end(), [&](const Element& each) { return add(each.of, each.axis); });
  }

  /// The extent as a list of one.
  VarId list() const {
    VarId made = list_of(to_, {places_.empty() ? Element{1} : places_[0]});
    for (std::size_t i = 1; i < places_.size(); ++i) {
      const VarId one = to_.emit1("equal", {made, to_.literal(Ints{1})});
      made = to_.emit1("where", {one, list_of(to_, {places_[i]}), made});
    }
    return made;
  }

 private:
  static constexpr std::size_t most = 64;
  bool is_inside(const Element& place) const { return !place.number && to_.program().var(place.of).block == loop_.block; }
  void add_place(const Element& place) {
    if (place.number != 1 && std::find(places_.begin(), places_.end(), place) == places_.end()) places_.push_back(place);
  }

  Importer& to_;
  const While& loop_;
  std::vector<Element> places_;
  std::set<std::pair<VarId, int>> seen_;
};

/// The extents of a slot in the first iteration, as far as places outside say them: of the array that no iteration writes. `no_var` where one is open inside.
VarId slot_extents(Importer& to, const While& loop, VarId slot) {
  std::vector<FirstExtent> extents;
  std::size_t needed = 0;
  const DDim shape = to.type(slot).shape.value_or(DDim{});
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (!extents.emplace_back(to, loop).add(slot, axis)) return no_var;
    if (shape[axis] == DDim::unknown) needed = extents.size();
  }
  std::vector<VarId> parts;
  for (std::size_t i = 0; i < needed; ++i) parts.push_back(extents[i].list());
  return parts.empty() ? no_var : parts.size() == 1 ? parts[0] : to.emit1("concat", parts, {{"axis", std::int64_t{0}}});
}

/// The extents of a slot of the scanned output `name`, where a state that its slots make says them; else `no_var`.
VarId piece_extents(Importer& to, const std::string& name) {
  const auto found = to.pieces_of().find(name);
  if (found == to.pieces_of().end()) return no_var;
  const auto [whole, joined] = found->second;
  std::vector<Element> extents;
  for (int axis = 0; axis < to.rank(whole); ++axis)
    if (axis != joined) extents.push_back(element_at(to, whole, axis));
  return list_of(to, extents);
}

/// An array for each output of the graph from `first` on, written in every iteration; `size` is `no_var` when the number of
/// iterations is not known before. `names`: those of the outputs that the node gives.
std::vector<VarId> output_arrays(Importer& to, const While& loop, std::size_t first, VarId size,
                                 const std::vector<std::string>& names = {}) {
  std::vector<VarId> arrays;
  for (std::size_t i = first; i < loop.results.size(); ++i) {
    const VarType slot = to.type(loop.results[i]);
    if (!slot.is_tensor()) throw ProgramError("expected tensors to scan, found " + slot.to_string());
    Attributes attributes{{"dtype", slot.dtype}, {"name", std::string("scanned")}};
    if (slot.shape) attributes.set("shape", Ints(slot.shape->begin(), slot.shape->end()));
    if (size == no_var) attributes.set("growable", true);
    std::vector<VarId> inputs;
    if (size != no_var) inputs = {size};
    const bool open = slot.shape && std::find(slot.shape->begin(), slot.shape->end(), DDim::unknown) != slot.shape->end();
    VarId extents = open && i - first < names.size() ? piece_extents(to, names[i - first]) : no_var;
    if (extents == no_var && size != no_var) extents = slot_extents(to, loop, loop.results[i]);
    if (extents != no_var) inputs = {size, no_var, extents};
    arrays.push_back(to.emit1("tensor_array", inputs, attributes, "scanned"));
    // The body is complete but for this: the array's type comes from it.
    to.program().append(loop.block, Op{"tensor_array_write", {arrays.back(), loop.params[0], loop.results[i]}, {}, {{"share", true}}, {}});
  }
  return arrays;
}

/// The value that is the number of iterations at most, or `no_var`: one that the file holds becomes an attribute.
VarId trip_limit(Importer& to, const Node& node, While& loop) {
  if (!node.has(0)) return no_var;
  const std::optional<Ints> known = to.known_integers(node, 0);
  if (!known || known->size() != 1) return scalar(to, to.in(node, 0));
  loop.max_trips = std::max<std::int64_t>(0, known->front());
  return no_var;
}

bool is_true(const Tensor* value) {
  return value != nullptr && value->dtype() == DType::boolean && value->elements() == 1 && value->item() != 0.0;
}

/// The number of iterations that a condition lets a loop without a count run, where the body does not change it: it ends the loop in front of the first iteration,
/// or behind it, or never. A number that the file holds becomes an attribute; `no_var` without one.
VarId condition_limit(Importer& to, const Node& node, const LoopBody::Condition& condition, While& loop) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const bool known = to.known(node, 1) != nullptr;
  if (condition.known == false || (condition.handed_on && known && !is_true(to.known(node, 1))))
    loop.max_trips = condition.handed_on ? 0 : 1;
  if (condition.handed_on && !known) return to.emit1("where", {scalar(to, to.in(node, 1)), number(to, most), number(to, 0)}, {}, "trips");
  if (condition.outside == no_var) return no_var;
  return to.emit1("where", {scalar(to, condition.outside), number(to, most), number(to, 1)}, {}, "trips");
}

/// Whether a node gives its input as it is.
bool copies(Importer& to, const LoopBody& body, const Node& node) {
  if (node.qualified_op() == "Identity") return true;
  if (node.qualified_op() != "Slice" || to.opset() < 10 || !node.has(2)) return false;
  const auto starts = body.integers(node.input(1)), ends = body.integers(node.input(2));
  const auto steps = node.has(4) ? body.integers(node.input(4)) : std::nullopt;
  return starts && ends && (steps || !node.has(4)) && is_whole(*starts, *ends, steps);
}

/// The tensors of outside that the body takes apart by its count, along one axis each, as arrays of their steps.
Importer::Steps steps_by_count(Importer& to, const LoopBody& body) {
  std::set<std::string> counts{body.count()};
  Importer::Steps steps;
  std::map<std::string, std::string> outer;  // by name inside: what it is a copy of
  const auto name_outside = [&](const std::string& name) {
    const auto found = outer.find(name);
    return found != outer.end() ? found->second : body.has(name) ? std::string() : name;
  };
  for (const onnx::NodeProto& proto : body.graph().node()) {
    const Node node(proto);
    const std::string op = node.qualified_op();
    if (node.has(0) && proto.output_size() == 1 && !name_outside(node.input(0)).empty() && copies(to, body, node))
      outer[proto.output(0)] = name_outside(node.input(0));
    const bool renames = op == "Identity" || op == "Cast" || op == "Unsqueeze" || op == "Squeeze" || op == "Reshape";
    if (renames && node.has(0) && counts.contains(node.input(0))) counts.insert(proto.output(0));
    if (op != "Gather" || !node.has(1) || !counts.contains(node.input(1))) continue;
    const std::string name = name_outside(node.input(0));
    const VarId x = name.empty() ? no_var : to.copied(to.named(name));
    const int rank = x == no_var || !to.type(x).is_tensor() ? -1 : to.type(x).rank();
    const std::int64_t axis = node.integer("axis", 0);
    if (rank < 1 || axis < -rank || axis >= rank || to.program().constant(x) != nullptr) continue;
    const std::pair<VarId, int> place{x, static_cast<int>(axis < 0 ? axis + rank : axis)};
    if (!steps.contains(place)) steps[place] = to.emit1("tensor_array_unstack", {x}, {{"axis", std::int64_t{place.second}}}, "steps");
  }
  return steps;
}

/// The number of steps of one of the arrays, where it is the number of iterations; else `no_var`.
VarId size_of_steps(Importer& to, const Importer::Steps& steps, VarId trips) {
  const auto list = to.elements(trips);
  if (!list || list->size() != 1 || list->front().of == no_var) return no_var;
  const Element wanted = to.origin(list->front().of, list->front().axis);
  for (const auto& [place, array] : steps)
    if (to.origin(place.first, place.second) == wanted) return to.emit1("tensor_array_size", {array}, {}, "n");
  return no_var;
}

/// States that the body hands from one recurrent node of one direction to the next one, and looks at nowhere else.
std::set<std::size_t> layer_states(Importer& to, const onnx::GraphProto& graph, const std::vector<VarId>& states) {
  const auto is_layer = [](const Node& node) {
    const std::string op = node.qualified_op();
    return (op == "LSTM" || op == "GRU" || op == "RNN") && node.text("direction", "forward") != "bidirectional" &&
           !node.flag("layout", false);
  };
  std::set<std::size_t> found;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const VarType& type = to.type(states[i]);
    bool fitting = type.is_tensor() && type.rank() == 3 && (*type.shape)[0] == 1, given = false;
    const std::string &taken = graph.input(2 + static_cast<int>(i)).name(), &handed_on = graph.output(1 + static_cast<int>(i)).name();
    for (const onnx::NodeProto& proto : graph.node()) {
      const Node node(proto);
      const bool layer = is_layer(node);
      for (const onnx::AttributeProto& attribute : proto.attribute()) fitting = fitting && !attribute.has_g();
      for (int k = 0; k < proto.input_size(); ++k) fitting = fitting && (proto.input(k) != taken || (layer && k >= 5 && k <= 6));
      for (int k = 1; k < proto.output_size(); ++k) given = given || (layer && proto.output(k) == handed_on);
    }
    if (fitting && given) found.insert(i);
  }
  return found;
}

std::vector<VarId> loop_iteration(Importer& to, While& loop, VarId trips, const Importer::Steps& steps) {
  loop.params = to.enter(loop.carried);
  take_extents(to, loop);
  to.read_steps(loop.params[0], steps);
  if (trips != no_var) leave_if(to, loop, to.emit1("greater_equal", {loop.params[0], trips}, {}, "done"));
  std::vector<VarId> inputs = loop.params;
  // Some exporters declare the number of the iteration as a list of one.
  if (loop.graph.input_size() > 0 && loop.graph.input(0).type().tensor_type().shape().dim_size() == 1)
    inputs[0] = to.emit1("unsqueeze", {inputs[0]}, {{"axes", Ints{0}}});
  if (loop.condition < 0) inputs.insert(inputs.begin() + 1, to.literal(Tensor::scalar(true)));
  for (const std::size_t i : loop.layers) {
    VarId& input = inputs[inputs.size() - loop.states + i];
    input = to.emit1("unsqueeze", {input}, {{"axes", Ints{0}}});
  }
  loop.results = to.body(loop.graph, inputs);
  for (const std::size_t i : loop.layers) loop.results[1 + i] = to.squeezed(loop.results[1 + i], {0});
  // An iteration may take an optional and give what it holds.
  for (std::size_t i = 0; i < loop.states; ++i) {
    const VarType& wanted = loop.carried[loop.carried.size() - loop.states + i].type;
    VarId& found = loop.results[1 + i];
    if (!wanted.is_optional() || to.type(found).kind != wanted.held().kind) continue;
    found = to.emit1("optional_of", {found});
    loop.given.insert(i);
  }
  return end_iteration(to, loop, loop.results[0], loop.next_states(1));
}

void loop(Importer& to, const Node& node, const char*) {
  While loop(node.graph("body"), node.inputs() > 2 ? node.inputs() - 2 : 0);
  const onnx::GraphProto& graph = loop.graph;
  if (std::cmp_not_equal(graph.input_size(), 2 + loop.states) || std::cmp_less(graph.output_size(), 1 + loop.states))
    throw ProgramError("attribute body: expected a graph of " + std::to_string(2 + loop.states) + " inputs and at least " +
                       std::to_string(1 + loop.states) + " outputs, found " + std::to_string(graph.input_size()) + " and " +
                       std::to_string(graph.output_size()));
  if (const onnx::NodeProto* other = counted_loop(to, node, graph)) return importing::loop(to, Node(*other), nullptr);
  if (ScannedStates scanned(to, node, graph); scanned.form() != nullptr)
    return scanned.apply([&] { importing::loop(to, Node(*scanned.form()), nullptr); });
  loop.carry(number(to, 0), graph.input(0).name(), VarType(DType::i64, DDim{}));
  const LoopBody body(to, graph);
  const LoopBody::Condition again = body.condition();
  // Then a loop that began ends by its count alone.
  const bool counts = node.has(0) && is_true(to.known(node, 1)) && (again.handed_on || again.known == true);
  if (node.has(1) && !counts) {
    loop.condition = 1;
    loop.carry(scalar(to, to.in(node, 1)), graph.input(1).name(), VarType(DType::boolean, DDim{}));
  }
  std::vector<VarId> states;
  for (std::size_t i = 0; i < loop.states; ++i) states.push_back(to.in(node, 2 + i));
  loop.layers = layer_states(to, graph, states);
  for (const std::size_t i : loop.layers) states[i] = to.squeezed(states[i], {0});
  loop.carry_states(to, states, 2);
  VarId trips = node.has(0) || !node.has(1) ? trip_limit(to, node, loop) : condition_limit(to, node, again, loop);
  const Importer::Steps steps = steps_by_count(to, body);
  VarId size = no_var;  // of the outputs, where nothing else ends the loop
  if (trips != no_var) {
    size = size_of_steps(to, steps, trips);
    if (size != no_var) trips = size;
    if (size == no_var && loop.condition < 0) size = to.emit1("maximum", {trips, number(to, 0)});
  } else if (loop.max_trips >= 0) {
    size = number(to, loop.max_trips);
  }
  if (loop.condition >= 0) size = no_var;
  settle(to, loop, [&] { return loop_iteration(to, loop, trips, steps); });
  std::vector<std::string> names;
  for (std::size_t i = loop.states; i < node.outputs(); ++i) names.push_back(node.output(i));
  const std::vector<VarId> arrays = output_arrays(to, loop, 1 + loop.states, size, names);
  std::vector<VarId> last = finish(to, loop);
  for (const std::size_t i : loop.layers) last[i] = to.emit1("unsqueeze", {last[i]}, {{"axes", Ints{0}}});
  for (std::size_t i = 0; i < last.size(); ++i) to.bind(node, i, last[i]);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const std::size_t output = loop.states + i;
    if (node.wants(output))
      to.bind(node, output, to.emit1("tensor_array_stack", {arrays[i]}, {{"axis", std::int64_t{0}}}, node.output(output)));
  }
}

/// A list with one number per scanned value, or zeros.
Ints per_scan(const Node& node, const std::string& name, std::size_t count) {
  const Ints values = node.integers(name).value_or(Ints(count, 0));
  if (values.size() != count)
    throw ProgramError("attribute " + name + ": expected " + std::to_string(count) + " numbers, found " + std::to_string(values.size()));
  return values;
}

/// For each scan, whether it runs backwards.
Ints directions(const Node& node, const std::string& name, std::size_t count) {
  Ints values = per_scan(node, name, count);
  for (const std::int64_t value : values)
    if (value != 0 && value != 1)
      throw ParseError("attribute " + name + ": expected 0 (forward) or 1 (backward), found " + std::to_string(value));
  return values;
}

/// A scanned input, as an array of steps.
VarId steps_of(Importer& to, VarId x, std::int64_t axis, bool backwards) {
  if (backwards) x = to.emit1("reverse", {x}, {{"axis", axis}});
  return to.emit1("tensor_array_unstack", {x}, {{"axis", axis}}, "steps");
}

std::vector<VarId> scan_iteration(Importer& to, While& loop, const std::vector<VarId>& steps, VarId n) {
  loop.params = to.enter(loop.carried);
  take_extents(to, loop);
  leave_if(to, loop, to.emit1("equal", {loop.params[0], n}, {}, "done"));
  std::vector<VarId> inputs(loop.params.begin() + 1, loop.params.end());
  for (const VarId array : steps) inputs.push_back(to.emit1("tensor_array_read", {array, loop.params[0]}));
  loop.results = to.body(loop.graph, inputs);
  return end_iteration(to, loop, no_var, loop.next_states(0));
}

/// The results of a scan over `n` steps: its states, and arrays of its other outputs.
struct Scanned {
  std::vector<VarId> last;
  std::vector<VarId> arrays;
};
Scanned scan_over(Importer& to, const onnx::GraphProto& graph, const std::vector<VarId>& states, const std::vector<VarId>& steps, VarId n) {
  While loop(graph, states.size());
  loop.carry(number(to, 0), "step", VarType(DType::i64, DDim{}));
  loop.carry_states(to, states, 0);
  settle(to, loop, [&] { return scan_iteration(to, loop, steps, n); });
  Scanned made;
  made.arrays = output_arrays(to, loop, loop.states, n);
  made.last = finish(to, loop);
  return made;
}

/// The number of scanned inputs, once the graph of the body was found to fit the node.
std::size_t scan_inputs(const Node& node, const onnx::GraphProto& graph, std::size_t inputs) {
  const std::int64_t count = node.integer("num_scan_inputs", 0);
  if (count < 1 || std::cmp_greater(count, inputs))
    throw ProgramError("attribute num_scan_inputs: expected 1 to " + std::to_string(inputs) + ", found " + std::to_string(count));
  const std::size_t states = inputs - static_cast<std::size_t>(count);
  if (std::cmp_not_equal(graph.input_size(), inputs) || std::cmp_less(graph.output_size(), states))
    throw ProgramError("attribute body: expected a graph of " + std::to_string(inputs) + " inputs and at least " + std::to_string(states) +
                       " outputs, found " + std::to_string(graph.input_size()) + " and " + std::to_string(graph.output_size()));
  return static_cast<std::size_t>(count);
}

/// The scanned outputs, in the direction that the node asks for.
void give_scanned(Importer& to, const Node& node, std::size_t first, const std::vector<VarId>& arrays) {
  const Ints axes = per_scan(node, "scan_output_axes", arrays.size());
  const Ints backwards = directions(node, "scan_output_directions", arrays.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (!node.wants(first + i)) continue;
    const std::string& name = node.output(first + i);
    VarId all = to.emit1("tensor_array_stack", {arrays[i]}, {{"axis", axes[i]}}, backwards[i] == 0 ? name : "");
    if (backwards[i] != 0) all = to.emit1("reverse", {all}, {{"axis", axes[i]}}, name);
    to.bind(node, first + i, all);
  }
}

void scan9(Importer& to, const Node& node) {
  const onnx::GraphProto& graph = node.graph("body");
  const std::size_t count = scan_inputs(node, graph, node.inputs());
  const std::vector<VarId> all = to.all_in(node);
  const std::vector<VarId> states(all.begin(), all.end() - static_cast<std::ptrdiff_t>(count));
  const Ints axes = per_scan(node, "scan_input_axes", count);
  const Ints backwards = directions(node, "scan_input_directions", count);
  std::vector<VarId> steps;
  for (std::size_t i = 0; i < count; ++i) steps.push_back(steps_of(to, to.in(node, states.size() + i), axes[i], backwards[i] != 0));
  // A second input of another length is an error: the longest decides, and the shorter one has no such step.
  VarId n = to.emit1("tensor_array_size", {steps[0]}, {}, "n");
  for (std::size_t i = 1; i < steps.size(); ++i) n = to.emit1("maximum", {n, to.emit1("tensor_array_size", {steps[i]})}, {}, "n");
  const Scanned scanned = scan_over(to, graph, states, steps, n);
  for (std::size_t i = 0; i < states.size(); ++i) to.bind(node, i, scanned.last[i]);
  give_scanned(to, node, states.size(), scanned.arrays);
}

// ---- Scan of opset 8: each sequence of a batch on its own, as long as sequence_lens says

/// `x` with zeros behind its rows, `total` in all.
VarId padded_rows(Importer& to, VarId x, VarId rows, VarId total) {
  const Ints zeros(static_cast<std::size_t>(to.rank(x)), 0);
  const VarId missing = as_list(to, to.emit1("sub", {total, rows}));
  std::vector<VarId> pads{to.literal(zeros), missing};
  if (zeros.size() > 1) pads.push_back(to.literal(Ints(zeros.size() - 1, 0)));
  return to.emit1("pad_by", {x, to.emit1("concat", pads, {{"axis", std::int64_t{0}}})});
}

/// The results of sequence `at` of the batch: its last states, then its other outputs as rows.
std::vector<VarId> scan_sequence(Importer& to, const Node& node, std::size_t states, VarId at) {
  const VarId lengths = to.in_or_none(node, 0);
  const auto own = [&](VarId x) { return to.emit1("gather", {x, at}, {{"axis", std::int64_t{0}}}); };
  std::vector<VarId> initial;
  for (std::size_t i = 0; i < states; ++i) initial.push_back(own(to.in(node, 1 + i)));
  const VarId total = extent_of(to, to.in(node, 1 + states), 1);
  VarId n = total;
  if (lengths != no_var)
    n = scalar(to, own(to.type(lengths).dtype == DType::i64 ? lengths : to.emit1("cast", {lengths}, {{"to", DType::i64}})));
  const Ints backwards = directions(node, "directions", node.inputs() - 1 - states);
  std::vector<VarId> steps;
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    VarId x = own(to.in(node, 1 + states + i));
    if (lengths != no_var) x = to.emit1("slice_by", {x, to.literal(Ints{0}), as_list(to, n), to.literal(Ints{0})});
    steps.push_back(steps_of(to, x, 0, backwards[i] != 0));
  }
  const Scanned scanned = scan_over(to, node.graph("body"), initial, steps, n);
  std::vector<VarId> given = scanned.last;
  for (const VarId array : scanned.arrays) {
    const VarId rows = to.emit1("tensor_array_stack", {array}, {{"axis", std::int64_t{0}}});
    given.push_back(lengths == no_var ? rows : padded_rows(to, rows, n, total));
  }
  return given;
}

/// ProgramError for states or inputs with a row too many, or one too few, for the batch. Batches that only a run knows are not compared.
void check_batch(Importer& to, const Node& node) {
  std::size_t first = 0;  // the input that says the batch
  std::int64_t batch = DDim::unknown;
  for (std::size_t i = 0; i < node.inputs(); ++i) {
    const VarId x = to.in_or_none(node, i);
    const std::int64_t rows = x == no_var || to.type(x).rank() < 1 ? DDim::unknown : (*to.type(x).shape)[0];
    if (rows < 0) continue;
    if (batch < 0) {
      first = i;
      batch = rows;
    } else if (rows != batch) {
      throw ProgramError("input " + internal::printable(node.input(i)) + ": expected the batch of input " +
                         internal::printable(node.input(first)) + ", " + std::to_string(batch) + ", found " + std::to_string(rows));
    }
  }
}

void scan8(Importer& to, const Node& node) {
  const onnx::GraphProto& graph = node.graph("body");
  if (node.inputs() < 2) throw ProgramError("expected sequence_lens, then states and inputs, found " + std::to_string(node.inputs()));
  const std::size_t states = node.inputs() - 1 - scan_inputs(node, graph, node.inputs() - 1);
  check_batch(to, node);
  While loop(graph, 0);
  loop.carry(number(to, 0), "sequence", VarType(DType::i64, DDim{}));
  const VarId batch = extent_of(to, to.in(node, 1 + states), 0);
  loop.params = to.enter(loop.carried);
  leave_if(to, loop, to.emit1("equal", {loop.params[0], batch}, {}, "done"));
  loop.results = scan_sequence(to, node, states, loop.params[0]);
  end_iteration(to, loop, no_var, {});
  const std::vector<VarId> arrays = output_arrays(to, loop, 0, batch);
  finish(to, loop);
  for (std::size_t i = 0; i < arrays.size(); ++i)
    if (node.wants(i)) to.bind(node, i, to.emit1("tensor_array_stack", {arrays[i]}, {{"axis", std::int64_t{0}}}, node.output(i)));
}

void scan(Importer& to, const Node& node, const char*) { to.opset() < 9 ? scan8(to, node) : scan9(to, node); }

constexpr Rule control_table[] = {
    {"If", branch, "if"},
    {"Loop", loop},
    {"Scan", scan},
};

}  // namespace

std::span<const Rule> control_rules() { return control_table; }

}  // namespace millrace::importing
