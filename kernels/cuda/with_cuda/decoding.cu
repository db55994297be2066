// SPDX-License-Identifier: Apache-2.0
// Ops behind a network: fields, distances, trees and draws, each sequence (row, beam) in one thread.
#include <millrace/kernels/cuda/decoding.h>

#include <millrace/kernels/cpu/philox.h>
#include <millrace/kernels/cuda/with_cuda/fault_source.h>
#include <millrace/tensor/checked.h>
#include <millrace/kernels/cuda/with_cuda/sequences.cuh>

namespace millrace::cuda {
namespace {

// ---- Conditional random fields ----

/// Rows of weights: start, end, then from tag to tag.
template <class T>
struct Crf {
  Matrix<T> emission, weights;
  const std::int64_t* bounds;
  T* room;  // two rows of tags for each sequence
  MILLRACE_HD std::int64_t tags() const { return emission.columns; }
  MILLRACE_HD T start(std::int64_t tag) const { return weights.at(0, tag); }
  MILLRACE_HD T end(std::int64_t tag) const { return weights.at(1, tag); }
  MILLRACE_HD T move(std::int64_t from, std::int64_t to) const { return weights.at(2 + from, to); }
  MILLRACE_HD T* alpha(std::int64_t n) const { return room + 2 * n * tags(); }
};

template <class T>
MILLRACE_HD bool better(T candidate, T best) {
  return candidate > best || (candidate != candidate && best == best);
}

template <class T>
struct Viterbi {
  Crf<T> crf;
  std::int32_t* backs;  // of each row: the tag before each on the best path that ends with it
  std::int64_t* path;
  Elements<T> scores;

  MILLRACE_HD void step(std::int64_t t, const T* alpha, T* next) const {
    const std::int64_t tags = crf.tags();
    for (std::int64_t j = 0; j < tags; ++j) {
      T best = alpha[0] + crf.move(0, j);
      std::int64_t before = 0;
      for (std::int64_t i = 1; i < tags; ++i) {
        const T candidate = alpha[i] + crf.move(i, j);
        if (!better(candidate, best)) continue;
        best = candidate;
        before = i;
      }
      backs[t * tags + j] = static_cast<std::int32_t>(before);
      next[j] = best + crf.emission.at(t, j);
    }
  }

  MILLRACE_HD void operator()(std::int64_t n) const {
    const std::int64_t begin = crf.bounds[n];
    const std::int64_t end = crf.bounds[n + 1];
    if (begin == end) return scores.set(n, T{});
    const std::int64_t tags = crf.tags();
    T* alpha = crf.alpha(n);
    T* next = alpha + tags;
    for (std::int64_t j = 0; j < tags; ++j) alpha[j] = crf.start(j) + crf.emission.at(begin, j);
    for (std::int64_t t = begin + 1; t < end; ++t) {
      step(t, alpha, next);
      T* const reached = next;
      next = alpha;
      alpha = reached;
    }
    std::int64_t tag = 0;
    T score = alpha[0] + crf.end(0);
    for (std::int64_t j = 1; j < tags; ++j) {
      const T candidate = alpha[j] + crf.end(j);
      if (!better(candidate, score)) continue;
      score = candidate;
      tag = j;
    }
    scores.set(n, score);
    for (std::int64_t t = end - 1; t > begin; --t) {
      path[t] = tag;
      tag = backs[t * tags + tag];
    }
    path[begin] = tag;
  }
};

template <class T>
struct Likelihood {
  Crf<T> crf;
  Column given;  // tags; without data: none
  Elements<T> out;
  bool normalised;
  FaultSink fault;

  /// log Σ exp(term(i)).
  template <class F>
  MILLRACE_HD T log_sum(F term) const {
    const std::int64_t tags = crf.tags();
    const T most = greatest_value<T>(tags, term);
    if (most != most || is_infinite(most)) return most;
    return most + std::log(ordered_sum<T>(tags, [&](std::int64_t i) { return exp_of(term(i) - most); }));
  }
  MILLRACE_HD T log_partition(std::int64_t n, std::int64_t begin, std::int64_t end) const {
    const std::int64_t tags = crf.tags();
    T* alpha = crf.alpha(n);
    T* next = alpha + tags;
    for (std::int64_t j = 0; j < tags; ++j) alpha[j] = crf.start(j) + crf.emission.at(begin, j);
    for (std::int64_t t = begin + 1; t < end; ++t) {
      for (std::int64_t j = 0; j < tags; ++j)
        next[j] = log_sum([&](std::int64_t i) { return alpha[i] + crf.move(i, j); }) + crf.emission.at(t, j);
      T* const reached = next;
      next = alpha;
      alpha = reached;
    }
    return log_sum([&](std::int64_t i) { return alpha[i] + crf.end(i); });
  }
  MILLRACE_HD std::int64_t tag_of(std::int64_t row) const {
    const std::int64_t tag = given.at(row);
    if (tag >= 0 && tag < crf.tags()) return tag;
    fault.raise(Fault::index, tag);
    return 0;
  }
  MILLRACE_HD T path_score(std::int64_t begin, std::int64_t end) const {
    std::int64_t before = tag_of(begin);
    T score = crf.start(before) + crf.emission.at(begin, before);
    for (std::int64_t t = begin + 1; t < end; ++t) {
      const std::int64_t tag = tag_of(t);
      score += crf.move(before, tag);
      score += crf.emission.at(t, tag);
      before = tag;
    }
    return score + crf.end(before);
  }
  MILLRACE_HD void operator()(std::int64_t n) const {
    const std::int64_t begin = crf.bounds[n];
    const std::int64_t end = crf.bounds[n + 1];
    const bool scored = given.data.data != nullptr;
    const T all = normalised && begin < end ? log_partition(n, begin, end) : T{};
    const T one = scored && begin < end ? path_score(begin, end) : T{};
    out.set(n, !scored ? all : normalised ? one - all : one);
  }
};

template <class T>
Crf<T> crf_of(const Tensor& emission, const Tensor& weights, const Tensor& bounds, const Tensor& room) {
  return {matrix<T>(emission), matrix<T>(weights), integers(bounds), static_cast<T*>(room.raw_mutable())};
}

/// Two rows of tags for each sequence.
Tensor crf_room(const Queue& queue, const Tensor& emission, std::int64_t sequences) {
  const DType wide = emission.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return scratch(queue, wide, DDim{checked_mul(2 * sequences, emission.dim(1))});
}

// ---- Distances ----

/// The tokens of both sides without the ignored ones, and a row of Levenshtein's table.
struct Distance {
  Column left, right;
  const std::int64_t *left_bounds, *right_bounds, *ignored;
  std::int64_t ignored_count;
  std::int64_t *left_kept, *right_kept, *table;  // as many as rows; of the table one more for each sequence
  float* out;
  bool normalised;

  MILLRACE_HD std::int64_t keep(const Column& from, std::int64_t begin, std::int64_t end, std::int64_t* to) const {
    std::int64_t count = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t token = from.at(row);
      bool known = false;
      for (std::int64_t i = 0; i < ignored_count && !known; ++i) known = ignored[i] == token;
      if (!known) to[count++] = token;
    }
    return count;
  }
  MILLRACE_HD void operator()(std::int64_t n) const {
    std::int64_t* a = left_kept + left_bounds[n];
    std::int64_t* b = right_kept + right_bounds[n];
    std::int64_t* row = table + right_bounds[n] + n;
    const std::int64_t rows = keep(left, left_bounds[n], left_bounds[n + 1], a);
    const std::int64_t columns = keep(right, right_bounds[n], right_bounds[n + 1], b);
    for (std::int64_t j = 0; j <= columns; ++j) row[j] = j;
    for (std::int64_t i = 1; i <= rows; ++i) {
      std::int64_t diagonal = row[0];
      row[0] = i;
      for (std::int64_t j = 1; j <= columns; ++j) {
        const std::int64_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = least_of(changed, least_of(row[j], row[j - 1]) + 1);
      }
    }
    const std::int64_t found = row[columns];
    if (!normalised) {
      out[n] = static_cast<float>(found);
    } else if (columns == 0) {
      out[n] = found == 0 ? 0.0f : infinite<float>();
    } else {
      out[n] = static_cast<float>(found) / static_cast<float>(columns);
    }
  }
};

// ---- Trees ----

/// One beam of one source, traced back from its end.
struct Tree {
  Elements<std::int64_t> ids, parents, out;
  Column lengths;  // without data: all steps
  std::int64_t steps, sources, beams, filling;
  bool ends;
  FaultSink fault;

  MILLRACE_HD std::int64_t at(std::int64_t t, std::int64_t i) const { return t * sources * beams + i; }
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t source = i / beams;
    std::int64_t count = lengths.data.data == nullptr ? steps : lengths.at(source);
    count = greatest_of(std::int64_t{0}, least_of(count, steps));
    std::int64_t from = i;
    for (std::int64_t t = count; t-- > 0;) {
      out.set(at(t, i), ids.get(at(t, from)));
      if (t == 0) break;
      const std::int64_t parent = parents.get(at(t, from));
      if (parent < 0 || parent >= beams) return fault.raise(Fault::index, parent);
      from = source * beams + parent;
    }
    std::int64_t end = count;
    for (std::int64_t t = 0; ends && t < end; ++t)
      if (out.get(at(t, i)) == filling) end = t + 1;
    for (std::int64_t t = end; t < steps; ++t) out.set(at(t, i), filling);
  }
};

// ---- Draws ----

/// The scores of each row over the temperature; an element that is not among the best cannot be drawn.
template <class T>
struct Allowed {
  Matrix<T> scores;
  double* row;
  double temperature;
  std::int64_t top;  // 0: all
  MILLRACE_HD double score(std::int64_t n, std::int64_t k) const {
    const T said = scores.at(n, k);
    return said == said ? static_cast<double>(said) : -infinite<double>();
  }
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t n = i / scores.columns;
    const std::int64_t k = i % scores.columns;
    const double mine = score(n, k);
    std::int64_t rank = 0;
    for (std::int64_t other = 0; top > 0 && rank < top && other < scores.columns; ++other) {
      const double theirs = score(n, other);
      if (theirs > mine || (theirs == mine && other < k)) ++rank;
    }
    row[i] = (top > 0 && rank >= top ? -infinite<double>() : mine) / temperature;
  }
};

template <class T>
struct Draw {
  Matrix<T> scores;
  double* rows;
  Column keys;
  Elements<std::int64_t> step;
  std::uint64_t seed;
  std::int64_t* tokens;
  Elements<T> said;

  /// The token for `unit` in [0, 1); −1 when none is allowed. The row is used up.
  MILLRACE_HD static std::int64_t pick(double* row, std::int64_t count, double unit) {
    const double most = greatest_value<double>(count, [&](std::int64_t k) { return row[k]; });
    if (most == -infinite<double>()) return -1;
    double sum = 0;
    for (std::int64_t k = 0; k < count; ++k) row[k] = sum += exp_of(row[k] == most ? 0.0 : row[k] - most);
    for (std::int64_t k = 0; k < count; ++k)
      if (row[k] > unit * sum) return k;
    std::int64_t last = 0;  // u·sum rounded up to it
    while (last + 1 < count && row[last] != sum) ++last;
    return last;
  }
  MILLRACE_HD void operator()(std::int64_t n) const {
    const double unit = cpu::philox_unit(seed, static_cast<std::uint64_t>(keys.at(n)), static_cast<std::uint64_t>(step.get(0)));
    const std::int64_t token = pick(rows + n * scores.columns, scores.columns, unit);
    tokens[n] = token < 0 ? 0 : token;
    said.set(n, token < 0 ? -infinite<T>() : scores.at(n, token));
  }
};

// ---- Averages of the greatest ----

template <class T>
struct TopAverage {
  Elements<T> from, to;
  const std::int64_t *ks, *offsets, *firsts, *columns, *owners;  // owners: of each row of the result, its sequence
  std::int64_t kinds, channels;

  MILLRACE_HD static bool before(T a, T b) { return a > b || (a != a && b == b); }
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t channel = i / kinds % channels;
    const std::int64_t row = i / kinds / channels;
    const std::int64_t n = owners[row];
    const std::int64_t width = columns[n];
    const std::int64_t first = offsets[n] + (channel * (firsts[n + 1] - firsts[n]) + row - firsts[n]) * width;
    const std::int64_t k = ks[i % kinds];
    T sum{};
    std::int64_t last = -1;  // the one that was taken last; equal ones are taken in their order
    for (std::int64_t taken = 0; taken < least_of(k, width); ++taken) {
      std::int64_t best = -1;
      for (std::int64_t j = 0; j < width; ++j) {
        const T value = from.get(first + j);
        if (last >= 0) {
          const T limit = from.get(first + last);
          if (before(value, limit) || (!before(limit, value) && j <= last)) continue;
        }
        if (best < 0 || before(value, from.get(first + best))) best = j;
      }
      sum += from.get(first + best);
      last = best;
    }
    to.set(i, sum / static_cast<T>(k));
  }
};

}  // namespace

void crf_viterbi(const Tensor& emission, const Tensor& weights, const LoD& lod, const Tensor& tags, const Tensor& scores,
                 KernelContext& context) {
  const Queue& queue = queue_of(context);
  const Tensor bounds = uploaded(queue, bounds_of(lod));
  const Tensor room = crf_room(queue, emission, scores.dim(0));
  const Tensor backs = scratch(queue, DType::i32, emission.dims());
  visit_floats(emission.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, scores.dim(0),
               Viterbi<T>{crf_of<T>(emission, weights, bounds, room), static_cast<std::int32_t*>(backs.raw_mutable()), writable(tags),
                          elements<T>(scores)});
  });
}

void crf_likelihood(const Tensor& emission, const Tensor& weights, const Tensor* tags, bool normalised, const LoD& lod, const Tensor& out,
                    KernelContext& context) {
  const Queue& queue = queue_of(context);
  const Tensor bounds = uploaded(queue, bounds_of(lod));
  const Tensor room = crf_room(queue, emission, out.dim(0));
  const FaultSink fault = fault_sink(queue, normalised ? FaultyOp::crf_log_likelihood : FaultyOp::crf_score);
  visit_floats(emission.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, out.dim(0),
               Likelihood<T>{crf_of<T>(emission, weights, bounds, room), tags != nullptr && tags->elements() > 0 ? column(*tags) : Column{},
                             elements<T>(out), normalised, fault});
  });
}

void edit_distance(const Tensor& hypotheses, const LoD& hypothesis_lod, const Tensor& references, const LoD& reference_lod, bool normalised,
                   const std::vector<std::int64_t>& ignored, const Tensor& out, KernelContext& context) {
  const Queue& queue = queue_of(context);
  const Tensor left = uploaded(queue, bounds_of(hypothesis_lod));
  const Tensor right = uploaded(queue, bounds_of(reference_lod));
  const Tensor dropped = uploaded(queue, ignored);
  const std::int64_t a = hypotheses.dim(0);
  const std::int64_t b = references.dim(0);
  const Tensor room = scratch(queue, DType::i64, DDim{a + 2 * b + out.dim(0)});
  std::int64_t* const kept = writable(room);
  each_index(queue, out.dim(0),
             Distance{column(hypotheses), column(references), integers(left), integers(right), integers(dropped),
                      static_cast<std::int64_t>(ignored.size()), kept, kept + a, kept + a + b, static_cast<float*>(out.raw_mutable()),
                      normalised});
}

void gather_tree(const Tensor& ids, const Tensor& parents, const Tensor* lengths, std::optional<std::int64_t> end_token, const Tensor& out,
                 KernelContext& context) {
  const Queue& queue = queue_of(context);
  each_index(queue, ids.dim(1) * ids.dim(2),
             Tree{elements<std::int64_t>(ids), elements<std::int64_t>(parents), elements<std::int64_t>(out),
                  lengths != nullptr ? column(*lengths) : Column{}, ids.dim(0), ids.dim(1), ids.dim(2), end_token.value_or(-1),
                  end_token.has_value(), fault_sink(queue, FaultyOp::gather_tree)});
}

void sample_tokens(const Tensor& scores, const Tensor& keys, const Tensor& step, const SampleOptions& options, const Sampled& to,
                   KernelContext& context) {
  const Queue& queue = queue_of(context);
  const Tensor room = scratch(queue, DType::f64, scores.dims());
  auto* const rows = static_cast<double*>(room.raw_mutable());
  const std::int64_t top = options.top >= scores.dim(1) ? 0 : options.top;
  visit_floats(scores.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, scores.elements(), Allowed<T>{matrix<T>(scores), rows, options.temperature, top});
    each_index(queue, scores.dim(0),
               Draw<T>{matrix<T>(scores), rows, column(keys), elements<std::int64_t>(step), options.seed, writable(to.tokens),
                       elements<T>(to.scores)});
  });
}

void sequence_top_k_average(const Tensor& x, const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& firsts,
                            const std::vector<std::int64_t>& columns, const SequenceTopKAverage& options, const Tensor& out,
                            KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i + 1 < firsts.size(); ++i) rows.resize(static_cast<std::size_t>(firsts[i + 1]), static_cast<std::int64_t>(i));
  const Tensor ks = uploaded(queue, options.ks);
  const Tensor bounds = uploaded(queue, offsets);
  const Tensor targets = uploaded(queue, firsts);
  const Tensor widths = uploaded(queue, columns);
  const Tensor owners = uploaded(queue, rows);
  visit_floats(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, out.elements(),
               TopAverage<T>{elements<T>(x), elements<T>(out), integers(ks), integers(bounds), integers(targets), integers(widths),
                             integers(owners), static_cast<std::int64_t>(options.ks.size()), options.channels});
  });
}

}  // namespace millrace::cuda
