// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/unary.h>

namespace millrace {

/// The activations of ONNX. exp, tanh and sigmoid are ours (math.h): one polynomial per dtype for every lane, tail and
/// kernel; sigmoid is within 2 ulp and tanh within 3, tanh is odd, both reach their limits exactly. Every other
/// operation below rounds once, in the order written. NaN in, NaN out.

/// (e − 1) / (e + 1) with e = exp(2x), through expm1 so that small x keep their digits.
inline Tensor tanh(const Tensor& x, StreamRef s) { return unary(Unary::tanh, {}, x, s); }
/// 1 / (1 + exp(−x)) for x ≥ 0, exp(x) / (1 + exp(x)) below.
inline Tensor sigmoid(const Tensor& x, StreamRef s) { return unary(Unary::sigmoid, {}, x, s); }
/// max(x, 0)
inline Tensor relu(const Tensor& x, StreamRef s) { return unary(Unary::relu, {}, x, s); }
/// x for x ≥ 0, else alpha·x
inline Tensor leaky_relu(const Tensor& x, double alpha, StreamRef s) { return unary(Unary::leaky_relu, {alpha}, x, s); }
/// x for x > alpha, else 0
inline Tensor thresholded_relu(const Tensor& x, double alpha, StreamRef s) { return unary(Unary::thresholded_relu, {alpha}, x, s); }
/// x for x ≥ 0, else alpha·expm1(x)
inline Tensor elu(const Tensor& x, double alpha, StreamRef s) { return unary(Unary::elu, {alpha}, x, s); }
/// beta·x for x > 0, else beta·(alpha·expm1(x)); ONNX calls beta gamma
inline Tensor selu(const Tensor& x, double alpha, double beta, StreamRef s) { return unary(Unary::selu, {alpha, beta}, x, s); }
/// x for x ≥ 0, else alpha·expm1(x / alpha)
inline Tensor celu(const Tensor& x, double alpha, StreamRef s) { return unary(Unary::celu, {alpha}, x, s); }
/// 0.5·x·(1 + erf(x / √2))
inline Tensor gelu(const Tensor& x, StreamRef s) { return unary(Unary::gelu, {}, x, s); }
/// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
inline Tensor gelu_tanh(const Tensor& x, StreamRef s) { return unary(Unary::gelu_tanh, {}, x, s); }
/// min(max(alpha·x + beta, 0), 1)
inline Tensor hard_sigmoid(const Tensor& x, double alpha, double beta, StreamRef s) {
  return unary(Unary::hard_sigmoid, {alpha, beta}, x, s);
}
/// x·hard_sigmoid(x) with alpha = 1/6, beta = 0.5
inline Tensor hard_swish(const Tensor& x, StreamRef s) { return unary(Unary::hard_swish, {}, x, s); }
/// x·tanh(softplus(x)), as x·w / (w + 2) with w = e·(e + 2) and e = exp(x); f32 within 4 ulp
inline Tensor mish(const Tensor& x, StreamRef s) { return unary(Unary::mish, {}, x, s); }
/// log(1 + exp(x)), as max(x, 0) + log1p(exp(−|x|)); f32 within 1.5 ulp
inline Tensor softplus(const Tensor& x, StreamRef s) { return unary(Unary::softplus, {}, x, s); }
/// x / (1 + |x|)
inline Tensor softsign(const Tensor& x, StreamRef s) { return unary(Unary::softsign, {}, x, s); }
/// alpha·x + beta
inline Tensor affine(const Tensor& x, double alpha, double beta, StreamRef s) { return unary(Unary::affine, {alpha, beta}, x, s); }
/// alpha·tanh(beta·x)
inline Tensor scaled_tanh(const Tensor& x, double alpha, double beta, StreamRef s) {
  return unary(Unary::scaled_tanh, {alpha, beta}, x, s);
}
/// x·sigmoid(alpha·x)
inline Tensor swish(const Tensor& x, double alpha, StreamRef s) { return unary(Unary::swish, {alpha}, x, s); }
/// min(max(x, low), high); for integers the bounds are clamped to the range of the dtype
inline Tensor clip(const Tensor& x, double low, double high, StreamRef s) { return unary(Unary::clip, {low, high}, x, s); }

}  // namespace millrace
