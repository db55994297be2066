// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include <millrace/kernels/unary.h>
#include <millrace/kernels/cuda/recurrent/elementary.cuh>

namespace millrace::cuda {

/// Every function of floats but is_nan and is_inf.
template <class T>
MILLRACE_HD T apply(Unary kind, T alpha, T beta, T x) {
  const bool is_nan = x != x;
  switch (kind) {
    case Unary::neg: return -x;
    case Unary::abs: return std::fabs(x);
    case Unary::sign: return is_nan || x == T{0} ? (is_nan ? x : T{0}) : std::copysign(T{1}, x);
    case Unary::square: return x * x;
    case Unary::sqrt: return std::sqrt(x);
    case Unary::reciprocal: return T{1} / x;
    case Unary::exp: return exp_of(x);
    case Unary::log: return std::log(x);
    case Unary::erf: return std::erf(x);
    case Unary::sin: return std::sin(x);
    case Unary::cos: return std::cos(x);
    case Unary::atan: return std::atan(x);
    case Unary::floor: return std::floor(x);
    case Unary::ceil: return std::ceil(x);
    case Unary::round: return rounded(x);
    case Unary::tanh: return tanh_of(x);
    case Unary::sigmoid: return sigmoid_of(x);
    case Unary::relu: return is_nan ? x : greatest_of(x, T{0});
    case Unary::leaky_relu: return x < T{0} ? alpha * x : x;
    case Unary::thresholded_relu: return is_nan || x > alpha ? x : T{0};
    case Unary::elu: return elu_of(x, alpha, T{1});
    case Unary::selu: return beta * elu_of(x, alpha, T{1});
    case Unary::celu: return elu_of(x, alpha, alpha);
    case Unary::gelu: return static_cast<T>(0.5) * x * (T{1} + std::erf(x / static_cast<T>(1.41421356237309504880)));
    case Unary::gelu_tanh: return gelu_tanh_of(x);
    case Unary::hard_sigmoid: return is_nan ? x : hard_sigmoid_of(x, alpha, beta);
    case Unary::hard_swish: return is_nan ? x : x * hard_sigmoid_of(x, static_cast<T>(1.0 / 6), static_cast<T>(0.5));
    case Unary::mish: return x * tanh_of(softplus_of(x));
    case Unary::softplus: return softplus_of(x);
    case Unary::softsign: return x / (T{1} + std::fabs(x));
    case Unary::affine: return alpha * x + beta;
    case Unary::scaled_tanh: return alpha * tanh_of(beta * x);
    case Unary::swish: return x * sigmoid_of(alpha * x);
    case Unary::clip: return is_nan ? x : least_of(greatest_of(x, alpha), beta);
    default: return x;
  }
}

}  // namespace millrace::cuda
