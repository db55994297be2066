// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <millrace/runtime/loops/loop_operands.h>
#include <millrace/runtime/lowering/loop_form.h>

namespace millrace {

/// Rows of state `index` behind `iterations` iterations, with the order that the interpreter leaves. A slot or another state that an iteration handed on
/// keeps its order, and has the order of the batch where it was shrunk. A computed state has no order.
SlotValue last_state(const LoopForm& form, const LoopOperands& operands, std::size_t index, std::int64_t iterations, LoDTensor rows);

}  // namespace millrace
