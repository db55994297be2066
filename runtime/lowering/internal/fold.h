// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::lowering {

/// Runs one op on constants (null: absent) and gives its outputs, on the host.
std::vector<Tensor> fold(const Program& program, const Op& op, const std::vector<const Tensor*>& inputs);

}  // namespace millrace::lowering
