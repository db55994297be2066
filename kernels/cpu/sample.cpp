// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/sample.h>

#include <limits>
#include <numeric>

#include <millrace/kernels/cpu/fold_kernels.h>
#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/philox.h>
#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/sequences.h>
#include <millrace/kernels/cpu/unary_kernels.h>

namespace millrace::cpu {
namespace {

constexpr double impossible = -std::numeric_limits<double>::infinity();

/// Leaves the `top` best, makes the others impossible.
void cut(std::vector<double>& row, std::int64_t top, std::vector<std::int64_t>& order) {
  if (top == 0 || top >= static_cast<std::int64_t>(row.size())) return;
  order.resize(row.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::int64_t k) { return row[static_cast<std::size_t>(k)]; };
  std::nth_element(order.begin(), order.begin() + top, order.end(),
                   [&](std::int64_t a, std::int64_t b) { return at(a) > at(b) || (at(a) == at(b) && a < b); });
  for (auto rest = order.begin() + top; rest != order.end(); ++rest) row[static_cast<std::size_t>(*rest)] = impossible;
}

/// The token for `unit` in [0, 1); −1 when none is allowed. `row` is used up.
std::int64_t pick(std::vector<double>& row, double temperature, double unit) {
  for (double& score : row) score /= temperature;
  const double most = extreme(true, row.data(), static_cast<std::int64_t>(row.size()));
  if (most == impossible) return -1;
  for (double& score : row) score = score == most ? 0 : score - most;  // +∞ is certain
  unary_run(Unary::exp, {}, row.data(), row.data(), row.size());
  double sum = 0;
  for (double& weight : row) weight = sum += weight;
  for (std::size_t k = 0; k < row.size(); ++k)
    if (row[k] > unit * sum) return static_cast<std::int64_t>(k);
  return static_cast<std::int64_t>(std::find(row.begin(), row.end(), sum) - row.begin());  // u·sum rounded up to it
}

}  // namespace

void sample_tokens(const Tensor& scores, const Tensor& keys, const Tensor& step, const SampleOptions& options, const Sampled& to,
                   ThreadTeam& team) {
  const std::vector<std::int64_t> key = index_values(keys);
  const auto iteration = static_cast<std::uint64_t>(index_values(step).front());
  visit_floats(scores.dtype(), [&](auto element, auto) {
    using T = decltype(element);
    const WideRows<T, double> rows(scores);
    auto* tokens = static_cast<std::int64_t*>(to.tokens.raw_mutable());
    T* said = static_cast<T*>(to.scores.raw_mutable());
    const std::int64_t grain = std::max<std::int64_t>(1, 4096 / rows.columns());
    team.parallel(scores.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> row(static_cast<std::size_t>(rows.columns()));
      std::vector<std::int64_t> order;
      for (std::int64_t n = begin; n < end; ++n) {
        rows.row(n, row.data());
        for (double& score : row)
          if (score != score) score = impossible;
        cut(row, options.top, order);
        const double unit = philox_unit(options.seed, static_cast<std::uint64_t>(key[static_cast<std::size_t>(n)]), iteration);
        const std::int64_t token = pick(row, options.temperature, unit);
        tokens[n] = std::max<std::int64_t>(token, 0);
        said[n] = convert_element<T>(token < 0 ? impossible : rows.at(n, token));
      }
    });
  });
}

}  // namespace millrace::cpu
