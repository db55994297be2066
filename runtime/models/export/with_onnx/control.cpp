// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include <millrace/runtime/models/export/with_onnx/iteration.h>
#include <millrace/tensor/error.h>

/// `if` and loops.
namespace millrace::exporting {

using Form = ArrayState::Form;

namespace {

/// A slot that is scanned: of an array with an order it is one row.
VarType scanned_slot(VarType slot) {
  if (slot.ordered && slot.rank() > 0 && (*slot.shape)[0] == DDim::unknown) (*slot.shape)[0] = 1;
  return slot;
}

}  // namespace

std::string Exporter::choose(const std::string& condition, const VarType& type, const std::function<std::string()>& yes,
                             const std::function<std::string()>& no) {
  onnx::NodeProto* chosen = raw_node("If");
  chosen->add_input(condition);
  const auto side = [&](const char* attribute, const std::function<std::string()>& value) {
    enter(subgraph(chosen, attribute), attribute);
    const std::string result = own(value());
    describe(scope().graph->add_output(), result, type);
    scopes_.pop_back();
  };
  side("then_branch", yes);
  side("else_branch", no);
  chosen->add_output(fresh("chosen"));
  return chosen->output(0);
}

Names Exporter::repeat(const std::string& trips, const Names& initial, const std::vector<VarType>& carried,
                       const std::vector<VarType>& scanned,
                       const std::function<Names(const std::string& iteration, const Names& values)>& body) {
  onnx::NodeProto* node = raw_node("Loop");
  node->add_input(trips);
  node->add_input("");
  for (const std::string& value : initial) node->add_input(value);
  onnx::GraphProto* graph = subgraph(node, "body");
  enter(graph, "body");
  const std::string iteration = fresh("iteration");
  describe(graph->add_input(), iteration, VarType(DType::i64, DDim{}));
  describe(graph->add_input(), fresh("proceeds"), VarType(DType::boolean, DDim{}));
  Names values;
  for (const VarType& each : carried) {
    values.push_back(fresh("carried"));
    describe(graph->add_input(), values.back(), each);
  }
  const Names next = body(iteration, values);
  describe(graph->add_output(), own(constant(Tensor::scalar(true), "proceeds")), VarType(DType::boolean, DDim{}));
  Names last;
  for (std::size_t i = 0; i < next.size(); ++i) {
    const std::string value = own(next[i]);
    describe(graph->add_output(), value, i < carried.size() ? carried[i] : scanned.at(i - carried.size()));
    last.push_back(fresh("repeated"));
    node->add_output(last.back());
  }
  scopes_.pop_back();
  return last;
}

void Exporter::branch(const Op& op) {
  const int blocks[] = {op.attributes.get<BlockId>("then_block").index, op.attributes.get<BlockId>("else_block").index};
  for (const VarId output : op.outputs)
    if (!is_value(type(output))) throw UnsupportedError("gives an array or an order that depends on its condition");
  std::set<VarId> arrays = mutated(blocks[0]);
  arrays.merge(mutated(blocks[1]));
  for (const VarId array : arrays) make_general(array);
  const std::string condition = scalar(op.inputs[0]);
  onnx::NodeProto* node = raw_node("If");
  node->add_input(condition);
  for (const int side : {0, 1}) {
    const char* attribute = side == 0 ? "then_branch" : "else_branch";
    enter(subgraph(node, attribute), attribute);
    block(blocks[side]);
    const Block& body = program_.block(blocks[side]);
    for (std::size_t i = 0; i < body.results.size(); ++i) {
      const std::string value = own(name(body.results[i]));
      describe(scope().graph->add_output(), value, type(op.outputs[i]));
    }
    for (const VarId each : arrays) {
      const std::string value = own(array(each).value);
      describe_array(scope().graph->add_output(), value, each);
    }
    scopes_.pop_back();
  }
  for (const VarId output : op.outputs) {
    node->add_output(fresh(program_.var(output).name));
    bind(output, node->output(node->output_size() - 1));
  }
  for (const VarId each : arrays) {
    ArrayState state = array(each);
    state.value = fresh(program_.var(each).name);
    node->add_output(state.value);
    set_array(each, state);
  }
}

void Exporter::loop(const Op& op) {
  Iteration iteration = plan(op);
  if (iteration.scan)
    emit_scan(op, iteration);
  else
    emit_loop(op, iteration);
}

/// The inputs of a loop: the carried tensors, boots of arrays that are read a step back, arrays.
Names Exporter::loop_inputs(const Op& op, Iteration& iteration) {
  Names initial;
  for (const std::size_t i : iteration.carried) initial.push_back(name(op.inputs[i]));
  for (const auto& [array, boot] : iteration.lagged) initial.push_back(name(boot));
  for (const VarId each : iteration.general) {
    make_general(each);
    initial.push_back(array(each).value);
  }
  return initial;
}

/// Begins the graph of an iteration, with a parameter for each of `loop_inputs`.
void Exporter::enter_iteration(Iteration& iteration, onnx::GraphProto* body) {
  enter(body, "body");
  scope().counter = iteration.counter;
  for (const std::size_t i : iteration.carried) {
    const VarId param = iteration.body->params[i];
    bind(param, fresh(program_.var(param).name));
    describe(body->add_input(), name(param), type(param));
  }
  for (const auto& [array, boot] : iteration.lagged) {
    std::string& lag = scope().lags[array];
    lag = fresh(program_.var(array).name + "_before");
    describe(body->add_input(), lag, type(boot));
  }
  for (const VarId each : iteration.general) {
    ArrayState state = array(each);
    state.value = fresh(program_.var(each).name);
    describe_array(body->add_input(), state.value, each);
    set_array(each, state);
  }
  scope().scanned = iteration.outputs;
}

/// The outputs of the iteration that follow those of ONNX's own: the next values of `enter_iteration`, then the scanned outputs.
void Exporter::leave_iteration(const Iteration& iteration, const Names& carried) {
  onnx::GraphProto* body = scope().graph;
  for (std::size_t i = 0; i < carried.size(); ++i) {
    const std::string value = own(carried[i]);
    describe(body->add_output(), value, type(iteration.body->params[iteration.carried[i]]));
  }
  const auto written = [&](VarId array) {
    const auto found = scope().written.find(array);
    if (found == scope().written.end())
      throw UnsupportedError("writes '" + program_.var(array).name + "' by an op that has no counterpart");
    return found->second;
  };
  for (const auto& [array, boot] : iteration.lagged) {
    const std::string value = own(written(array));
    describe(body->add_output(), value, type(boot));
  }
  for (const VarId each : iteration.general) {
    const std::string value = own(array(each).value);
    describe_array(body->add_output(), value, each);
  }
  for (const VarId array : iteration.outputs) {
    const std::string value = own(written(array));
    describe(body->add_output(), value, scanned_slot(type(array)));
  }
  scopes_.pop_back();
}

/// Names the outputs of the loop's node.
void Exporter::finish_loop(const Op& op, const Iteration& iteration, onnx::NodeProto* node) {
  for (const std::size_t i : iteration.carried) {
    node->add_output(fresh(program_.var(op.outputs[i]).name));
    bind(op.outputs[i], node->output(node->output_size() - 1));
  }
  std::map<VarId, std::pair<std::string, VarId>> last;
  for (const auto& [array, boot] : iteration.lagged) {
    node->add_output(fresh(program_.var(array).name + "_last"));
    last[array] = {node->output(node->output_size() - 1), boot};
  }
  for (const VarId each : iteration.general) {
    ArrayState state = array(each);
    state.value = fresh(program_.var(each).name);
    node->add_output(state.value);
    set_array(each, state);
  }
  for (const VarId each : iteration.outputs) {
    ArrayState state = array(each);
    state.form = Form::stacked;
    state.value = fresh(program_.var(each).name);
    if (const auto carried = last.find(each); carried != last.end()) std::tie(state.last, state.boot) = carried->second;
    node->add_output(state.value);
    set_array(each, state);
  }
}

onnx::NodeProto* Exporter::scan_node(Iteration& iteration, const Names& inputs) {
  onnx::NodeProto* node = raw_node("Scan");
  for (const std::string& input : inputs) node->add_input(input);
  onnx::AttributeProto& count = *node->add_attribute();
  count.set_name("num_scan_inputs");
  count.set_type(onnx::AttributeProto::INT);
  count.set_i(static_cast<std::int64_t>(iteration.sliced.size()));
  onnx::GraphProto* body = subgraph(node, "body");
  enter_iteration(iteration, body);
  for (const VarId each : iteration.sliced) {
    std::string& slice = scope().slices[each];
    slice = fresh(program_.var(each).name + "_now");
    VarType slot = VarType::unranked(type(each).dtype);
    slot.shape = type(each).shape;
    describe(body->add_input(), slice, slot);
  }
  const Names carried = tail(iteration, 0).carried;
  leave_iteration(iteration, carried);
  return node;
}

/// Whether it is known that there is a step: what is scanned was made of a tensor whose first extent is known.
bool Exporter::surely_steps(const Iteration& iteration) {
  return std::any_of(iteration.sliced.begin(), iteration.sliced.end(), [&](VarId each) {
    const Op* made = maker(each);
    if (made == nullptr || made->type != "tensor_array_unstack") return false;
    const VarType& x = type(made->inputs[0]);
    const std::int64_t axis = made->attributes.get_or("axis", std::int64_t{0});
    return x.rank() > 0 && (*x.shape)[static_cast<int>(axis < 0 ? axis + x.rank() : axis)] > 0;
  });
}

/// An array of no slots, whose open extents are those that the program computes for them, and 0 where it says none.
std::string Exporter::no_slots(VarId array) {
  const VarType slot = scanned_slot(type(array));
  const Op* made = maker(array);
  const bool told = made != nullptr && made->type == "tensor_array" && has(*made, 2);
  const std::int64_t count = told && type(*made, 2).rank() == 1 ? (*type(*made, 2).shape)[0] : 0;
  const auto computed = [&] { return type(*made, 2).dtype == DType::i64 ? in(*made, 2) : cast(in(*made, 2), DType::i64); };
  Ints extents{0};
  Names parts{ints({0})};
  bool open = false;
  for (int axis = 0; axis < slot.rank(); ++axis) {
    const std::int64_t extent = (*slot.shape)[axis];
    extents.push_back(std::max<std::int64_t>(extent, 0));
    const bool runs = extent == DDim::unknown && axis < count;
    open = open || runs;
    parts.push_back(runs ? node("Slice", {computed(), ints({axis}), ints({axis + 1}), ints({0})}) : ints({extents.back()}));
  }
  if (!open) return constant(Tensor(slot.dtype, make_ddim(extents)), "no_steps");
  return node("Expand", {number(slot.dtype, 0), joined(parts)}, {}, "no_steps");
}

/// The results of a loop without iterations: its inputs, and no slots.
void Exporter::no_steps(const Iteration& iteration, const Names& initial) {
  onnx::GraphProto* graph = scope().graph;
  std::size_t next = 0;
  const auto give = [&](const std::string& value, const VarType& of) {
    const std::string mine = own(value);
    describe(graph->add_output(), mine, of);
  };
  for (const std::size_t i : iteration.carried) give(initial.at(next++), type(iteration.body->params[i]));
  for (const auto& [array, boot] : iteration.lagged) give(initial.at(next++), type(boot));
  for (const VarId each : iteration.outputs) {
    const VarType slot = scanned_slot(type(each));
    VarType all = VarType::unranked(slot.dtype);
    if (slot.shape) all.shape = slot.shape->inserted(0, DDim::unknown);
    give(no_slots(each), all);
  }
}

void Exporter::steps(const Iteration& iteration, onnx::NodeProto* scan) {
  onnx::GraphProto* graph = scope().graph;
  const auto give = [&](const VarType& of) {
    scan->add_output(fresh("scanned"));
    describe(graph->add_output(), scan->output(scan->output_size() - 1), of);
  };
  for (const std::size_t i : iteration.carried) give(type(iteration.body->params[i]));
  for (const auto& [array, boot] : iteration.lagged) give(type(boot));
  for (const VarId each : iteration.outputs) {
    const VarType slot = scanned_slot(type(each));
    VarType all = VarType::unranked(slot.dtype);
    if (slot.shape) all.shape = slot.shape->inserted(0, DDim::unknown);
    give(all);
  }
}

/// ONNX Runtime's Scan refuses to go over no steps: where there may be none, an `If` asks before.
void Exporter::emit_scan(const Op& op, Iteration& iteration) {
  const Names initial = loop_inputs(op, iteration);
  Names inputs = initial;
  for (const VarId each : iteration.sliced) inputs.push_back(array(each).value);
  if (surely_steps(iteration)) return finish_loop(op, iteration, scan_node(iteration, inputs));
  const std::string none = node("Equal", {length_of(inputs.back()), whole(0)});
  onnx::NodeProto* asked = raw_node("If");
  asked->add_input(none);
  enter(subgraph(asked, "then_branch"), "no_steps");
  no_steps(iteration, initial);
  scopes_.pop_back();
  enter(subgraph(asked, "else_branch"), "steps");
  steps(iteration, scan_node(iteration, inputs));
  scopes_.pop_back();
  finish_loop(op, iteration, asked);
}

/// The test is computed for the iteration to come: before the loop, and at the end of each iteration.
void Exporter::emit_loop(const Op& op, Iteration& iteration) {
  const Names initial = loop_inputs(op, iteration);
  std::map<VarId, std::string> boots;
  for (const auto& [array, boot] : iteration.lagged) boots[array] = name(boot);
  const std::string first =
      goes_on(iteration, Names(initial.begin(), initial.begin() + static_cast<std::ptrdiff_t>(iteration.carried.size())), boots);
  onnx::NodeProto* node = raw_node("Loop");
  node->add_input(iteration.max_trips < 0 ? std::string() : whole(iteration.max_trips));
  node->add_input(first);
  for (const std::string& input : initial) node->add_input(input);
  onnx::GraphProto* body = subgraph(node, "body");
  enter(body, "body");
  describe(body->add_input(), fresh("iteration"), VarType(DType::i64, DDim{}));
  describe(body->add_input(), fresh("proceeds"), VarType(DType::boolean, DDim{}));
  scopes_.pop_back();
  enter_iteration(iteration, body);
  const Tail end = tail(iteration, 0);
  const std::string proceed = own(end.proceed);
  describe(body->add_output(), proceed, VarType(DType::boolean, DDim{}));
  leave_iteration(iteration, end.carried);
  finish_loop(op, iteration, node);
}

/// Whether there is an iteration after `carried`: the body's test and the loop's condition. Empty: nothing says no.
std::string Exporter::goes_on(const Iteration& iteration, const Names& carried, const std::map<VarId, std::string>& lags) {
  std::string proceed;
  const auto both = [&](const std::string& more) { proceed = proceed.empty() ? more : node("And", {proceed, more}); };
  scopes_.emplace_back();
  scope().graph = scopes_[scopes_.size() - 2].graph;
  scope().counter = iteration.counter;
  scope().lags = lags;
  for (std::size_t i = 0; i < carried.size(); ++i) bind(iteration.body->params[iteration.carried[i]], carried[i]);
  if (iteration.condition != no_var) both(scalar(iteration.condition));
  for (std::size_t i = 0; i < iteration.test; ++i) {
    const Op& each = iteration.body->ops[i];
    if (each.type == "break_if")
      both(node("Not", {scalar(each.inputs[0])}));
    else
      op(each);
  }
  scopes_.pop_back();
  return proceed.empty() ? constant(Tensor::scalar(true), "proceeds") : proceed;
}

/// The ops of the iteration from `from` on. One that may leave the iteration puts what follows it into the other branch.
Exporter::Tail Exporter::tail(const Iteration& iteration, std::size_t from) {
  for (std::size_t i = from; i < iteration.body->ops.size(); ++i) {
    const Op& each = iteration.body->ops[i];
    if (each.type != "break_if")
      op(each);
    else if (i >= iteration.test)
      return leave_or_go_on(iteration, i);
  }
  Tail end;
  for (const std::size_t i : iteration.carried) end.carried.push_back(name(iteration.body->results[i]));
  if (iteration.scan) return end;
  std::map<VarId, std::string> lags;
  for (const auto& [array, boot] : iteration.lagged)
    if (const auto found = scope().written.find(array); found != scope().written.end()) lags[array] = found->second;
  end.proceed = goes_on(iteration, end.carried, lags);
  return end;
}

Exporter::Tail Exporter::leave_or_go_on(const Iteration& iteration, std::size_t at) {
  const Op& leave = iteration.body->ops[at];
  const std::string condition = scalar(leave.inputs[0]);
  onnx::NodeProto* node = raw_node("If");
  node->add_input(condition);
  const auto give = [&](const Tail& end) {
    onnx::GraphProto* graph = scope().graph;
    for (std::size_t i = 0; i < end.carried.size(); ++i) {
      const std::string value = own(end.carried[i]);
      describe(graph->add_output(), value, type(iteration.body->params[iteration.carried[i]]));
    }
    const std::string proceed = own(end.proceed);
    describe(graph->add_output(), proceed, VarType(DType::boolean, DDim{}));
    for (const VarId each : iteration.general) {
      const std::string value = own(array(each).value);
      describe_array(graph->add_output(), value, each);
    }
    scopes_.pop_back();
  };
  enter(subgraph(node, "then_branch"), "leaves");
  Tail left;
  for (const std::size_t i : iteration.carried) left.carried.push_back(name(leave.inputs[i + 1]));
  left.proceed = constant(Tensor::scalar(false), "leaves");
  give(left);
  enter(subgraph(node, "else_branch"), "goes_on");
  give(tail(iteration, at + 1));
  Tail end;
  for (const std::size_t i : iteration.carried) {
    end.carried.push_back(fresh(program_.var(iteration.body->params[i]).name));
    node->add_output(end.carried.back());
  }
  end.proceed = fresh("proceeds");
  node->add_output(end.proceed);
  for (const VarId each : iteration.general) {
    ArrayState state = array(each);
    state.value = fresh(program_.var(each).name);
    node->add_output(state.value);
    set_array(each, state);
  }
  return end;
}

}  // namespace millrace::exporting
