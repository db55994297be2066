// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/families.h>

namespace millrace {

std::shared_ptr<const OpRegistry> standard_ops() {
  static const std::shared_ptr<const OpRegistry> all = [] {
    auto registry = std::make_shared<OpRegistry>();
    ops::add_constant_ops(*registry);
    ops::add_elementwise_ops(*registry);
    ops::add_arithmetic_ops(*registry);
    ops::add_attention_ops(*registry);
    ops::add_activation_ops(*registry);
    ops::add_matmul_ops(*registry);
    ops::add_int8_ops(*registry);
    ops::add_reduce_ops(*registry);
    ops::add_normalize_ops(*registry);
    ops::add_shape_ops(*registry);
    ops::add_reshape_ops(*registry);
    ops::add_piece_ops(*registry);
    ops::add_spread_ops(*registry);
    ops::add_gather_ops(*registry);
    ops::add_pick_ops(*registry);
    ops::add_conv_ops(*registry);
    ops::add_pool_ops(*registry);
    ops::add_cell_ops(*registry);
    ops::add_lod_ops(*registry);
    ops::add_sequence_ops(*registry);
    ops::add_sequence_row_ops(*registry);
    ops::add_lod_level_ops(*registry);
    ops::add_array_ops(*registry);
    ops::add_list_ops(*registry);
    ops::add_recurrent_ops(*registry);
    ops::add_slot_gradient_ops(*registry);
    ops::add_run_ops(*registry);
    ops::add_control_ops(*registry);
    ops::add_crf_ops(*registry);
    ops::add_ctc_ops(*registry);
    ops::add_beam_ops(*registry);
    ops::add_loss_ops(*registry);
    ops::add_adjoint_ops(*registry);
    ops::add_cell_gradients(*registry);
    ops::add_sequence_gradients(*registry);
    ops::add_traits(*registry);
    return registry;
  }();
  return all;
}

}  // namespace millrace
