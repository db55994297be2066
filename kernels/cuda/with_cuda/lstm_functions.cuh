// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/lstm_sequence.h>
#include <millrace/kernels/lstm_cell.h>
#include <millrace/kernels/cuda/recurrent/approximate.cuh>
#include <millrace/kernels/cuda/with_cuda/functions.cuh>

namespace millrace::cuda {

#if defined(__CUDACC__)
#define MILLRACE_APART __noinline__
#else
#define MILLRACE_APART
#endif

/// Any of the cell's functions: a call, since it is rarely more than one of three.
template <class T>
MILLRACE_HD MILLRACE_APART T apply_apart(Unary kind, T alpha, T beta, T x) {
  return apply(kind, alpha, beta, x);
}

/// The pointwise part of one unit in one row, behind its sums, by kernels/lstm_cell.h. `APPROXIMATE`: as `lstm_approximates` says.
template <class T>
struct LstmFunctions {
  Unary kinds[3];  // gate, candidate, output
  T alphas[3], betas[3];
  T clip;
  bool coupled, peepholes;

  LstmFunctions() = default;
  explicit LstmFunctions(const LstmDesc& desc)
      : clip(static_cast<T>(desc.clip)), coupled(desc.couple_input_forget), peepholes(desc.peepholes) {
    const Activation* const all[3] = {&desc.gate, &desc.candidate, &desc.output};
    for (int i = 0; i < 3; ++i) {
      kinds[i] = all[i]->kind;
      alphas[i] = static_cast<T>(all[i]->params.alpha);
      betas[i] = static_cast<T>(all[i]->params.beta);
    }
  }

  template <bool APPROXIMATE>
  MILLRACE_HD static T sigmoid(T a) {
    if constexpr (APPROXIMATE) return approximate_sigmoid(a);
    return sigmoid_of(a);
  }
  template <bool APPROXIMATE>
  MILLRACE_HD static T tanh(T a) {
    if constexpr (APPROXIMATE) return approximate_tanh(a);
    return tanh_of(a);
  }
  template <bool APPROXIMATE>
  MILLRACE_HD T activated(int which, T clipped_at, T a) const {
    if (clipped_at > T{0} && a == a) a = least_of(greatest_of(a, -clipped_at), clipped_at);
    if (kinds[which] == Unary::sigmoid) return sigmoid<APPROXIMATE>(a);
    if (kinds[which] == Unary::tanh) return tanh<APPROXIMATE>(a);
    return apply_apart(kinds[which], alphas[which], betas[which], a);
  }
  /// Sigmoids and hyperbolic tangents, gates of their own, no peepholes, no clipping: `usual` below.
  bool is_usual() const {
    return kinds[0] == Unary::sigmoid && kinds[1] == Unary::tanh && kinds[2] == Unary::tanh && !coupled && !peepholes && !(clip > T{0});
  }
  template <bool APPROXIMATE>
  MILLRACE_HD static T usual(const T (&a)[4], T& c) {
    c = sigmoid<APPROXIMATE>(a[1]) * c + sigmoid<APPROXIMATE>(a[0]) * tanh<APPROXIMATE>(a[2]);
    return sigmoid<APPROXIMATE>(a[3]) * tanh<APPROXIMATE>(c);
  }
  /// `a`: i f g o; `p`: the peepholes of i f o, where there are any. Gives h; `c` becomes the next one.
  template <bool APPROXIMATE>
  MILLRACE_HD T step(T (&a)[4], const T (&p)[3], T& c) const {
    const T before = c;
    if (peepholes) {
      a[0] = a[0] + p[0] * before;
      a[1] = a[1] + p[1] * before;
    }
    const T i = activated<APPROXIMATE>(0, clip, a[0]);
    const T f = coupled ? T{1} - i : activated<APPROXIMATE>(0, clip, a[1]);
    const T g = activated<APPROXIMATE>(1, clip, a[2]);
    c = f * before + i * g;
    if (peepholes) a[3] = a[3] + p[2] * c;
    return activated<APPROXIMATE>(0, clip, a[3]) * activated<APPROXIMATE>(2, T{0}, c);
  }
};

}  // namespace millrace::cuda
