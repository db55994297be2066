// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/conv1d.h>

#include "support/random.h"

namespace millrace::testing {

/// A convolution of any form.
inline Conv1dDesc random_conv1d(Random& random, DType dtype) {
  Conv1dDesc desc;
  desc.groups = random.between(1, 3);
  desc.in_channels = desc.groups * random.between(1, 4);
  desc.out_channels = desc.groups * random.between(1, 30);
  desc.kernel = random.between(1, 5);
  desc.stride = random.between(1, 3);
  desc.dilation = random.between(1, 3);
  desc.pad_before = random.between(0, 4);
  desc.pad_after = random.between(0, 4);
  desc.dtype = dtype;
  return desc;
}

}  // namespace millrace::testing
