// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/rules.h>

namespace millrace::importing {
namespace {

void matmul(Importer& to, const Node& node, const char* op) { to.give(node, op, {to.in(node, 0), to.in(node, 1)}); }

void gemm(Importer& to, const Node& node, const char* op) {
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
