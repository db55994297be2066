// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <millrace/kernels/unary.h>

namespace millrace::cpu {

/// out[i] = f(x[i]) for `count` contiguous elements; `out` may be `x`. Every float function of `Unary` but is_nan and
/// is_inf. Runs the instruction set of this machine.
void unary_run(Unary kind, const UnaryParams& params, const float* x, float* out, std::size_t count);
void unary_run(Unary kind, const UnaryParams& params, const double* x, double* out, std::size_t count);

/// `unary_run` for one kind, as a function for the instruction set of this machine; T is float or double.
template <class T>
using UnaryFunction = void (*)(Unary kind, const UnaryParams& params, const T* x, T* out, std::size_t count);
template <class T>
UnaryFunction<T> unary_function(Unary kind);
template <>
UnaryFunction<float> unary_function<float>(Unary kind);
template <>
UnaryFunction<double> unary_function<double>(Unary kind);

}  // namespace millrace::cpu
