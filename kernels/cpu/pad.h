// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/pad.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// x in `out`, with `before` elements in front of it along each axis, and as many behind as are left: `element`, or elements of x as `mode` says. `out` is row-major; x
/// may have any strides.
void surround(const Tensor& x, const std::vector<std::int64_t>& before, PadMode mode, const Tensor& element, const Tensor& out,
              ThreadTeam& team);

/// The element of an axis of `extent` > 0 that place `at` shows, −1 for the constant.
std::int64_t padding_source(std::int64_t at, std::int64_t extent, PadMode mode);

}  // namespace millrace::cpu
