// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include <millrace/runtime/models/export/with_onnx/exporter.h>

namespace millrace::exporting {

/// The rule by which one of our ops becomes ONNX nodes. `onnx` is handed on, for rules that several ops share.
struct Rule {
  std::string_view op;
  void (*apply)(Exporter& to, const Op& op, const char* onnx);
  const char* onnx = "";
};

std::span<const Rule> elementwise_rules();
std::span<const Rule> linear_rules();
std::span<const Rule> shape_rules();
std::span<const Rule> array_rules();
std::span<const Rule> sequence_rules();
std::span<const Rule> decoding_rules();
std::span<const Rule> list_rules();

/// The rows of `ids` ([T] or [T, 1], of `dtype`) that are none of `tokens`.
std::string without(Exporter& to, const std::string& ids, DType dtype, const Ints& tokens);

/// The rule of an op, or null.
const Rule* find_rule(std::string_view op);

}  // namespace millrace::exporting
