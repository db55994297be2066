// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <millrace/runtime/models/import/with_onnx/quantized.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>

namespace millrace::importing {
namespace {

void matmul(Importer& to, const Node& node, const char* op) {
  if (const VarId made = dequantized_product(to, to.in(node, 0), to.in(node, 1), false); made != no_var)
    return to.give(node, "identity", {made});
  to.give(node, op, {to.in(node, 0), to.in(node, 1)});
}

void gemm(Importer& to, const Node& node, const char* op) {
  if (node.real("alpha", 1) == 1 && node.real("beta", 1) == 1 && !node.flag("transA", false))
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
