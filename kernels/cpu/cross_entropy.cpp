// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/cross_entropy.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/cpu/softmax_kernels.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/pool.h>

namespace millrace::cpu {
namespace {

/// Elements that are worth a thread.
constexpr std::int64_t elements_a_task = 2048;

/// f(row, label) for the rows of a part, on the threads of the team.
template <class F>
void each_row(const Tensor& x, const Tensor& labels, std::int64_t ignore, ThreadTeam& team, F f) {
  const auto* const of = static_cast<const std::int64_t*>(labels.raw());
  const std::int64_t rows = x.dim(0), classes = x.dim(1);
  check_labels(labels, classes, ignore);
  team.parallel(rows, std::max<std::int64_t>(1, elements_a_task / std::max<std::int64_t>(1, classes)),
                [&](std::int64_t begin, std::int64_t end) { f(begin, end, of); });
}

template <class T>
void losses(const Tensor& x, const Tensor& labels, std::int64_t ignore, const Tensor& out, ThreadTeam& team) {
  const auto* const from = static_cast<const T*>(x.raw());
  auto* const to = static_cast<T*>(out.raw_mutable());
  const std::int64_t classes = x.dim(1);
  each_row(x, labels, ignore, team, [&](std::int64_t begin, std::int64_t end, const std::int64_t* of) {
    PooledVector<T> logs(static_cast<std::size_t>(classes));
    for (std::int64_t row = begin; row < end; ++row) {
      to[row] = T{0};
      if (of[row] == ignore) continue;
      log_softmax_row(from + row * classes, logs.data(), classes);
      to[row] = -logs[static_cast<std::size_t>(of[row])];
    }
  });
}

template <class T>
void gradients(const Tensor& gradient, const Tensor& x, const Tensor& labels, std::int64_t ignore, const Tensor& out, ThreadTeam& team) {
  const auto *const of_losses = static_cast<const T*>(gradient.raw()), *const from = static_cast<const T*>(x.raw());
  auto* const to = static_cast<T*>(out.raw_mutable());
  const std::int64_t classes = x.dim(1), step = gradient.dim(0) == 1 ? 0 : 1;
  each_row(x, labels, ignore, team, [&](std::int64_t begin, std::int64_t end, const std::int64_t* of) {
    for (std::int64_t row = begin; row < end; ++row) {
      T* const slopes = to + row * classes;
      if (of[row] == ignore) {
        std::fill_n(slopes, classes, T{0});
        continue;
      }
      softmax_row(from + row * classes, slopes, classes);
      slopes[of[row]] -= T{1};
      for (std::int64_t i = 0; i < classes; ++i) slopes[i] *= of_losses[row * step];
    }
  });
}

}  // namespace

void check_labels(const Tensor& labels, std::int64_t classes, std::int64_t ignore) {
  const auto* const of = static_cast<const std::int64_t*>(labels.raw());
  for (std::int64_t row = 0; row < labels.elements(); ++row)
    if (of[row] != ignore && (of[row] < 0 || of[row] >= classes))
      throw IndexError("softmax_cross_entropy: expected one of " + std::to_string(classes) + " classes as the label of row " +
                       std::to_string(row) + ", found " + std::to_string(of[row]));
}

void cross_entropy(const Tensor& x, const Tensor& labels, std::int64_t ignore, const Tensor& out, ThreadTeam& team) {
  if (x.dtype() == DType::f64) return losses<double>(x, labels, ignore, out, team);
  losses<float>(x, labels, ignore, out, team);
}

void cross_entropy_gradient(const Tensor& gradient, const Tensor& x, const Tensor& labels, std::int64_t ignore, const Tensor& out,
                            ThreadTeam& team) {
  if (x.dtype() == DType::f64) return gradients<double>(gradient, x, labels, ignore, out, team);
  gradients<float>(gradient, x, labels, ignore, out, team);
}

}  // namespace millrace::cpu
