// SPDX-License-Identifier: Apache-2.0
#include <bench/library/lstm_problem.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace millrace::bench {
namespace {

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
  return offsets;
}

/// visit(row of the sequences, row of [T, N]) for each step of each of `chosen`.
template <class Visit>
void each_row(const LstmProblem& problem, const std::vector<std::size_t>& chosen, Visit visit) {
  const std::vector<std::int64_t> offsets = offsets_of(problem.lengths);
  const auto n = static_cast<std::int64_t>(chosen.size());
  for (std::int64_t i = 0; i < n; ++i) {
    const std::size_t sequence = chosen[static_cast<std::size_t>(i)];
    for (std::int64_t t = 0; t < problem.lengths[sequence]; ++t) visit(offsets[sequence] + t, t * n + i);
  }
}

}  // namespace

Tensor random_tensor(const DDim& dims, std::uint64_t seed, float deviation) {
  Tensor made(DType::f32, dims);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  float* to = made.mutable_data<float>();
  for (std::int64_t i = 0; i < made.elements(); ++i) to[i] = normal(random);
  return made;
}

LstmProblem make_problem(std::int64_t hidden, std::vector<std::int64_t> lengths) {
  const float deviation = 1 / std::sqrt(static_cast<float>(hidden));
  const std::int64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const auto n = static_cast<std::int64_t>(lengths.size());
  LstmProblem problem;
  problem.hidden = hidden;
  problem.lengths = std::move(lengths);
  problem.x = random_tensor(DDim{rows, hidden}, 1);
  problem.w = random_tensor(DDim{hidden, 4 * hidden}, 2, deviation);
  problem.r = random_tensor(DDim{hidden, 4 * hidden}, 3, deviation);
  problem.bias = random_tensor(DDim{4 * hidden}, 4, 0.1f);
  problem.h = random_tensor(DDim{n, hidden}, 5, 0.3f);
  problem.c = random_tensor(DDim{n, hidden}, 6, 0.5f);
  return problem;
}

std::vector<std::int64_t> log_normal_lengths(std::int64_t count, double middle, double sigma) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i)
    lengths.push_back(std::max<std::int64_t>(1, std::llround(middle * std::exp(sigma * normal(random)))));
  return lengths;
}

Tensor padded(const LstmProblem& problem, const std::vector<std::size_t>& chosen, std::int64_t steps) {
  for (const std::size_t sequence : chosen) steps = std::max(steps, problem.lengths[sequence]);
  Tensor made(DType::f32, DDim{steps, static_cast<std::int64_t>(chosen.size()), problem.hidden});
  float* to = made.mutable_data<float>();
  std::fill_n(to, made.elements(), 0.0f);
  const float* from = problem.x.data<float>();
  const std::int64_t h = problem.hidden;
  each_row(problem, chosen, [&](std::int64_t row, std::int64_t place) { std::copy_n(from + row * h, h, to + place * h); });
  return made;
}

void unpadded(const LstmProblem& problem, const std::vector<std::size_t>& chosen, const Tensor& y, Tensor& to) {
  const float* from = y.data<float>();
  float* rows = to.mutable_data<float>();
  const std::int64_t h = problem.hidden;
  each_row(problem, chosen, [&](std::int64_t row, std::int64_t place) { std::copy_n(from + place * h, h, rows + row * h); });
}

double difference(const Tensor& a, const Tensor& b) {
  if (a.elements() != b.elements()) return HUGE_VAL;
  double most = 0;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const double apart = std::fabs(static_cast<double>(a.data<float>()[i]) - b.data<float>()[i]);
    if (!(apart <= most)) most = apart;
  }
  return most;
}

}  // namespace millrace::bench
