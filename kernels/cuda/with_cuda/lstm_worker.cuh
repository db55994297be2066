// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/lstm_sequence.h>
#include <millrace/kernels/cuda/recurrent/steps.cuh>
#include <millrace/kernels/cuda/with_cuda/lstm_functions.cuh>
#include <millrace/kernels/cuda/with_cuda/mma.cuh>

/// The kernel of kernels/lstm_sequence.h: the work of one warp, as one stage of the skeleton of recurrent/steps.cuh. Weights, h between blocks,
/// and sums go by *tiles* of 8 rows, *unit blocks* of 8 units with their 4 gates, and *chunks* of k.
namespace millrace::cuda {

struct LstmArguments : StepArguments {
  const std::byte* weights;                       // [unit blocks][chunks] pieces
  const float *bias, *peepholes;                  // or null
  Elements<float> projection, c, c_out, c_steps;  // c_steps: or null
  const std::uint8_t* live;                       // or null; by row of `projection`: whether it steps
  const void* h;
  void *h_out, *y;
  std::int64_t projection_row, c_row, c_out_row, h_row, h_out_row, y_row, c_steps_row;
  int hidden, unit_blocks, chunks;  // `exchange` is [2][tiles][chunks] pieces of h
  int ways, resident;
  bool wide_copies;        // rows of `projection` are aligned to 16 bytes
  std::int64_t rows_room;  // that y has, where the last step may end before; else 0
  LstmFunctions<float> functions;
};

/// Clears the rows of y and `c_steps` behind the last step, up to the room for them: kernels that follow in a graph read all of it. All computing
/// warps call it.
template <class T>
MILLRACE_DEVICE void clear_rest(const LstmArguments& a, const Warp& warp) {
  const std::int64_t begin = a.offsets[a.group.steps];
  const std::int64_t count = (a.rows_room - begin) * a.hidden;
  const std::int64_t apart = std::int64_t{a.group.blocks} * a.group.groups * a.group.warps * warp_lanes;
  warp.each_lane([&](int lane) {
    for (std::int64_t i = (std::int64_t{warp.block()} * a.group.warps + warp.warp()) * warp_lanes + lane; i < count; i += apart) {
      const std::int64_t row = begin + i / a.hidden;
      static_cast<T*>(a.y)[row * a.y_row + i % a.hidden] = T{};
      if (a.c_steps.data != nullptr) a.c_steps.set(row * a.c_steps_row + i % a.hidden, 0);
    }
  });
}

/// Addends of the sums of one product: asked for before the blocks meet.
template <int TILES>
struct LstmAddends {
  float bias[4], peepholes[3];
  float projection[TILES * 2][4];  // by row
};
template <int TILES>
struct LstmStates {
  float c[TILES * 2];  // by row
};

template <class Stored, int TILES>
struct LstmMade {
  Stored h[TILES * 2];  // by row
};

/// `USUAL`: a cell of the usual functions (lstm_functions.cuh), whose projection is f32. `TIMED`: a kernel that takes the time of its phases.
template <class T, int TILES, bool USUAL, bool TIMED = false>
class LstmWorker : public StepWorker<LstmWorker<T, TILES, USUAL, TIMED>, TILES, TIMED> {
  using Steps = StepWorker<LstmWorker<T, TILES, USUAL, TIMED>, TILES, TIMED>;
  friend Steps;
  using Steps::each, Steps::each_row, Steps::first_, Steps::first_unit_, Steps::group_, Steps::live_, Steps::meet_, Steps::rank_,
      Steps::rows_of, Steps::slot_of, Steps::step_, Steps::tiles_, Steps::units_, Steps::warp_, Steps::lap;
  using typename Steps::Task;
  using Chains = Product<T, 4, TILES, Arithmetic<T>::by_mma ? recurrent_chain : Arithmetic<T>::chain>;

 public:
  static constexpr int stages = 1;
  static constexpr bool late = true;
  using Sums = PerLane<typename Chains::Sums>;
  using Asked = PerLane<LstmAddends<TILES>>;
  using Stored = typename Arithmetic<T>::Stored;

  MILLRACE_DEVICE LstmWorker(const LstmArguments& arguments, Warp& warp) : Steps(arguments, arguments.hidden, warp), a_(arguments) {
    team_ = warp.warp() / a_.ways;
    way_ = warp.warp() % a_.ways;
    const int most = (a_.unit_blocks + a_.group.blocks - 1) / a_.group.blocks;
    staged_ = warp.shared() + std::int64_t{most} * a_.resident * lstm_weight_bytes;
    sums_ = reinterpret_cast<float*>(staged_ + std::int64_t{a_.staged} * a_.chunks * lstm_state_bytes);
  }

 private:
  static constexpr int chunk_k = Arithmetic<T>::chunk;
  static constexpr bool approximates = lstm_approximates(dtype_of<Stored>);

  MILLRACE_DEVICE int first_task() const { return team_; }
  MILLRACE_DEVICE void load() const {
    this->load_weights(a_.weights, warp_.shared(), a_.chunks, a_.resident, static_cast<int>(lstm_weight_bytes));
    load_states();
    clear_rest<T>(a_, warp_);
  }
  MILLRACE_DEVICE std::byte* exchanged(int side, int tile, int chunk) const {
    return a_.exchange + ((std::int64_t{side} * a_.tiles + tile) * a_.chunks + chunk) * lstm_state_bytes;
  }

  /// h before the first step becomes a value that the blocks exchange, padded with zeros along k and the rows, on both sides.
  MILLRACE_DEVICE void load_states() const {
    constexpr int elements = static_cast<int>(lstm_state_bytes / static_cast<int>(sizeof(T)));
    const int rows = rows_of(0);
    for (int tile = group_; tile < a_.tiles; tile += a_.group.groups)
      for (int chunk = rank_; chunk < a_.chunks; chunk += a_.group.blocks)
        each(elements, [&](int i) {
          const int row = tile * 8 + i % 8;
          const int unit = chunk * chunk_k + i / 8;
          const bool there = row < rows && unit < a_.hidden;
          const int place = factor_place<T>(unit, row % 8);
          reinterpret_cast<T*>(exchanged(0, tile, 0))[place] =
              there ? factor_of<T>(static_cast<const Stored*>(a_.h)[slot_of(row) * a_.h_row + unit]) : T{};
          reinterpret_cast<T*>(exchanged(1, tile, 0))[place] = T{};
        });
  }

  // ---- A step ----

  template <int>
  MILLRACE_DEVICE void copy(int first, int count) const {
    this->copy_tiles(exchanged(step_ & 1, group_ + first * a_.group.groups, 0), staged_,
                     a_.chunks * static_cast<int>(lstm_state_bytes / 16), count);
  }

  /// `addends`: of the first product of each warp.
  template <int>
  MILLRACE_DEVICE void compute(int first, int count, Asked& addends) {
    const int tasks = this->tasks_of(count);
    const int at_once = a_.group.warps / a_.ways;
    const int next_live = step_ + 1 < a_.group.steps ? rows_of(step_ + 1) : 0;
    // With one task a step, and the same one in the next step, c stays in registers.
    const bool keeps = tasks <= at_once && count == tiles_ && (next_live + 7) / 8 == (live_ + 7) / 8;
    for (int base = 0; base < tasks; base += at_once) {
      const bool is_first = base == 0 && first == 0;
      const Task task = is_first ? first_ : this->task_of(base + team_, first, count);
      if (!is_first) ask<0>(task, addends);
      if (!keeps_c_) ask_states(task);
      Sums total;
      if (a_.ways > 1) {
        if (base > 0) meet_.sync();  // the sums of the round before are taken
        if (task.exists) store_chains(product_of(task));
        meet_.sync();
        if (!task.exists || way_ > 0) continue;
        add_stored(total);
      } else {
        if (!task.exists) continue;
        product_of(task).sum(warp_, total);
      }
      lap(StepPhase::product);
      finish(task, addends, total);
      if (!keeps) store(task, next_live, false);
      lap(StepPhase::pointwise);
    }
    keeps_c_ = keeps;
    next_live_ = next_live;
  }
  /// With one task a step, what leaves the kernel is written while other blocks are waited for.
  template <int>
  MILLRACE_DEVICE void after() const {
    if (keeps_c_ && way_ == 0) store(first_, next_live_, true);
  }

  /// Asks for what no block writes.
  template <int>
  MILLRACE_DEVICE void ask(const Task& task, Asked& to) const {
    if (!task.exists || way_ > 0) return;
    warp_.each_lane([&](int lane) {
      const int unit = (first_unit_ + task.unit) * 8 + lane / 4;
      MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) to[lane].bias[gate] =
          a_.bias != nullptr && unit < a_.hidden ? a_.bias[gate * a_.hidden + unit] : 0.0f;
      if constexpr (!USUAL)
        MILLRACE_UNROLLED for (int gate = 0; gate < 3; ++gate) to[lane].peepholes[gate] =
            a_.peepholes != nullptr && unit < a_.hidden ? a_.peepholes[gate * a_.hidden + unit] : 0.0f;
    });
    warp_.each_lane([&](int lane) {
      MILLRACE_UNROLLED for (int i = 0; i < TILES * 2; ++i) MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) to[lane]
          .projection[i][gate] = 0;
    });
    each_row(task, [&](int lane, int unit, int i, int row) {
      const std::int64_t at = this->place_of(row) * a_.projection_row + unit;
      MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) to[lane].projection[i][gate] = projected(at + std::int64_t{gate} * a_.hidden);
    });
  }
  MILLRACE_DEVICE float projected(std::int64_t at) const {
    if constexpr (USUAL) return static_cast<const float*>(a_.projection.data)[at];
    return a_.projection.get(at);
  }
  MILLRACE_DEVICE void ask_states(const Task& task) {
    if (way_ > 0) return;
    each_row(task, [&](int lane, int unit, int i, int row) {
      const std::int64_t slot = slot_of(row);
      states_[lane].c[i] = step_ == 0 ? a_.c.get(slot * a_.c_row + unit) : a_.c_out.get(slot * a_.c_out_row + unit);
    });
  }

  MILLRACE_DEVICE Chains product_of(const Task& task) const {
    return {warp_.shared() + std::int64_t{task.unit} * a_.resident * lstm_weight_bytes,
            a_.weights + (std::int64_t{first_unit_} + task.unit) * a_.chunks * lstm_weight_bytes,
            staged_ + std::int64_t{task.tile} * a_.chunks * lstm_state_bytes,
            std::int64_t{a_.chunks} * lstm_state_bytes,
            a_.hidden,
            a_.chunks,
            a_.resident};
  }

  /// Each way makes every so many chains; the first one adds them, ascending.
  MILLRACE_DEVICE int chains() const { return (a_.chunks + Chains::chain_chunks - 1) / Chains::chain_chunks; }
  MILLRACE_DEVICE float* stored(int which) const { return sums_ + (team_ * chains() + which) * warp_lanes * 8; }
  MILLRACE_DEVICE void store_chains(const Chains& product) const {
    for (int which = way_; which < chains(); which += a_.ways) {
      Sums part;
      product.chain(warp_, which, part);
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

  MILLRACE_DEVICE void sums_of(const LstmAddends<TILES>& added, const typename Chains::Sums& total, int i, float (&sums)[4]) const {
    MILLRACE_UNROLLED for (int gate = 0; gate < 4; ++gate) {
      sums[gate] = total.at[i / 2 * 8 + gate * 2 + i % 2];
      if (a_.bias != nullptr) sums[gate] = sums[gate] + added.bias[gate];
      sums[gate] = sums[gate] + added.projection[i][gate];
    }
  }

  /// From the sums to c and h, which the other blocks wait for.
  MILLRACE_DEVICE void finish(const Task& task, const Asked& addends, const Sums& total) {
    // Rows that do not live are computed too: no branch keeps the chains of several rows apart.
    PerLane<LstmStates<TILES>> next_c, next_h;
    if constexpr (USUAL)
      warp_.each_lane([&](int lane) {
        MILLRACE_UNROLLED for (int i = 0; i < TILES * 2; ++i) {
          float sums[4];
          sums_of(addends[lane], total[lane], i, sums);
          next_c[lane].c[i] = states_[lane].c[i];
          next_h[lane].c[i] = LstmFunctions<float>::usual<approximates>(sums, next_c[lane].c[i]);
        }
      });
    each_row(task, [&](int lane, int unit, int i, int row) {
      const float before = states_[lane].c[i];
      float c = before;
      Stored h;
      if constexpr (USUAL) {
        c = next_c[lane].c[i];
        h = narrowed<Stored>(next_h[lane].c[i]);
      } else {
        float sums[4];
        sums_of(addends[lane], total[lane], i, sums);
        h = narrowed<Stored>(a_.functions.template step<approximates>(sums, addends[lane].peepholes, c));
      }
      if (a_.live != nullptr && a_.live[this->place_of(row)] == 0) {
        c = before;
        h = h_before(unit, row);
      }
      const int tile = this->tile_of(task, i / 2);
      reinterpret_cast<T*>(exchanged((step_ + 1) & 1, tile, 0))[factor_place<T>(unit, lane % 4 * 2 + i % 2)] = factor_of<T>(h);
      states_[lane].c[i] = a_.c_out.rounded(c);
      made_[lane].h[i] = h;
    });
  }
  /// c, h and y of a task to where they leave the kernel. `keeps`: the next step has c.
  MILLRACE_DEVICE void store(const Task& task, int next_live, bool keeps) const {
    each_row(task, [&](int lane, int unit, int i, int row) {
      const std::int64_t at = this->place_of(row);
      const float c = states_[lane].c[i];
      const Stored h = made_[lane].h[i];
      static_cast<Stored*>(a_.y)[at * a_.y_row + unit] = h;
      if (a_.c_steps.data != nullptr) a_.c_steps.set(at * a_.c_steps_row + unit, c);
      if (keeps && row < next_live) return;
      const std::int64_t slot = slot_of(row);
      a_.c_out.set(slot * a_.c_out_row + unit, c);
      if (row >= next_live) static_cast<Stored*>(a_.h_out)[slot * a_.h_out_row + unit] = h;
    });
  }

  /// As it was given out, by this block itself: what blocks exchange may be rounded once more, to tf32.
  MILLRACE_DEVICE Stored h_before(int unit, int row) const {
    if (step_ == 0) return static_cast<const Stored*>(a_.h)[slot_of(row) * a_.h_row + unit];
    return static_cast<const Stored*>(a_.y)[this->place_before(row) * a_.y_row + unit];
  }

  const LstmArguments& a_;
  std::byte* staged_;
  float* sums_;
  PerLane<LstmStates<TILES>> states_ = {};
  PerLane<LstmMade<Stored, TILES>> made_ = {};
  bool keeps_c_ = false;  // `states_` has c of the warp's task, and `made_` its h, which are still to be stored when the block has arrived
  int next_live_ = 0;     // rows of the next step
  int team_, way_;        // the warps that make a product, and this one's number among them
};

}  // namespace millrace::cuda
