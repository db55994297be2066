// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/recurrent/group.cuh>
#include <millrace/kernels/cuda/with_cuda/lstm_worker.cuh>

/// The kernel of kernels/lstm_sequence.h whose weights do not move: warps hold them in registers, and shared memory holds the rest of them. The
/// blocks of a cluster hand h to each other's shared memory, so that no step waits for the second cache. f16 and bf16, the usual functions.
///
/// A block has whole chunks of 16 units, which are two unit blocks of 8. A unit block has a *pair* with each chain of 128 k. Pairs are dealt to the
/// computing warps, and each gives the sums of its chain to shared memory; the pointwise part of the block's units is dealt to these warps anew. Three
/// helper warps copy the addends of the sums to shared memory, two steps ahead, and store y, c and the last states. One more warp publishes.
namespace millrace::cuda {

/// `GRID`: the blocks of a group hand h on through global memory, else through the shared memory of a cluster.
template <class T, int HELD, bool GRID, bool TIMED = false>
class HeldLstm {
 public:
  static constexpr int warps = held_warps;
  /// Warps beside those that compute, which leave them their registers.
  static constexpr int publishing = 4;

  MILLRACE_DEVICE HeldLstm(const LstmArguments& arguments, Warp& warp)
      : a_(arguments), warp_(warp), meet_(arguments.group, warp), clock_(warp) {
    const int blocks = a_.group.blocks, rank = meet_.rank();
    chains_ = (a_.chunks + chain_chunks - 1) / chain_chunks;
    first_chunk_ = static_cast<int>(std::int64_t{a_.chunks} * rank / blocks);
    own_chunks_ = static_cast<int>(std::int64_t{a_.chunks} * (rank + 1) / blocks) - first_chunk_;
    units_ = 2 * own_chunks_;
    most_tiles_ = (a_.tiles + a_.group.groups - 1) / a_.group.groups;
    own_tiles_ = (a_.tiles - meet_.group() + a_.group.groups - 1) / a_.group.groups;
    const HeldParts parts = held_parts(a_.hidden, blocks, most_tiles_, a_.staged, HELD * warps);
    to_next_row_ = static_cast<int>(parts.to_next_row);
    to_next_tile_ = static_cast<int>(parts.to_next_tile);
    states_ = warp.shared() + parts.states;
    sums_ = reinterpret_cast<float*>(warp.shared() + parts.sums);
    addends_ = reinterpret_cast<float*>(warp.shared() + parts.addends);
    cells_ = reinterpret_cast<float*>(warp.shared() + parts.cells);
    bias_ = reinterpret_cast<float*>(warp.shared() + parts.bias);
    masks_ = reinterpret_cast<std::uint8_t*>(warp.shared() + parts.masks);
    arrivals_ = warp.shared() + parts.words;
    told_ = reinterpret_cast<std::uint32_t*>(arrivals_ + 16);
    counts_ = reinterpret_cast<int*>(arrivals_ + 32);
    offsets_ = reinterpret_cast<std::int64_t*>(arrivals_ + 48);
    steps_ = own_steps();
    rounds_ = steps_ == 1 ? 2 : steps_;
  }

  MILLRACE_DEVICE void run() {
    prepare();
    warp_.cluster_arrive();
    warp_.cluster_wait();
    if (meet_.computes()) {
      warp_.more_registers();
      settle();
      load_weights();
      load_states();
      clear_rest<T>(a_, warp_);
      meet_helpers();
      for (; step_ < steps_; ++step_) take();
      if (steps_ == 1) receive(0);
      meet_helpers();
      clock_.store(warp_, a_.phases);
      meet_helpers();
    } else {
      warp_.fewer_registers();
      helper_ = warp_.warp() - warps - 1;
      if (helper_ >= 0)
        help();
      else if (a_.group.watermark != nullptr)
        meet_.publish_told(told_);
    }
  }

 private:
  static constexpr int chunk_k = Arithmetic<T>::chunk;
  static constexpr int chain_chunks = recurrent_chain / chunk_k;
  static constexpr int chunk_words = static_cast<int>(lstm_weight_bytes) / 16;  // of a unit block's weights
  static constexpr int state_bytes = static_cast<int>(lstm_state_bytes);
  static constexpr int helpers = 3;
  static constexpr bool approximates = lstm_approximates(dtype_of<T>);
  struct Weights {
    Words4 at[HELD][chain_chunks][2];  // by two gates
  };
  template <int TILES>
  using Sums = PerLane<ProductSums<4, TILES>>;

  /// Blocks store h to each other's shared memory, or to global memory.
  MILLRACE_DEVICE bool shares() const { return !GRID && a_.group.blocks > 1; }
  /// Before the first step, before the pointwise part of each, and behind the last one.
  MILLRACE_DEVICE void meet_helpers() const { warp_.sync_with_helpers(warps + helpers); }
  MILLRACE_DEVICE std::byte* arrivals_of(int step) const { return arrivals_ + (step & 1) * 8; }
  /// Bytes of h that other blocks store here for each step: of all tiles, whether or not they still live.
  MILLRACE_DEVICE int arriving() const { return (a_.chunks - own_chunks_) * state_bytes * own_tiles_; }
  MILLRACE_DEVICE const std::int64_t* offset(int step) const { return a_.offsets + (step < a_.group.steps ? step : a_.group.steps); }
  MILLRACE_DEVICE int tile_of(int own) const { return meet_.group() + own * a_.group.groups; }
  MILLRACE_DEVICE std::byte* state(int step, int tile) const { return states_ + ((step & 1) * most_tiles_ + tile) * to_next_tile_; }
  /// c of 64 units and rows, two of it as of h: [row % 2][unit][row / 2].
  MILLRACE_DEVICE float* cells(int step, int unit, int tile) const {
    return cells_ + (((step & 1) * units_ + unit) * most_tiles_ + tile) * 64;
  }
  /// `ring`: step modulo 3.
  MILLRACE_DEVICE float* addend(int ring, int tile, int row) const {
    return addends_ + ((ring * most_tiles_ + tile) * 8 + row) * to_next_row_;
  }
  MILLRACE_DEVICE std::uint8_t* mask(int ring, int tile) const { return masks_ + (ring * most_tiles_ + tile) * 8; }
  MILLRACE_DEVICE static int next_ring(int ring) { return ring == 2 ? 0 : ring + 1; }

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

  // ---- Before the first step ----

  /// Clears h and initializes the words, before other blocks of the cluster store anything here. The padding of k stays zero in all steps.
  MILLRACE_DEVICE void prepare() const {
    const int count = 2 * most_tiles_ * to_next_tile_ / 16;
    warp_.each_lane([&](int lane) {
      for (int i = warp_.warp() * warp_lanes + lane; i < count; i += (warps + publishing) * warp_lanes)
        reinterpret_cast<Words4*>(states_)[i] = Words4{};
      if (warp_.warp() > 0 || lane > 0) return;
      store_release_block(told_, 0);
      if (!shares()) return;
      for (int i = 0; i < 2; ++i) warp_.arrivals_begin(arrivals_of(i));
      for (int step = 1; step < 3 && step < rounds_; ++step) warp_.arrivals_expect(arrivals_of(step), arriving());
    });
  }

  /// Weights of a pair, and zeros where the matrix ends.
  MILLRACE_DEVICE Words4 weights_of(int pair, int chunk, int gates, int lane) const {
    const int unit = first_chunk_ * 2 + pair / chains_, k = pair % chains_ * chain_chunks + chunk;
    if (pair >= units_ * chains_ || unit >= a_.unit_blocks || k >= a_.chunks) return Words4{};
    return reinterpret_cast<const Words4*>(a_.weights)[(std::int64_t{unit} * a_.chunks + k) * chunk_words + gates * warp_lanes + lane];
  }
  /// Moves the numbers and addresses of every step to registers of the computing warps. The compiler spills them otherwise, since the helper warps
  /// have fewer registers.
  MILLRACE_DEVICE void settle() {
    blocks_ = warp_.kept(a_.group.blocks);
    staged_ = warp_.kept(a_.staged);
    hidden_ = warp_.kept(a_.hidden);
    has_bias_ = warp_.kept(a_.bias != nullptr ? 1 : 0) != 0;
    has_masks_ = warp_.kept(a_.live != nullptr ? 1 : 0) != 0;
    pairs_ = warp_.kept(units_ * chains_);
    MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) of_chain_[i] =
        warp_.kept((warp_.warp() + i * warps) % chains_ * chain_chunks * state_bytes);
    next_chain_ = warp_.kept((warp_.warp() + HELD * warps) % chains_);
    chains_ = warp_.kept(chains_);
    first_chunk_ = warp_.kept(first_chunk_);
    own_chunks_ = warp_.kept(own_chunks_);
    units_ = warp_.kept(units_);
    most_tiles_ = warp_.kept(most_tiles_);
    own_tiles_ = warp_.kept(own_tiles_);
    to_next_row_ = warp_.kept(to_next_row_);
    to_next_tile_ = warp_.kept(to_next_tile_);
    steps_ = warp_.kept(steps_);
    rounds_ = warp_.kept(rounds_);
    sums_ = warp_.kept(sums_);
    addends_ = warp_.kept(addends_);
    cells_ = warp_.kept(cells_);
    bias_ = warp_.kept(bias_);
    states_ = warp_.kept(states_);
    arrivals_ = warp_.kept(arrivals_);
    counts_ = warp_.kept(counts_);
    masks_ = warp_.kept(masks_);
  }
  MILLRACE_DEVICE void load_weights() {
    MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) MILLRACE_UNROLLED for (int chunk = 0; chunk < chain_chunks; ++chunk)
        MILLRACE_UNROLLED for (int gates = 0; gates < 2; ++gates)
            warp_.each_lane([&](int lane) { held_[lane].at[i][chunk][gates] = weights_of(warp_.warp() + i * warps, chunk, gates, lane); });
    auto* const to = reinterpret_cast<Words4*>(warp_.shared());
    for (int pair = warp_.warp() + HELD * warps; pair < pairs_; pair += warps)
      MILLRACE_ROLLED for (int chunk = 0; chunk < chain_chunks; ++chunk) for (int gates = 0; gates < 2;
                                                                              ++gates) warp_.each_lane([&](int lane) {
        to[((pair - HELD * warps) * chain_chunks + chunk) * chunk_words + gates * warp_lanes + lane] = weights_of(pair, chunk, gates, lane);
      });
    each(units_ * 8, [&](int i) {
      const int unit = first_chunk_ * chunk_k + i;
      const bool there = a_.bias != nullptr && unit < a_.hidden;
      float found[4];
      MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) found[gate] = there ? a_.bias[gate * a_.hidden + unit] : 0.0f;
      MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) bias_[gate * units_ * 8 + i] = found[gate];
    });
  }

  /// f(i) for each i below `count`, dealt to the lanes of the block.
  template <class F>
  MILLRACE_DEVICE void each(int count, F&& f) const {
    warp_.each_lane([&](int lane) {
      for (int i = warp_.warp() * warp_lanes + lane; i < count; i += warps * warp_lanes) f(i);
    });
  }

  /// A warp takes a row of h, or both halves of a unit block's c, at a time. Several loads are under way before the first is stored: one behind the
  /// other, those of h took 20 µs.
  MILLRACE_DEVICE void load_states() const {
    if (steps_ == 0) return;
    constexpr int at_once = 8;
    const auto rows = static_cast<int>(a_.offsets[1] - a_.offsets[0]);
    for (int own = warp_.warp(); own < own_tiles_ * 8; own += warps) {
      const int tile = own / 8, row = tile_of(tile) * 8 + own % 8;
      if (row >= rows) continue;
      const T* const from = static_cast<const T*>(a_.h) + a_.slot_of(row) * a_.h_row;
      T* const to = reinterpret_cast<T*>(state(0, tile));
      warp_.each_lane([&](int lane) {
        MILLRACE_ROLLED for (int begin = lane; begin < a_.hidden; begin += at_once * warp_lanes) {
          T found[at_once];
          MILLRACE_UNROLLED for (int i = 0; i < at_once; ++i) if (begin + i * warp_lanes < a_.hidden) found[i] =
              from[begin + i * warp_lanes];
          MILLRACE_UNROLLED for (int i = 0; i < at_once; ++i) if (begin + i * warp_lanes < a_.hidden)
              to[factor_place<T>(begin + i * warp_lanes, own % 8)] = found[i];
        }
      });
    }
    for (int place = warp_.warp(); place < own_tiles_ * units_; place += warps) {
      const int tile = place / units_, unit = place % units_;
      float* const to = cells(0, unit, tile);
      warp_.each_lane([&](int lane) {
        const int row = tile_of(tile) * 8 + lane % 4 * 2, own = first_chunk_ * chunk_k + unit * 8 + lane / 4;
        float found[2];
        MILLRACE_UNROLLED for (int i = 0; i < 2; ++i) found[i] =
            row + i < rows && own < a_.hidden ? a_.c.get(a_.slot_of(row + i) * a_.c_row + own) : 0.0f;
        MILLRACE_UNROLLED for (int i = 0; i < 2; ++i) to[i * warp_lanes + lane] = found[i];
      });
    }
  }

  // ---- A step ----

  MILLRACE_DEVICE void take() {
    const int tiles = counts_[step_ & 3];
    if (step_ > 0) receive(tiles);
    clock_.lap(warp_, StepPhase::wait);
    for (int first = 0; first < tiles; first += staged_) {
      const int count = tiles - first < staged_ ? tiles - first : staged_;
      if (first > 0) meet_.sync();  // the sums of the slab before are taken
      int tile = 0;
      for (; tile + 1 < count; tile += 2) multiply<2>(first, tile);
      if (tile < count) multiply<1>(first, tile);
      clock_.lap(warp_, StepPhase::product);
      if (first > 0)
        meet_.sync();
      else
        meet_helpers();
      clock_.lap(warp_, StepPhase::copy);
      finish_slab(first, count);
      clock_.lap(warp_, StepPhase::pointwise);
    }
    meet_.sync();
    if (step_ + 1 < rounds_) {
      if constexpr (GRID)
        publish_states();
      else if (blocks_ > 1)
        hand_on();
    }
    ring_ = next_ring(ring_);
    clock_.lap(warp_, StepPhase::arrive);
  }

  /// The other blocks' h for this step.
  MILLRACE_DEVICE void receive(int tiles) {
    if constexpr (GRID) {
      meet_.wait();
      fetch(tiles);
    } else if (blocks_ > 1) {
      warp_.arrivals_wait(arrivals_of(step_), ((step_ - 1) & 2) != 0);
    }
  }

  /// The sums of all pairs of a warp for `TILES` tiles of a slab.
  template <int TILES>
  MILLRACE_DEVICE void multiply(int first, int tile) {
    const std::byte* const rows = state(step_, first + tile);
    Sums<TILES> sums[HELD];
    MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) zero(sums[i]);
    MILLRACE_UNROLLED for (int chunk = 0; chunk < chain_chunks; ++chunk) MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) {
      PerLane<Words4> w[2];
      MILLRACE_UNROLLED for (int gates = 0; gates < 2; ++gates)
          warp_.each_lane([&](int lane) { w[gates][lane] = held_[lane].at[i][chunk][gates]; });
      add(sums[i], w, rows + of_chain_[i] + chunk * state_bytes);
    }
    MILLRACE_UNROLLED for (int i = 0; i < HELD; ++i) if (warp_.warp() + i * warps < pairs_) store(warp_.warp() + i * warps, tile, sums[i]);
    int chain = next_chain_;
    for (int pair = warp_.warp() + HELD * warps; pair < pairs_; pair += warps) {
      const auto* const weights = reinterpret_cast<const Words4*>(warp_.shared()) + (pair - HELD * warps) * chain_chunks * chunk_words;
      zero(sums[0]);
      MILLRACE_UNROLLED for (int chunk = 0; chunk < chain_chunks; ++chunk) {
        PerLane<Words4> w[2];
        MILLRACE_UNROLLED for (int gates = 0; gates < 2; ++gates)
            warp_.each_lane([&](int lane) { w[gates][lane] = weights[chunk * chunk_words + gates * warp_lanes + lane]; });
        add(sums[0], w, rows + (chain * chain_chunks + chunk) * state_bytes);
      }
      store(pair, tile, sums[0]);
      for (chain += warps; chain >= chains_;) chain -= chains_;
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
    float* const to = sums_ + (pair * staged_ + tile) * 256;
    warp_.each_lane([&](int lane) { MILLRACE_UNROLLED for (int i = 0; i < 8 * TILES; ++i) to[i * warp_lanes + lane] = sums[lane].at[i]; });
  }

  /// The pointwise part of `count` tiles. Where there are warps enough, each takes one row of a lane, else two.
  MILLRACE_DEVICE void finish_slab(int first, int count) {
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
  /// The sums of all chains, ascending.
  MILLRACE_DEVICE void add_chains(const float* from, float (&a)[4]) const {
    constexpr int at_once = 4;  // chains whose loads are under way together
    const int apart = staged_ * 256;
    float parts[at_once][4];
    MILLRACE_UNROLLED for (int chain = 0; chain < at_once; ++chain) MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate)
        parts[chain][gate] = chain < chains_ ? from[chain * apart + gate * 2 * warp_lanes] : 0.0f;
    MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[gate] = parts[0][gate];
    MILLRACE_UNROLLED for (int chain = 1; chain < at_once; ++chain) MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[gate] =
        chain < chains_ ? a[gate] + parts[chain][gate] : a[gate];
    MILLRACE_ROLLED for (int chain = at_once; chain < chains_; ++chain) MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[gate] =
        a[gate] + from[chain * apart + gate * 2 * warp_lanes];
  }

  template <int ROWS>
  struct Finished {
    float c[ROWS];
    T h[ROWS];
  };
  /// `ROWS` rows of each lane, from row 2q + `which` of a tile on, of a unit block: from the sums to c and h. The results of rows
  /// that do not live are never read.
  template <int ROWS>
  MILLRACE_DEVICE void finish(int unit, int first, int tile, int which) const {
    const float* const sums = sums_ + (unit * chains_ * staged_ + tile) * 256 + which * warp_lanes;
    const int own = first + tile;
    const float* const before = cells(step_, unit, own) + which * warp_lanes;
    float* const after = cells(step_ + 1, unit, own) + which * warp_lanes;
    const float* const added = addend(ring_, own, which) + unit * 8;
    auto* const to = reinterpret_cast<T*>(state(step_ + 1, own) + (first_chunk_ + unit / 2) * state_bytes);
    warp_.each_lane([&](int lane) {
      Finished<ROWS> made;
      float a[ROWS][4];
      MILLRACE_UNROLLED for (int i = 0; i < ROWS; ++i) {
        add_chains(sums + i * warp_lanes + lane, a[i]);
        if (has_bias_)
          MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[i][gate] = a[i][gate] + bias_[(gate * units_ + unit) * 8 + lane / 4];
        const float* const of_row = added + (lane % 4 * 2 + i) * to_next_row_ + lane / 4;
        MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) a[i][gate] = a[i][gate] + of_row[gate * units_ * 8];
        made.c[i] = before[i * warp_lanes + lane];
      }
      MILLRACE_UNROLLED for (int i = 0; i < ROWS; ++i) made.h[i] = narrowed<T>(LstmFunctions<float>::usual<approximates>(a[i], made.c[i]));
      if ((first_chunk_ * 2 + unit) * 8 + lane / 4 >= hidden_) return;
      MILLRACE_UNROLLED for (int i = 0; i < ROWS; ++i) {
        const int row = lane % 4 * 2 + which + i;
        const int place = place_in_b<T>(unit % 2 * 8 + lane / 4, row);
        float c = a_.c_out.rounded(made.c[i]);
        T h = made.h[i];
        if (has_masks_ && mask(ring_, own)[row] == 0) {
          c = before[i * warp_lanes + lane];
          h = reinterpret_cast<const T*>(state(step_, own) + (first_chunk_ + unit / 2) * state_bytes)[place];
        }
        to[place] = h;
        after[i * warp_lanes + lane] = c;
      }
    });
  }

  /// This block's h to all others.
  MILLRACE_DEVICE void hand_on() const {
    const int others = blocks_ - 1;
    std::byte* const word = arrivals_of(step_ + 1);
    for (int tile = 0; tile < own_tiles_; ++tile)
      for (int chunk = 0; chunk < own_chunks_; chunk += 2) {
        auto* const from = reinterpret_cast<Words4*>(state(step_ + 1, tile) + (first_chunk_ + chunk) * state_bytes);
        warp_.each_lane([&](int lane) {
          if (lane >= 16 && chunk + 1 == own_chunks_) return;
          const Words4 words = from[lane];
          for (int other = warp_.warp(); other < others; other += warps) {
            const int rank = meet_.rank() + 1 + other;
            warp_.store_to_block(rank < blocks_ ? rank : rank - blocks_, reinterpret_cast<std::byte*>(from + lane), words, word);
          }
        });
      }
  }

  MILLRACE_DEVICE std::byte* exchanged(int step, int tile) const {
    return a_.exchange + (std::int64_t{step & 1} * a_.tiles + tile_of(tile)) * a_.chunks * state_bytes;
  }
  /// This block's h to global memory, for the blocks of its group.
  MILLRACE_DEVICE void publish_states() {
    for (int tile = 0; tile < own_tiles_; ++tile) {
      const auto* const from = reinterpret_cast<const Words4*>(state(step_ + 1, tile) + first_chunk_ * state_bytes);
      auto* const to = reinterpret_cast<Words4*>(exchanged(step_ + 1, tile) + first_chunk_ * state_bytes);
      each(own_chunks_ * state_bytes / 16, [&](int i) { to[i] = from[i]; });
    }
    meet_.arrive();
  }
  /// From global memory.
  MILLRACE_DEVICE void fetch(int tiles) const {
    const int own = first_chunk_ * 16, behind = own + own_chunks_ * 16;  // in pieces of 16 bytes
    for (int tile = 0; tile < tiles; ++tile) {
      const std::byte* const from = exchanged(step_, tile);
      std::byte* const to = state(step_, tile);
      each(a_.chunks * 16, [&](int i) {
        if (i < own || i >= behind) warp_.copy_16(to + i * 16, from + i * 16);
      });
    }
    warp_.copies_end();
    warp_.copies_wait_all();
    meet_.sync();
  }

  // ---- Beside the computing warps ----

  MILLRACE_DEVICE void help() {
    if (helper_ == 0)
      warp_.each_lane([&](int lane) {
        if (lane < 5) offsets_[lane] = *offset(lane);
      });
    bring(0, 0, *offset(0), *offset(1));
    bring(1, 1, *offset(1), *offset(2));
    meet_helpers();
    int until_told = a_.group.published;
    for (int ring = 2; step_ < steps_; ++step_, ring = next_ring(ring)) {
      warp_.copies_wait();
      meet_helpers();
      if (step_ > 1 && --until_told == 0) {
        until_told = a_.group.published;
        tell(step_ - 1);
      }
      if (shares() && helper_ == 0 && step_ > 0 && step_ + 2 < steps_)
        warp_.each_lane([&](int lane) {
          if (lane == 0) warp_.arrivals_expect(arrivals_of(step_), arriving());
        });
      bring(step_ + 2, ring, offsets_[(step_ + 2) & 7], offsets_[(step_ + 3) & 7]);
      if (step_ > 0) put(step_ - 1);
    }
    meet_helpers();
    if (steps_ > 0) put(steps_ - 1);
    meet_helpers();
    tell(a_.group.steps);
  }
  /// Steps whose outputs all helpers have stored.
  MILLRACE_DEVICE void tell(int steps) const {
    if (a_.group.watermark == nullptr || helper_ > 0) return;
    warp_.each_lane([&](int lane) {
      if (lane == 0) store_release_block(told_, static_cast<std::uint32_t>(steps));
    });
  }

  /// Starts the copies of the addends of `step` and of an offset three steps later, and stores the masks and the number of tiles of `step`. Each call
  /// ends one group of copies, which may be empty.
  MILLRACE_DEVICE void bring(int step, int ring, std::int64_t begin, std::int64_t end) const {
    if (helper_ == 0)
      warp_.each_lane([&](int lane) {
        if (lane == 0)
          warp_.copy_8(reinterpret_cast<std::byte*>(offsets_ + ((step + 3) & 7)), reinterpret_cast<const std::byte*>(offset(step + 3)));
      });
    if (step < steps_) {
      const auto rows = static_cast<int>(end - begin);
      if (helper_ == 0) {
        int tiles = own_tiles_;
        while (tile_of(tiles - 1) * 8 >= rows) --tiles;
        warp_.each_lane([&](int lane) {
          if (lane == 0) counts_[step & 3] = tiles;
        });
      }
      for (int tile = 0; tile < own_tiles_ && tile_of(tile) * 8 < rows; ++tile) bring_tile(ring, tile, begin, rows);
    }
    warp_.copies_end();
  }
  MILLRACE_DEVICE void bring_tile(int ring, int tile, std::int64_t begin, int rows) const {
    PerLane<std::int64_t> places;
    warp_.each_lane([&](int lane) {
      const int row = tile_of(tile) * 8 + lane % 8;
      places[lane] = row < rows ? a_.place_from(begin, row) : 0;
      if (a_.live != nullptr && helper_ == 0 && lane < 8 && row < rows) mask(ring, tile)[lane] = a_.live[places[lane]];
    });
    const int apart = a_.wide_copies ? 4 : 1;  // floats
    for (int row = helper_; row < 8 && tile_of(tile) * 8 + row < rows; row += helpers) {
      const float* const from =
          static_cast<const float*>(a_.projection.data) + warp_.of_lane(places, row) * a_.projection_row + first_chunk_ * chunk_k;
      float* const to = addend(ring, tile, row);
      const int units = units_ * 8 < a_.hidden - first_chunk_ * chunk_k ? units_ * 8 : a_.hidden - first_chunk_ * chunk_k;
      warp_.each_lane([&](int lane) {
        const int gate = lane / 8;
        for (int i = lane % 8 * apart; i < units; i += 8 * apart) {
          auto* const there = reinterpret_cast<std::byte*>(to + gate * units_ * 8 + i);
          const auto* const here = reinterpret_cast<const std::byte*>(from + gate * a_.hidden + i);
          if (a_.wide_copies)
            warp_.copy_16(there, here);
          else
            warp_.copy_4(there, here);
        }
      });
    }
  }

  /// Stores y of a step, c of the step where it is wanted, and the last states of sequences that end.
  MILLRACE_DEVICE void put(int step) const {
    const std::int64_t begin = offsets_[step & 7], end = offsets_[(step + 1) & 7];
    const auto rows = static_cast<int>(end - begin), next = static_cast<int>(offsets_[(step + 2) & 7] - end);
    int which = 0;
    for (int tile = 0; tile < own_tiles_ && tile_of(tile) * 8 < rows; ++tile)
      for (int chunk = 0; chunk < own_chunks_; ++chunk) {
        if (which == helper_) put_chunk(step, tile, chunk, begin, rows, next);
        which = next_ring(which);
      }
  }
  MILLRACE_DEVICE void put_chunk(int step, int tile, int chunk, std::int64_t begin, int rows, int next) const {
    const auto* const from = reinterpret_cast<const Words2*>(state(step + 1, tile) + (first_chunk_ + chunk) * state_bytes);
    const bool all = a_.c_steps.data != nullptr;
    warp_.each_lane([&](int lane) {
      // A lane has one row, and units 2q, 2q + 1 and those + 8 of the chunk (arithmetic.cuh).
      const int within = lane / 4, row = tile_of(tile) * 8 + within;
      if (row >= rows) return;
      const int unit = (first_chunk_ + chunk) * chunk_k + lane % 4 * 2;
      const std::int64_t at = a_.place_from(begin, row);
      const Words2 words = from[lane];
      T* const y = static_cast<T*>(a_.y) + at * a_.y_row + unit;
      MILLRACE_UNROLLED for (int half = 0; half < 2; ++half) put_two(y + half * 8, words.at[half], unit + half * 8);
      if (!all && row < next) return;
      const std::int64_t slot = a_.slot_of(row);
      MILLRACE_UNROLLED for (int half = 0; half < 2; ++half) {
        const float* const c = cells(step + 1, chunk * 2 + half, tile) + within % 2 * warp_lanes + within / 2;
        MILLRACE_UNROLLED for (int i = 0; i < 2; ++i) {
          const int own = unit + half * 8 + i;
          if (own >= a_.hidden) continue;
          const float value = c[(lane % 4 * 2 + i) * 4];
          if (all) a_.c_steps.set(at * a_.c_steps_row + own, value);
          if (row >= next) a_.c_out.set(slot * a_.c_out_row + own, value);
        }
        if (row >= next) put_two(static_cast<T*>(a_.h_out) + slot * a_.h_out_row + unit + half * 8, words.at[half], unit + half * 8);
      }
    });
  }
  MILLRACE_DEVICE void put_two(T* to, std::uint32_t two, int unit) const {
    if (unit + 1 < a_.hidden && (reinterpret_cast<std::uintptr_t>(to) & 3) == 0) {
      *reinterpret_cast<std::uint32_t*>(to) = two;
      return;
    }
    MILLRACE_UNROLLED for (int i = 0; i < 2; ++i) if (unit + i < a_.hidden) to[i] = bits_as<T>(static_cast<std::uint16_t>(two >> 16 * i));
  }

  const LstmArguments& a_;
  Warp& warp_;
  Group<true> meet_;
  PhaseClock<TIMED> clock_;
  int blocks_, staged_, hidden_, pairs_, next_chain_, of_chain_[HELD];
  bool has_bias_, has_masks_;
  int chains_, first_chunk_, own_chunks_, units_, most_tiles_, own_tiles_, to_next_row_, to_next_tile_;
  std::byte *states_, *arrivals_;
  float *sums_, *addends_, *cells_, *bias_;
  std::uint8_t* masks_;
  std::uint32_t* told_;
  int* counts_;            // tiles of four steps, by step
  std::int64_t* offsets_;  // of eight steps, by step
  PerLane<Weights> held_;
  int steps_ = 0, step_ = 0, ring_ = 0, helper_ = 0;
  /// One more than the number of exchanges of h. A launch of one step has an exchange too: its states may be stored where they were read, and the h of
  /// another block shows that this block has read them.
  int rounds_ = 0;
  int tiles_of_place_ = 0, unit_ = 0, tile_ = 0;  // of so many tiles, the first that this warp finishes
};

}  // namespace millrace::cuda
