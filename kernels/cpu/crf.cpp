// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/crf.h>

#include <cmath>
#include <string>

#include <millrace/kernels/cpu/fold_kernels.h>
#include <millrace/kernels/cpu/index.h>
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
    const Wide most = extreme(true, terms.data(), n);
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

namespace {

/// log Σ exp of terms, ascending; −∞ of none that is possible.
double log_sum_exp(const std::vector<double>& terms) {
  const double most = extreme(true, terms.data(), static_cast<std::int64_t>(terms.size()));
  if (!std::isfinite(most)) return most;
  double sum = 0;
  for (const double term : terms) sum += std::exp(term - most);
  return most + std::log(sum);
}

/// Forward–backward sums of one sequence after another; what they give is added up for the weights.
template <class T>
struct ForwardBackward {
  explicit ForwardBackward(const Crf<T, double>& of) : crf(of), n(of.tags), terms(size(n)) {}
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  double at(const std::vector<double>& of, std::int64_t t, std::int64_t k) const { return of[size(t * n + k)]; }

  /// alpha[t, j]: all prefixes that end with j at t, its emission included; beta[t, i]: all suffixes behind i at t.
  void sums(std::int64_t begin, std::int64_t end) {
    const std::int64_t steps = end - begin;
    alpha.assign(size(steps * n), 0);
    beta.assign(size(steps * n), 0);
    for (std::int64_t t = 0; t < steps; ++t)
      for (std::int64_t j = 0; j < n; ++j) {
        double before = crf.start()[j];
        if (t > 0) {
          for (std::int64_t i = 0; i < n; ++i) terms[size(i)] = at(alpha, t - 1, i) + crf.from(i)[j];
          before = log_sum_exp(terms);
        }
        alpha[size(t * n + j)] = before + crf.emission.at(begin + t, j);
      }
    for (std::int64_t t = steps - 1; t >= 0; --t)
      for (std::int64_t i = 0; i < n; ++i) {
        if (t == steps - 1) {
          beta[size(t * n + i)] = crf.end()[i];
          continue;
        }
        for (std::int64_t j = 0; j < n; ++j) terms[size(j)] = (crf.from(i)[j] + crf.emission.at(begin + t + 1, j)) + at(beta, t + 1, j);
        beta[size(t * n + i)] = log_sum_exp(terms);
      }
    for (std::int64_t j = 0; j < n; ++j) terms[size(j)] = at(alpha, steps - 1, j) + crf.end()[j];
    total = log_sum_exp(terms);
  }

  /// `rows`: where the gradient of row `begin` goes; `share` [K + 2, K] is added to.
  void sequence(std::int64_t begin, std::int64_t end, const std::int64_t* path, double gradient, T* rows, double* share) {
    if (begin == end) return;
    sums(begin, end);
    const std::int64_t steps = end - begin;
    const auto weight = [&](std::int64_t at_row, std::int64_t tag) -> double& { return share[at_row * n + tag]; };
    for (std::int64_t t = 0; t < steps; ++t)
      for (std::int64_t k = 0; k < n; ++k) {
        const double right = path[begin + t] == k ? 1 : 0;
        const double excess = gradient * (right - std::exp((at(alpha, t, k) + at(beta, t, k)) - total));
        rows[t * n + k] = convert_element<T>(excess);
        if (t == 0) weight(0, k) += excess;
        if (t == steps - 1) weight(1, k) += excess;
      }
    for (std::int64_t t = 1; t < steps; ++t)
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          const double right = path[begin + t - 1] == i && path[begin + t] == j ? 1 : 0;
          const double passing = ((at(alpha, t - 1, i) + crf.from(i)[j]) + crf.emission.at(begin + t, j)) + at(beta, t, j);
          weight(2 + i, j) += gradient * (right - std::exp(passing - total));
        }
  }

  const Crf<T, double>& crf;
  std::int64_t n;
  double total = 0;
  std::vector<double> terms, alpha, beta;
};

/// Sequences whose shares of the weights' gradient are held at a time.
constexpr std::int64_t gradient_window = 64;

}  // namespace

void crf_gradient(const char* op, const Tensor& emission, const Tensor& weights, const Tensor& tags, const Tensor& gradient, const LoD& lod,
                  const CrfGradient& made, ThreadTeam& team) {
  const std::vector<std::int64_t> path = checked_tags(op, tags, emission.dim(1));
  visit_floats(emission.dtype(), [&](auto element, auto) {
    using T = decltype(element);
    const Crf<T, double> crf(emission, weights);
    const WideRows<T, double> gradients(gradient);
    const auto offsets = row_offsets(lod);
    const std::int64_t sequences = gradient.dim(0), size = weights.elements();
    T* rows = static_cast<T*>(made.emission.raw_mutable());
    std::vector<double> sums(static_cast<std::size_t>(size), 0), shares;
    for (std::int64_t first = 0; first < sequences; first += gradient_window) {
      const std::int64_t count = std::min(gradient_window, sequences - first);
      shares.assign(static_cast<std::size_t>(count * size), 0);
      team.parallel(count, sequences_grain(lod, crf.tags * crf.tags), [&](std::int64_t begin, std::int64_t end) {
        ForwardBackward<T> pass(crf);
        for (std::int64_t n = begin; n < end; ++n) {
          const std::int64_t from = offsets[static_cast<std::size_t>(first + n)], to = offsets[static_cast<std::size_t>(first + n) + 1];
          pass.sequence(from, to, path.data(), gradients.at(first + n, 0), rows + from * crf.tags, shares.data() + n * size);
        }
      });
      for (std::int64_t n = 0; n < count; ++n)
        for (std::int64_t i = 0; i < size; ++i) sums[static_cast<std::size_t>(i)] += shares[static_cast<std::size_t>(n * size + i)];
    }
    T* to = static_cast<T*>(made.weights.raw_mutable());
    for (std::int64_t i = 0; i < size; ++i) to[i] = convert_element<T>(sums[static_cast<std::size_t>(i)]);
  });
}

}  // namespace millrace::cpu
