// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/unary.h>

namespace millrace {

/// Each function rounds as stated and is the same for every lane and tail. Exact: neg, abs, sign, floor, ceil, round,
/// is_nan, is_inf, logical_not. Correctly rounded: square, sqrt, reciprocal. Ours, one polynomial per dtype: exp (max 1
/// ulp); of f32 erf (max 1.2 ulp), log, sin and cos (max 1 ulp) and atan (max 1.9 ulp). The C library's, per
/// element: log, sin, cos, atan and erf of f64; sin and cos of f32 beyond 10^5. NaN in, NaN out.
#define MILLRACE_UNARY(name)                                                                          \
  inline Tensor name(const Tensor& x, StreamRef stream) { return unary(Unary::name, {}, x, stream); } \
  inline void name(const Tensor& x, Tensor& out, StreamRef stream) { unary(Unary::name, {}, x, out, stream); }

MILLRACE_UNARY(neg)     ///< −x; the least integer stays itself
MILLRACE_UNARY(abs)     ///< |x|; the least integer stays itself
MILLRACE_UNARY(sign)    ///< −1, 0, 1; NaN stays
MILLRACE_UNARY(square)  ///< x·x
MILLRACE_UNARY(sqrt)
MILLRACE_UNARY(reciprocal)  ///< 1 / x
MILLRACE_UNARY(exp)
MILLRACE_UNARY(log)
MILLRACE_UNARY(erf)
MILLRACE_UNARY(sin)
MILLRACE_UNARY(cos)
MILLRACE_UNARY(atan)
MILLRACE_UNARY(floor)
MILLRACE_UNARY(ceil)
MILLRACE_UNARY(round)        ///< to nearest, ties to even
MILLRACE_UNARY(logical_not)  ///< of bool
MILLRACE_UNARY(is_nan)       ///< gives bool
MILLRACE_UNARY(is_inf)       ///< gives bool, for either sign

#undef MILLRACE_UNARY

}  // namespace millrace
