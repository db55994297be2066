// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <millrace/kernels/cpu/gather.h>
#include <millrace/kernels/cpu/gather_sum_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// Lines whose blocks are computed one after the other for all of them, so that they stay in the first cache.
constexpr std::int64_t line_bytes = 8 << 10;

void sum_elements(const double* const* from, const double* weights, std::int64_t terms, double* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = from[0][i] * weights[0];
    for (std::int64_t t = 1; t < terms; ++t) sum += from[t][i] * weights[t];
    to[i] = sum;
  }
}
void sum_elements(const float* const* from, const float* weights, std::int64_t terms, float* to, std::int64_t count) {
  weighted_sum(from, weights, terms, to, count);
}

template <class T>
void run(const Tensor& x, const std::vector<GatherTerm>& terms, int axis, const Tensor& out, ThreadTeam& team) {
  const std::int64_t extent = x.dim(axis), count = out.dim(axis), inner = x.dims().slice(axis + 1, x.rank()).elements(),
                     outer = x.dims().slice(0, axis).elements(), size = std::ssize(terms);
  std::vector<std::vector<std::int64_t>> places;
  std::vector<std::vector<T>> weights;
  for (const GatherTerm& term : terms) {
    places.push_back(checked_places("gather", term.places, axis, x.dims()));
    const auto* const first = static_cast<const T*>(term.weights.raw());
    weights.emplace_back(first, first + term.weights.elements());
    // A single place, or a single weight, stands for all elements.
    if (count > 1) places.back().resize(static_cast<std::size_t>(count), places.back()[0]);
    if (count > 1) weights.back().resize(static_cast<std::size_t>(count), weights.back()[0]);
  }
  if (out.elements() == 0) return;
  const auto* const from = static_cast<const T*>(x.raw());
  auto* const to = static_cast<T*>(out.raw_mutable());
  if constexpr (std::is_same_v<T, float>) {
    if (inner == 1) {
      const LineSums sums(extent, count, std::move(places), std::move(weights));
      const std::int64_t together = std::max<std::int64_t>(1, line_bytes / ((extent + count) * std::int64_t{sizeof(T)}));
      team.parallel(outer, std::max(together, grain_light / (count * size)), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t line = begin; line < end; line += together)
          line_sums(sums, from + line * extent, to + line * count, std::min(together, end - line));
      });
      return;
    }
  }
  team.parallel(outer * count, std::max<std::int64_t>(1, grain_light / (inner * size)), [&](std::int64_t begin, std::int64_t end) {
    std::vector<const T*> picked(terms.size());
    std::vector<T> by(terms.size());
    for (std::int64_t line = begin; line < end; ++line) {
      const auto at = static_cast<std::size_t>(line % count);
      for (std::size_t t = 0; t < terms.size(); ++t) {
        picked[t] = from + (line / count * extent + places[t][at]) * inner;
        by[t] = weights[t][at];
      }
      sum_elements(picked.data(), by.data(), size, to + line * inner, inner);
    }
  });
}

}  // namespace

void gather_sum(const Tensor& x, const std::vector<GatherTerm>& terms, int axis, const Tensor& out, ThreadTeam& team) {
  x.dtype() == DType::f64 ? run<double>(x, terms, axis, out, team) : run<float>(x, terms, axis, out, team);
}

}  // namespace millrace::cpu
