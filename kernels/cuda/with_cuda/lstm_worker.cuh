// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/lstm_sequence.h>
#include <millrace/kernels/cuda/with_cuda/lstm_functions.cuh>
#include <millrace/kernels/cuda/with_cuda/mma.cuh>

/// The kernel of kernels/lstm_sequence.h: what one warp does. Packed weights, h between blocks, and sums go by *tiles* of 8 rows, *unit blocks* of 8
/// units with their 4 gates, and *chunks* of k. A lane 4g + q has unit g of its unit block and rows 2q and 2q + 1 of its tile, from the sums to h.
namespace millrace::cuda {

struct LstmArguments {
  const std::byte* weights;                       // [unit blocks][chunks] pieces
  const float *bias, *peepholes;                  // or null
  Elements<float> projection, c, c_out, c_steps;  // c_steps: or null
  const std::uint8_t* live;                       // or null; by row of `projection`: whether it steps
  const void* h;
  void *h_out, *y;
  std::int64_t projection_row, c_row, c_out_row, h_row, h_out_row, y_row, c_steps_row;
  const std::int64_t* offsets;         // of this launch's steps
  const std::int64_t *places, *slots;  // or null; places by row of `projection`
  std::byte* exchange;                 // [2][tiles][chunks] pieces of h
  std::uint32_t* arrived;              // by group, a line apart
  std::uint32_t* closed;               // by step: groups that are through with all up to it, where that is published
  std::uint64_t* watermark;            // or null
  std::uint64_t done_before;           // steps of launches before
  int hidden, unit_blocks, chunks, tiles, steps;
  LstmSchedule::Group group;
  int blocks, groups, ways, staged, resident;
  int published;           // together: so many steps
  std::int64_t rows_room;  // that y has, where the last step may end before; else 0
  LstmFunctions<float> functions;
};

inline constexpr int words_a_line = 32;

template <int TILES>
struct LstmSums {
  float at[TILES * 8];  // by tile, gate, row 2q or 2q + 1
};

/// What is added to the sums of one product, and the state: asked for before the sums are made, or before the blocks meet.
template <int TILES>
struct LstmAddends {
  float bias[4], peepholes[3];
  float projection[TILES * 2][4], c[TILES * 2];  // by row
};

struct alignas(16) Floats4 {
  float at[4];
};
struct alignas(8) Floats2 {
  float at[2];
};

/// part += weights · h of one chunk. `rows`: the chunk of the first tile; those of the others stand `apart` bytes behind.
template <class T, int TILES>
MILLRACE_DEVICE void multiply_chunk(const Warp& warp, PerLane<LstmSums<TILES>>& part, const std::byte* weights, const std::byte* rows,
                                    std::int64_t apart, int count) {
  if constexpr (!Arithmetic<T>::by_mma) {
    warp.each_lane([&](int lane) {
      for (int k = 0; k < count; ++k) {
        const Floats4 gates = reinterpret_cast<const Floats4*>(weights)[k * 8 + lane / 4];
        const Floats2 h = reinterpret_cast<const Floats2*>(rows)[k * 4 + lane % 4];
        for (int gate = 0; gate < 4; ++gate)
          for (int row = 0; row < 2; ++row)
            part[lane].at[gate * 2 + row] = mul_add(h.at[row], gates.at[gate], part[lane].at[gate * 2 + row]);
      }
    });
  } else {
    PerLane<Words4> low, high;
    warp.each_lane([&](int lane) {
      low[lane] = reinterpret_cast<const Words4*>(weights)[lane];
      high[lane] = reinterpret_cast<const Words4*>(weights)[warp_lanes + lane];
    });
    MILLRACE_UNROLLED for (int tile = 0; tile < TILES; ++tile) {
      PerLane<Words2> h;
      warp.each_lane([&](int lane) { h[lane] = reinterpret_cast<const Words2*>(rows + tile * apart)[lane]; });
      mma<T>(part, tile * 8, low, h);
      mma<T>(part, tile * 8 + 4, high, h);
    }
  }
}

template <class T, int TILES>
class LstmWorker {
 public:
  using Sums = PerLane<LstmSums<TILES>>;
  using Addends = PerLane<LstmAddends<TILES>>;
  using Stored = typename Arithmetic<T>::Stored;

  MILLRACE_DEVICE LstmWorker(const LstmArguments& arguments, Warp& warp) : a_(arguments), warp_(warp) {
    group_ = warp.block() / a_.blocks;
    rank_ = warp.block() % a_.blocks;
    team_ = warp.warp() / a_.ways;
    way_ = warp.warp() % a_.ways;
    first_unit_ = static_cast<int>(std::int64_t{a_.unit_blocks} * rank_ / a_.blocks);
    units_ = static_cast<int>(std::int64_t{a_.unit_blocks} * (rank_ + 1) / a_.blocks) - first_unit_;
    const int most = (a_.unit_blocks + a_.blocks - 1) / a_.blocks;
    staged_ = warp.shared() + std::int64_t{most} * a_.resident * lstm_weight_bytes;
    sums_ = reinterpret_cast<float*>(staged_ + std::int64_t{a_.staged} * a_.chunks * lstm_state_bytes);
  }

  MILLRACE_DEVICE void run() {
    load_weights();
    load_states();
    clear_rest();
    arrive();
    int step = 0;
    for (; step < a_.steps; ++step) {
      live_ = rows_of(step);
      const int tiles = (live_ + 7) / 8;
      if (group_ >= tiles) break;  // no sequence of this group lives on
      next_live_ = step + 1 < a_.steps ? rows_of(step + 1) : 0;
      const int mine = (tiles - group_ + a_.groups - 1) / a_.groups;
      Addends addends;
      ask(step, task_of(0, 0, least_of(a_.staged, mine)), addends);
      wait();
      if (step % a_.published == 0) publish(step);
      take(step, mine, addends);
      arrive();
    }
    wait();
    publish(least_of((step + a_.published - 1) / a_.published * a_.published, a_.steps));
  }

 private:
  static constexpr int chunk_k = Arithmetic<T>::chunk;
  static constexpr int chain_chunks = Arithmetic<T>::chain / chunk_k;

  MILLRACE_DEVICE int rows_of(int step) const { return static_cast<int>(a_.offsets[step + 1] - a_.offsets[step]); }
  MILLRACE_DEVICE std::int64_t slot_of(int row) const { return a_.slots == nullptr ? row : a_.slots[row]; }
  MILLRACE_DEVICE std::byte* exchanged(int side, int tile, int chunk) const {
    return a_.exchange + ((std::int64_t{side} * a_.tiles + tile) * a_.chunks + chunk) * lstm_state_bytes;
  }
  /// Where h of (unit, row) stands in its tile, in elements.
  MILLRACE_DEVICE static int place_in_tile(int unit, int row) {
    const int chunk = unit / chunk_k * static_cast<int>(lstm_state_bytes / static_cast<int>(sizeof(T)));
    if constexpr (!Arithmetic<T>::by_mma) return chunk + unit % chunk_k * 8 + row % 8;
    return chunk + place_in_b<T>(unit % chunk_k, row % 8);
  }
  /// f(i) for each i below `count`, dealt to the lanes of the block.
  template <class F>
  MILLRACE_DEVICE void each(int count, F&& f) const {
    warp_.each_lane([&](int lane) {
      for (int i = warp_.warp() * warp_lanes + lane; i < count; i += warp_.warps() * warp_lanes) f(i);
    });
  }

  MILLRACE_DEVICE void load_weights() const {
    constexpr int words = static_cast<int>(lstm_weight_bytes / 16);
    for (int unit = 0; unit < units_; ++unit) {
      const auto* from = reinterpret_cast<const Words4*>(a_.weights + std::int64_t{first_unit_ + unit} * a_.chunks * lstm_weight_bytes);
      auto* to = reinterpret_cast<Words4*>(warp_.shared()) + unit * a_.resident * words;
      each(a_.resident * words, [&](int i) { to[i] = from[i]; });
    }
  }

  /// h before the first step becomes what the blocks exchange. What k and the rows lack is zeros, on both sides.
  MILLRACE_DEVICE void load_states() const {
    constexpr int elements = static_cast<int>(lstm_state_bytes / static_cast<int>(sizeof(T)));
    const int rows = rows_of(0);
    for (int tile = group_; tile < a_.tiles; tile += a_.groups)
      for (int chunk = rank_; chunk < a_.chunks; chunk += a_.blocks)
        each(elements, [&](int i) {
          const int row = tile * 8 + i % 8;
          const int unit = chunk * chunk_k + i / 8;
          const bool there = row < rows && unit < a_.hidden;
          const int place = place_in_tile(unit, row);
          reinterpret_cast<T*>(exchanged(0, tile, 0))[place] =
              there ? factor_of<T>(static_cast<const Stored*>(a_.h)[slot_of(row) * a_.h_row + unit]) : T{};
          reinterpret_cast<T*>(exchanged(1, tile, 0))[place] = T{};
        });
  }

  /// Rows that the steps might have had are zeros: what follows in a graph goes through all that there is room for.
  MILLRACE_DEVICE void clear_rest() const {
    const std::int64_t begin = a_.offsets[a_.steps];
    const std::int64_t count = (a_.rows_room - begin) * a_.hidden;
    const std::int64_t apart = std::int64_t{a_.blocks} * a_.groups * warp_.warps() * warp_lanes;
    warp_.each_lane([&](int lane) {
      for (std::int64_t i = (std::int64_t{warp_.block()} * warp_.warps() + warp_.warp()) * warp_lanes + lane; i < count; i += apart) {
        const std::int64_t row = begin + i / a_.hidden;
        static_cast<T*>(a_.y)[row * a_.y_row + i % a_.hidden] = T{};
        if (a_.c_steps.data != nullptr) a_.c_steps.set(row * a_.c_steps_row + i % a_.hidden, 0);
      }
    });
  }

  // ---- The blocks of a group meet ----

  MILLRACE_DEVICE std::uint32_t* arrivals() const { return a_.arrived + group_ * words_a_line; }

  /// The count may wrap in a long run; nobody is more than one meeting ahead.
  MILLRACE_DEVICE bool all_arrived(std::uint32_t count) const {
    return static_cast<std::int32_t>(count - meetings_ * static_cast<std::uint32_t>(a_.blocks)) >= 0;
  }
  MILLRACE_DEVICE void arrive() {
    ++meetings_;
    if (a_.group == LstmSchedule::Group::cluster) return warp_.cluster_arrive();
    if (a_.group == LstmSchedule::Group::block) return;
    warp_.sync();
    if (warp_.warp() > 0) return;
    warp_.each_lane([&](int lane) {
      if (lane == 0) add_release(arrivals(), 1);
    });
  }
  MILLRACE_DEVICE void wait() {
    if (a_.group == LstmSchedule::Group::cluster) return warp_.cluster_wait();
    if (a_.group == LstmSchedule::Group::grid && warp_.warp() == 0)
      warp_.each_lane([&](int lane) {
        while (lane == 0 && !all_arrived(load_acquire(arrivals()))) warp_.relax();
      });
    warp_.sync();
  }
  /// The first `steps` steps are closed for this group. The last group to say so raises the watermark: of those that had rows when the steps that
  /// are published together began, since one that left in between wrote some of them.
  MILLRACE_DEVICE void publish(int steps) const {
    if (a_.watermark == nullptr || steps == 0 || rank_ > 0 || warp_.warp() + 1 < warp_.warps()) return;
    const int tiles = (rows_of((steps - 1) / a_.published * a_.published) + 7) / 8;
    const auto groups = static_cast<std::uint32_t>(least_of(tiles, a_.groups));
    warp_.each_lane([&](int lane) {
      if (lane > 0) return;
      if (groups > 1 && add_acquire_release(a_.closed + steps - 1, 1) + 1 < groups) return;
      raise_release(a_.watermark, a_.done_before + static_cast<std::uint64_t>(steps));
    });
  }

  // ---- A step ----

  /// `addends`: of the first product of each warp.
  MILLRACE_DEVICE void take(int step, int tiles, Addends& addends) const {
    for (int first = 0; first < tiles; first += a_.staged) {
      const int count = least_of(a_.staged, tiles - first);
      if (first > 0) warp_.sync();  // all are through with what was staged
      stage(step, first, count);
      warp_.sync();
      compute(step, first, count, addends);
    }
  }

  /// The product of a warp: a unit block of this block, and `tiles` of the staged tiles, from `tile` on. `first`: of the staged ones among the
  /// group's.
  struct Task {
    int unit, first, tile, tiles;
    bool exists;
  };
  MILLRACE_DEVICE Task task_of(int base, int first, int count) const {
    const int across = (count + TILES - 1) / TILES;
    const int task = base + team_;
    const int tile = task % across * TILES;
    return {task / across, first, tile, least_of(TILES, count - tile), task < units_ * across};
  }

  /// Several loads are on their way before the first is stored: each takes as long as the second cache is away.
  MILLRACE_DEVICE void stage(int step, int first, int count) const {
    constexpr int at_once = 8;
    const int words = a_.chunks * static_cast<int>(lstm_state_bytes / 16);
    const int all = count * words;
    const int apart = warp_.warps() * warp_lanes;
    const std::int64_t to_next = (std::int64_t{a_.groups} - 1) * words * 16;  // from behind a tile to the group's next one
    auto* const to = reinterpret_cast<Words4*>(staged_);
    warp_.each_lane([&](int lane) {
      int at = warp_.warp() * warp_lanes + lane;
      int end = words;  // of the tile that `at` is in
      const std::byte* from = exchanged(step & 1, group_ + first * a_.groups, 0);
      while (at < all) {
        Words4 found[at_once];
        const int begin = at;
        MILLRACE_UNROLLED for (int i = 0; i < at_once; ++i, at += apart) {
          if (at >= all) continue;
          for (; at >= end; end += words) from += to_next;
          found[i] = load_shared_by_blocks(from + std::int64_t{at} * 16);
        }
        MILLRACE_UNROLLED for (int i = 0; i < at_once; ++i) if (begin + i * apart < all) to[begin + i * apart] = found[i];
      }
    });
  }

  MILLRACE_DEVICE void compute(int step, int first, int count, Addends& addends) const {
    const int tasks = units_ * ((count + TILES - 1) / TILES);
    const int at_once = warp_.warps() / a_.ways;
    for (int base = 0; base < tasks; base += at_once) {
      const Task task = task_of(base, first, count);
      if (base > 0 || first > 0) ask(step, task, addends);
      ask_states(step, task, addends);
      Sums total;
      if (a_.ways > 1) {
        if (base > 0) warp_.sync();  // the sums of the round before are taken
        if (task.exists) store_chains(task.unit, task.tile);
        warp_.sync();
        if (!task.exists || way_ > 0) continue;
        add_stored(total);
      } else {
        if (!task.exists) continue;
        sum(task.unit, task.tile, total);
      }
      finish(step, task, addends, total);
    }
  }

  /// f(lane, unit, i, row) for each row of a task that lives, i being its place among those of the lane.
  template <class F>
  MILLRACE_DEVICE void each_row(const Task& task, F&& f) const {
    if (!task.exists || way_ > 0) return;
    warp_.each_lane([&](int lane) {
      const int unit = (first_unit_ + task.unit) * 8 + lane / 4;
      if (unit >= a_.hidden) return;
      MILLRACE_UNROLLED for (int i = 0; i < TILES * 2; ++i) {
        const int row = (group_ + (task.first + task.tile + i / 2) * a_.groups) * 8 + lane % 4 * 2 + i % 2;
        if (i / 2 < task.tiles && row < live_) f(lane, unit, i, row);
      }
    });
  }
  MILLRACE_DEVICE std::int64_t place_of(int step, int row) const {
    const std::int64_t begin = a_.offsets[step];
    return begin + (a_.places == nullptr ? row : a_.places[begin + row]);
  }
  /// Asks for what no block writes.
  MILLRACE_DEVICE void ask(int step, const Task& task, Addends& to) const {
    if (!task.exists || way_ > 0) return;
    warp_.each_lane([&](int lane) {
      const int unit = (first_unit_ + task.unit) * 8 + lane / 4;
      MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) to[lane].bias[gate] =
          a_.bias != nullptr && unit < a_.hidden ? a_.bias[gate * a_.hidden + unit] : 0.0f;
      MILLRACE_UNROLLED for (int gate = 0; gate < 3; ++gate) to[lane].peepholes[gate] =
          a_.peepholes != nullptr && unit < a_.hidden ? a_.peepholes[gate * a_.hidden + unit] : 0.0f;
    });
    each_row(task, [&](int lane, int unit, int i, int row) {
      const std::int64_t at = place_of(step, row) * a_.projection_row + unit;
      MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) to[lane].projection[i][gate] =
          a_.projection.get(at + std::int64_t{gate} * a_.hidden);
    });
  }
  MILLRACE_DEVICE void ask_states(int step, const Task& task, Addends& to) const {
    each_row(task, [&](int lane, int unit, int i, int row) {
      const std::int64_t slot = slot_of(row);
      to[lane].c[i] = step == 0 ? a_.c.get(slot * a_.c_row + unit) : a_.c_out.get(slot * a_.c_out_row + unit);
    });
  }

  MILLRACE_DEVICE int chains() const { return (a_.chunks + chain_chunks - 1) / chain_chunks; }

  /// One chain of the products of a unit block and the staged tiles from `tile`.
  MILLRACE_DEVICE void chain(int unit, int tile, int which, Sums& part) const {
    warp_.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < TILES * 8; ++i) part[lane].at[i] = 0; });
    const int last = least_of((which + 1) * chain_chunks, a_.chunks);
    const std::int64_t apart = std::int64_t{a_.chunks} * lstm_state_bytes;
    const auto multiply = [&](int chunk, const std::byte* weights) {
      multiply_chunk<T, TILES>(warp_, part, weights, staged_ + (std::int64_t{tile} * a_.chunks + chunk) * lstm_state_bytes, apart,
                               least_of(chunk_k, a_.hidden - chunk * chunk_k));
    };
    // Two loops, since loads by a pointer that may be of either memory are slower than those of each.
    const int on_chip = least_of(last, a_.resident);
    int chunk = which * chain_chunks;
    MILLRACE_UNROLLED_BY_4 for (; chunk < on_chip; ++chunk)
        multiply(chunk, warp_.shared() + (std::int64_t{unit} * a_.resident + chunk) * lstm_weight_bytes);
    MILLRACE_UNROLLED_BY_4 for (; chunk < last; ++chunk)
        multiply(chunk, a_.weights + (std::int64_t{first_unit_ + unit} * a_.chunks + chunk) * lstm_weight_bytes);
  }

  MILLRACE_DEVICE void sum(int unit, int tile, Sums& total) const {
    chain(unit, tile, 0, total);
    for (int which = 1; which < chains(); ++which) {
      Sums part;
      chain(unit, tile, which, part);
      warp_.each_lane([&](int lane) {
        MILLRACE_UNROLLED for (int i = 0; i < TILES * 8; ++i) total[lane].at[i] = total[lane].at[i] + part[lane].at[i];
      });
    }
  }

  /// Each way makes every so many chains; the first one adds them, ascending.
  MILLRACE_DEVICE float* stored(int which) const { return sums_ + (team_ * chains() + which) * warp_lanes * 8; }
  MILLRACE_DEVICE void store_chains(int unit, int tile) const {
    for (int which = way_; which < chains(); which += a_.ways) {
      Sums part;
      chain(unit, tile, which, part);
      float* to = stored(which);
      warp_.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < 8; ++i) to[i * warp_lanes + lane] = part[lane].at[i]; });
    }
  }
  MILLRACE_DEVICE void add_stored(Sums& total) const {
    warp_.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int i = 0; i < 8; ++i) total[lane].at[i] = stored(0)[i * warp_lanes + lane];
      for (int which = 1; which < chains(); ++which)
        MILLRACE_UNROLLED for (int i = 0; i < 8; ++i) total[lane].at[i] = total[lane].at[i] + stored(which)[i * warp_lanes + lane];
    });
  }

  /// From the sums to c, h and y.
  MILLRACE_DEVICE void finish(int step, const Task& task, const Addends& addends, const Sums& total) const {
    each_row(task, [&](int lane, int unit, int i, int row) {
      const LstmAddends<TILES>& added = addends[lane];
      float sums[4];
      MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) {
        sums[gate] = total[lane].at[i / 2 * 8 + gate * 2 + i % 2];
        if (a_.bias != nullptr) sums[gate] = sums[gate] + added.bias[gate];
        sums[gate] = sums[gate] + added.projection[i][gate];
      }
      float c = added.c[i];
      Stored h = narrowed<Stored>(a_.functions.step(sums, added.peepholes, c));
      const std::int64_t at = place_of(step, row);
      if (a_.live != nullptr && a_.live[at] == 0) {
        c = added.c[i];
        h = h_before(step, unit, row);
      }
      reinterpret_cast<T*>(exchanged((step + 1) & 1, row / 8, 0))[place_in_tile(unit, row)] = factor_of<T>(h);
      const std::int64_t slot = slot_of(row);
      a_.c_out.set(slot * a_.c_out_row + unit, c);
      if (a_.c_steps.data != nullptr) a_.c_steps.set(at * a_.c_steps_row + unit, c);
      static_cast<Stored*>(a_.y)[at * a_.y_row + unit] = h;
      if (row >= next_live_) static_cast<Stored*>(a_.h_out)[slot * a_.h_out_row + unit] = h;
    });
  }

  /// As it was given out, by this block itself: what blocks exchange may be rounded once more, to tf32.
  MILLRACE_DEVICE Stored h_before(int step, int unit, int row) const {
    if (step == 0) return static_cast<const Stored*>(a_.h)[slot_of(row) * a_.h_row + unit];
    return static_cast<const Stored*>(a_.y)[place_of(step - 1, row) * a_.y_row + unit];
  }

  const LstmArguments& a_;
  Warp& warp_;
  std::byte* staged_;
  float* sums_;
  int group_, rank_, first_unit_, units_;
  int team_, way_;  // which warps make a product, and which of them this one is
  int live_ = 0, next_live_ = 0;
  std::uint32_t meetings_ = 0;
};

}  // namespace millrace::cuda
