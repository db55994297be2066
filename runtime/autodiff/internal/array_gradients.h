// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// One term of the gradient of an array.
struct ArrayGradient {
  enum class Kind : std::uint8_t {
    packed,  ///< rows of all slots as `pack` gives them, with that LoD
    last,    ///< [sequences, …] in the caller's order: the slots' rows at the end of each sequence; an empty one belongs to the boot
    list     ///< a list whose element i is the gradient of slot i; elements may be missing
  };
  Kind kind = Kind::packed;
  VarId var = no_var;
  VarId boot = no_var;   ///< of `last`: what stands for an empty sequence
  VarId order = no_var;  ///< of `packed` and `last`
};

using ArrayGradients = std::map<VarId, std::vector<ArrayGradient>>;

}  // namespace millrace::autodiff
