// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include <millrace/runtime/models/import/with_onnx/importer.h>

namespace millrace::importing {

/// The rule by which nodes of one ONNX op become standard ops. `op` is handed on, for rules that several ops share.
struct Rule {
  std::string_view onnx;  ///< of the default domain, or with the name of its domain in front: "com.microsoft.Name"
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
/// Whether a slice takes everything, however long the axes are.
bool is_whole(const Ints& starts, const Ints& ends, const std::optional<Ints>& steps);
std::span<const Rule> recurrent_rules();
std::span<const Rule> control_rules();
std::span<const Rule> list_rules();
std::span<const Rule> curve_rules();
std::span<const Rule> quantized_rules();
std::span<const Rule> qlinear_rules();
std::span<const Rule> fused_rules();
std::span<const Rule> signal_rules();
std::span<const Rule> loss_rules();
std::span<const Rule> attention_rules();
std::span<const Rule> joined_attention_rules();
std::span<const Rule> layout_rules();
std::span<const Rule> state_rules();
std::span<const Rule> bit_rules();
std::span<const Rule> image_rules();
std::span<const Rule> grid_rules();
std::span<const Rule> fold_rules();
std::span<const Rule> unique_rules();
std::span<const Rule> det_rules();
std::span<const Rule> random_rules();

/// `x`, f32, as u8 between the least and the greatest element (and 0) of the axes from `axis` on, and taken back: the numbers that an 8-bit product
/// sees.
VarId rounded_to_bytes(Importer& to, VarId x, std::int64_t axis = 0);
/// The op of an LSTM whose h goes through `rounded_to_bytes` before each product. Inputs from 8 on, where they are: W and R in bytes, each with its scales
/// behind it, for products of bytes; X is not rounded then.
inline constexpr std::string_view quantized_lstm = "DynamicQuantizeLSTM";

/// An `If` that keeps a Scan from going over no steps becomes the Scan. False where `node` is no such one.
bool took_steps(Importer& to, const Node& node);

/// The rule of an op (named as in `Rule::onnx`), or null.
const Rule* find_rule(std::string_view onnx);

}  // namespace millrace::importing
