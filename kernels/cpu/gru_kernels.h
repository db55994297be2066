// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// The part of a GRU's step behind its products, for one row, with the reset gate behind the recurrent product. Each op is rounded as if it stood alone:
///   r, z = sigmoid((sums + gates_bias) + x), n = tanh(x + r·(sums + candidate_bias)), out = z·h + (1 − z)·n
/// or, with `turned`, out = (1 − z)·h + z·n.
template <class T>
struct GruGates {
  const T* sums = nullptr;            ///< h·R of r and z, [2·hidden]
  const T* candidate = nullptr;       ///< h·R of n, [hidden]
  const T* gates_bias = nullptr;      ///< [2·hidden] or null
  const T* candidate_bias = nullptr;  ///< [hidden] or null
  const T* x = nullptr;               ///< x·W of r and z, [2·hidden]
  const T* x_candidate = nullptr;     ///< x·W of n, [hidden]
  const T* one = nullptr;             ///< 1
  const T* h = nullptr;               ///< [hidden]
  T* out = nullptr;                   ///< [hidden]; may be h
  std::int64_t hidden = 0;
  bool turned = false;
};

/// The function of this machine's instruction set; T is float or double.
template <class T>
using GruFunction = void (*)(const GruGates<T>& gates);
template <class T>
GruFunction<T> gru_function();
template <>
GruFunction<float> gru_function<float>();
template <>
GruFunction<double> gru_function<double>();

}  // namespace millrace::cpu
