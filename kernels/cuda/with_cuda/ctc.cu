// SPDX-License-Identifier: Apache-2.0
// CTC: what frames say is looked at frame by frame, searches and sums sequence by sequence.
#include <millrace/kernels/cuda/decoding.h>
#include <millrace/kernels/cuda/with_cuda/fault_source.h>
#include <millrace/kernels/cuda/with_cuda/sequences.cuh>

#include <string>

#include <millrace/tensor/checked.h>
#include <millrace/tensor/error.h>

namespace millrace::cuda {
namespace {

/// m + log1p(exp(least − m)), by CUDA's own functions on the device.
MILLRACE_HD double log_add(double a, double b) {
  const double most = a < b ? b : a;
  const double least = b < a ? b : a;
  return is_infinite(most) || least == -infinite<double>() ? most : most + std::log1p(std::exp(least - most));
}

// ---- The best path ----

template <class T>
struct BestClass {
  Matrix<T> scores;
  std::int64_t* best;
  MILLRACE_HD void operator()(std::int64_t row) const {
    std::int64_t found = 0;
    T most = scores.at(row, 0);
    for (std::int64_t c = 1; c < scores.columns; ++c) {
      const T score = scores.at(row, c);
      if (!(score > most)) continue;
      most = score;
      found = c;
    }
    best[row] = found;
  }
};

template <class T>
struct BestPath {
  Matrix<T> scores;
  const std::int64_t *best, *bounds;
  std::int64_t *labels, *lengths;
  Elements<T> sums;
  std::int64_t blank;
  bool merge;
  MILLRACE_HD void operator()(std::int64_t n) const {
    const std::int64_t begin = bounds[n];
    std::int64_t to = begin;
    std::int64_t before = blank;
    T sum{};
    for (std::int64_t t = begin; t < bounds[n + 1]; ++t) {
      const std::int64_t label = best[t];
      sum += scores.at(t, label);
      if (label != blank && !(merge && label == before)) labels[to++] = label;
      before = label;
    }
    lengths[n] = to - begin;
    sums.set(n, sum);
    for (; to < bounds[n + 1]; ++to) labels[to] = -1;
  }
};

// ---- The loss ----

struct CheckedLabels {
  Column said;
  std::int64_t* labels;
  std::int64_t blank, classes;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t row) const {
    const std::int64_t label = said.at(row);
    const bool known = label >= 0 && label < classes && label != blank;
    if (!known) fault.raise(Fault::index, label);
    labels[row] = known ? label : 0;
  }
};

/// The labels with blanks around them are the states of an alignment; alpha[s] is the logarithm of the sum over all that stand in s.
template <class T>
struct Loss {
  Matrix<T> scores;
  const std::int64_t *bounds, *label_bounds, *labels;
  double* room;  // 2·labels + 1 of each sequence
  Elements<T> losses;
  std::int64_t blank;
  bool zero_infinity;

  /// log_add, but a NaN stays one.
  MILLRACE_HD static double added(double a, double b) { return a != a || b != b ? a + b : log_add(a, b); }

  MILLRACE_HD void frame(std::int64_t t, bool first, const std::int64_t* wanted, double* alpha, std::int64_t states) const {
    for (std::int64_t s = states; s-- > 0;) {
      const bool labelled = s % 2 == 1;
      double sum = alpha[s];
      if (s > 0) sum = added(sum, alpha[s - 1]);
      if (!first && labelled && s > 1 && wanted[s / 2] != wanted[s / 2 - 1]) sum = added(sum, alpha[s - 2]);
      alpha[s] = sum + static_cast<double>(scores.at(t, labelled ? wanted[s / 2] : blank));
    }
  }

  MILLRACE_HD void operator()(std::int64_t n) const {
    const std::int64_t first = label_bounds[n];
    const std::int64_t states = 2 * (label_bounds[n + 1] - first) + 1;
    double* alpha = room + 2 * first + n;
    alpha[0] = 0;  // in front of the first frame: before the first blank, which costs nothing
    for (std::int64_t s = 1; s < states; ++s) alpha[s] = -infinite<double>();
    const std::int64_t begin = bounds[n];
    const std::int64_t end = bounds[n + 1];
    for (std::int64_t t = begin; t < end; ++t) frame(t, t == begin, labels + first, alpha, states);
    const double all = states == 1 ? alpha[0] : begin == end ? -infinite<double>() : added(alpha[states - 1], alpha[states - 2]);
    const double loss = -all;
    losses.set(n, static_cast<T>(zero_infinity && loss == infinite<double>() ? 0.0 : loss + 0.0));
  }
};

// ---- The beam ----

/// Marks the classes of a frame that may go on a prefix: those that fewer than `top` others are better than.
template <class T>
struct TopClasses {
  Matrix<T> scores;
  std::uint8_t* tried;
  std::int64_t top;
  MILLRACE_HD double score(std::int64_t row, std::int64_t c) const {
    const T said = scores.at(row, c);
    return said == said ? static_cast<double>(said) : -infinite<double>();
  }
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t row = i / scores.columns;
    const std::int64_t own = i % scores.columns;
    const double mine = score(row, own);
    std::int64_t rank = 0;
    for (std::int64_t other = 0; other < scores.columns && rank < top; ++other) {
      const double theirs = score(row, other);
      if (theirs > mine || (theirs == mine && other < own)) ++rank;
    }
    tried[i] = rank < top ? 1 : 0;
  }
};

/// A prefix that was in the beam of some frame: its last label, the node of the rest, and the nodes that go on from it.
struct Node {
  std::int32_t rest, child, sibling, depth;
  std::int32_t frame;  // the last in whose beam it was, from 1
  std::int32_t place;  // in that beam
  std::int64_t label;
};

/// A prefix of the beam, or one that may enter it: ends with its last label or with a blank.
struct Prefix {
  std::int64_t label;  // −1, or what goes on the prefix of `node`
  double blank, labelled, total;
  std::int32_t node;
  std::int32_t filling = 0;  // so that no copy of a prefix reads what nobody wrote
};

/// The buffers of one sequence's search.
struct Search {
  Node* nodes;
  Prefix *beam, *next;
  std::int64_t width;
  std::int32_t node_count, kept, heaped;

  /// Whether the labels of prefix a come before those of prefix b. A prefix comes before its continuations.
  MILLRACE_HD bool labels_before(const Prefix& a, const Prefix& b) const {
    std::int32_t left = a.node;
    std::int32_t right = b.node;
    std::int64_t left_extra = a.label;
    std::int64_t right_extra = b.label;
    const std::int32_t left_length = nodes[left].depth + (left_extra >= 0 ? 1 : 0);
    const std::int32_t right_length = nodes[right].depth + (right_extra >= 0 ? 1 : 0);
    for (std::int32_t length = left_length; length > right_length; --length) up(left, left_extra);
    for (std::int32_t length = right_length; length > left_length; --length) up(right, right_extra);
    int order = left_length < right_length ? -1 : 1;
    for (std::int32_t length = least_of(left_length, right_length); length > 0 && (left != right || left_extra != right_extra); --length) {
      const std::int64_t l = left_extra >= 0 ? left_extra : nodes[left].label;
      const std::int64_t r = right_extra >= 0 ? right_extra : nodes[right].label;
      if (l != r) order = l < r ? -1 : 1;
      up(left, left_extra);
      up(right, right_extra);
    }
    return order < 0;
  }
  MILLRACE_HD void up(std::int32_t& node, std::int64_t& extra) const {
    if (extra < 0) node = nodes[node].rest;
    extra = -1;
  }

  MILLRACE_HD bool better(const Prefix& a, const Prefix& b) const { return a.total != b.total ? a.total > b.total : labels_before(a, b); }

  /// `next` is a heap with the worst on top.
  MILLRACE_HD void offer(const Prefix& one) {
    if (!(one.total > -infinite<double>())) return;
    if (heaped < width) {
      std::int32_t at = heaped++;
      for (; at > 0 && better(next[(at - 1) / 2], one); at = (at - 1) / 2) next[at] = next[(at - 1) / 2];
      next[at] = one;
    } else if (better(one, next[0])) {
      sink(one, heaped);
    }
  }
  /// Puts `one` in place of the worst of the first `count`.
  MILLRACE_HD void sink(const Prefix& one, std::int32_t count) {
    std::int32_t at = 0;
    for (;;) {
      std::int32_t below = 2 * at + 1;
      if (below >= count) break;
      if (below + 1 < count && better(next[below], next[below + 1])) ++below;
      if (!better(one, next[below])) break;
      next[at] = next[below];
      at = below;
    }
    next[at] = one;
  }
  /// The heap becomes a list, best first.
  MILLRACE_HD void sort() {
    for (std::int32_t count = heaped; count > 1; --count) {
      const Prefix worst = next[0];
      const Prefix last = next[count - 1];
      sink(last, count - 1);
      next[count - 1] = worst;
    }
  }

  MILLRACE_HD std::int32_t find_child(std::int32_t node, std::int64_t label) const {
    std::int32_t child = nodes[node].child;
    while (child >= 0 && nodes[child].label != label) child = nodes[child].sibling;
    return child;
  }
  MILLRACE_HD std::int32_t add_child(std::int32_t node, std::int64_t label) {
    const std::int32_t found = find_child(node, label);
    if (found >= 0) return found;
    nodes[node_count] = {node, -1, nodes[node].child, nodes[node].depth + 1, 0, 0, label};
    nodes[node].child = node_count;
    return node_count++;
  }
};

template <class T>
struct BeamSearch {
  Matrix<T> scores;
  const std::uint8_t* tried;  // of each class of each frame; null: all
  const std::int64_t *bounds, *node_starts, *beam_starts;
  Node* nodes;
  Prefix* prefixes;
  std::int64_t *labels, *lengths;
  Elements<T> totals;
  std::int64_t blank, paths;

  MILLRACE_HD double at(std::int64_t t, std::int64_t label) const {
    const T said = scores.at(t, label);
    return said == said ? static_cast<double>(said) : -infinite<double>();
  }
  MILLRACE_HD bool may_try(std::int64_t t, std::int64_t label) const {
    return label != blank && (tried == nullptr || tried[t * scores.columns + label] != 0);
  }
  /// A repeat of the last label is a label of its own only behind a blank.
  MILLRACE_HD double gone_on(const Search& search, const Prefix& prefix, std::int64_t label, double said) const {
    return (prefix.node != 0 && label == search.nodes[prefix.node].label ? prefix.blank : prefix.total) + said;
  }

  /// Prefix `place` of the beam after frame t without a new label: a blank, or its last label again.
  MILLRACE_HD Prefix stay(const Search& search, std::int64_t t, std::int32_t frame, std::int32_t place) const {
    const Prefix& prefix = search.beam[place];
    Prefix same{-1, prefix.total + at(t, blank), -infinite<double>(), 0, prefix.node};
    if (prefix.node != 0) {
      const Node& node = search.nodes[prefix.node];
      const double said = at(t, node.label);
      same.labelled = prefix.labelled + said;
      const Node& rest = search.nodes[node.rest];
      if (rest.frame == frame && may_try(t, node.label))
        same.labelled = log_add(same.labelled, gone_on(search, search.beam[rest.place], node.label, said));
    }
    same.total = log_add(same.blank, same.labelled);
    return same;
  }

  MILLRACE_HD void go_on(Search& search, std::int64_t t, std::int32_t frame, const Prefix& prefix) const {
    for (std::int64_t label = 0; label < scores.columns; ++label) {
      if (!may_try(t, label)) continue;
      const double score = gone_on(search, prefix, label, at(t, label));
      if (search.heaped == search.width && score < search.next[0].total) continue;
      const std::int32_t child = search.find_child(prefix.node, label);
      if (child >= 0 && search.nodes[child].frame == frame) continue;  // in the beam itself: see stay
      search.offer({label, -infinite<double>(), score, log_add(-infinite<double>(), score), prefix.node});
    }
  }

  MILLRACE_HD void frame(Search& search, std::int64_t t, std::int32_t frame) const {
    for (std::int32_t i = 0; i < search.kept; ++i) {
      search.nodes[search.beam[i].node].frame = frame;
      search.nodes[search.beam[i].node].place = i;
    }
    search.heaped = 0;
    for (std::int32_t i = 0; i < search.kept; ++i) search.offer(stay(search, t, frame, i));
    for (std::int32_t i = 0; i < search.kept; ++i) go_on(search, t, frame, search.beam[i]);
    for (std::int32_t i = 0; i < search.heaped; ++i) {
      Prefix& one = search.next[i];
      if (one.label < 0) continue;
      one.node = search.add_child(one.node, one.label);
      one.label = -1;
    }
    std::swap(search.beam, search.next);
    search.kept = search.heaped;
  }

  MILLRACE_HD void put(const Search& search, std::int64_t n, std::int64_t path) const {
    const bool found = path < search.kept;
    const std::int32_t length = found ? search.nodes[search.beam[path].node].depth : 0;
    for (std::int64_t row = bounds[n] + length; row < bounds[n + 1]; ++row) labels[row * paths + path] = -1;
    std::int64_t row = bounds[n] + length;
    if (found)
      for (std::int32_t node = search.beam[path].node; node != 0; node = search.nodes[node].rest)
        labels[--row * paths + path] = search.nodes[node].label;
    lengths[n * paths + path] = length;
    totals.set(n * paths + path, static_cast<T>(found ? search.beam[path].total : -infinite<double>()));
  }

  MILLRACE_HD void operator()(std::int64_t n) const {
    const std::int64_t width = beam_starts[n + 1] - beam_starts[n];
    Prefix* const room = prefixes + 2 * beam_starts[n];
    Search search{nodes + node_starts[n], room, room + width, width, 1, 1, 0};
    search.nodes[0] = {-1, -1, -1, 0, 0, 0, -1};
    search.beam[0] = {-1, 0, -infinite<double>(), 0, 0};
    std::int32_t count = 0;
    for (std::int64_t t = bounds[n]; t < bounds[n + 1] && search.kept > 0; ++t) frame(search, t, ++count);
    // The list of the last frame is sorted where it lies.
    search.next = search.beam;
    search.heaped = search.kept;
    search.sort();
    for (std::int64_t path = 0; path < paths; ++path) put(search, n, path);
  }
};

/// No more prefixes than the frames have alignments.
std::int64_t width_for(std::int64_t frames, std::int64_t classes, std::int64_t width) {
  std::int64_t most = 1;
  for (std::int64_t t = 0; t < frames && classes > 1 && most < width; ++t) most = most > width / classes ? width : most * classes;
  return std::min(most, width);
}

/// Where the nodes and the beams of each sequence begin.
struct BeamRoom {
  Indices nodes{0}, beams{0};
  BeamRoom(const Indices& bounds, std::int64_t classes, std::int64_t width) {
    for (std::size_t n = 0; n + 1 < bounds.size(); ++n) {
      const std::int64_t frames = bounds[n + 1] - bounds[n];
      const std::int64_t held = width_for(frames, classes, width);
      const std::int64_t made = checked_add(checked_mul(frames, held), std::int64_t{1});
      if (made > std::numeric_limits<std::int32_t>::max())
        throw ArgumentError("ctc_beam_search: expected frames and a width whose product stays below 2^31 on a device, found " +
                            std::to_string(frames) + " frames and a width of " + std::to_string(held));
      nodes.push_back(checked_add(nodes.back(), made));
      beams.push_back(checked_add(beams.back(), held));
    }
  }
};

/// Room for `count` of T.
template <class T>
Tensor room_of(const Queue& queue, std::int64_t count) {
  return scratch(queue, DType::i64, DDim{checked_mul(count, static_cast<std::int64_t>(sizeof(T) / 8))});
}

}  // namespace

void ctc_greedy(const Tensor& scores, const LoD& lod, const CtcGreedy& options, const CtcLabels& to, KernelContext& context) {
  const Queue& queue = queue_of(context);
  const Tensor bounds = uploaded(queue, bounds_of(lod));
  const Tensor best = scratch(queue, DType::i64, DDim{scores.dim(0)});
  visit_floats(scores.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, scores.dim(0), BestClass<T>{matrix<T>(scores), writable(best)});
    each_index(queue, to.lengths.dim(0),
               BestPath<T>{matrix<T>(scores), integers(best), integers(bounds), writable(to.labels), writable(to.lengths),
                           elements<T>(to.scores), options.blank, options.merge_repeated});
  });
}

void ctc_loss(const Tensor& scores, const LoD& lod, const Tensor& labels, const LoD& label_lod, const CtcLoss& options, const Tensor& to,
              KernelContext& context) {
  const Queue& queue = queue_of(context);
  const Tensor bounds = uploaded(queue, bounds_of(lod));
  const Tensor label_bounds = uploaded(queue, bounds_of(label_lod));
  const Tensor checked = scratch(queue, DType::i64, DDim{labels.dim(0)});
  const Tensor room = scratch(queue, DType::f64, DDim{2 * labels.dim(0) + to.dim(0)});
  each_index(queue, labels.dim(0),
             CheckedLabels{column(labels), writable(checked), options.blank, scores.dim(1), fault_sink(queue, FaultyOp::ctc_loss)});
  visit_floats(scores.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, to.dim(0),
               Loss<T>{matrix<T>(scores), integers(bounds), integers(label_bounds), integers(checked),
                       static_cast<double*>(room.raw_mutable()), elements<T>(to), options.blank, options.zero_infinity});
  });
}

void ctc_beam_search(const Tensor& scores, const LoD& lod, const CtcBeam& options, const CtcLabels& to, KernelContext& context) {
  const Queue& queue = queue_of(context);
  const std::int64_t classes = scores.dim(1);
  const Indices offsets = bounds_of(lod);
  const BeamRoom plan(offsets, classes, options.width);
  const Tensor bounds = uploaded(queue, offsets);
  const Tensor node_starts = uploaded(queue, plan.nodes);
  const Tensor beam_starts = uploaded(queue, plan.beams);
  const Tensor nodes = room_of<Node>(queue, plan.nodes.back());
  const Tensor prefixes = room_of<Prefix>(queue, checked_mul(std::int64_t{2}, plan.beams.back()));
  const bool some = options.top > 0 && options.top < classes;
  const Tensor tried = scratch(queue, DType::u8, DDim{some ? checked_mul(scores.dim(0), classes) : 0});
  visit_floats(scores.dtype(), [&](auto wide) {
    using T = decltype(wide);
    auto* flags = some ? static_cast<std::uint8_t*>(tried.raw_mutable()) : nullptr;
    if (some) each_index(queue, tried.elements(), TopClasses<T>{matrix<T>(scores), flags, options.top});
    each_index(queue, to.lengths.dim(0),
               BeamSearch<T>{matrix<T>(scores), flags, integers(bounds), integers(node_starts), integers(beam_starts),
                             static_cast<Node*>(nodes.raw_mutable()), static_cast<Prefix*>(prefixes.raw_mutable()), writable(to.labels),
                             writable(to.lengths), elements<T>(to.scores), options.blank, options.paths});
  });
}

}  // namespace millrace::cuda
