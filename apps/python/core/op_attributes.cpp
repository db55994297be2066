// SPDX-License-Identifier: Apache-2.0
// The attributes of the standard ops, as docs/ops.md lists them: `mr.call` refuses others, which an op would not read.
#include <map>
#include <string>

#include <fmt/format.h>

#include <millrace/runtime/program/op_registry.h>

#include "build.h"

namespace millrace::python {

const std::map<std::string, std::string>& op_attributes() {
  static const std::map<std::string, std::string> made{
      {"affine", "alpha, beta"},
      {"argmax", "axis, keepdims, select_last"},
      {"argmin", "axis, keepdims, select_last"},
      {"arithmetic", "steps"},
      {"beam_search_decode", "end_id, length_penalty"},
      {"beam_search_start", "dtype"},
      {"beam_search_step", "beam_size, end_id, is_accumulated, length_penalty"},
      {"bit_cast", "to"},
      {"cast", "to"},
      {"celu", "alpha"},
      {"concat", "axis"},
      {"constant", "value"},
      {"constant_of_shape", "value"},
      {"constant_rows", "dtype, shape, value"},
      {"conv", "dilations, group, pads, relu, strides, winograd"},
      {"conv1d", "dilation, group, pads, stride, winograd"},
      {"ctc_align", "blank, merge_repeated"},
      {"ctc_beam_search", "blank, paths, top, width"},
      {"ctc_greedy", "blank, merge_repeated"},
      {"ctc_loss", "blank, zero_infinity"},
      {"ctc_loss_gradient", "blank, zero_infinity"},
      {"cumsum", "axis, exclusive, reverse"},
      {"dropout", "number, rate, seed, training"},
      {"edit_distance", "ignored_tokens, normalized"},
      {"elu", "alpha"},
      {"flatten", "axis"},
      {"gather", "axis"},
      {"gather_elements", "axis"},
      {"gather_nd", "batch_dims"},
      {"gather_tree", "end_token"},
      {"gelu", "approximate"},
      {"gemm", "alpha, beta, trans_a, trans_b"},
      {"hard_sigmoid", "alpha, beta"},
      {"identity", "varying"},
      {"if", "else_block, then_block"},
      {"layer_norm", "axis, epsilon"},
      {"layer_norm_gradient", "axis, epsilon"},
      {"leaky_relu", "alpha"},
      {"list_concat", "axis"},
      {"list_of", "dtype"},
      {"list_split", "axis, keepdims"},
      {"list_stack", "axis"},
      {"lod_append", "lengths"},
      {"lod_reset", "lengths"},
      {"log_softmax", "axis"},
      {"lstm_cell", "activations, alphas, betas, clip, input_forget"},
      {"lstm_cell_projected", "activations, alphas, betas, clip, input_forget"},
      {"lstm_gates", "activations, alphas, betas, clip, input_forget"},
      {"matmul", "to"},
      {"matmul_bytes", "axis"},
      {"merge_by_mask", "level"},
      {"mod", "fmod"},
      {"no_slot_gradients", "dtype, rank"},
      {"one_hot", "axis"},
      {"optional_of", "dtype, list"},
      {"pack", "level"},
      {"pad", "mode, pads, value"},
      {"pad_by", "mode"},
      {"pool", "dilations, fold, kernels, pads, strides"},
      {"put_slice", "axes, ends, starts, steps"},
      {"quantize_bytes", "axis"},
      {"reduce", "axes, keepdims, kind"},
      {"reshape", "shape"},
      {"reshape_to", "allowzero"},
      {"reverse", "axis"},
      {"run_rows", "every, feeds, level, phase, phases, reach, reverse"},
      {"round_to_bytes", "axis"},
      {"same_steps", "level"},
      {"sample_tokens", "seed, temperature, top"},
      {"scaled_tanh", "alpha, beta"},
      {"scatter_elements", "axis, reduction"},
      {"scatter_nd", "reduction"},
      {"selu", "alpha, gamma"},
      {"sequence_concat", "level"},
      {"sequence_conv", "context_length, context_start"},
      {"sequence_enumerate", "pad_value, win_size"},
      {"sequence_erase", "tokens"},
      {"sequence_expand", "ref_level"},
      {"sequence_expand_as", "level"},
      {"sequence_mask", "maxlen, to"},
      {"sequence_pad", "padded_length"},
      {"sequence_pool", "empty, kind, level"},
      {"sequence_reshape", "new_dim"},
      {"sequence_reverse", "level"},
      {"sequence_slice", "level"},
      {"sequence_softmax", "level"},
      {"sequence_top_k", "k"},
      {"sequence_topk_avg_pooling", "channel_num, topks"},
      {"shape", "end, start"},
      {"slice", "axes, ends, starts, steps"},
      {"slot_gradients_to_array", "dtype, shape"},
      {"softmax", "axis"},
      {"softmax_cross_entropy", "ignore_index"},
      {"split", "axis, sizes"},
      {"split_by_mask", "level"},
      {"squeeze", "axes"},
      {"tensor_array", "dtype, growable, name, shape, window"},
      {"tensor_array_append", "share"},
      {"tensor_array_stack", "axis"},
      {"tensor_array_unstack", "axis"},
      {"tensor_array_write", "share"},
      {"thresholded_relu", "alpha"},
      {"top_k", "axis, largest"},
      {"transpose", "perm"},
      {"unpack", "level, reverse, sort_by_length"},
      {"unsqueeze", "axes"},
      {"unstack_gradient", "axis"},
      {"while", "condition, max_trips, parallel_iterations, sub_block"},
      {"window_rows", "context_length, context_start"},
  };
  return made;
}

void expect_attributes(const std::string& op, const Attributes& given) {
  if (build::Guard::current().program().registry().find(op) == nullptr) return;  // the builder names it
  const auto found = op_attributes().find(op);
  const std::string names = found != op_attributes().end() ? found->second : "";
  for (const auto& [name, value] : given)
    if ((" " + names + ",").find(" " + name + ",") == std::string::npos)
      throw ArgumentError(fmt::format("call: op {}: expected the attributes {}, found '{}'{}", op, names.empty() ? "(none)" : names, name,
                                      meant(name, names)));
}

}  // namespace millrace::python
