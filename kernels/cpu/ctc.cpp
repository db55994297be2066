// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/ctc.h>

#include <cmath>
#include <limits>
#include <numeric>

#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/sequences.h>

namespace millrace::cpu {
namespace {

constexpr double impossible = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  const double most = std::max(a, b), least = std::min(a, b);
  return std::isinf(most) || least == impossible ? most : most + std::log1p(std::exp(least - most));
}

/// A prefix that was in the beam of some frame: its last label, and the node of the rest.
struct Node {
  std::int64_t rest;
  std::int64_t label;
};

/// A prefix of the beam, or one that may enter it: ends with its last label or with a blank.
struct Prefix {
  std::int64_t node = 0;  ///< of the prefix itself, or of what `label` goes on
  std::int64_t label = -1;
  double blank = impossible;
  double labelled = impossible;
  double total = impossible;
};

/// Room of one thread for the searches of one sequence after another.
template <class T>
class BeamSearch {
 public:
  BeamSearch(const WideRows<T, double>& scores, const CtcBeam& options)
      : scores_(scores), options_(options), row_(static_cast<std::size_t>(scores.columns())), order_(row_.size()), tried_(row_.size()) {}

  /// The labels of the best prefix; its score.
  double sequence(std::int64_t begin, std::int64_t end, std::vector<std::int64_t>& labels) {
    nodes_.assign(1, {-1, -1});
    beam_.assign(1, {0, -1, 0, impossible, 0});
    for (std::int64_t t = begin; t < end && !beam_.empty(); ++t) frame(t);
    labels.clear();
    if (beam_.empty()) return impossible;
    labels_of(beam_.front(), labels);
    return beam_.front().total;
  }

 private:
  double at(std::int64_t label) const { return row_[static_cast<std::size_t>(label)]; }
  std::int64_t last(const Prefix& prefix) const { return nodes_[static_cast<std::size_t>(prefix.node)].label; }

  void frame(std::int64_t t) {
    scores_.row(t, row_.data());
    for (double& score : row_)
      if (score != score) score = impossible;
    choose_classes();
    next_.clear();
    for (const Prefix& prefix : beam_) stay(prefix);
    for (const Prefix& prefix : beam_) go_on(prefix);
    keep_best();
  }

  /// Marks the classes that may go on a prefix.
  void choose_classes() {
    const auto classes = static_cast<std::int64_t>(row_.size());
    std::iota(order_.begin(), order_.end(), 0);
    const std::int64_t count = options_.top == 0 ? classes : std::min(options_.top, classes);
    const auto better = [this](std::int64_t a, std::int64_t b) { return at(a) > at(b) || (at(a) == at(b) && a < b); };
    if (count < classes) std::nth_element(order_.begin(), order_.begin() + count, order_.end(), better);
    std::fill(tried_.begin(), tried_.end(), false);
    for (std::int64_t i = 0; i < count; ++i) tried_[static_cast<std::size_t>(order_[static_cast<std::size_t>(i)])] = true;
    tried_[static_cast<std::size_t>(options_.blank)] = false;
  }

  void stay(const Prefix& prefix) {
    Prefix same{prefix.node, -1, prefix.total + at(options_.blank), impossible, impossible};
    if (prefix.node != 0) same.labelled = prefix.labelled + at(last(prefix));
    next_.push_back(same);
  }

  /// A repeat of the last label is a label of its own only behind a blank.
  double gone_on(const Prefix& prefix, std::int64_t label) const {
    return (prefix.node != 0 && label == last(prefix) ? prefix.blank : prefix.total) + at(label);
  }

  void go_on(const Prefix& prefix) {
    followers_.clear();  // prefixes of the beam that are this one and a label
    for (std::size_t j = 0; j < beam_.size(); ++j)
      if (beam_[j].node != 0 && nodes_[static_cast<std::size_t>(beam_[j].node)].rest == prefix.node) followers_.push_back(j);
    for (std::int64_t label = 0; label < static_cast<std::int64_t>(row_.size()); ++label) {
      if (!tried_[static_cast<std::size_t>(label)]) continue;
      const double score = gone_on(prefix, label);
      const auto known = std::find_if(followers_.begin(), followers_.end(), [&](std::size_t j) { return last(beam_[j]) == label; });
      if (known != followers_.end())
        next_[*known].labelled = log_add(next_[*known].labelled, score);
      else if (score > impossible)
        next_.push_back({prefix.node, label, impossible, score, impossible});
    }
  }

  void labels_of(const Prefix& prefix, std::vector<std::int64_t>& to) const {
    to.clear();
    if (prefix.label >= 0) to.push_back(prefix.label);
    for (std::int64_t node = prefix.node; node != 0; node = nodes_[static_cast<std::size_t>(node)].rest)
      to.push_back(nodes_[static_cast<std::size_t>(node)].label);
    std::reverse(to.begin(), to.end());
  }

  bool better(const Prefix& a, const Prefix& b) {
    if (a.total != b.total) return a.total > b.total;
    labels_of(a, left_);
    labels_of(b, right_);
    return left_ < right_;
  }

  void keep_best() {
    for (Prefix& prefix : next_) prefix.total = log_add(prefix.blank, prefix.labelled);
    std::erase_if(next_, [](const Prefix& prefix) { return !(prefix.total > impossible); });
    const std::size_t count = std::min(next_.size(), static_cast<std::size_t>(options_.width));
    std::partial_sort(next_.begin(), next_.begin() + static_cast<std::ptrdiff_t>(count), next_.end(),
                      [this](const Prefix& a, const Prefix& b) { return better(a, b); });
    next_.resize(count);
    for (Prefix& prefix : next_) {
      if (prefix.label < 0) continue;
      nodes_.push_back({prefix.node, prefix.label});
      prefix.node = static_cast<std::int64_t>(nodes_.size()) - 1;
      prefix.label = -1;
    }
    beam_.swap(next_);
  }

  const WideRows<T, double>& scores_;
  const CtcBeam& options_;
  std::vector<double> row_;
  std::vector<std::int64_t> order_;
  std::vector<bool> tried_;
  std::vector<Node> nodes_;
  std::vector<Prefix> beam_, next_;
  std::vector<std::size_t> followers_;
  std::vector<std::int64_t> left_, right_;
};

/// One sequence's labels to their rows, −1 behind them.
void put(const std::vector<std::int64_t>& labels, std::int64_t begin, std::int64_t end, std::int64_t* to) {
  std::fill(std::copy(labels.begin(), labels.end(), to + begin), to + end, std::int64_t{-1});
}

template <class T, class Wide>
Wide greedy(const WideRows<T, Wide>& scores, std::int64_t begin, std::int64_t end, std::int64_t blank, std::vector<Wide>& row,
            std::vector<std::int64_t>& labels) {
  labels.clear();
  Wide sum{};
  std::int64_t before = blank;
  for (std::int64_t t = begin; t < end; ++t) {
    scores.row(t, row.data());
    std::int64_t best = 0;
    for (std::int64_t c = 1; c < scores.columns(); ++c)
      if (row[static_cast<std::size_t>(c)] > row[static_cast<std::size_t>(best)]) best = c;
    sum += row[static_cast<std::size_t>(best)];
    if (best != blank && best != before) labels.push_back(best);
    before = best;
  }
  return sum;
}

}  // namespace

void ctc_greedy(const Tensor& scores, const LoD& lod, std::int64_t blank, const CtcLabels& to, ThreadTeam& team) {
  visit_floats(scores.dtype(), [&](auto element, auto wide) {
    using T = decltype(element);
    using Wide = decltype(wide);
    const WideRows<T, Wide> rows(scores);
    const auto offsets = row_offsets(lod);
    auto* places = static_cast<std::int64_t*>(to.labels.raw_mutable());
    auto* lengths = static_cast<std::int64_t*>(to.lengths.raw_mutable());
    T* sums = static_cast<T*>(to.scores.raw_mutable());
    team.parallel(to.lengths.dim(0), sequences_grain(lod, rows.columns()), [&](std::int64_t first, std::int64_t last) {
      std::vector<Wide> row(static_cast<std::size_t>(rows.columns()));
      std::vector<std::int64_t> labels;
      for (std::int64_t n = first; n < last; ++n) {
        const std::int64_t begin = offsets[static_cast<std::size_t>(n)], end = offsets[static_cast<std::size_t>(n) + 1];
        sums[n] = convert_element<T>(greedy(rows, begin, end, blank, row, labels));
        lengths[n] = static_cast<std::int64_t>(labels.size());
        put(labels, begin, end, places);
      }
    });
  });
}

void ctc_beam_search(const Tensor& scores, const LoD& lod, const CtcBeam& options, const CtcLabels& to, ThreadTeam& team) {
  visit_floats(scores.dtype(), [&](auto element, auto) {
    using T = decltype(element);
    const WideRows<T, double> rows(scores);
    const auto offsets = row_offsets(lod);
    auto* places = static_cast<std::int64_t*>(to.labels.raw_mutable());
    auto* lengths = static_cast<std::int64_t*>(to.lengths.raw_mutable());
    T* totals = static_cast<T*>(to.scores.raw_mutable());
    team.parallel(to.lengths.dim(0), 1, [&](std::int64_t first, std::int64_t last) {
      BeamSearch<T> search(rows, options);
      std::vector<std::int64_t> labels;
      for (std::int64_t n = first; n < last; ++n) {
        const std::int64_t begin = offsets[static_cast<std::size_t>(n)], end = offsets[static_cast<std::size_t>(n) + 1];
        totals[n] = convert_element<T>(search.sequence(begin, end, labels));
        lengths[n] = static_cast<std::int64_t>(labels.size());
        put(labels, begin, end, places);
      }
    });
  });
}

}  // namespace millrace::cpu
