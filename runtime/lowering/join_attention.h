// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op `attention` of each product whose first operand is a softmax over the scores of a product that nothing else reads. The op takes along the arithmetic,
/// the causal bias and the masks between them, the scale of the queries, heads of keys that are shared, and the transposes around. This is done in block 0, and in
/// loops and branches where the number of keys is not known, as none of them is fused. Bits stay the same. For f32 and f64 without LoD in host memory, ahead of `join_arithmetic`, which would
/// join the arithmetic itself.
void join_attention(Program& program);

}  // namespace millrace
