// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace {

/// What a write to a TensorArray does with the value: keep its storage, which is frozen from then on, or a copy of it.
enum class Sharing : std::uint8_t { share, copy };
inline constexpr Sharing share = Sharing::share;

}  // namespace millrace
