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
  const void* h;
  void *h_out, *y;
  std::int64_t projection_row, c_row, c_out_row, h_row, h_out_row, y_row, c_steps_row;
  const std::int64_t* offsets;         // of this launch's steps
  const std::int64_t *places, *slots;  // or null; places by row of `projection`
  std::byte* exchange;                 // [2][tiles][chunks] pieces of h
  std::uint32_t* arrived;              // by group, a line apart
  std::uint32_t* closed;               // by step: groups that are through with it
  std::uint64_t* watermark;            // or null
  std::uint64_t done_before;           // steps of launches before
  int hidden, unit_blocks, chunks, tiles, steps;
  LstmSchedule::Group group;
  int blocks, groups, ways, staged, resident;
  LstmFunctions<float> functions;
};

inline constexpr int words_a_line = 32;

template <int TILES>
struct LstmSums {
  float at[TILES * 8];  // by tile, gate, row 2q or 2q + 1
};

/// part += weights · h of one chunk. `rows`: the chunk of the first tile; those of the others stand `apart` bytes behind.
template <class T, int TILES>
MILLRACE_DEVICE void multiply_chunk(const Warp& warp, PerLane<LstmSums<TILES>>& part, const std::byte* weights, const std::byte* rows,
                                    std::int64_t apart, int count) {
  if constexpr (sizeof(T) == 4) {
    warp.each_lane([&](int lane) {
      for (int k = 0; k < count; ++k) {
        const auto* gates = reinterpret_cast<const float*>(weights) + (k * 8 + lane / 4) * 4;
        const auto* h = reinterpret_cast<const float*>(rows) + k * 8 + lane % 4 * 2;
        for (int gate = 0; gate < 4; ++gate)
          for (int row = 0; row < 2; ++row) part[lane].at[gate * 2 + row] = mul_add(h[row], gates[gate], part[lane].at[gate * 2 + row]);
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

  MILLRACE_DEVICE LstmWorker(const LstmArguments& arguments, Warp& warp) : a_(arguments), warp_(warp) {
    group_ = warp.block() / a_.blocks;
    rank_ = warp.block() % a_.blocks;
    first_unit_ = static_cast<int>(std::int64_t{a_.unit_blocks} * rank_ / a_.blocks);
    units_ = static_cast<int>(std::int64_t{a_.unit_blocks} * (rank_ + 1) / a_.blocks) - first_unit_;
    const int most = (a_.unit_blocks + a_.blocks - 1) / a_.blocks;
    staged_ = warp.shared() + std::int64_t{most} * a_.resident * lstm_weight_bytes;
    sums_ = reinterpret_cast<float*>(staged_ + std::int64_t{a_.staged} * a_.chunks * lstm_state_bytes);
  }

  MILLRACE_DEVICE void run() {
    load_weights();
    load_states();
    arrive();
    int step = 0;
    for (; step < a_.steps; ++step) {
      live_ = rows_of(step);
      const int tiles = (live_ + 7) / 8;
      if (group_ >= tiles) break;  // no sequence of this group lives on
      next_live_ = step + 1 < a_.steps ? rows_of(step + 1) : 0;
      wait();
      publish(step);
      take(step, (tiles - group_ + a_.groups - 1) / a_.groups);
      arrive();
    }
    wait();
    publish(step);
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
    if constexpr (sizeof(T) == 4) return chunk + unit % chunk_k * 8 + row % 8;
    return chunk + place_in_b(unit % chunk_k, row % 8);
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
          reinterpret_cast<T*>(exchanged(0, tile, 0))[place] = there ? static_cast<const T*>(a_.h)[slot_of(row) * a_.h_row + unit] : T{};
          reinterpret_cast<T*>(exchanged(1, tile, 0))[place] = T{};
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
  /// The first `steps` steps are closed for this group. The last group to say so raises the watermark.
  MILLRACE_DEVICE void publish(int steps) const {
    if (a_.watermark == nullptr || steps == 0 || rank_ > 0 || warp_.warp() + 1 < warp_.warps()) return;
    const int tiles = (rows_of(steps - 1) + 7) / 8;
    const auto groups = static_cast<std::uint32_t>(least_of(tiles, a_.groups));
    warp_.each_lane([&](int lane) {
      if (lane > 0) return;
      if (groups > 1 && add_acquire_release(a_.closed + steps - 1, 1) + 1 < groups) return;
      raise_release(a_.watermark, a_.done_before + static_cast<std::uint64_t>(steps));
    });
  }

  // ---- A step ----

  MILLRACE_DEVICE void take(int step, int tiles) const {
    for (int first = 0; first < tiles; first += a_.staged) {
      const int count = least_of(a_.staged, tiles - first);
      if (first > 0) warp_.sync();  // all are through with what was staged
      stage(step, first, count);
      warp_.sync();
      compute(step, first, count);
    }
  }

  MILLRACE_DEVICE void stage(int step, int first, int count) const {
    const int words = a_.chunks * static_cast<int>(lstm_state_bytes / 16);
    for (int i = 0; i < count; ++i) {
      const std::byte* from = exchanged(step & 1, group_ + (first + i) * a_.groups, 0);
      auto* to = reinterpret_cast<Words4*>(staged_) + i * words;
      MILLRACE_UNROLLED_BY_4 for (int word = 0; word < words; word += warp_.warps() * warp_lanes)
          each(least_of(words - word, warp_.warps() * warp_lanes),
               [&](int at) { to[word + at] = load_shared_by_blocks(from + (word + at) * 16); });
    }
  }

  MILLRACE_DEVICE void compute(int step, int first, int count) const {
    const int across = (count + TILES - 1) / TILES;
    const int tasks = units_ * across;
    const int at_once = warp_.warps() / a_.ways;
    for (int base = 0; base < tasks; base += at_once) {
      const int task = base + warp_.warp() / a_.ways;
      const int unit = task / across;
      const int tile = task % across * TILES;
      Sums total;
      if (a_.ways > 1) {
        if (base > 0) warp_.sync();  // the sums of the round before are taken
        if (task < tasks) store_chains(unit, tile);
        warp_.sync();
        if (task >= tasks || warp_.warp() % a_.ways > 0) continue;
        add_stored(total);
      } else {
        if (task >= tasks) continue;
        sum(unit, tile, total);
      }
      finish(step, unit, first + tile, least_of(TILES, count - tile), total);
    }
  }

  MILLRACE_DEVICE int chains() const { return (a_.chunks + chain_chunks - 1) / chain_chunks; }

  /// One chain of the products of a unit block and the staged tiles from `tile`.
  MILLRACE_DEVICE void chain(int unit, int tile, int which, Sums& part) const {
    warp_.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < TILES * 8; ++i) part[lane].at[i] = 0; });
    const int last = least_of((which + 1) * chain_chunks, a_.chunks);
    const std::int64_t apart = std::int64_t{a_.chunks} * lstm_state_bytes;
    MILLRACE_UNROLLED_BY_4 for (int chunk = which * chain_chunks; chunk < last; ++chunk) {
      const std::byte* weights = chunk < a_.resident
                                     ? warp_.shared() + (std::int64_t{unit} * a_.resident + chunk) * lstm_weight_bytes
                                     : a_.weights + (std::int64_t{first_unit_ + unit} * a_.chunks + chunk) * lstm_weight_bytes;
      multiply_chunk<T, TILES>(warp_, part, weights, staged_ + (std::int64_t{tile} * a_.chunks + chunk) * lstm_state_bytes, apart,
                               least_of(chunk_k, a_.hidden - chunk * chunk_k));
    }
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
  MILLRACE_DEVICE float* stored(int which) const { return sums_ + (warp_.warp() / a_.ways * chains() + which) * warp_lanes * 8; }
  MILLRACE_DEVICE void store_chains(int unit, int tile) const {
    for (int which = warp_.warp() % a_.ways; which < chains(); which += a_.ways) {
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

  /// From the sums to c, h and y. `first`: the first of the tiles among the group's.
  MILLRACE_DEVICE void finish(int step, int unit_block, int first, int tiles, Sums& total) const {
    warp_.each_lane([&](int lane) {
      const int unit = (first_unit_ + unit_block) * 8 + lane / 4;
      if (unit >= a_.hidden) return;
      float bias[4] = {}, peepholes[3] = {};
      for (int gate = 0; gate < 4 && a_.bias != nullptr; ++gate) bias[gate] = a_.bias[gate * a_.hidden + unit];
      for (int gate = 0; gate < 3 && a_.peepholes != nullptr; ++gate) peepholes[gate] = a_.peepholes[gate * a_.hidden + unit];
      MILLRACE_UNROLLED for (int i = 0; i < TILES * 2; ++i) {
        const int row = (group_ + (first + i / 2) * a_.groups) * 8 + lane % 4 * 2 + i % 2;
        if (i / 2 >= tiles || row >= live_) continue;
        float sums[4];
        for (int gate = 0; gate < 4; ++gate) {
          sums[gate] = total[lane].at[i / 2 * 8 + gate * 2 + i % 2];
          if (a_.bias != nullptr) sums[gate] = sums[gate] + bias[gate];
        }
        finish_row(step, unit, row, sums, peepholes);
      }
    });
  }

  MILLRACE_DEVICE void finish_row(int step, int unit, int row, float (&sums)[4], const float (&peepholes)[3]) const {
    const std::int64_t begin = a_.offsets[step];
    const std::int64_t at = begin + (a_.places == nullptr ? row : a_.places[begin + row]);
    for (int gate = 0; gate < 4; ++gate)
      sums[gate] = sums[gate] + a_.projection.get(at * a_.projection_row + std::int64_t{gate} * a_.hidden + unit);
    const std::int64_t slot = slot_of(row);
    float c = step == 0 ? a_.c.get(slot * a_.c_row + unit) : a_.c_out.get(slot * a_.c_out_row + unit);
    const T h = narrowed<T>(a_.functions.step(sums, peepholes, c));
    a_.c_out.set(slot * a_.c_out_row + unit, c);
    if (a_.c_steps.data != nullptr) a_.c_steps.set(at * a_.c_steps_row + unit, c);
    reinterpret_cast<T*>(exchanged((step + 1) & 1, row / 8, 0))[place_in_tile(unit, row)] = h;
    static_cast<T*>(a_.y)[at * a_.y_row + unit] = h;
    if (row >= next_live_) static_cast<T*>(a_.h_out)[slot * a_.h_out_row + unit] = h;
  }

  const LstmArguments& a_;
  Warp& warp_;
  std::byte* staged_;
  float* sums_;
  int group_, rank_, first_unit_, units_;
  int live_ = 0, next_live_ = 0;
  std::uint32_t meetings_ = 0;
};

}  // namespace millrace::cuda
