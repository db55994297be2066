// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/gather_tree.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/rows_along.h>
#include <millrace/tensor/error.h>

namespace millrace::cpu {
namespace {

template <class T>
struct Tree {
  const T* ids;
  const T* parents;
  T* out;
  std::int64_t steps, sources, beams;
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();

  std::int64_t at(std::int64_t t, std::int64_t n, std::int64_t beam) const { return (t * sources + n) * beams + beam; }

  /// The hypothesis of source n that ends in `beam` of row `length` − 1; where a parent is none, its place.
  std::int64_t trace(std::int64_t n, std::int64_t beam, std::int64_t length) const {
    std::int64_t from = beam;
    for (std::int64_t t = length; t-- > 0;) {
      out[at(t, n, beam)] = ids[at(t, n, from)];
      if (t == 0) break;
      const std::int64_t parent = parents[at(t, n, from)];
      if (parent < 0 || parent >= beams) return at(t, n, from);
      from = parent;
    }
    return none;
  }

  void check(std::int64_t bad) const {
    if (bad == none) return;
    throw IndexError("gather_tree: expected a parent of " + std::to_string(beams) + " beams, found " + std::to_string(parents[bad]) +
                     " at step " + std::to_string(bad / beams / sources) + ", source " + std::to_string(bad / beams % sources) + ", beam " +
                     std::to_string(bad % beams));
  }

  void fill(std::int64_t n, std::int64_t beam, std::int64_t begin, T value) const {
    for (std::int64_t t = begin; t < steps; ++t) out[at(t, n, beam)] = value;
  }

  std::int64_t behind_end(std::int64_t n, std::int64_t beam, std::int64_t length, std::int64_t end) const {
    for (std::int64_t t = 0; t < length; ++t)
      if (out[at(t, n, beam)] == end) return t + 1;
    return length;
  }
};

}  // namespace

void gather_tree(const Tensor& ids, const Tensor& parents, const Tensor* lengths, std::optional<std::int64_t> end_token, const Tensor& out,
                 ThreadTeam& team) {
  const std::int64_t steps = ids.dim(0);
  const std::vector<std::int64_t> told = lengths != nullptr ? index_values(*lengths) : std::vector<std::int64_t>();
  const auto run = [&]<class T>(T) {
    const Tree<T> tree{static_cast<const T*>(ids.raw()),
                       static_cast<const T*>(parents.raw()),
                       static_cast<T*>(out.raw_mutable()),
                       steps,
                       ids.dim(1),
                       ids.dim(2)};
    std::atomic<std::int64_t> bad{tree.none};
    team.parallel(tree.sources, std::max<std::int64_t>(1, grain_heavy / std::max<std::int64_t>(1, steps * tree.beams)),
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t n = first; n < last; ++n) {
                      const std::int64_t length =
                          told.empty() ? steps : std::clamp<std::int64_t>(told[static_cast<std::size_t>(n)], 0, steps);
                      for (std::int64_t beam = 0; beam < tree.beams; ++beam) {
                        const std::int64_t place = tree.trace(n, beam, length);
                        for (std::int64_t first_bad = bad; place < first_bad && !bad.compare_exchange_weak(first_bad, place);) {
                        }
                        const std::int64_t end = end_token ? tree.behind_end(n, beam, length, *end_token) : length;
                        tree.fill(n, beam, end, static_cast<T>(end_token.value_or(-1)));
                      }
                    }
                  });
    tree.check(bad);
  };
  if (out.elements() == 0) return;
  if (ids.dtype() == DType::i64) return run(std::int64_t{});
  run(std::int32_t{});
}

}  // namespace millrace::cpu
