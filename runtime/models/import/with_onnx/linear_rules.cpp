// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <millrace/runtime/models/import/with_onnx/quantized.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>

namespace millrace::importing {
namespace {

/// The weights [.., K, M] say how many numbers a row of `x` has.
void rows_of(Importer& to, VarId x, VarId weights, bool transposed) {
  const std::optional<DDim>& shape = to.type(weights).shape;
  if (to.program().constant(weights) == nullptr || !shape || shape->rank() < 2) return;
  to.needs_extent(x, to.type(x).rank() - 1, (*shape)[shape->rank() - (transposed ? 1 : 2)]);
}

void matmul(Importer& to, const Node& node, const char* op) {
  rows_of(to, to.in(node, 0), to.in(node, 1), false);
  if (const VarId made = dequantized_product(to, to.in(node, 0), to.in(node, 1), false); made != no_var)
    return to.give(node, "identity", {made});
  to.give(node, op, {to.in(node, 0), to.in(node, 1)});
}

/// Whether a product of bytes may stand for the node: A has two axes, and a C is one row, or one number, for all of them.
bool is_plain_gemm(Importer& to, const Node& node) {
  if (node.real("alpha", 1) != 1 || node.real("beta", 1) != 1 || node.flag("transA", false)) return false;
  if (to.type(to.in(node, 0)).rank() != 2 || to.type(to.in(node, 1)).rank() != 2) return false;
  if (!node.has(2)) return true;
  const VarType& added = to.type(to.in(node, 2));
  const std::int64_t n = (*to.type(to.in(node, 1)).shape)[node.flag("transB", false) ? 0 : 1];
  return added.is_static() && added.rank() <= 2 &&
         (added.shape->elements() == 1 || (added.rank() > 0 && (*added.shape)[-1] == n && added.shape->elements() == n));
}

void gemm(Importer& to, const Node& node, const char* op) {
  if (!node.flag("transA", false)) rows_of(to, to.in(node, 0), to.in(node, 1), node.flag("transB", false));
  if (is_plain_gemm(to, node))
    if (const VarId made = dequantized_product(to, to.in(node, 0), to.in(node, 1), node.flag("transB", false)); made != no_var)
      return to.give(node, node.has(2) ? "add" : "identity",
                     node.has(2) ? std::vector<VarId>{made, to.in(node, 2)} : std::vector<VarId>{made});
  to.give(node, op, {to.in(node, 0), to.in(node, 1), to.in_or_none(node, 2)},
          {{"alpha", node.real("alpha", 1)},
           {"beta", node.real("beta", 1)},
           {"trans_a", node.flag("transA", false)},
           {"trans_b", node.flag("transB", false)}});
}

constexpr Rule linear_table[] = {
    {"MatMul", matmul, "matmul"},
    {"Gemm", gemm, "gemm"},
};

}  // namespace

std::span<const Rule> linear_rules() { return linear_table; }

}  // namespace millrace::importing
