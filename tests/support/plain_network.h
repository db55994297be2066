// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/layers/lstm.h>

#include "reference/recurrent.h"
#include "support/sequence_walk.h"

/// Parts of networks twice over: as weights in PyTorch's layout, which layers take, and as plain arithmetic in f64 on one row.
namespace millrace::testing {

using reference::Numbers;

using Ids = std::vector<std::int64_t>;

/// [rows, columns] of numbers that f32 holds.
struct Matrix {
  Matrix(Random& random, std::int64_t r, std::int64_t c) : rows(r), columns(c), at(random_numbers(random, r * c)) {}
  double operator()(std::int64_t r, std::int64_t c) const { return at[static_cast<std::size_t>(r * columns + c)]; }
  Tensor tensor() const { return f32_tensor(at, {rows, columns}); }
  Tensor vector() const { return f32_tensor(at, {rows * columns}); }
  Numbers row(std::int64_t r) const { return {at.begin() + r * columns, at.begin() + (r + 1) * columns}; }
  std::int64_t rows, columns;
  Numbers at;
};

inline Numbers beside(Numbers a, const Numbers& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline double dot(const Numbers& a, const Numbers& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }
inline Numbers log_softmaxed(Numbers x) {
  double sum = 0;
  for (const double value : x) sum += std::exp(value);
  for (double& value : x) value -= std::log(sum);
  return x;
}

/// torch.nn.Linear.
struct Dense {
  Dense(Random& random, std::int64_t from, std::int64_t to) : w(random, to, from), b(random, 1, to) {}
  layers::LinearWeights ours() const { return layers::linear_from_pytorch(w.tensor(), b.vector()); }
  Numbers operator()(const Numbers& x) const {
    Numbers y = b.at;
    for (std::int64_t i = 0; i < w.rows; ++i) y[static_cast<std::size_t>(i)] += dot(w.row(i), x);
    return y;
  }
  Matrix w, b;
};

/// One direction of torch.nn.GRU or LSTM: gates by rows.
struct Gates {
  Gates(Random& random, std::int64_t gates, std::int64_t from, std::int64_t h, std::int64_t fed_back = 0)
      : hidden(h),
        w(random, gates * h, from),
        r(random, gates * h, fed_back > 0 ? fed_back : h),
        wb(random, 1, gates * h),
        rb(random, 1, gates * h) {}
  layers::GruWeights gru() const { return layers::gru_from_pytorch(w.tensor(), r.tensor(), wb.vector(), rb.vector()); }
  auto of(const Matrix& matrix, const std::string& order) const {
    return [&matrix, order, h = hidden](char gate, std::int64_t unit, std::int64_t from) {
      return matrix(static_cast<std::int64_t>(order.find(gate)) * h + unit, from);
    };
  }
  auto of(const Matrix& a, const Matrix* b, const std::string& order) const {
    return [&a, b, order, h = hidden](char gate, std::int64_t unit) {
      const std::int64_t at = static_cast<std::int64_t>(order.find(gate)) * h + unit;
      return a(0, at) + (b == nullptr ? 0 : (*b)(0, at));
    };
  }
  Numbers gru_step(const Numbers& x, Numbers h) const {
    reference::GruCell cell;
    cell.hidden = hidden;
    cell.w = of(w, "rzn");
    cell.r = of(r, "rzn");
    cell.bias = of(wb, nullptr, "rzn");
    cell.recurrent_bias = of(rb, nullptr, "rzn");
    cell.step(x, h);
    return h;
  }
  void lstm_step(const Numbers& x, Numbers& h, Numbers& c, const Matrix* projection = nullptr) const {
    reference::LstmCell cell;
    cell.hidden = hidden;
    cell.w = of(w, "ifgo");
    cell.r = of(r, "ifgo");
    cell.bias = of(wb, &rb, "ifgo");
    if (projection != nullptr) {
      cell.projected = projection->rows;
      cell.projection = [projection](std::int64_t from, std::int64_t to) { return (*projection)(to, from); };
    }
    cell.step(x, h, c);
  }
  std::int64_t hidden;
  Matrix w, r, wb, rb;
};

/// Both directions of a GRU over one sequence; `last`: forward, backward.
inline Rows both_ways(const std::vector<Gates>& gates, const Rows& x, Rows& last) {
  Rows y(x.size());
  last = Rows(2, Numbers(static_cast<std::size_t>(gates[0].hidden), 0.0));
  for (const Numbers& row : x) {
    last[0] = gates[0].gru_step(row, last[0]);
    y[static_cast<std::size_t>(&row - x.data())] = last[0];
  }
  for (std::size_t t = x.size(); t-- > 0;) y[t] = beside(y[t], last[1] = gates[1].gru_step(x[t], last[1]));
  return y;
}

inline LoDTensor ids_of(const std::vector<Ids>& sequences) {
  Ids all;
  LoD::Level lengths;
  for (const Ids& ids : sequences) {
    all.insert(all.end(), ids.begin(), ids.end());
    lengths.push_back(static_cast<std::int64_t>(ids.size()));
  }
  return LoDTensor(Tensor::from(all, DDim{static_cast<std::int64_t>(all.size()), 1}), LoD::from_lengths({lengths}));
}
inline const VarType ragged_ids(DType::i64, {DDim::unknown, 1}, 1);

inline Numbers numbers(const LoDTensor& x) {
  const std::vector<float> values = x.tensor().to_vector<float>();
  return {values.begin(), values.end()};
}
inline void check_near(const Numbers& found, const Numbers& wanted) {
  REQUIRE(found.size() == wanted.size());
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    worst = std::max(worst, std::abs(found[i] - wanted[i]) / std::max(1.0, std::abs(wanted[i])));
  CHECK(worst <= 1e-5);
}

template <class F>
Program program_of(F&& building) {
  Program program;
  const build::Guard guard(program);
  building();
  return program;
}

}  // namespace millrace::testing
