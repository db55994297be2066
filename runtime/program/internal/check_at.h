// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include <millrace/runtime/program/program.h>

namespace millrace::internal {

/// `check`, telling which op it has come to: block and place in it. One past the last op stands for what the block hands back.
void check_at(const Program& program, const std::function<void(int block, std::size_t op)>& at);

}  // namespace millrace::internal
