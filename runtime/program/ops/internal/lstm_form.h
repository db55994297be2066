// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <millrace/kernels/lstm_cell.h>
#include <millrace/runtime/program/program.h>

namespace millrace::ops {

/// Places of the inputs of `lstm_cell`. The places of `lstm_cell_projected` are the same without W, those of `lstm_gates` without
/// W and R.
enum : std::size_t { in_x, in_h, in_c, in_w, in_r, in_bias, in_peephole };

/// The description that the attributes of a cell give, less what the weights tell. `products` that it makes itself: 2 of an `lstm_cell`, 1 of
/// an `lstm_cell_projected`, 0 of `lstm_gates`.
LstmDesc lstm_form(const Op& op, std::size_t products);

}  // namespace millrace::ops
