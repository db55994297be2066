// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/crf.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <millrace/kernels/cpu/fold_kernels.h>
#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/matmul_rows.h>
#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/sequences.h>
#include <millrace/kernels/cpu/transpose_kernels.h>
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

/// log Σ exp of rows of terms.
template <class Wide>
class LogSums {
 public:
  explicit LogSums(std::int64_t n) : n_(n), terms_(static_cast<std::size_t>(sum_rows * n)) {}

  /// to[r] = log Σ_i exp(alpha[i] + weights[r·n + i]) of `count` rows.
  void run(const Wide* alpha, const Wide* weights, std::int64_t count, Wide* to) {
    for (std::int64_t first = 0; first < count; first += sum_rows)
      some(alpha, weights + first * n_, std::min<std::int64_t>(sum_rows, count - first), to + first);
  }
  Wide one(const Wide* alpha, const Wide* weights) {
    Wide sum{};
    run(alpha, weights, 1, &sum);
    return sum;
  }

 private:
  void some(const Wide* alpha, const Wide* weights, std::int64_t count, Wide* to) {
    const Wide* rows[sum_rows] = {};
    Wide most[sum_rows] = {}, sums[sum_rows] = {};
    for (std::int64_t r = 0; r < count; ++r) {
      Wide* terms = terms_.data() + r * n_;
      rows[r] = terms;
      for (std::int64_t i = 0; i < n_; ++i) terms[i] = alpha[i] + weights[r * n_ + i];
    }
    extremes(true, rows, count, n_, most);
    for (std::int64_t r = 0; r < count; ++r) {
      Wide* terms = terms_.data() + r * n_;
      for (std::int64_t i = 0; i < n_; ++i) terms[i] -= most[r];
    }
    unary_run(Unary::exp, {}, terms_.data(), terms_.data(), static_cast<std::size_t>(count * n_));
    ordered_sums(rows, count, n_, sums);
    for (std::int64_t r = 0; r < count; ++r) to[r] = std::isfinite(most[r]) ? most[r] + std::log(sums[r]) : most[r];
  }

  std::int64_t n_;
  std::vector<Wide> terms_;
};

/// Row j: the weights of the ways from each tag to tag j, in the order in which a step adds them up.
template <class T, class Wide>
std::vector<Wide> weights_into(const Crf<T, Wide>& crf) {
  std::vector<Wide> into(static_cast<std::size_t>(crf.tags * crf.tags));
  transpose_rows(bits_of(crf.from(0)), crf.tags, bits_of(into.data()), crf.tags, crf.tags, crf.tags);
  return into;
}

/// Room of one thread for log-partitions.
template <class T, class Wide>
struct Forward {
  Forward(const Crf<T, Wide>& of, const std::vector<Wide>& weights)
      : crf(of), into(weights), n(of.tags), row(size()), alpha(size()), next(size()), sums(n) {}
  std::size_t size() const { return static_cast<std::size_t>(n); }

  Wide sequence(std::int64_t begin, std::int64_t end) {
    if (begin == end) return 0;
    crf.emission.row(begin, row.data());
    for (std::int64_t j = 0; j < n; ++j) alpha[static_cast<std::size_t>(j)] = crf.start()[j] + row[static_cast<std::size_t>(j)];
    for (std::int64_t t = begin + 1; t < end; ++t) {
      crf.emission.row(t, row.data());
      sums.run(alpha.data(), into.data(), n, next.data());
      for (std::int64_t j = 0; j < n; ++j) next[static_cast<std::size_t>(j)] += row[static_cast<std::size_t>(j)];
      alpha.swap(next);
    }
    return sums.one(alpha.data(), crf.end());
  }

  const Crf<T, Wide>& crf;
  const std::vector<Wide>& into;
  std::int64_t n;
  std::vector<Wide> row, alpha, next;
  LogSums<Wide> sums;
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
    const std::vector<Wide> into = normalised ? weights_into(crf) : std::vector<Wide>();
    const std::int64_t cost = normalised ? 8 * crf.tags * crf.tags : 4;
    team.parallel(out.dim(0), sequences_grain(lod, cost), [&](std::int64_t begin, std::int64_t end) {
      Forward<T, Wide> forward(crf, into);
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

/// exp of the weights of a step, each divided by the greatest of those that lead to its tag: a step of the sums over all prefixes is the product of
/// one row with a matrix. Rows are `width` long, zeros behind the tags: whole vectors.
struct StepPowers {
  explicit StepPowers(std::vector<double> weights, std::int64_t tags)
      : n(tags),
        width((tags + 7) / 8 * 8),
        into(std::move(weights)),
        greatest(size(n)),
        into_powers(size(n * width)),
        from_powers(size(n * width)) {
    for (std::int64_t j = 0; j < n; ++j) {
      const double most = greatest[size(j)] = extreme(true, into.data() + j * n, n);
      if (!std::isfinite(most)) continue;  // zeros: the sums of this tag are taken by themselves
      double* powers = into_powers.data() + j * width;
      for (std::int64_t i = 0; i < n; ++i) powers[i] = into[size(j * n + i)] - most;
      unary_run(Unary::exp, {}, powers, powers, size(n));
    }
    transpose_rows(bits_of(std::as_const(into_powers).data()), width, bits_of(from_powers.data()), width, n, n);
  }
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  const double* into_tag(std::int64_t tag) const { return into.data() + tag * n; }

  std::int64_t n, width;
  std::vector<double> into;  ///< weights_into
  std::vector<double> greatest;
  std::vector<double> into_powers, from_powers;  ///< [to, from] and [from, to]
};

/// Forward–backward sums of one sequence after another; their results are added up for the weights.
///
/// A step forwards: alpha[t, j] = log Σ_i exp(alpha[t − 1, i] + w[i, j]) + e[t, j], where the sum is that of u[i]·p[i, j]: u and p are the exponentials below
/// the greatest alpha and the greatest w into j. A sum below `least_sum`, in which terms may be missing that are no numbers of f64, is taken from the
/// logarithms below its own greatest term instead. Backwards, of the probability of tag j at t a share of u[i]·p[i, j] / sum came from tag i: nothing
/// is exponentiated again. (Shares below 2^-122 may be lost.)
template <class T>
struct ForwardBackward {
  ForwardBackward(const Crf<T, double>& of, const StepPowers& step)
      : crf(of), powers(step), n(of.tags), row(size(n)), share_of(size(n)), now(size(n)), before(size(step.width)), log_sums(n) {}
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  static constexpr double least_sum = 0x1p-900;

  const double* alphas(std::int64_t t) const { return alpha.data() + t * n; }
  double* sums_at(std::int64_t t) { return sums.data() + t * powers.width; }

  /// alpha[t, j]: the logarithm of the sum over all prefixes that end with j at t, its emission included; of the step to t: `below`, the exponentials at
  /// t − 1, and `sums`, 0 for those that were taken from logarithms.
  void forward(std::int64_t begin, std::int64_t steps) {
    alpha.resize(size(steps * n));
    below.resize(size(steps * n));
    sums.resize(size(steps * powers.width));
    for (std::int64_t t = 0; t < steps; ++t) {
      double* to = alpha.data() + t * n;
      crf.emission.row(begin + t, row.data());
      if (t == 0)
        std::copy_n(crf.start(), n, to);
      else
        step(alphas(t - 1), below.data() + (t - 1) * n, sums_at(t), to);
      for (std::int64_t j = 0; j < n; ++j) to[j] += row[size(j)];
    }
  }

  void step(const double* from, double* u, double* sum, double* to) {
    const double most = extreme(true, from, n);
    for (std::int64_t i = 0; i < n; ++i) u[i] = std::isfinite(most) ? from[i] - most : impossible;
    unary_run(Unary::exp, {}, u, u, size(n));
    matmul_row(u, powers.from_powers.data(), sum, 1, n, powers.width);
    for (std::int64_t j = 0; j < n; ++j) {
      const bool whole = sum[j] >= least_sum;
      to[j] = whole ? (most + powers.greatest[size(j)]) + std::log(sum[j]) : log_sums.one(from, powers.into_tag(j));
      if (!whole) sum[j] = 0;
    }
  }

  /// Goes from the probabilities `now` of the tags at t to the probabilities at t − 1. sums[t] becomes now / sums; of sums that were taken from logarithms, the
  /// probabilities of each way are taken off `ways` [from, to] at once.
  void step_back(std::int64_t t, double* ways) {
    double* factors = sums_at(t);
    const double* u = below.data() + (t - 1) * n;
    apart.clear();
    for (std::int64_t j = 0; j < n; ++j) {
      if (factors[j] == 0 && now[size(j)] != 0) apart.push_back(j);
      factors[j] = factors[j] == 0 ? 0 : now[size(j)] / factors[j];
    }
    matmul_row(factors, powers.into_powers.data(), before.data(), 1, n, powers.width);
    for (std::int64_t i = 0; i < n; ++i) before[size(i)] *= u[i];
    for (const std::int64_t j : apart) {
      const double *from = alphas(t - 1), *weights = powers.into_tag(j);
      const double all = log_sums.one(from, weights);
      for (std::int64_t i = 0; i < n; ++i) share_of[size(i)] = (from[i] + weights[i]) - all;
      unary_run(Unary::exp, {}, share_of.data(), share_of.data(), size(n));
      for (std::int64_t i = 0; i < n; ++i) {
        const double way = share_of[size(i)] * now[size(j)];
        before[size(i)] += way;
        ways[i * n + j] -= way;
      }
    }
    std::copy_n(before.data(), n, now.data());
  }

  /// `rows`: where the gradient of row `begin` goes; `share` [K + 2, K] holds zeros.
  void sequence(std::int64_t begin, std::int64_t end, const std::int64_t* path, double gradient, T* rows, double* share) {
    if (begin == end) return;
    const std::int64_t steps = end - begin;
    double* ways = share + 2 * n;
    forward(begin, steps);
    const double* last = alphas(steps - 1);
    const double total = log_sums.one(last, crf.end());
    for (std::int64_t j = 0; j < n; ++j) now[size(j)] = (last[j] + crf.end()[j]) - total;
    unary_run(Unary::exp, {}, now.data(), now.data(), size(n));
    for (std::int64_t t = steps - 1; t >= 0; --t) {
      for (std::int64_t k = 0; k < n; ++k) {
        const double excess = gradient * ((path[begin + t] == k ? 1 : 0) - now[size(k)]);
        rows[t * n + k] = convert_element<T>(excess);
        if (t == 0) share[k] = excess;
        if (t == steps - 1) share[n + k] = excess;
      }
      if (t > 0) step_back(t, ways);
    }
    if (steps > 1) add_ways(begin, steps, path, gradient, ways);
  }

  /// `ways`: those of `path` less what is expected, times `gradient`.
  void add_ways(std::int64_t begin, std::int64_t steps, const std::int64_t* path, double gradient, double* ways) {
    const std::int64_t width = powers.width;
    turned.resize(size(n * (steps - 1)));
    expected.resize(size(n * width));
    transpose_rows(bits_of(std::as_const(below).data()), n, bits_of(turned.data()), steps - 1, n, steps - 1);
    matmul_row(turned.data(), sums_at(1), expected.data(), n, steps - 1, width);
    for (std::int64_t t = begin + 1; t < begin + steps; ++t) ways[path[t - 1] * n + path[t]] += 1;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        ways[i * n + j] = gradient * (ways[i * n + j] - expected[size(i * width + j)] * powers.from_powers[size(i * width + j)]);
  }

  static constexpr double impossible = -std::numeric_limits<double>::infinity();
  const Crf<T, double>& crf;
  const StepPowers& powers;
  std::int64_t n;
  std::vector<double> row, share_of, now, before, alpha, below, sums, turned, expected;
  std::vector<std::int64_t> apart;
  LogSums<double> log_sums;
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
    const StepPowers powers(weights_into(crf), crf.tags);
    const WideRows<T, double> gradients(gradient);
    const auto offsets = row_offsets(lod);
    const std::int64_t sequences = gradient.dim(0), size = weights.elements();
    T* rows = static_cast<T*>(made.emission.raw_mutable());
    std::vector<double> sums(static_cast<std::size_t>(size), 0), shares;
    for (std::int64_t first = 0; first < sequences; first += gradient_window) {
      const std::int64_t count = std::min(gradient_window, sequences - first);
      shares.assign(static_cast<std::size_t>(count * size), 0);
      team.parallel(count, sequences_grain(lod, crf.tags * crf.tags), [&](std::int64_t begin, std::int64_t end) {
        ForwardBackward<T> pass(crf, powers);
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
