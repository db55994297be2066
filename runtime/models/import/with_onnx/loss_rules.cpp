// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Losses, as far as they are computed forward.
namespace millrace::importing {
namespace {

/// −log p of each target, times its weight; targets that are `ignore_index` count nothing. `logs` [N, C, d…], targets [N, d…].
void likelihood_loss(Importer& to, const Node& node, VarId logs) {
  const Formula f(to, to.type(logs).dtype);
  const std::string reduction = node.text("reduction", "mean");
  if (reduction != "none" && reduction != "sum" && reduction != "mean")
    throw ParseError("attribute reduction: expected none, sum or mean, found " + internal::printable(reduction));
  VarId target = whole_numbers(to, to.in(node, 1));
  VarId counts = no_var;
  if (node.has_attribute("ignore_index")) {
    const VarId ignored = to.emit1("equal", {target, number(to, node.integer("ignore_index", 0))});
    target = to.emit1("where", {ignored, number(to, 0), target});
    counts = f.where(ignored, f.number(0), f.number(1));
  }
  if (node.has(2)) {
    const VarId weights = to.emit1("gather", {to.in(node, 2), target}, {{"axis", std::int64_t{0}}});
    counts = counts == no_var ? weights : f.times(counts, weights);
  }
  const VarId at = f.unsqueezed(target, {1});
  const VarId picked = to.emit1("squeeze", {to.emit1("gather_elements", {logs, at}, {{"axis", std::int64_t{1}}})}, {{"axes", Ints{1}}});
  VarId loss = f.op("neg", picked);
  if (counts != no_var) loss = f.times(loss, counts);
  if (reduction == "none") return to.give(node, "identity", {loss});
  if (reduction == "sum" || counts == no_var)
    return to.give(node, "reduce", {loss}, {{"kind", reduction}, {"axes", Ints{}}, {"keepdims", false}});
  to.give(node, "div", {f.reduced("sum", loss, {}, false), f.reduced("sum", counts, {}, false)});
}

void negative_log_likelihood(Importer& to, const Node& node, const char*) { likelihood_loss(to, node, to.in(node, 0)); }

void softmax_cross_entropy(Importer& to, const Node& node, const char*) {
  const VarId logs = to.emit1("log_softmax", {to.in(node, 0)}, {{"axis", std::int64_t{1}}});
  likelihood_loss(to, node, logs);
  to.bind(node, 1, logs);
}

constexpr Rule loss_table[] = {
    {"NegativeLogLikelihoodLoss", negative_log_likelihood},
    {"SoftmaxCrossEntropyLoss", softmax_cross_entropy},
};

}  // namespace

std::span<const Rule> loss_rules() { return loss_table; }

}  // namespace millrace::importing
