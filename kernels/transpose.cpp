// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/transpose.h>

#include <millrace/kernels/internal/row_major.h>

namespace millrace {

Tensor transpose(const Tensor& x, const std::vector<int>& axes, StreamRef stream) {
  return internal::row_major("transpose", x.permute(axes), stream);
}

}  // namespace millrace
