// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include <millrace/runtime/import/with_onnx/importer.h>

namespace millrace::importing {

/// How nodes of one ONNX op become standard ops. `op` is handed on, for rules that several ops share.
struct Rule {
  std::string_view onnx;
  void (*apply)(Importer& to, const Node& node, const char* op);
  const char* op = "";
};

std::span<const Rule> elementwise_rules();
std::span<const Rule> reduce_rules();
std::span<const Rule> linear_rules();
std::span<const Rule> window_rules();
std::span<const Rule> norm_rules();
std::span<const Rule> einsum_rules();
std::span<const Rule> pick_rules();
std::span<const Rule> shape_rules();
std::span<const Rule> piece_rules();
std::span<const Rule> recurrent_rules();
std::span<const Rule> control_rules();
std::span<const Rule> list_rules();

/// The rule of an op of the default domain, or null.
const Rule* find_rule(std::string_view onnx);

}  // namespace millrace::importing
