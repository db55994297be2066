// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/recurrent/device.cuh>

/// How the blocks of a group meet, and how the host learns which steps are closed.
///
/// A block has `warps` warps that compute. Where a watermark is wanted it has one more, which does nothing but publish: computing warps store the
/// number of closed steps to a word of their group, on the device; the publishing warp of the first group stores the least of these words to the
/// watermark, which lies in the host's memory. So no computing warp waits for the host's memory. One thread at a time stores to the watermark, in
/// ascending order: a plain store, since hosts need not have an atomic maximum. A publishing warp waits for its own block alone. The one whose group
/// is the last to end stores the rest, so that groups may run one behind the other.
namespace millrace::cuda {

struct GroupArguments {
  std::uint32_t*
      words;  ///< a line for each group (those apart: each block), of arrivals and closed steps; then the number of those that have ended
  std::uint64_t* watermark;  ///< or null
  std::uint64_t done_before;
  int kind;  ///< 0: a block alone; 1: a cluster; 2: blocks of a cooperative grid
  int blocks, groups, warps;
  int steps;
  int published;  ///< steps that are closed together
};

inline constexpr int words_a_line = 32;
/// The length of `words` for so many lines.
MILLRACE_HD constexpr std::int64_t group_words(int lines) { return std::int64_t{lines} * words_a_line + 1; }

/// `APART`: each block says which steps it has closed, on a line of its own, and by its publishing warp.
template <bool APART = false>
class Group {
 public:
  MILLRACE_DEVICE Group(const GroupArguments& arguments, Warp& warp) : a_(arguments), warp_(warp) {
    group_ = warp.block() / a_.blocks;
    rank_ = warp.block() % a_.blocks;
  }
  MILLRACE_DEVICE int group() const { return group_; }
  MILLRACE_DEVICE int rank() const { return rank_; }
  /// Whether this warp computes. Else it calls `publish` and nothing else.
  MILLRACE_DEVICE bool computes() const { return warp_.warp() < a_.warps; }

  /// The computing warps of the block meet.
  MILLRACE_DEVICE void sync() const { warp_.sync(a_.warps); }
  /// The blocks of the group meet, in two halves.
  MILLRACE_DEVICE void arrive() {
    ++meetings_;
    if (a_.kind == 1) return warp_.cluster_arrive();
    if (a_.kind == 0) return;
    sync();
    if (warp_.warp() > 0) return;
    warp_.each_lane([&](int lane) {
      if (lane == 0) add_release(line(group_), 1);
    });
  }
  MILLRACE_DEVICE void wait() {
    if (a_.kind == 1) return warp_.cluster_wait();
    if (a_.kind == 2 && warp_.warp() == 0)
      warp_.each_lane([&](int lane) {
        while (lane == 0 && !all_arrived(load_acquire(line(group_)))) warp_.relax();
      });
    sync();
  }
  /// Behind `wait`: the first `steps` steps are closed for this group.
  MILLRACE_DEVICE void close(int steps) const {
    if (a_.watermark == nullptr || rank_ > 0 || warp_.warp() + 1 < a_.warps) return;
    warp_.each_lane([&](int lane) {
      if (lane == 0) store_release(line(group_) + 1, static_cast<std::uint32_t>(steps));
    });
  }

  /// All that a publishing warp does. `meetings`: how often the blocks of this group meet.
  MILLRACE_DEVICE void publish(int meetings) {
    if (a_.kind == 1 && rank_ > 0) return warp_.cluster_leave();
    if (rank_ > 0) return;
    std::uint32_t done = 0;
    const auto all = static_cast<std::uint32_t>(a_.steps);
    // A cluster's barrier counts all warps that live. This one arrives as soon as it may, so that no other waits for it while it stores.
    if (a_.kind == 1) warp_.cluster_arrive();
    for (int met = 0; a_.kind != 1 || met < meetings; ++met) {
      if (a_.kind == 1) {
        warp_.cluster_wait();
        if (met + 1 < meetings) warp_.cluster_arrive();
      }
      if (group_ == 0) done = publish_least(done);
      if (a_.kind != 1) {
        if (closed(group_) == all) break;
        warp_.doze();
      }
    }
    // In a cluster the word may come behind the last meeting.
    while (closed(group_) != all) warp_.doze();
    end(all);
  }
  /// `publish` of a group of blocks apart. `told`: a word of shared memory, to which the computing warps of the block store how many steps they have closed.
  MILLRACE_DEVICE void publish_told(const std::uint32_t* told) {
    std::uint32_t done = 0, mine = 0;
    const auto all = static_cast<std::uint32_t>(a_.steps);
    while (mine != all) {
      PerLane<std::uint32_t> found;
      warp_.each_lane([&](int lane) { found[lane] = load_acquire_block(told); });
      if (const std::uint32_t now = warp_.least(found); now > mine) {
        mine = now;
        warp_.each_lane([&](int lane) {
          if (lane == 0) store_release(line(own_line()) + 1, mine);
        });
      }
      if (own_line() == 0) done = publish_least(done);
      if (mine != all) warp_.doze();
    }
    end(all);
  }

 private:
  MILLRACE_DEVICE int lines() const { return APART ? a_.groups * a_.blocks : a_.groups; }
  MILLRACE_DEVICE int own_line() const { return APART ? warp_.block() : group_; }
  MILLRACE_DEVICE std::uint32_t* line(int which) const { return a_.words + std::int64_t{which} * words_a_line; }
  /// The last line to end stores the rest.
  MILLRACE_DEVICE void end(std::uint32_t all) const {
    warp_.each_lane([&](int lane) {
      if (lane > 0) return;
      if (add_acquire_release(line(lines()), 1) + 1 == static_cast<std::uint32_t>(lines()))
        store_release_system(a_.watermark, a_.done_before + all);
    });
  }
  /// The count may wrap in a long run; no block is more than one meeting ahead.
  MILLRACE_DEVICE bool all_arrived(std::uint32_t count) const {
    return static_cast<std::int32_t>(count - meetings_ * static_cast<std::uint32_t>(a_.blocks)) >= 0;
  }
  /// Closed steps of a group, in all lanes.
  MILLRACE_DEVICE std::uint32_t closed(int group) const {
    PerLane<std::uint32_t> found;
    warp_.each_lane([&](int lane) { found[lane] = load_acquire(line(group) + 1); });
    return warp_.least(found);
  }
  /// Stores the least of all lines' closed steps where it is more than `done`.
  MILLRACE_DEVICE std::uint32_t publish_least(std::uint32_t done) const {
    PerLane<std::uint32_t> found;
    warp_.each_lane([&](int lane) {
      found[lane] = static_cast<std::uint32_t>(a_.steps);
      for (int i = lane; i < lines(); i += warp_lanes) {
        const std::uint32_t one = load_acquire(line(i) + 1);
        if (one < found[lane]) found[lane] = one;
      }
    });
    const std::uint32_t least = warp_.least(found);
    if (least > done)
      warp_.each_lane([&](int lane) {
        if (lane == 0) store_release_system(a_.watermark, a_.done_before + least);
      });
    return least > done ? least : done;
  }

  const GroupArguments& a_;
  Warp& warp_;
  int group_, rank_;
  std::uint32_t meetings_ = 0;
};

}  // namespace millrace::cuda
