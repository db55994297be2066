// SPDX-License-Identifier: Apache-2.0
#include "reference/sequence.h"

#include <algorithm>
#include <cmath>

namespace millrace::reference {
namespace {

std::int64_t columns_of(const Values& x) { return x.dims.erased(0).elements(); }

/// The elements of column `c` in sequence `n`.
std::vector<double> column(const Values& x, const Offsets& offsets, std::size_t n, std::int64_t c) {
  std::vector<double> found;
  for (std::int64_t row = offsets[n]; row < offsets[n + 1]; ++row) found.push_back(x.at[static_cast<std::size_t>(row * columns_of(x) + c)]);
  return found;
}

double pooled(SequencePool kind, const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  switch (kind) {
    case SequencePool::sum: return sum;
    case SequencePool::average: return sum / static_cast<double>(x.size());
    case SequencePool::sqrt: return sum / std::sqrt(static_cast<double>(x.size()));
    case SequencePool::max: return *std::max_element(x.begin(), x.end());
    case SequencePool::first: return x.front();
    default: return x.back();
  }
}

/// Calls f(row, begin, end) for each row of each sequence.
template <class F>
void each_row(const Offsets& offsets, F f) {
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n)
    for (std::int64_t row = offsets[n]; row < offsets[n + 1]; ++row) f(row, offsets[n], offsets[n + 1]);
}

}  // namespace

Values sequence_pool(SequencePool kind, const Values& x, const Offsets& offsets, double empty) {
  Values made{x.dims, {}};
  made.dims[0] = static_cast<std::int64_t>(offsets.size()) - 1;
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n)
    for (std::int64_t c = 0; c < columns_of(x); ++c) {
      const std::vector<double> held = column(x, offsets, n, c);
      made.at.push_back(held.empty() ? empty : pooled(kind, held));
    }
  return made;
}

Values sequence_softmax(const Values& x, const Offsets& offsets) {
  Values made = x;
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n)
    for (std::int64_t c = 0; c < columns_of(x); ++c) {
      const std::vector<double> held = column(x, offsets, n, c);
      if (held.empty()) continue;
      const double most = *std::max_element(held.begin(), held.end());
      double sum = 0;
      for (const double v : held) sum += std::exp(v - most);
      for (std::size_t i = 0; i < held.size(); ++i)
        made.at[static_cast<std::size_t>((offsets[n] + static_cast<std::int64_t>(i)) * columns_of(x) + c)] = std::exp(held[i] - most) / sum;
    }
  return made;
}

Values sequence_conv(const Values& x, const Values& filter, const Offsets& offsets, std::int64_t start, std::int64_t length) {
  const std::int64_t in = x.dims[1], units = filter.dims[1];
  Values made{DDim{x.dims[0], units}, std::vector<double>(static_cast<std::size_t>(x.dims[0] * units))};
  each_row(offsets, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t other = row + start + t;
      if (other < begin || other >= end) continue;
      for (std::int64_t c = 0; c < in; ++c)
        for (std::int64_t m = 0; m < units; ++m)
          made.at[static_cast<std::size_t>(row * units + m)] +=
              x.at[static_cast<std::size_t>(other * in + c)] * filter.at[static_cast<std::size_t>((t * in + c) * units + m)];
    }
  });
  return made;
}

Values row_conv(const Values& x, const Values& w, const Offsets& offsets) {
  const std::int64_t columns = x.dims[1];
  Values made{x.dims, std::vector<double>(x.at.size())};
  each_row(offsets, [&](std::int64_t row, std::int64_t, std::int64_t end) {
    for (std::int64_t j = 0; j < w.dims[0] && row + j < end; ++j)
      for (std::int64_t c = 0; c < columns; ++c)
        made.at[static_cast<std::size_t>(row * columns + c)] +=
            w.at[static_cast<std::size_t>(j * columns + c)] * x.at[static_cast<std::size_t>((row + j) * columns + c)];
  });
  return made;
}

}  // namespace millrace::reference
