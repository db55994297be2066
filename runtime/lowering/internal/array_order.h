// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <millrace/runtime/program/program.h>

namespace millrace::lowering {

/// The order that the array was made with, by an op of its own block; nothing where no op there says it.
std::optional<VarId> order_of(const Program& program, VarId array);

}  // namespace millrace::lowering
