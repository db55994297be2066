// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/op_registry.h>

namespace millrace::ops {

/// Each adds the ops of one family; `standard_ops()` is all of them.
void add_constant_ops(OpRegistry& registry);     ///< constant, constant_of_shape, range, one_hot, cast, identity
void add_elementwise_ops(OpRegistry& registry);  ///< add … logical_xor, where, clip
void add_arithmetic_ops(OpRegistry& registry);   ///< arithmetic
void add_attention_ops(OpRegistry& registry);    ///< attention
void add_activation_ops(OpRegistry& registry);   ///< neg … is_inf, sigmoid … prelu
void add_matmul_ops(OpRegistry& registry);       ///< matmul, gemm
void add_int8_ops(OpRegistry& registry);       ///< quantize_rows, matmul_int8, round_to_bytes, matmul_bytes, quantize_bytes, matmul_integer
void add_reduce_ops(OpRegistry& registry);     ///< reduce, argmax, argmin
void add_normalize_ops(OpRegistry& registry);  ///< softmax, log_softmax, layer_norm, cumsum
void add_shape_ops(OpRegistry& registry);      ///< shape, size, transpose, squeeze, unsqueeze
void add_reshape_ops(OpRegistry& registry);    ///< reshape, reshape_to, flatten
void add_piece_ops(OpRegistry& registry);      ///< concat, split, slice, slice_by, reverse
void add_spread_ops(OpRegistry& registry);     ///< pad, pad_by, expand, tile
void add_gather_ops(OpRegistry& registry);     ///< gather, gather_elements, embedding
void add_pick_ops(OpRegistry& registry);       ///< top_k, non_zero, gather_nd, scatter_nd, scatter_elements
void add_conv_ops(OpRegistry& registry);       ///< conv1d, conv
void add_pool_ops(OpRegistry& registry);       ///< pool
void add_cell_ops(OpRegistry& registry);       ///< lstm_cell
void add_lod_ops(OpRegistry& registry);        ///< drop_lod, unpack, pack, shrink and the designs' names
void add_sequence_ops(OpRegistry& registry);   ///< sequence_pool, _softmax, _conv, _scatter, _top_k, row_conv
void add_sequence_row_ops(OpRegistry& registry);  ///< sequence_reverse, _slice, _concat, _expand …: rows that move
void add_lod_level_ops(OpRegistry& registry);     ///< split_by_mask, merge_by_mask, lod_reset, lod_append, sequence_mask
void add_array_ops(OpRegistry& registry);         ///< tensor_array …
void add_list_ops(OpRegistry& registry);          ///< list_of, list_insert …, optional_of, optional_get, optional_has
void add_recurrent_ops(OpRegistry& registry);     ///< reorder, constant_rows, same_steps, step_mask, last_rows
void add_control_ops(OpRegistry& registry);       ///< while, break_if, if
void add_crf_ops(OpRegistry& registry);           ///< crf_decoding, linear_chain_crf
void add_ctc_ops(OpRegistry& registry);           ///< ctc_greedy, ctc_beam_search, edit_distance, sequence_trim
void add_beam_ops(OpRegistry& registry);          ///< beam_search_start, beam_search_step, beam_search_decode, sample_tokens
void add_loss_ops(OpRegistry& registry);          ///< softmax_cross_entropy and its gradient, dropout
void add_adjoint_ops(OpRegistry& registry);       ///< sum_to, put_slice, row_numbers, window_rows

/// The gradient rules of the ops of a family that is registered: called at the end of its function above.
void add_constant_gradients(OpRegistry& registry);
void add_elementwise_gradients(OpRegistry& registry);  ///< of elementwise and activation ops
void add_matmul_gradients(OpRegistry& registry);
void add_reduce_gradients(OpRegistry& registry);
void add_normalize_gradients(OpRegistry& registry);
void add_shape_gradients(OpRegistry& registry);
void add_reshape_gradients(OpRegistry& registry);
void add_piece_gradients(OpRegistry& registry);
void add_spread_gradients(OpRegistry& registry);
void add_gather_gradients(OpRegistry& registry);
void add_pick_gradients(OpRegistry& registry);
void add_cell_gradients(OpRegistry& registry);      ///< of cells and conv1d, behind all families
void add_sequence_gradients(OpRegistry& registry);  ///< of ops on sequences and levels, behind all families
void add_slot_gradient_ops(OpRegistry& registry);   ///< stop_gradient and what the backward of loops is made of
void add_run_ops(OpRegistry& registry);             ///< sequence_run, join_runs …: runs of iterations, of which recompute makes loops

/// The traits of all of these (OpTraits).
void add_traits(OpRegistry& registry);

}  // namespace millrace::ops
