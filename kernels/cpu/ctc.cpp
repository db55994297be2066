// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/ctc.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include <millrace/kernels/cpu/ctc_kernels.h>
#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/kernels/cpu/sequences.h>
#include <millrace/kernels/cpu/unary_kernels.h>

namespace millrace::cpu {
namespace {

constexpr double impossible = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  const double most = std::max(a, b), least = std::min(a, b);
  return std::isinf(most) || least == impossible ? most : most + std::log1p(std::exp(least - most));
}

/// A prefix that was in the beam of some frame: its last label, the node of the rest, and those that go on from it. One node for each
/// prefix, so that one that left the beam and comes back is known to what goes on from it.
struct Node {
  std::int64_t rest;
  std::int64_t label;
  std::int64_t child = -1;  ///< the newest
  std::int64_t sibling = -1;
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

  void sequence(std::int64_t begin, std::int64_t end) {
    nodes_.assign(1, {-1, -1});
    beam_.assign(1, {0, -1, 0, impossible, 0});
    for (std::int64_t t = begin; t < end && !beam_.empty(); ++t) frame(t);
  }
  /// The labels of the prefix that came out as number `place`; its score.
  double path(std::int64_t place, std::vector<std::int64_t>& labels) const {
    labels.clear();
    if (std::cmp_greater_equal(place, beam_.size())) return impossible;
    const Prefix& prefix = beam_[static_cast<std::size_t>(place)];
    labels_of(prefix, labels);
    return prefix.total;
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

  /// The prefix of node `rest` and one label more.
  std::int64_t node_of(std::int64_t rest, std::int64_t label) {
    std::int64_t& first = nodes_[static_cast<std::size_t>(rest)].child;
    for (std::int64_t child = first; child >= 0; child = nodes_[static_cast<std::size_t>(child)].sibling)
      if (nodes_[static_cast<std::size_t>(child)].label == label) return child;
    const std::int64_t before = std::exchange(first, static_cast<std::int64_t>(nodes_.size()));
    nodes_.push_back({rest, label, -1, before});
    return static_cast<std::int64_t>(nodes_.size()) - 1;
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
      prefix.node = node_of(prefix.node, prefix.label);
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

/// One sequence's labels to column `path` of its rows, −1 behind them.
void put(const std::vector<std::int64_t>& labels, std::int64_t begin, std::int64_t end, std::int64_t path, const Tensor& to) {
  const std::int64_t paths = to.dim(1);
  auto* rows = static_cast<std::int64_t*>(to.raw_mutable());
  for (std::int64_t row = begin; row < end; ++row)
    rows[row * paths + path] = std::cmp_less(row - begin, labels.size()) ? labels[static_cast<std::size_t>(row - begin)] : -1;
}

template <class T, class Wide>
Wide greedy(const WideRows<T, Wide>& scores, std::int64_t begin, std::int64_t end, const CtcGreedy& options, std::vector<Wide>& row,
            std::vector<std::int64_t>& labels) {
  labels.clear();
  Wide sum{};
  std::int64_t before = options.blank;
  for (std::int64_t t = begin; t < end; ++t) {
    scores.row(t, row.data());
    std::int64_t best = 0;
    for (std::int64_t c = 1; c < scores.columns(); ++c)
      if (row[static_cast<std::size_t>(c)] > row[static_cast<std::size_t>(best)]) best = c;
    sum += row[static_cast<std::size_t>(best)];
    if (best != options.blank && !(options.merge_repeated && best == before)) labels.push_back(best);
    before = best;
  }
  return sum;
}

/// The labels with blanks around them: the states of an alignment. alpha[s] is the logarithm of the sum over all that stand in s. A row of alpha or beta
/// is one frame's, with two states beside it in which nothing can be, so that the sums of a frame are those of three rows side by side.
template <class T>
class Alignments {
 public:
  Alignments(const WideRows<T, double>& scores, std::int64_t blank) : scores_(scores), blank_(blank) {}

  /// Over all alignments of `labels` with the frames [begin, end).
  double log_sum(std::int64_t begin, std::int64_t end, std::span<const std::int64_t> labels) {
    start(labels, 2);
    for (std::int64_t t = begin; t < end; ++t) frame(t, alpha((t - begin) % 2), alpha((t - begin + 1) % 2));
    return begin == end ? (states_ == 1 ? 0 : impossible) : total(alpha((end - begin) % 2));
  }

  /// The gradient of −log_sum with respect to the scores, times `gradient`, for the rows [begin, end) at `to`.
  template <class To>
  void gradient(std::int64_t begin, std::int64_t end, std::span<const std::int64_t> labels, double gradient, bool zero_infinity, To* to) {
    const std::int64_t steps = end - begin, classes = scores_.columns();
    start(labels, steps + 1);
    for (std::int64_t t = 0; t < steps; ++t) frame(begin + t, alpha(t), alpha(t + 1));
    const double all = total(alpha(steps));
    const bool infinite = all == impossible;
    const double none = infinite && !zero_infinity ? std::numeric_limits<double>::quiet_NaN() : 0.0;
    // beta[s]: all ways to go on behind state s of frame t.
    beta_.assign(class_of_.size(), impossible);
    ahead_.assign(class_of_.size() + beside, impossible);
    powers_.resize(class_of_.size());
    beta_[class_of_.size() - 1] = 0;
    if (states_ > 1) beta_[class_of_.size() - 2] = 0;
    for (std::int64_t t = steps; t-- > 0;) {
      shares_.assign(static_cast<std::size_t>(classes), none);
      if (!infinite) {
        const double* reached = alpha(t + 1);
        for (std::size_t s = 0; s < class_of_.size(); ++s) powers_[s] = (reached[s] + beta_[s]) - all;
        unary_run(Unary::exp, {}, powers_.data(), powers_.data(), powers_.size());
        for (std::size_t s = 0; s < class_of_.size(); ++s) shares_[static_cast<std::size_t>(class_of_[s])] -= gradient * powers_[s];
      }
      for (std::int64_t k = 0; k < classes; ++k) to[t * classes + k] = convert_element<To>(shares_[static_cast<std::size_t>(k)] + 0.0);
      if (t > 0) step_back(begin + t);
    }
  }

 private:
  /// States beside a row.
  static constexpr std::int64_t beside = 2;

  double* alpha(std::int64_t row) { return alpha_.data() + row * (states_ + beside) + beside; }

  /// Room for `rows` of alpha, of which the first stands in front of the first frame: before the first blank, which costs nothing.
  void start(std::span<const std::int64_t> labels, std::int64_t rows) {
    states_ = 2 * static_cast<std::int64_t>(labels.size()) + 1;
    class_of_.assign(static_cast<std::size_t>(states_), blank_);
    skips_.assign(static_cast<std::size_t>(states_ + beside), 0);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      class_of_[2 * i + 1] = labels[i];
      if (i > 0 && labels[i] != labels[i - 1]) skips_[2 * i + 1] = 1;
    }
    alpha_.assign(static_cast<std::size_t>(rows * (states_ + beside)), impossible);
    *alpha(0) = 0;
  }

  /// The logarithm of the sum over all alignments that end in the last label or in the blank behind it.
  double total(const double* reached) const { return states_ == 1 ? reached[0] : added(reached[states_ - 1], reached[states_ - 2]); }

  /// From the sums before frame t to those in it: of each state, of the one before, and of the one before a blank that may be left out.
  void frame(std::int64_t t, const double* from, double* to) const {
    log_sums_of_three({from, from - 1, from - 2, skips_.data()}, to, states_);
    for (std::size_t s = 0; s < class_of_.size(); ++s) to[s] += scores_.at(t, class_of_[s]);
  }

  /// From the ways behind the states of frame t to those behind the states of the frame before.
  void step_back(std::int64_t t) {
    for (std::size_t s = 0; s < class_of_.size(); ++s) ahead_[s] = beta_[s] + scores_.at(t, class_of_[s]);
    log_sums_of_three({ahead_.data(), ahead_.data() + 1, ahead_.data() + 2, skips_.data() + 2}, beta_.data(), states_);
  }

  /// log_add, but a NaN stays one.
  static double added(double a, double b) { return a != a || b != b ? a + b : log_add(a, b); }

  const WideRows<T, double>& scores_;
  const std::int64_t blank_;
  std::int64_t states_ = 0;
  std::vector<std::int64_t> class_of_;  ///< of each state
  std::vector<double> skips_;           ///< 1 for a state that follows the one two before, too
  std::vector<double> alpha_, beta_, ahead_, powers_, shares_;
};

std::vector<std::int64_t> checked_labels(const Tensor& labels, std::int64_t blank, std::int64_t classes) {
  std::vector<std::int64_t> values = index_values(labels);
  for (std::size_t row = 0; row < values.size(); ++row)
    if (values[row] < 0 || values[row] >= classes || values[row] == blank)
      throw IndexError("ctc_loss: expected a label of " + std::to_string(classes) + " classes that is not the blank " +
                       std::to_string(blank) + ", found " + std::to_string(values[row]) + " in row " + std::to_string(row));
  return values;
}

}  // namespace

void ctc_loss(const Tensor& scores, const LoD& lod, const Tensor& labels, const LoD& label_lod, const CtcLoss& options, const Tensor& to,
              ThreadTeam& team) {
  const std::vector<std::int64_t> all = checked_labels(labels, options.blank, scores.dim(1));
  visit_floats(scores.dtype(), [&](auto element, auto) {
    using T = decltype(element);
    const WideRows<T, double> rows(scores);
    const auto frames = row_offsets(lod), said = row_offsets(label_lod);
    T* losses = static_cast<T*>(to.raw_mutable());
    team.parallel(to.dim(0), 1, [&](std::int64_t first, std::int64_t last) {
      Alignments<T> alignments(rows, options.blank);
      for (std::int64_t n = first; n < last; ++n) {
        const auto i = static_cast<std::size_t>(n);
        const std::span<const std::int64_t> wanted(all.data() + said[i], static_cast<std::size_t>(said[i + 1] - said[i]));
        const double loss = -alignments.log_sum(frames[i], frames[i + 1], wanted);
        losses[n] = convert_element<T>(options.zero_infinity && std::isinf(loss) && loss > 0 ? 0.0 : loss + 0.0);
      }
    });
  });
}

void ctc_loss_gradient(const Tensor& scores, const LoD& lod, const Tensor& labels, const LoD& label_lod, const Tensor& gradient,
                       const CtcLoss& options, const Tensor& to, ThreadTeam& team) {
  const std::vector<std::int64_t> all = checked_labels(labels, options.blank, scores.dim(1));
  visit_floats(scores.dtype(), [&](auto element, auto) {
    using T = decltype(element);
    const WideRows<T, double> rows(scores), gradients(gradient);
    const auto frames = row_offsets(lod), said = row_offsets(label_lod);
    T* made = static_cast<T*>(to.raw_mutable());
    team.parallel(gradient.dim(0), 1, [&](std::int64_t first, std::int64_t last) {
      Alignments<T> alignments(rows, options.blank);
      for (std::int64_t n = first; n < last; ++n) {
        const auto i = static_cast<std::size_t>(n);
        const std::span<const std::int64_t> wanted(all.data() + said[i], static_cast<std::size_t>(said[i + 1] - said[i]));
        alignments.gradient(frames[i], frames[i + 1], wanted, gradients.at(n, 0), options.zero_infinity, made + frames[i] * rows.columns());
      }
    });
  });
}

void ctc_greedy(const Tensor& scores, const LoD& lod, const CtcGreedy& options, const CtcLabels& to, ThreadTeam& team) {
  visit_floats(scores.dtype(), [&](auto element, auto wide) {
    using T = decltype(element);
    using Wide = decltype(wide);
    const WideRows<T, Wide> rows(scores);
    const auto offsets = row_offsets(lod);
    auto* lengths = static_cast<std::int64_t*>(to.lengths.raw_mutable());
    T* sums = static_cast<T*>(to.scores.raw_mutable());
    team.parallel(to.lengths.dim(0), sequences_grain(lod, rows.columns()), [&](std::int64_t first, std::int64_t last) {
      std::vector<Wide> row(static_cast<std::size_t>(rows.columns()));
      std::vector<std::int64_t> labels;
      for (std::int64_t n = first; n < last; ++n) {
        const std::int64_t begin = offsets[static_cast<std::size_t>(n)], end = offsets[static_cast<std::size_t>(n) + 1];
        sums[n] = convert_element<T>(greedy(rows, begin, end, options, row, labels));
        lengths[n] = static_cast<std::int64_t>(labels.size());
        put(labels, begin, end, 0, to.labels);
      }
    });
  });
}

void ctc_beam_search(const Tensor& scores, const LoD& lod, const CtcBeam& options, const CtcLabels& to, ThreadTeam& team) {
  visit_floats(scores.dtype(), [&](auto element, auto) {
    using T = decltype(element);
    const WideRows<T, double> rows(scores);
    const auto offsets = row_offsets(lod);
    auto* lengths = static_cast<std::int64_t*>(to.lengths.raw_mutable());
    T* totals = static_cast<T*>(to.scores.raw_mutable());
    team.parallel(to.lengths.dim(0), 1, [&](std::int64_t first, std::int64_t last) {
      BeamSearch<T> search(rows, options);
      std::vector<std::int64_t> labels;
      for (std::int64_t n = first; n < last; ++n) {
        const std::int64_t begin = offsets[static_cast<std::size_t>(n)], end = offsets[static_cast<std::size_t>(n) + 1];
        search.sequence(begin, end);
        for (std::int64_t path = 0; path < options.paths; ++path) {
          totals[n * options.paths + path] = convert_element<T>(search.path(path, labels));
          lengths[n * options.paths + path] = static_cast<std::int64_t>(labels.size());
          put(labels, begin, end, path, to.labels);
        }
      }
    });
  });
}

}  // namespace millrace::cpu
