// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/program/attribute.h>
#include <millrace/tensor/tensor.h>

#include "support/random.h"

namespace millrace::testing {

/// One op on inputs of random extents, for properties that hold for every op.
struct OpCase {
  enum class Fill { real, positive, boolean, index };
  struct Input {
    enum class Role { fed, fixed, absent };
    Role role = Role::absent;
    DDim dims;
    DType dtype = DType::f32;
    Fill fill = Fill::real;
    std::int64_t bound = 0;  ///< of an index: in [-bound, bound)
    Tensor value;            ///< of a fixed input, which is a weight
    /// New elements for a fed input; the tensor of a fixed one.
    Tensor make(Random& random) const;
  };
  std::string type;
  Attributes attributes;
  std::vector<Input> inputs;
  std::string to_string() const;
};

/// Every op that works on tensors alone, most of them in several forms.
std::vector<OpCase> op_cases(Random& random);

}  // namespace millrace::testing
