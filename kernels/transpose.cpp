// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/transpose.h>

#include <millrace/kernels/copy.h>

namespace millrace {

Tensor transpose(const Tensor& x, const std::vector<int>& axes, StreamRef stream) {
  return clone(x.permute(axes), stream);
}

}  // namespace millrace
