// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <millrace/runtime/loops/loop_operands.h>
#include <millrace/runtime/lowering/loop_form.h>

namespace millrace {

/// `rows`, what state `index` has behind `iterations` iterations, with the order that it has behind the interpreted loop: a slot or another state that an
/// iteration handed on keeps its own, or has that of the batch where it was shrunk; what an iteration computed has none.
SlotValue last_state(const LoopForm& form, const LoopOperands& operands, std::size_t index, std::int64_t iterations, LoDTensor rows);

}  // namespace millrace
