// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/recurrent/group.cuh>
#include <millrace/kernels/cuda/with_cuda/lstm_worker.cuh>

/// The kernel of kernels/lstm_sequence.h whose weights do not move: warps hold them in registers, and what these lack lies in shared memory. The
/// blocks of a cluster hand h to each other's shared memory, so that no step waits for the second cache. f16 and bf16, the usual functions.
///
/// A block has whole chunks of 16 units, which are two unit blocks of 8. A unit block has a *pair* with each chain of 128 k. Pairs are dealt to the
/// warps, and each gives the sums of its chain to shared memory; the pointwise part of the block's units is dealt to the warps anew.
namespace millrace::cuda {

template <class T, int HELD, bool TIMED = false>
class HeldLstm {
 public:
  MILLRACE_DEVICE HeldLstm(const LstmArguments& arguments, Warp& warp)
      : a_(arguments), warp_(warp), meet_(arguments.group, warp), clock_(warp) {
    const int blocks = a_.group.blocks, rank = meet_.rank();
    chains_ = (a_.chunks + chain_chunks - 1) / chain_chunks;
    first_chunk_ = static_cast<int>(std::int64_t{a_.chunks} * rank / blocks);
    own_chunks_ = static_cast<int>(std::int64_t{a_.chunks} * (rank + 1) / blocks) - first_chunk_;
    units_ = 2 * own_chunks_;
    most_tiles_ = (a_.tiles + a_.group.groups - 1) / a_.group.groups;
    own_tiles_ = (a_.tiles - meet_.group() + a_.group.groups - 1) / a_.group.groups;
    const HeldParts parts = held_parts(a_.hidden, blocks, most_tiles_, a_.staged, HELD * a_.group.warps);
    to_next_row_ = static_cast<int>(parts.to_next_row);
    to_next_tile_ = static_cast<int>(parts.to_next_tile);
    states_ = warp.shared() + parts.states;
    sums_ = reinterpret_cast<float*>(warp.shared() + parts.sums);
    addends_ = reinterpret_cast<float*>(warp.shared() + parts.addends);
    cells_ = reinterpret_cast<float*>(warp.shared() + parts.cells);
    bias_ = reinterpret_cast<float*>(warp.shared() + parts.bias);
    arrivals_ = warp.shared() + parts.words;
    told_ = reinterpret_cast<std::uint32_t*>(arrivals_ + 16);
    offsets_ = reinterpret_cast<std::int64_t*>(arrivals_ + 32);
  }

  /// Warps beside those that compute, which leave them their registers; one of them publishes.
  static constexpr int publishing = 4;

  MILLRACE_DEVICE void run() {
    if (meet_.computes()) {
      warp_.more_registers();
      begin();
      warp_.cluster_arrive();
      warp_.cluster_wait();
      for (; step_ < steps_; ++step_) take();
      clock_.store(warp_, a_.phases);
      tell(a_.group.steps);
    } else {
      warp_.fewer_registers();
      warp_.cluster_arrive();
      warp_.cluster_wait();
      if (a_.group.watermark != nullptr && warp_.warp() == a_.group.warps) meet_.publish_told(told_);
    }
  }

 private:
  static constexpr int chunk_k = Arithmetic<T>::chunk;
  static constexpr int chain_chunks = Arithmetic<T>::chain / chunk_k;
  static constexpr int chunk_words = static_cast<int>(lstm_weight_bytes) / 16;  // of a unit block's weights
  static constexpr bool approximates = lstm_approximates(dtype_of<T>);
  struct Weights {
    Words4 at[HELD][chain_chunks][2];  // by two gates
  };
  template <int TILES>
  using Sums = PerLane<ProductSums<4, TILES>>;

  // ---- Before the first step ----

  MILLRACE_DEVICE void begin() {
    steps_ = own_steps();
    load_weights();
    clear_states();
    meet_.sync();
    load_states();
    clear_rest();
    warp_.each_lane([&](int lane) {
      if (warp_.warp() > 0 || lane > 0) return;
      for (int i = 0; i < 3; ++i) offsets_[i] = *offset(i);
      store_release_block(told_, 0);
      if (!shares()) return;
      for (int i = 0; i < 2; ++i) warp_.arrivals_begin(arrivals_of(i));
      for (int step = 1; step < 3 && step < steps_; ++step) warp_.arrivals_expect(arrivals_of(step), arriving());
    });
    const std::int64_t first = *offset(0);
    live_ = static_cast<int>(*offset(1) - first);
    ask(0, first, live_);
    until_told_ = a_.group.published;
  }

  MILLRACE_DEVICE bool shares() const { return a_.group.kind == 1; }
  MILLRACE_DEVICE std::byte* arrivals_of(int step) const { return arrivals_ + (step & 1) * 8; }
  /// Bytes of h that other blocks store here for each step.
  MILLRACE_DEVICE int arriving() const { return (a_.chunks - own_chunks_) * static_cast<int>(lstm_state_bytes) * own_tiles_; }

  MILLRACE_DEVICE const std::int64_t* offset(int step) const { return a_.offsets + (step < a_.group.steps ? step : a_.group.steps); }
  MILLRACE_DEVICE std::int64_t slot_of(int row) const { return a_.slots == nullptr ? row : a_.slots[row]; }
  MILLRACE_DEVICE std::int64_t place_from(std::int64_t begin, int row) const {
    return begin + (a_.places == nullptr ? row : a_.places[begin + row]);
  }
  MILLRACE_DEVICE int tile_of(int own) const { return meet_.group() + own * a_.group.groups; }

  /// Steps in which a row of this group lives; no step has more rows than the one before.
  MILLRACE_DEVICE int own_steps() const {
    int from = 0, to = a_.group.steps;
    while (from < to) {
      const int middle = (from + to) / 2;
      if (a_.offsets[middle + 1] - a_.offsets[middle] > meet_.group() * 8)
        from = middle + 1;
      else
        to = middle;
    }
    return from;
  }

  MILLRACE_DEVICE int pairs() const { return units_ * chains_; }
  /// Weights of a pair, and zeros where the matrix ends.
  MILLRACE_DEVICE Words4 weights_of(int pair, int chunk, int gates, int lane) const {
    const int unit = first_chunk_ * 2 + pair / chains_, k = pair % chains_ * chain_chunks + chunk;
    if (pair >= pairs() || unit >= a_.unit_blocks || k >= a_.chunks) return Words4{};
    return reinterpret_cast<const Words4*>(a_.weights)[(std::int64_t{unit} * a_.chunks + k) * chunk_words + gates * warp_lanes + lane];
  }
  MILLRACE_DEVICE void load_weights() {
    const int warps = a_.group.warps;
    MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) MILLRACE_UNROLLED for (int chunk = 0; chunk < chain_chunks; ++chunk)
        MILLRACE_UNROLLED for (int gates = 0; gates < 2; ++gates)
            warp_.each_lane([&](int lane) { held_[lane].at[i][chunk][gates] = weights_of(warp_.warp() + i * warps, chunk, gates, lane); });
    auto* const to = reinterpret_cast<Words4*>(warp_.shared());
    for (int pair = warp_.warp() + HELD * warps; pair < pairs(); pair += warps)
      for (int chunk = 0; chunk < chain_chunks; ++chunk)
        for (int gates = 0; gates < 2; ++gates)
          warp_.each_lane([&](int lane) {
            to[((pair - HELD * warps) * chain_chunks + chunk) * chunk_words + gates * warp_lanes + lane] =
                weights_of(pair, chunk, gates, lane);
          });
    for (int gate = 0; gate < 4; ++gate)
      each(units_ * 8, [&](int i) {
        const int unit = first_chunk_ * chunk_k + i;
        bias_[gate * units_ * 8 + i] = a_.bias != nullptr && unit < a_.hidden ? a_.bias[gate * a_.hidden + unit] : 0.0f;
      });
  }

  /// f(i) for each i below `count`, dealt to the lanes of the block.
  template <class F>
  MILLRACE_DEVICE void each(int count, F&& f) const {
    warp_.each_lane([&](int lane) {
      for (int i = warp_.warp() * warp_lanes + lane; i < count; i += a_.group.warps * warp_lanes) f(i);
    });
  }

  MILLRACE_DEVICE std::byte* state(int step, int tile) const { return states_ + ((step & 1) * most_tiles_ + tile) * to_next_tile_; }
  /// What k lacks is zeros, and stays so.
  MILLRACE_DEVICE void clear_states() const {
    each(2 * most_tiles_ * to_next_tile_ / 16, [&](int i) { reinterpret_cast<Words4*>(states_)[i] = Words4{}; });
  }
  MILLRACE_DEVICE void load_states() const {
    if (steps_ == 0) return;
    const auto rows = static_cast<int>(a_.offsets[1] - a_.offsets[0]);
    for (int tile = 0; tile < own_tiles_; ++tile) {
      each(8 * a_.hidden, [&](int i) {
        const int row = tile_of(tile) * 8 + i / a_.hidden, unit = i % a_.hidden;
        if (row < rows)
          reinterpret_cast<T*>(state(0, tile))[factor_place<T>(unit, row % 8)] =
              static_cast<const T*>(a_.h)[slot_of(row) * a_.h_row + unit];
      });
      for (int unit = 0; unit < units_; ++unit)
        each(64, [&](int i) {
          const int row = tile_of(tile) * 8 + i % 4 * 2 + i / 32, own = first_chunk_ * chunk_k + unit * 8 + i % 32 / 4;
          cells_[(unit * most_tiles_ + tile) * 64 + i] = row < rows && own < a_.hidden ? a_.c.get(slot_of(row) * a_.c_row + own) : 0.0f;
        });
    }
  }

  /// Rows that the steps might have had are zeros: what follows in a graph goes through all that there is room for.
  MILLRACE_DEVICE void clear_rest() const {
    const std::int64_t begin = a_.offsets[a_.group.steps];
    const std::int64_t count = (a_.rows_room - begin) * a_.hidden;
    const std::int64_t apart = std::int64_t{a_.group.blocks} * a_.group.groups * a_.group.warps * warp_lanes;
    warp_.each_lane([&](int lane) {
      for (std::int64_t i = (std::int64_t{warp_.block()} * a_.group.warps + warp_.warp()) * warp_lanes + lane; i < count; i += apart) {
        const std::int64_t row = begin + i / a_.hidden;
        static_cast<T*>(a_.y)[row * a_.y_row + i % a_.hidden] = T{};
        if (a_.c_steps.data != nullptr) a_.c_steps.set(row * a_.c_steps_row + i % a_.hidden, 0);
      }
    });
  }

  // ---- A step ----

  MILLRACE_DEVICE void take() {
    begin_ = offsets_[step_ & 7];
    const std::int64_t next = offsets_[(step_ + 1) & 7];
    live_ = static_cast<int>(next - begin_);
    next_live_ = static_cast<int>(offsets_[(step_ + 2) & 7] - next);
    ask(step_ + 1, next, next_live_);
    clock_.lap(warp_, StepPhase::ask);
    if (shares() && step_ > 0) {
      warp_.arrivals_wait(arrivals_of(step_), ((step_ - 1) >> 1 & 1) != 0);
      if (step_ + 2 < steps_ && warp_.warp() == 0)
        warp_.each_lane([&](int lane) {
          if (lane == 0) warp_.arrivals_expect(arrivals_of(step_), arriving());
        });
    }
    clock_.lap(warp_, StepPhase::wait);
    int tiles = own_tiles_;
    while (tile_of(tiles - 1) * 8 >= live_) --tiles;
    for (int first = 0; first < tiles; first += a_.staged) {
      const int count = tiles - first < a_.staged ? tiles - first : a_.staged;
      if (first > 0) meet_.sync();  // the sums of the slab before are taken
      int tile = 0;
      for (; tile + 1 < count; tile += 2) multiply<2>(first, tile);
      if (tile < count) multiply<1>(first, tile);
      if (first == 0) warp_.copies_wait();
      clock_.lap(warp_, StepPhase::product);
      meet_.sync();
      clock_.lap(warp_, StepPhase::copy);
      finish_slab(first, count);
      clock_.lap(warp_, StepPhase::pointwise);
    }
    meet_.sync();
    if (shares() && step_ + 1 < steps_) hand_on();
    if (--until_told_ == 0) {
      until_told_ = a_.group.published;
      tell(step_ + 1);
    }
    clock_.lap(warp_, StepPhase::arrive);
  }
  /// The pointwise part of `count` tiles. Where there are warps enough, each takes one row of a lane, else two.
  MILLRACE_DEVICE void finish_slab(int first, int count) {
    const int warps = a_.group.warps;
    const bool apart = units_ * count * 2 <= warps;
    if (count != tiles_of_place_) {
      tiles_of_place_ = count;
      const int which = apart ? warp_.warp() >> 1 : warp_.warp();
      unit_ = which / count;
      tile_ = which % count;
    }
    if (apart) {
      if (unit_ < units_) finish<1>(unit_, first, tile_, warp_.warp() & 1);
      return;
    }
    for (int unit = unit_, tile = tile_; unit < units_;) {
      finish<2>(unit, first, tile, 0);
      for (tile += warps; tile >= count; tile -= count) ++unit;
    }
  }

  /// The rows that are added to the sums of `step`, which are not waited for. One group of copies, whether or not there are any.
  MILLRACE_DEVICE void ask(int step, std::int64_t begin, int rows) const {
    if (warp_.warp() == a_.group.warps - 1)
      warp_.each_lane([&](int lane) {
        if (lane == 0)
          warp_.copy_8(reinterpret_cast<std::byte*>(offsets_ + ((step + 3) & 7)), reinterpret_cast<const std::byte*>(offset(step + 3)));
      });
    const auto* const from = static_cast<const float*>(a_.projection.data);
    const int apart = a_.wide_copies ? 4 : 1;  // floats
    if (step < steps_)
      for (int tile = 0; tile < own_tiles_; ++tile)
        for (int within = warp_.warp(); within < 8; within += a_.group.warps) {
          const int row = tile_of(tile) * 8 + within;
          if (row >= rows) break;
          const float* const of_row = from + place_from(begin, row) * a_.projection_row + first_chunk_ * chunk_k;
          float* const to = addend(step, tile, within);
          warp_.each_lane([&](int lane) {
            const int gate = lane / 8;
            for (int i = lane % 8 * apart; i < units_ * 8; i += 8 * apart) {
              if (first_chunk_ * chunk_k + i >= a_.hidden) continue;
              auto* const there = reinterpret_cast<std::byte*>(to + gate * units_ * 8 + i);
              const auto* const here = reinterpret_cast<const std::byte*>(of_row + std::int64_t{gate} * a_.hidden + i);
              if (a_.wide_copies)
                warp_.copy_16(there, here);
              else
                warp_.copy_4(there, here);
            }
          });
        }
    warp_.copies_end();
  }
  MILLRACE_DEVICE float* addend(int step, int tile, int row) const {
    return addends_ + (((step & 1) * most_tiles_ + tile) * 8 + row) * to_next_row_;
  }

  /// The sums of all pairs of a warp for `TILES` tiles of a slab.
  template <int TILES>
  MILLRACE_DEVICE void multiply(int first, int tile) {
    const int warps = a_.group.warps;
    const std::byte* const rows = state(step_, first + tile);
    int pair = warp_.warp();
    int chain = pair % chains_;
    const auto to_next_pair = [&] {
      pair += warps;
      for (chain += warps; chain >= chains_;) chain -= chains_;
    };
    Sums<TILES> sums[HELD];
    const std::byte* of_pair[HELD];
    MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) {
      of_pair[i] = rows + chain * chain_chunks * lstm_state_bytes;
      zero(sums[i]);
      to_next_pair();
    }
    MILLRACE_UNROLLED for (int chunk = 0; chunk < chain_chunks; ++chunk) MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) {
      PerLane<Words4> w[2];
      MILLRACE_UNROLLED for (int gates = 0; gates < 2; ++gates)
          warp_.each_lane([&](int lane) { w[gates][lane] = held_[lane].at[i][chunk][gates]; });
      add(sums[i], w, of_pair[i] + chunk * lstm_state_bytes);
    }
    MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) if (warp_.warp() + i * warps < pairs()) store(warp_.warp() + i * warps, tile, sums[i]);
    for (; pair < pairs(); to_next_pair()) {
      const auto* const weights = reinterpret_cast<const Words4*>(warp_.shared()) + (pair - HELD * warps) * chain_chunks * chunk_words;
      zero(sums[0]);
      MILLRACE_UNROLLED for (int chunk = 0; chunk < chain_chunks; ++chunk) {
        PerLane<Words4> w[2];
        MILLRACE_UNROLLED for (int gates = 0; gates < 2; ++gates)
            warp_.each_lane([&](int lane) { w[gates][lane] = weights[chunk * chunk_words + gates * warp_lanes + lane]; });
        add(sums[0], w, rows + (chain * chain_chunks + chunk) * lstm_state_bytes);
      }
      store(pair, tile, sums[0]);
    }
  }
  template <int TILES>
  MILLRACE_DEVICE void zero(Sums<TILES>& sums) const {
    warp_.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < 8 * TILES; ++i) sums[lane].at[i] = 0; });
  }
  template <int TILES>
  MILLRACE_DEVICE void add(Sums<TILES>& sums, const PerLane<Words4> (&weights)[2], const std::byte* rows) const {
    MILLRACE_UNROLLED for (int tile = 0; tile < TILES; ++tile) {
      PerLane<Words2> h;
      warp_.each_lane([&](int lane) { h[lane] = reinterpret_cast<const Words2*>(rows + tile * to_next_tile_)[lane]; });
      MILLRACE_UNROLLED for (int gates = 0; gates < 2; ++gates) mma<T>(sums, tile * 8 + gates * 4, weights[gates], h);
    }
  }
  template <int TILES>
  MILLRACE_DEVICE void store(int pair, int tile, const Sums<TILES>& sums) const {
    float* const to = sums_ + (pair * a_.staged + tile) * 256;
    warp_.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < 8 * TILES; ++i) to[i * warp_lanes + lane] = sums[lane].at[i]; });
  }

  template <int ROWS>
  struct Finished {
    float c[ROWS];
    T h[ROWS];
  };
  /// `ROWS` rows of each lane, from row 2q + `which` of a tile on, of a unit block: from the sums to c and h, y and what leaves the kernel.
  template <int ROWS>
  MILLRACE_DEVICE void finish(int unit, int first, int tile, int which) const {
    const float* const sums = sums_ + (unit * chains_ * a_.staged + tile) * 256;
    const int own = first + tile, row_of_tile = tile_of(own) * 8;
    float* const cells = cells_ + (unit * most_tiles_ + own) * 64;
    PerLane<Finished<ROWS>> made;
    warp_.each_lane([&](int lane) {
      float a[ROWS][4];
      MILLRACE_UNROLLED for (int i = 0; i < ROWS; ++i) {
        const float* from = sums + (which + i) * warp_lanes + lane;
        MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[i][gate] = from[gate * 2 * warp_lanes];
        MILLRACE_UNROLLED_BY_4 for (int chain = 1; chain < chains_; ++chain) {
          from += a_.staged * 256;
          MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[i][gate] = a[i][gate] + from[gate * 2 * warp_lanes];
        }
        if (a_.bias != nullptr)
          MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[i][gate] = a[i][gate] + bias_[(gate * units_ + unit) * 8 + lane / 4];
        const float* const added = addend(step_, own, lane % 4 * 2 + which + i) + unit * 8 + lane / 4;
        MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[i][gate] = a[i][gate] + added[gate * units_ * 8];
        made[lane].c[i] = cells[(which + i) * warp_lanes + lane];
      }
      MILLRACE_UNROLLED for (int i = 0; i < ROWS; ++i) made[lane].h[i] =
          narrowed<T>(LstmFunctions<float>::usual<approximates>(a[i], made[lane].c[i]));
    });
    warp_.each_lane([&](int lane) {
      const int in_block = first_chunk_ * chunk_k + unit * 8 + lane / 4;
      if (in_block >= a_.hidden) return;
      MILLRACE_UNROLLED for (int i = 0; i < ROWS; ++i) {
        const int within = lane % 4 * 2 + which + i, row = row_of_tile + within;
        if (row >= live_) continue;
        const int place_of_h = factor_place<T>(in_block, within);
        const std::int64_t at = place_from(begin_, row);
        float c = a_.c_out.rounded(made[lane].c[i]);
        T h = made[lane].h[i];
        if (a_.live != nullptr && a_.live[at] == 0) {
          c = cells[(which + i) * warp_lanes + lane];
          h = reinterpret_cast<const T*>(state(step_, own))[place_of_h];
        }
        reinterpret_cast<T*>(state(step_ + 1, own))[place_of_h] = h;
        cells[(which + i) * warp_lanes + lane] = c;
        static_cast<T*>(a_.y)[at * a_.y_row + in_block] = h;
        if (a_.c_steps.data != nullptr) a_.c_steps.set(at * a_.c_steps_row + in_block, c);
        if (row < next_live_) continue;
        const std::int64_t slot = slot_of(row);
        a_.c_out.set(slot * a_.c_out_row + in_block, c);
        static_cast<T*>(a_.h_out)[slot * a_.h_out_row + in_block] = h;
      }
    });
  }

  /// This block's h to all others.
  MILLRACE_DEVICE void hand_on() const {
    const int others = a_.group.blocks - 1, warps = a_.group.warps;
    for (int tile = 0; tile < own_tiles_; ++tile)
      for (int chunk = 0; chunk < own_chunks_; chunk += 2) {
        auto* const from = reinterpret_cast<Words4*>(state(step_ + 1, tile) + (first_chunk_ + chunk) * lstm_state_bytes);
        warp_.each_lane([&](int lane) {
          if (lane >= 16 && chunk + 1 == own_chunks_) return;
          const Words4 words = from[lane];
          for (int other = warp_.warp(); other < others; other += warps) {
            const int rank = meet_.rank() + 1 + other;
            warp_.store_to_block(rank < a_.group.blocks ? rank : rank - a_.group.blocks, reinterpret_cast<std::byte*>(from + lane), words,
                                 arrivals_of(step_ + 1));
          }
        });
      }
  }
  MILLRACE_DEVICE void tell(int steps) const {
    if (a_.group.watermark == nullptr || warp_.warp() > 0) return;
    warp_.each_lane([&](int lane) {
      if (lane == 0) store_release_block(told_, static_cast<std::uint32_t>(steps));
    });
  }

  const LstmArguments& a_;
  Warp& warp_;
  Group meet_;
  PhaseClock<TIMED> clock_;
  int chains_, first_chunk_, own_chunks_, units_, most_tiles_, own_tiles_, to_next_row_, to_next_tile_;
  std::byte *states_, *arrivals_;
  float *sums_, *addends_, *cells_, *bias_;
  std::uint32_t* told_;
  PerLane<Weights> held_;
  std::int64_t* offsets_;  // of eight steps, by step
  std::int64_t begin_ = 0;
  int steps_ = 0, step_ = 0, live_ = 0, next_live_ = 0, until_told_ = 0;
  int tiles_of_place_ = 0, unit_ = 0, tile_ = 0;  // of so many tiles, the first that this warp finishes
};

}  // namespace millrace::cuda
