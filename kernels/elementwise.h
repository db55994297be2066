// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/binary.h>

namespace millrace {

/// The functions of binary.h by name.
#define MILLRACE_BINARY(name)                                                                                           \
  inline Tensor name(const Tensor& a, const Tensor& b, StreamRef stream) { return binary(Binary::name, a, b, stream); } \
  inline void name(const Tensor& a, const Tensor& b, Tensor& out, StreamRef stream) { binary(Binary::name, a, b, out, stream); }

MILLRACE_BINARY(add)
MILLRACE_BINARY(sub)
MILLRACE_BINARY(mul)
MILLRACE_BINARY(div)
MILLRACE_BINARY(pow)
MILLRACE_BINARY(minimum)
MILLRACE_BINARY(maximum)
MILLRACE_BINARY(mod)
MILLRACE_BINARY(fmod)
MILLRACE_BINARY(prelu)
MILLRACE_BINARY(sigmoid_gradient)
MILLRACE_BINARY(tanh_gradient)
MILLRACE_BINARY(equal)
MILLRACE_BINARY(not_equal)
MILLRACE_BINARY(less)
MILLRACE_BINARY(less_equal)
MILLRACE_BINARY(greater)
MILLRACE_BINARY(greater_equal)
MILLRACE_BINARY(logical_and)
MILLRACE_BINARY(logical_or)
MILLRACE_BINARY(logical_xor)

#undef MILLRACE_BINARY

}  // namespace millrace
