// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/clipping.h>

#include <cmath>
#include <type_traits>

#include <millrace/kernels/square_sums.h>
#include <millrace/runtime/training/internal/floats.h>

namespace millrace::training {
namespace {

template <class F>
void replace_each(Tensors& tensors, const F& f) {
  for (auto& [name, tensor] : tensors)
    internal::visit_floats(name, tensor.dtype(), [&]<class T>(std::type_identity<T>) {
      using Compute = internal::ComputeType<T>;
      const Tensor from = internal::dense(tensor);
      Tensor made(from.dtype(), from.dims());
      const T* x = from.elements() > 0 ? from.data<T>() : nullptr;
      T* y = made.mutable_data<T>();
      for (std::int64_t i = 0; i < from.elements(); ++i) y[i] = static_cast<T>(f(static_cast<Compute>(x[i])));
      tensor = made;
    });
}

void expect_bound(const char* what, double bound) {
  if (!(bound >= 0)) throw ArgumentError("clip: expected a " + std::string(what) + " of at least 0, found " + std::to_string(bound));
}

}  // namespace

double global_norm(const Tensors& gradients) {
  // Sums of every 16th element: one chain of additions would wait for each of them. The order depends on the extents alone.
  double sums[square_chains] = {};
  for (const auto& [name, tensor] : gradients)
    internal::visit_floats(name, tensor.dtype(), [&]<class T>(std::type_identity<T>) {
      const Tensor from = internal::dense(tensor);
      if (from.elements() == 0) return;
      const T* x = from.data<T>();
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
        square_sums(x, from.elements(), sums);
      } else {
        for (std::int64_t i = 0; i < from.elements(); ++i) {
          const auto value = static_cast<double>(static_cast<internal::ComputeType<T>>(x[i]));
          sums[i % square_chains] += value * value;
        }
      }
    });
  double sum = 0;
  for (const double each : sums) sum += each;
  return std::sqrt(sum);
}

void check(const Clipping& clipping) {
  expect_bound("value", clipping.value);
  expect_bound("norm", clipping.norm);
}

double clip(Tensors& gradients, const Clipping& clipping) {
  check(clipping);
  if (clipping.value > 0)
    replace_each(gradients, [&](auto x) {
      const auto bound = static_cast<decltype(x)>(clipping.value);
      return x > bound ? bound : x < -bound ? -bound : x;  // NaN stays, and is noticed
    });
  const double norm = global_norm(gradients);
  if (clipping.norm == 0 || !(norm > clipping.norm)) return norm;
  const double scale = clipping.norm / (norm + 1e-6);
  if (scale < 1) replace_each(gradients, [&](auto x) { return x * static_cast<decltype(x)>(scale); });
  return norm;
}

}  // namespace millrace::training
