// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// Row-major ids, parents and out.
void gather_tree(const Tensor& ids, const Tensor& parents, const Tensor* lengths, std::optional<std::int64_t> end_token, const Tensor& out,
                 ThreadTeam& team);

}  // namespace millrace::cpu
