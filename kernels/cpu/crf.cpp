// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/crf.h>

#include <cmath>
#include <string>

#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/norm_rows.h>
#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/sequences.h>
#include <millrace/kernels/cpu/unary_kernels.h>

namespace millrace::cpu {
namespace {

template <class T, class Wide>
struct Crf {
  Crf(const Tensor& x, const Tensor& w) : emission(x), tags(x.dim(1)) {
    const WideRows<T, Wide> rows(w);
    weights.resize(static_cast<std::size_t>((tags + 2) * tags));
    for (std::int64_t row = 0; row < tags + 2; ++row) rows.row(row, weights.data() + row * tags);
  }
  const Wide* start() const { return weights.data(); }
  const Wide* end() const { return weights.data() + tags; }
  const Wide* from(std::int64_t tag) const { return weights.data() + (2 + tag) * tags; }

  WideRows<T, Wide> emission;
  std::int64_t tags;
  std::vector<Wide> weights;
};

template <class Wide>
bool better(Wide candidate, Wide best) {
  return candidate > best || (candidate != candidate && best == best);
}

/// Room of one thread for the best paths of one sequence after another.
template <class T, class Wide>
struct Viterbi {
  explicit Viterbi(const Crf<T, Wide>& of) : crf(of), n(of.tags), row(size()), alpha(size()), next(size()) {}
  std::size_t size() const { return static_cast<std::size_t>(n); }

  void first(std::int64_t at) {
    crf.emission.row(at, row.data());
    for (std::int64_t j = 0; j < n; ++j) alpha[static_cast<std::size_t>(j)] = crf.start()[j] + row[static_cast<std::size_t>(j)];
  }

  /// `back[j]`: the tag before j on the best path that ends with j.
  void step(std::int64_t at, std::int32_t* back) {
    crf.emission.row(at, row.data());
    Wide* best = next.data();
    for (std::int64_t j = 0; j < n; ++j) {
      best[j] = alpha[0] + crf.from(0)[j];
      back[j] = 0;
    }
    for (std::int64_t i = 1; i < n; ++i) {
      const Wide* weight = crf.from(i);
      const Wide reached = alpha[static_cast<std::size_t>(i)];
      for (std::int64_t j = 0; j < n; ++j) {
        const Wide candidate = reached + weight[j];
        const bool wins = better(candidate, best[j]);
        best[j] = wins ? candidate : best[j];
        back[j] = wins ? static_cast<std::int32_t>(i) : back[j];
      }
    }
    for (std::int64_t j = 0; j < n; ++j) best[j] += row[static_cast<std::size_t>(j)];
    alpha.swap(next);
  }

  std::int64_t last(Wide& score) {
    std::int64_t tag = 0;
    score = alpha[0] + crf.end()[0];
    for (std::int64_t j = 1; j < n; ++j) {
      const Wide candidate = alpha[static_cast<std::size_t>(j)] + crf.end()[j];
      if (!better(candidate, score)) continue;
      score = candidate;
      tag = j;
    }
    return tag;
  }

  Wide sequence(std::int64_t begin, std::int64_t end, std::int64_t* tags) {
    if (begin == end) return 0;
    backs.resize(static_cast<std::size_t>((end - begin) * n));
    first(begin);
    for (std::int64_t t = begin + 1; t < end; ++t) step(t, backs.data() + (t - begin) * n);
    Wide score{};
    std::int64_t tag = last(score);
    for (std::int64_t t = end - 1; t > begin; --t) {
      tags[t] = tag;
      tag = backs[static_cast<std::size_t>((t - begin) * n + tag)];
    }
    tags[begin] = tag;
    return score;
  }

  const Crf<T, Wide>& crf;
  std::int64_t n;
  std::vector<Wide> row, alpha, next;
  std::vector<std::int32_t> backs;
};

/// Room of one thread for log-partitions.
template <class T, class Wide>
struct Forward {
  explicit Forward(const Crf<T, Wide>& of) : crf(of), n(of.tags), row(size()), alpha(size()), next(size()), terms(size()) {}
  std::size_t size() const { return static_cast<std::size_t>(n); }

  /// log Σ exp(alpha[i] + weights[i·step]).
  Wide log_sum(const Wide* weights, std::int64_t step) {
    for (std::int64_t i = 0; i < n; ++i) terms[static_cast<std::size_t>(i)] = alpha[static_cast<std::size_t>(i)] + weights[i * step];
    const Wide most = greatest(terms.data(), n);
    if (!std::isfinite(most)) return most;
    for (Wide& term : terms) term -= most;
    unary_run(Unary::exp, {}, terms.data(), terms.data(), terms.size());
    const Wide* rows[] = {terms.data()};
    Wide sum{};
    ordered_sums(rows, 1, n, &sum);
    return most + std::log(sum);
  }

  Wide sequence(std::int64_t begin, std::int64_t end) {
    if (begin == end) return 0;
    crf.emission.row(begin, row.data());
    for (std::int64_t j = 0; j < n; ++j) alpha[static_cast<std::size_t>(j)] = crf.start()[j] + row[static_cast<std::size_t>(j)];
    for (std::int64_t t = begin + 1; t < end; ++t) {
      crf.emission.row(t, row.data());
      for (std::int64_t j = 0; j < n; ++j)
        next[static_cast<std::size_t>(j)] = log_sum(crf.from(0) + j, n) + row[static_cast<std::size_t>(j)];
      alpha.swap(next);
    }
    return log_sum(crf.end(), 1);
  }

  const Crf<T, Wide>& crf;
  std::int64_t n;
  std::vector<Wide> row, alpha, next, terms;
};

template <class T, class Wide>
Wide path_score(const Crf<T, Wide>& crf, const std::int64_t* path, std::int64_t begin, std::int64_t end) {
  if (begin == end) return 0;
  Wide score = crf.start()[path[begin]] + crf.emission.at(begin, path[begin]);
  for (std::int64_t t = begin + 1; t < end; ++t) {
    score += crf.from(path[t - 1])[path[t]];
    score += crf.emission.at(t, path[t]);
  }
  return score + crf.end()[path[end - 1]];
}

std::vector<std::int64_t> checked_tags(const char* op, const Tensor& tags, std::int64_t count) {
  std::vector<std::int64_t> path = index_values(tags);
  for (std::size_t row = 0; row < path.size(); ++row)
    if (path[row] < 0 || path[row] >= count)
      throw IndexError(std::string(op) + ": expected a tag of " + std::to_string(count) + ", found " + std::to_string(path[row]) +
                       " in row " + std::to_string(row));
  return path;
}

}  // namespace

void crf_viterbi(const Tensor& emission, const Tensor& weights, const LoD& lod, const Tensor& tags, const Tensor& scores,
                 ThreadTeam& team) {
  visit_floats(emission.dtype(), [&](auto element, auto wide) {
    using T = decltype(element);
    using Wide = decltype(wide);
    const Crf<T, Wide> crf(emission, weights);
    const auto offsets = row_offsets(lod);
    auto* to = static_cast<std::int64_t*>(tags.raw_mutable());
    T* score = static_cast<T*>(scores.raw_mutable());
    team.parallel(scores.dim(0), sequences_grain(lod, crf.tags * crf.tags), [&](std::int64_t begin, std::int64_t end) {
      Viterbi<T, Wide> search(crf);
      for (std::int64_t n = begin; n < end; ++n) {
        const auto at = static_cast<std::size_t>(n);
        score[n] = convert_element<T>(search.sequence(offsets[at], offsets[at + 1], to));
      }
    });
  });
}

void crf_likelihood(const char* op, const Tensor& emission, const Tensor& weights, const Tensor* tags, bool normalised, const LoD& lod,
                    const Tensor& out, ThreadTeam& team) {
  std::vector<std::int64_t> path;
  if (tags != nullptr) path = checked_tags(op, *tags, emission.dim(1));
  visit_floats(emission.dtype(), [&](auto element, auto wide) {
    using T = decltype(element);
    using Wide = decltype(wide);
    const Crf<T, Wide> crf(emission, weights);
    const auto offsets = row_offsets(lod);
    T* to = static_cast<T*>(out.raw_mutable());
    const std::int64_t cost = normalised ? 8 * crf.tags * crf.tags : 4;
    team.parallel(out.dim(0), sequences_grain(lod, cost), [&](std::int64_t begin, std::int64_t end) {
      Forward<T, Wide> forward(crf);
      for (std::int64_t n = begin; n < end; ++n) {
        const std::int64_t first = offsets[static_cast<std::size_t>(n)], last = offsets[static_cast<std::size_t>(n) + 1];
        const Wide all = normalised ? forward.sequence(first, last) : Wide{};
        const Wide one = tags != nullptr ? path_score(crf, path.data(), first, last) : Wide{};
        to[n] = convert_element<T>(tags == nullptr ? all : normalised ? one - all : one);
      }
    });
  });
}

}  // namespace millrace::cpu
