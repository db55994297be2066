// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <millrace/runtime/program/program.h>

namespace millrace::internal {

/// The name of an input of an op in an error: "input Index", as the op's definition has it, and for one of several ("Xs...") "input Xs[2]"; "input 2" where the op
/// is not registered.
std::string input_name(const Program& program, const Op& op, std::size_t input);

}  // namespace millrace::internal
