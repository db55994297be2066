// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/recurrent/group.cuh>
#include <millrace/kernels/cuda/recurrent/products.cuh>

/// **The skeleton of every recurrent kernel**: a warp's way through all steps of ragged sequences. A step is a chain of *stages*; the blocks of a
/// group meet before each. A stage reads *tiles* of 8 rows, which all blocks of the group wrote, a *slab* of `staged` tiles at a time: the slab is
/// copied to shared memory, and the warps of the block share its products and what follows them. Groups share the tiles, the blocks of a
/// group the *unit blocks* of 8 units. A lane 4g + q has unit g of its unit block and rows 2q and 2q + 1 of its tile. No output depends on the
/// shape of the grid.
namespace millrace::cuda {

/// Parts of a step, in cycles of one warp.
enum class StepPhase : int { ask, wait, copy, product, pointwise, arrive };
inline constexpr int step_phases = 6;

struct StepArguments {
  const std::int64_t* offsets;         ///< of this launch's steps
  const std::int64_t *places, *slots;  ///< or null; places by row
  std::byte* exchange;                 ///< tiles that blocks read from each other
  std::int64_t* phases;  ///< of a kernel that takes the time: [step_phases] sums of cycles, of the first warp of the first block
  GroupArguments group;
  int tiles, staged;

  MILLRACE_DEVICE std::int64_t slot_of(int row) const { return slots == nullptr ? row : slots[row]; }
  /// The place of a row of the step whose rows begin at `begin`.
  MILLRACE_DEVICE std::int64_t place_from(std::int64_t begin, int row) const {
    return begin + (places == nullptr ? row : places[begin + row]);
  }
};

/// The time since the phase before, where a kernel takes it.
template <bool TIMED>
class PhaseClock {
 public:
  MILLRACE_DEVICE explicit PhaseClock(const Warp& warp) {
    if constexpr (TIMED) last_ = warp.clock();
  }
  MILLRACE_DEVICE void lap(const Warp& warp, StepPhase phase) {
    if constexpr (TIMED) {
      const std::int64_t now = warp.clock();
      MILLRACE_UNROLLED for (int i = 0; i < step_phases; ++i) if (i == static_cast<int>(phase)) sums_[i] += now - last_;
      last_ = now;
    }
  }
  MILLRACE_DEVICE void store(const Warp& warp, std::int64_t* to) const {
    if constexpr (TIMED) {
      if (warp.block() > 0 || warp.warp() > 0) return;
      warp.each_lane([&](int lane) {
        if (lane == 0) MILLRACE_UNROLLED for (int i = 0; i < step_phases; ++i) to[i] = sums_[i];
      });
    }
  }

 private:
  std::int64_t last_ = 0, sums_[TIMED ? step_phases : 1] = {};
};

/// `Own` derives from this class and has
///
///   stages                            of a step
///   Asked                             values of a lane that no block of this launch writes before the stage
///   load()                            before the first step: weights, states
///   ask<S>(task, asked)               for the first task of a warp, before the blocks meet for stage S
///   copy<S>(first, count)             a slab to shared memory: `count` tiles from the group's tile `first` on
///   compute<S>(first, count, asked)   the products and the rest of the stage for a slab
///
/// and may have
///
///   late                              of the outputs of a step some may be written in `after`
///   after<S>()                        what no block waits for, when this one has arrived behind stage S; not in a group's last step
template <class Own, int TILES = 1, bool TIMED = false>
class StepWorker {
 public:
  MILLRACE_DEVICE StepWorker(const StepArguments& steps, int all_units, Warp& warp)
      : steps_(steps),
        warp_(warp),
        meet_(steps.group, warp),
        all_units_(all_units),
        group_(meet_.group()),
        rank_(meet_.rank()),
        clock_(warp) {
    const int unit_blocks = (all_units + 7) / 8, blocks = steps.group.blocks;
    first_unit_ = static_cast<int>(std::int64_t{unit_blocks} * rank_ / blocks);
    units_ = static_cast<int>(std::int64_t{unit_blocks} * (rank_ + 1) / blocks) - first_unit_;
  }

  MILLRACE_DEVICE void run() {
    if (!meet_.computes()) return meet_.publish(1 + Own::stages * own_steps());
    own().load();
    meet_.arrive();
    for (; step_ < steps_.group.steps; ++step_) {
      begin_ = steps_.offsets[step_];
      live_ = static_cast<int>(steps_.offsets[step_ + 1] - begin_);
      const int tiles = (live_ + 7) / 8;
      if (group_ >= tiles) break;  // no sequence of this group lives on
      const int mine = (tiles - group_ + steps_.group.groups - 1) / steps_.group.groups;
      if (mine != tiles_) {
        tiles_ = mine;
        first_ = task_of(own().first_task(), 0, steps_.staged < mine ? steps_.staged : mine);
      }
      take<0>();
    }
    meet_.wait();
    meet_.close(steps_.group.steps);
    clock_.store(warp_, steps_.phases);
  }

 protected:
  static constexpr bool late = false;
  template <int>
  MILLRACE_DEVICE void after() {}

  MILLRACE_DEVICE void lap(StepPhase phase) { clock_.lap(warp_, phase); }

  /// The product of a warp: a unit block of this block, and `tiles` of a slab from `tile` on. `first`: the slab's first tile among the group's.
  struct Task {
    int unit, first, tile, tiles;
    bool exists;
  };
  /// The tasks of a slab of `count` tiles are numbered by unit block, then by tiles.
  MILLRACE_DEVICE Task task_of(int task, int first, int count) const {
    const int across = (count + TILES - 1) / TILES;
    const int tile = task % across * TILES;
    return {task / across, first, tile, count - tile < TILES ? count - tile : TILES, task < units_ * across};
  }
  MILLRACE_DEVICE int tasks_of(int count) const { return units_ * ((count + TILES - 1) / TILES); }

  MILLRACE_DEVICE int rows_of(int step) const { return static_cast<int>(steps_.offsets[step + 1] - steps_.offsets[step]); }
  MILLRACE_DEVICE std::int64_t slot_of(int row) const { return steps_.slot_of(row); }
  /// The place of a row of this step, and of a row of the step before.
  MILLRACE_DEVICE std::int64_t place_of(int row) const { return steps_.place_from(begin_, row); }
  MILLRACE_DEVICE std::int64_t place_before(int row) const { return steps_.place_from(steps_.offsets[step_ - 1], row); }

  /// f(i) for each i below `count`, dealt to the lanes of the block.
  template <class F>
  MILLRACE_DEVICE void each(int count, F&& f) const {
    warp_.each_lane([&](int lane) {
      for (int i = warp_.warp() * warp_lanes + lane; i < count; i += steps_.group.warps * warp_lanes) f(i);
    });
  }
  /// A tile of a task, among those of all groups.
  MILLRACE_DEVICE int tile_of(const Task& task, int which) const { return group_ + (task.first + task.tile + which) * steps_.group.groups; }
  /// f(lane, unit, i, row) for each row of a task that lives, `i` being its place among those of the lane.
  template <class F>
  MILLRACE_DEVICE void each_row(const Task& task, F&& f) const {
    if (!task.exists) return;
    warp_.each_lane([&](int lane) {
      const int unit = (first_unit_ + task.unit) * 8 + lane / 4;
      if (unit >= all_units_) return;
      MILLRACE_UNROLLED for (int i = 0; i < TILES * 2; ++i) {
        const int row = tile_of(task, i / 2) * 8 + lane % 4 * 2 + i % 2;
        if (i / 2 < task.tiles && row < live_) f(lane, unit, i, row);
      }
    });
  }

  /// The first `resident` pieces of each unit block's weights to shared memory.
  MILLRACE_DEVICE void load_weights(const std::byte* from, std::byte* to, int chunks, int resident, int piece_bytes) const {
    const int words = piece_bytes / 16;
    for (int unit = 0; unit < units_; ++unit) {
      const auto* one = reinterpret_cast<const Words4*>(from) + std::int64_t{first_unit_ + unit} * chunks * words;
      auto* const there = reinterpret_cast<Words4*>(to) + unit * resident * words;
      each(resident * words, [&](int i) { there[i] = one[i]; });
    }
  }

  /// `count` tiles of a slab, `words` times 16 bytes each, to shared memory; `from`: the slab's first tile. Several loads are on their way before the
  /// first is stored: each takes as long as the second cache is away.
  MILLRACE_DEVICE void copy_tiles(const std::byte* from, std::byte* shared, int words, int count) const {
    constexpr int at_once = 8;
    const int all = count * words;
    const int apart = steps_.group.warps * warp_lanes;
    const std::int64_t to_next = (std::int64_t{steps_.group.groups} - 1) * words * 16;  // from behind a tile to the group's next one
    auto* const to = reinterpret_cast<Words4*>(shared);
    warp_.each_lane([&](int lane) {
      int at = warp_.warp() * warp_lanes + lane;
      int end = words;  // of the tile that `at` is in
      const std::byte* tile = from;
      while (at < all) {
        Words4 found[at_once];
        const int begin = at;
        MILLRACE_UNROLLED for (int i = 0; i < at_once; ++i, at += apart) {
          if (at >= all) continue;
          for (; at >= end; end += words) tile += to_next;
          found[i] = load_shared_by_blocks(tile + std::int64_t{at} * 16);
        }
        MILLRACE_UNROLLED for (int i = 0; i < at_once; ++i) if (begin + i * apart < all) to[begin + i * apart] = found[i];
      }
    });
  }

  const StepArguments& steps_;
  Warp& warp_;
  Group<> meet_;
  int all_units_, group_, rank_;
  int first_unit_, units_;   ///< unit blocks of this block
  int step_ = 0, live_ = 0;  ///< `live_`: rows of the step
  std::int64_t begin_ = 0;   ///< the first of them
  int tiles_ = 0;            ///< of the group in this step
  Task first_ = {};          ///< of this warp in a step

 private:
  PhaseClock<TIMED> clock_;
  MILLRACE_DEVICE Own& own() { return static_cast<Own&>(*this); }
  /// Steps before the last sequence of this group ends.
  MILLRACE_DEVICE int own_steps() const {
    int step = 0;
    while (step < steps_.group.steps && rows_of(step) > group_ * 8) ++step;
    return step;
  }

  template <int S>
  MILLRACE_DEVICE void take() {
    if constexpr (S < Own::stages) {
      typename Own::Asked asked;
      const int staged = steps_.staged, tiles = tiles_;
      own().template ask<S>(first_, asked);
      lap(StepPhase::ask);
      meet_.wait();
      lap(StepPhase::wait);
      // The late stores of other blocks, which belong to the step before, come before their next arrival.
      if (S == 0 && step_ % steps_.group.published == 0) meet_.close(Own::late && step_ > 0 ? step_ - 1 : step_);
      for (int first = 0; first < tiles; first += staged) {
        const int count = tiles - first < staged ? tiles - first : staged;
        if (first > 0) meet_.sync();  // all are through with the slab before
        own().template copy<S>(first, count);
        meet_.sync();
        lap(StepPhase::copy);
        own().template compute<S>(first, count, asked);
      }
      meet_.arrive();
      lap(StepPhase::arrive);
      own().template after<S>();
      take<S + 1>();
    }
  }
};

}  // namespace millrace::cuda
