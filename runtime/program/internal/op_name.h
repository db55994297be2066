// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/program/program.h>

namespace millrace::internal {

/// "op matmul 'gates'", for errors: the type, and the label where there is one.
inline std::string op_name(const Op& op) { return "op " + op.type + (op.label.empty() ? "" : " " + printable(op.label)); }

}  // namespace millrace::internal
