// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/edit_distance.h>

#include <limits>

#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/sequences.h>

namespace millrace::cpu {
namespace {

using Row = std::vector<std::int64_t>;

/// Sequences of tokens without the ignored ones.
struct Sequences {
  Sequences(const Tokens& from, const Row& ignored) : offsets(row_offsets(from.lod)), all(index_values(from.rows)), drop(ignored) {}
  void take(std::size_t n, Row& to) const {
    to.clear();
    for (std::int64_t at = offsets[n]; at < offsets[n + 1]; ++at) {
      const std::int64_t token = all[static_cast<std::size_t>(at)];
      if (std::find(drop.begin(), drop.end(), token) == drop.end()) to.push_back(token);
    }
  }
  std::span<const std::int64_t> offsets;
  Row all;
  const Row& drop;
};

/// `row` is room.
std::int64_t distance(const Row& a, const Row& b, Row& row) {
  row.resize(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<std::int64_t>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::int64_t diagonal = row[0];
    row[0] = static_cast<std::int64_t>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::int64_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

float over(std::int64_t distance, std::size_t length) {
  if (length == 0) return distance == 0 ? 0.0f : std::numeric_limits<float>::infinity();
  return static_cast<float>(distance) / static_cast<float>(length);
}

}  // namespace

void edit_distance(const Tokens& hypotheses, const Tokens& references, bool normalised, const std::vector<std::int64_t>& ignored,
                   const Tensor& out, ThreadTeam& team) {
  const Sequences left(hypotheses, ignored), right(references, ignored);
  auto* to = static_cast<float*>(out.raw_mutable());
  const std::int64_t pairs = out.dim(0);
  const std::int64_t grain = sequences_grain(hypotheses.lod, references.lod.rows() / std::max<std::int64_t>(1, pairs));
  team.parallel(pairs, grain, [&](std::int64_t begin, std::int64_t end) {
    Row a, b, room;
    for (std::int64_t n = begin; n < end; ++n) {
      left.take(static_cast<std::size_t>(n), a);
      right.take(static_cast<std::size_t>(n), b);
      const std::int64_t found = distance(a, b, room);
      to[n] = normalised ? over(found, b.size()) : static_cast<float>(found);
    }
  });
}

}  // namespace millrace::cpu
