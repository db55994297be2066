// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <millrace/kernels/lstm_cell.h>
#include <millrace/runtime/program/program.h>

namespace millrace::ops {

/// Places of the inputs of `lstm_cell`. Those of `lstm_cell_projected` are the same without W.
enum : std::size_t { in_x, in_h, in_c, in_w, in_r, in_bias, in_peephole };

/// The description that the attributes of an `lstm_cell` (or, `projected`, an `lstm_cell_projected`) give, less what the weights tell.
LstmDesc lstm_form(const Op& op, bool projected);

}  // namespace millrace::ops
