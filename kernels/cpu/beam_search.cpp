// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/beam_search.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/sequences.h>

namespace millrace::cpu {
namespace {

constexpr double impossible = -std::numeric_limits<double>::infinity();

/// score / lengthᵃ; no division without a penalty, and none by 0.
double penalised(double score, std::int64_t length, double penalty) {
  return penalty == 0 || length < 1 ? score : score / std::pow(static_cast<double>(length), penalty);
}

struct Candidate {
  double rank;
  std::int64_t parent;
  std::int64_t column;  ///< −1: a finished prefix itself
  double score;
};

bool better(const Candidate& a, const Candidate& b) {
  if (a.rank != b.rank) return a.rank > b.rank;
  return a.parent != b.parent ? a.parent < b.parent : a.column < b.column;
}

/// The `width` best, the worst of them on top.
class Best {
 public:
  explicit Best(std::int64_t width) : width_(static_cast<std::size_t>(width)) {}
  void clear() { heap_.clear(); }
  /// Quick for the many that are no match.
  bool may_enter(double rank) const { return heap_.size() < width_ || rank >= heap_.front().rank; }
  void add(const Candidate& candidate) {
    if (heap_.size() == width_) {
      if (!better(candidate, heap_.front())) return;
      std::pop_heap(heap_.begin(), heap_.end(), better);
      heap_.pop_back();
    }
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), better);
  }
  /// The candidates by parent, the best of each parent first.
  const std::vector<Candidate>& in_order() {
    std::sort(heap_.begin(), heap_.end(),
              [](const Candidate& a, const Candidate& b) { return a.parent != b.parent ? a.parent < b.parent : better(a, b); });
    return heap_;
  }

 private:
  std::size_t width_;
  std::vector<Candidate> heap_;
};

bool finished(const BeamInput& before, std::int64_t row, const BeamOptions& options) {
  const auto at = static_cast<std::size_t>(row);
  return before.lengths[at] > 0 && before.ids[at] == options.end_token;
}

template <class T, class Wide>
void offer(const BeamInput& before, const WideRows<T, Wide>& candidates, std::int64_t parent, const BeamOptions& options, Best& best) {
  const auto at = static_cast<std::size_t>(parent);
  if (finished(before, parent, options)) {
    const double rank = penalised(before.scores[at], before.lengths[at], options.length_penalty);
    if (before.scores[at] > impossible) best.add({rank, parent, -1, before.scores[at]});
    return;
  }
  const std::int64_t length = before.lengths[at] + 1;
  const Wide sofar = options.accumulated ? Wide{} : static_cast<Wide>(before.scores[at]);
  for (std::int64_t k = 0; k < candidates.columns(); ++k) {
    const Wide said = candidates.at(parent, k);
    const double score = convert_element<double>(convert_element<T>(options.accumulated ? said : sofar + said));
    if (!(score > impossible)) continue;
    const double rank = penalised(score, length, options.length_penalty);
    if (best.may_enter(rank)) best.add({rank, parent, k, score});
  }
}

void keep(const BeamInput& before, const Candidate& chosen, std::int64_t columns, const BeamOptions& options, BeamChoice& choice) {
  const auto parent = static_cast<std::size_t>(chosen.parent);
  const bool again = chosen.column < 0;
  std::int64_t token = options.end_token;
  if (!again)
    token = before.tokens.empty() ? chosen.column
                                  : before.tokens[parent * static_cast<std::size_t>(columns) + static_cast<std::size_t>(chosen.column)];
  choice.ids.push_back(token);
  choice.scores.push_back(chosen.score);
  choice.lengths.push_back(before.lengths[parent] + (again ? 0 : 1));
  choice.parents.push_back(chosen.parent);
  choice.live = choice.live || token != options.end_token;
}

}  // namespace

BeamChoice choose(const BeamInput& before, const Tensor& candidates, const BeamOptions& options) {
  BeamChoice choice;
  const std::int64_t sources = before.lod.sequences(0);
  LoD::Level prefixes, kept(before.ids.size(), 0);
  visit_floats(candidates.dtype(), [&](auto element, auto wide) {
    const WideRows<decltype(element), decltype(wide)> scores(candidates);
    Best best(options.width);
    for (std::int64_t source = 0; source < sources; ++source) {
      const auto [begin, end] = before.lod.row_range(0, source, source + 1);
      prefixes.push_back(end - begin);
      best.clear();
      bool live = false;
      for (std::int64_t row = begin; row < end; ++row) live = live || !finished(before, row, options);
      for (std::int64_t row = begin; live && row < end; ++row) offer(before, scores, row, options, best);
      for (const Candidate& chosen : best.in_order()) {
        keep(before, chosen, scores.columns(), options, choice);
        ++kept[static_cast<std::size_t>(chosen.parent)];
      }
    }
  });
  choice.lod = LoD::from_lengths({prefixes, kept});
  return choice;
}

namespace {

/// The rows of all steps, and how they hang together.
class Trace {
 public:
  Trace(const LoD& lod, const std::vector<std::int64_t>& ids, const std::vector<double>& scores, std::int64_t steps,
        const BeamOptions& options)
      : lod_(lod),
        ids_(ids),
        scores_(scores),
        steps_(steps),
        sources_(lod.sequences(0) / steps),
        options_(options),
        parents_(lod.row_ids(1)) {
    for (std::int64_t t = 0; t < steps; ++t) check(t);
  }

  std::int64_t sources() const { return sources_; }
  std::pair<std::int64_t, std::int64_t> rows(std::int64_t step, std::int64_t source) const {
    const std::int64_t at = step * sources_ + source;
    return lod_.row_range(0, at, at + 1);
  }
  std::int64_t last_step(std::int64_t source) const {
    std::int64_t step = steps_ - 1;
    for (; step > 0; --step) {
      const auto [begin, end] = rows(step, source);
      if (begin < end) break;
    }
    return step;
  }

  /// Tokens and scores of a row's hypothesis, from the last to the first.
  void follow(std::int64_t step, std::int64_t row, std::vector<std::int64_t>& tokens, std::vector<double>& scores) const {
    for (; step >= 0; --step) {
      const std::int64_t before = step == 0 ? -1 : rows_before(step) + parents_[static_cast<std::size_t>(row)] - prefixes_before(step);
      const bool repeated = before >= 0 && ids_[static_cast<std::size_t>(before)] == options_.end_token;
      if (!repeated) {
        tokens.push_back(ids_[static_cast<std::size_t>(row)]);
        scores.push_back(scores_[static_cast<std::size_t>(row)]);
      }
      row = before;
    }
  }

 private:
  /// The first prefix of a step (level 1), and the first row of the step before.
  std::int64_t prefixes_before(std::int64_t step) const { return lod_.offsets(0)[static_cast<std::size_t>(step * sources_)]; }
  std::int64_t rows_before(std::int64_t step) const { return lod_.offsets(1)[static_cast<std::size_t>(prefixes_before(step - 1))]; }
  void check(std::int64_t step) const {
    for (std::int64_t source = 0; step > 0 && source < sources_; ++source) {
      const auto [begin, end] = rows(step - 1, source);
      const auto at = static_cast<std::size_t>(step * sources_ + source);
      const std::int64_t prefixes = lod_.offsets(0)[at + 1] - lod_.offsets(0)[at];
      if (prefixes != end - begin)
        throw LoDError("beam_search_decode: expected " + std::to_string(end - begin) + " prefixes of source " + std::to_string(source) +
                       " in step " + std::to_string(step) + ", found " + std::to_string(prefixes));
    }
  }

  const LoD& lod_;
  const std::vector<std::int64_t>& ids_;
  const std::vector<double>& scores_;
  std::int64_t steps_, sources_;
  const BeamOptions& options_;
  LoD::Level parents_;
};

struct Hypothesis {
  double rank = 0;
  std::int64_t row = 0;
  std::vector<std::int64_t> tokens;
  std::vector<double> scores;
};

std::vector<Hypothesis> hypotheses_of(const Trace& trace, std::int64_t source, double penalty) {
  std::vector<Hypothesis> found;
  const std::int64_t step = trace.last_step(source);
  const auto [begin, end] = trace.rows(step, source);
  for (std::int64_t row = begin; row < end; ++row) {
    Hypothesis& one = found.emplace_back();
    one.row = row;
    trace.follow(step, row, one.tokens, one.scores);
    one.rank = penalised(one.scores.front(), static_cast<std::int64_t>(one.tokens.size()), penalty);
  }
  std::sort(found.begin(), found.end(),
            [](const Hypothesis& a, const Hypothesis& b) { return a.rank != b.rank ? a.rank > b.rank : a.row < b.row; });
  return found;
}

}  // namespace

BeamTrace trace_back(const LoD& lod, const std::vector<std::int64_t>& ids, const std::vector<double>& scores, std::int64_t steps,
                     const BeamOptions& options) {
  const Trace trace(lod, ids, scores, steps, options);
  BeamTrace out;
  for (std::int64_t source = 0; source < trace.sources(); ++source) {
    const std::vector<Hypothesis> found = hypotheses_of(trace, source, options.length_penalty);
    out.hypotheses.push_back(static_cast<std::int64_t>(found.size()));
    for (const Hypothesis& one : found) {
      out.lengths.push_back(static_cast<std::int64_t>(one.tokens.size()));
      out.tokens.insert(out.tokens.end(), one.tokens.rbegin(), one.tokens.rend());
      out.scores.insert(out.scores.end(), one.scores.rbegin(), one.scores.rend());
      out.totals.push_back(one.scores.front());
    }
  }
  return out;
}

}  // namespace millrace::cpu
