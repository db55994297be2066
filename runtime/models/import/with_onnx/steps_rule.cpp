// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/models/import/with_onnx/rules.h>

/// ONNX Runtime's Scan refuses to go over no steps, so exporters put it into an `If` that asks whether there are any. Ours goes over none and
/// gives what went in: such an `If` is its Scan.
namespace millrace::importing {
namespace {

const Op* maker(Importer& to, VarId var) {
  const Block& block = to.program().block(to.program().var(var).block);
  for (auto op = block.ops.rbegin(); op != block.ops.rend(); ++op)
    if (std::find(op->outputs.begin(), op->outputs.end(), var) != op->outputs.end()) return &*op;
  return nullptr;
}

bool is_zero(Importer& to, VarId var) {
  const Tensor* value = to.program().constant(var);
  return value != nullptr && value->elements() == 1 && !is_floating(value->dtype()) && value->item_int() == 0;
}

/// The var whose extent along axis 0 is asked to be 0, or none.
VarId asked_for_none(Importer& to, VarId condition) {
  const Op* test = maker(to, condition);
  if (test == nullptr || test->type != "equal" || !is_zero(to, test->inputs[1])) return no_var;
  const Op* extent = maker(to, test->inputs[0]);
  while (extent != nullptr && (extent->type == "reshape" || extent->type == "squeeze")) extent = maker(to, extent->inputs[0]);
  const bool first = extent != nullptr && extent->type == "shape" && extent->attributes.get_or("start", std::int64_t{0}) == 0 &&
                     extent->attributes.get_or("end", std::int64_t{-1}) == 1;
  return first ? extent->inputs[0] : no_var;
}

const std::string* passed_on(const onnx::GraphProto& graph, const std::string& output) {
  for (const onnx::NodeProto& node : graph.node())
    if (node.op_type() == "Identity" && node.input_size() == 1 && node.output_size() == 1 && node.output(0) == output)
      return &node.input(0);
  return nullptr;
}

/// Whether the graph gives what a Scan gives that goes over no steps.
bool gives_no_steps(Importer& to, const onnx::GraphProto& graph, const onnx::NodeProto& scan, int states) {
  if (graph.output_size() != scan.output_size()) return false;
  for (int i = 0; i < graph.output_size(); ++i) {
    const std::string* from = passed_on(graph, graph.output(i).name());
    if (from == nullptr) return false;
    if (i < states) {
      if (*from != scan.input(i)) return false;
      continue;
    }
    onnx::NodeProto reader;
    reader.add_input(*from);
    const Tensor* value = to.known(Node(reader), 0);
    if (value == nullptr || value->rank() < 1 || value->dim(0) != 0) return false;
  }
  return true;
}

}  // namespace

bool took_steps(Importer& to, const Node& node) {
  const onnx::GraphProto& some = node.graph("else_branch");
  if (some.node_size() != 1 || some.node(0).op_type() != "Scan" || some.initializer_size() > 0 || to.opset() < 9) return false;
  const onnx::NodeProto& proto = some.node(0);
  const Node scan(proto);
  const std::int64_t steps = scan.integer("num_scan_inputs", 0);
  if (steps < 1 || steps > proto.input_size() || scan.integers("scan_input_axes") || some.output_size() != proto.output_size())
    return false;
  for (int i = 0; i < proto.output_size(); ++i)
    if (some.output(i).name() != proto.output(i)) return false;
  const int states = proto.input_size() - static_cast<int>(steps);
  const VarId asked = asked_for_none(to, to.in(node, 0));
  bool scanned = false;
  for (int i = states; i < proto.input_size() && asked != no_var; ++i)
    scanned = scanned || to.in(scan, static_cast<std::size_t>(i)) == asked;
  if (!scanned || !gives_no_steps(to, node.graph("then_branch"), proto, states)) return false;
  const std::vector<VarId> results = to.inlined(some);
  for (std::size_t i = 0; i < results.size(); ++i) to.bind(node, i, results[i]);
  return true;
}

}  // namespace millrace::importing
