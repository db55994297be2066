// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/executor/run_program.h>
#include <support/random.h>

namespace millrace::testing {

/// Sequences of rows as plain numbers, [sequence][step][feature], and what a layer makes of them.
using Rows = std::vector<std::vector<double>>;
using Batch = std::vector<Rows>;

inline std::vector<double> random_numbers(Random& random, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(random.real());
  return values;
}
inline Tensor f32_tensor(const std::vector<double>& values, const DDim& dims) {
  return Tensor::from(std::vector<float>(values.begin(), values.end()), dims);
}
inline Batch random_batch(Random& random, const LoD::Level& lengths, std::int64_t features) {
  Batch batch;
  for (const std::int64_t length : lengths) {
    batch.emplace_back();
    for (std::int64_t t = 0; t < length; ++t) batch.back().push_back(random_numbers(random, features));
  }
  return batch;
}

/// The rows of all sequences, one behind the other, with their lengths.
inline LoDTensor ragged(const Batch& batch, std::int64_t features) {
  std::vector<double> values;
  LoD::Level lengths;
  for (const Rows& rows : batch) {
    lengths.push_back(static_cast<std::int64_t>(rows.size()));
    for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  }
  const auto count = static_cast<std::int64_t>(values.size()) / features;
  return LoDTensor(f32_tensor(values, {count, features}), LoD::from_lengths({lengths}));
}
/// [T, N, features], with `past` behind the end of a sequence.
inline Tensor dense(const Batch& batch, std::int64_t steps, std::int64_t features, double past) {
  std::vector<double> values;
  for (std::int64_t t = 0; t < steps; ++t)
    for (const Rows& rows : batch)
      for (std::int64_t k = 0; k < features; ++k)
        values.push_back(std::cmp_less(t, rows.size()) ? rows[static_cast<std::size_t>(t)][static_cast<std::size_t>(k)] : past);
  return f32_tensor(values, {steps, static_cast<std::int64_t>(batch.size()), features});
}

/// One direction: `step(x, state)` gives the row of output. `states[s]` becomes the last state of sequence s.
using WalkStep = std::function<std::vector<double>(const std::vector<double>& x, Rows& state)>;
inline Batch walk(const Batch& batch, bool reverse, std::vector<Rows>& states, const WalkStep& step) {
  Batch made;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    made.emplace_back(batch[s].size());
    for (std::size_t t = 0; t < batch[s].size(); ++t) {
      const std::size_t row = reverse ? batch[s].size() - 1 - t : t;
      made.back()[row] = step(batch[s][row], states[s]);
    }
  }
  return made;
}
/// Two directions side by side.
inline Batch beside(Batch a, const Batch& b) {
  for (std::size_t s = 0; s < a.size(); ++s)
    for (std::size_t t = 0; t < a[s].size(); ++t) a[s][t].insert(a[s][t].end(), b[s][t].begin(), b[s][t].end());
  return a;
}

inline void check_close(const Tensor& found, const Tensor& wanted) {
  REQUIRE(found.dims() == wanted.dims());
  const std::vector<float> a = found.to_vector<float>();
  const std::vector<float> b = wanted.to_vector<float>();
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]) / std::max(1.0, std::abs(static_cast<double>(b[i]))));
  CHECK(worst <= 1e-5);
}

}  // namespace millrace::testing
