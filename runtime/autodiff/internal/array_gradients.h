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
    slots,   ///< an array whose slot i is the gradient of slot i
    slot,    ///< of slot `index` alone, of the same extents; none where that is -1, a boot's
    list     ///< a list whose element i is the gradient of slot i; elements may be missing
  };
  Kind kind = Kind::packed;
  VarId var = no_var;
  VarId boot = no_var;   ///< of `last`: what stands for an empty sequence; of `slot`: of the read
  VarId order = no_var;  ///< of `packed` and `last`
  VarId index = no_var;  ///< of `slot`
};

using ArrayGradients = std::map<VarId, std::vector<ArrayGradient>>;

}  // namespace millrace::autodiff
