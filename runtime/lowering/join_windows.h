// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/program/program.h>

namespace millrace {

/// Makes one op of each convolution of the program, and of each pool of block 0, that stands there in parts. `conv`: windows of one axis that are sliced, joined with the
/// channels and convolved along the next axis, as the import of ONNX writes a convolution along several axes; a `conv1d` over many places; and a `relu`
/// that alone reads the result. `pool`: maxima, minima or sums of the slices that hold element 0, 1, … of every window of an axis, with the `pad` in front;
/// a pool along one axis of a pool along an axis ahead of it. Bits stay the same, but where a
/// `conv1d` of block 0 says `winograd`: kernels/winograd.h has others. For host memory, behind `fold_constants`: weights are known. (Before
/// it, each op of the parts has gradients, rules for rows and an exporter; `conv` and `pool` have none of these.)
void join_windows(Program& program);

}  // namespace millrace
