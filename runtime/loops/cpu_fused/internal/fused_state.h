// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <millrace/runtime/loops/binder.h>
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>
#include <millrace/tensor/pool.h>
#include <millrace/tensor/sequence_order.h>

namespace millrace {

/// Memory of a stream in lines of the cache, a few blocks for many buffers. It stands as long as the arena does.
class LineArena {
 public:
  std::byte* take(std::int64_t bytes, StreamRef stream) {
    const std::int64_t lines = std::max(line, (bytes + line - 1) / line * line);  // no bytes have an address, too
    if (lines > left_) {
      left_ = std::max(lines, least);
      blocks_.emplace_back(DType::u8, DDim{left_ + line}, stream.memory());
      const auto address = reinterpret_cast<std::uintptr_t>(blocks_.back().raw());
      next_ = static_cast<std::byte*>(blocks_.back().raw_mutable()) + (line - address % line) % line;
    }
    left_ -= lines;
    return std::exchange(next_, next_ + lines);
  }

 private:
  static constexpr std::int64_t line = 64;
  static constexpr std::int64_t least = 4096;
  PooledVector<Tensor> blocks_;
  std::byte* next_ = nullptr;
  std::int64_t left_ = 0;
};

/// A part of an arena.
class LineBuffer {
 public:
  void resize(std::int64_t bytes, LineArena& arena, StreamRef stream) { first_ = arena.take(bytes, stream); }
  /// Takes the elements of a tensor in place of memory of its own; the caller keeps the tensor.
  void stand_in(const Tensor& memory) { first_ = static_cast<std::byte*>(memory.raw_mutable()); }
  std::byte* data() const { return first_; }

 private:
  std::byte* first_ = nullptr;
};

/// Multiply-adds after which somebody may ask whether to go on.
inline constexpr std::int64_t slice_work = 200 << 20;

/// Rows of all iterations of one thing, wherever each iteration's lie.
struct IterationRows {
  PooledVector<const std::byte*> first;  // by iteration; null where rows that were picked stand apart
  std::int64_t width = 0;
  // Picked rows: those of iteration t are rows picked->rows[begin[t]] and following of picked->from.
  std::shared_ptr<const detail::PickedRows> picked = nullptr;
  std::vector<std::int64_t> begin = {};

  bool stands_apart(std::int64_t iteration) const { return picked != nullptr && first[static_cast<std::size_t>(iteration)] == nullptr; }
  bool any_apart(std::int64_t from, std::int64_t past) const {
    for (; from < past; ++from)
      if (stands_apart(from)) return true;
    return false;
  }
};

/// A run of a fused loop: its operands (fused_prepare.cpp), and the way of its rows through the iterations (fused_run.cpp).
struct FusedRun::State {
  /// Another run that feeds this one: iteration t takes the value that its iteration t + `shift` made.
  struct Feeder {
    std::shared_ptr<State> run;
    std::int64_t shift = 0;
  };
  /// Rows [first, last) of every iteration, with what they carry.
  struct Part {
    std::int64_t first = 0;
    std::int64_t last = 0;
    PooledVector<RowView> states;    // now
    PooledVector<LineBuffer> held;   // two for each state, where nothing else keeps it
    PooledVector<Tensor> handed_on;  // the memory of `held` where it is large: the last state is handed on without a copy
    PooledVector<int> side;          // which of the two is now
    PooledVector<LineBuffer> ahead;  // outputs of `ahead` that are not outputs of the loop
    PooledVector<LineBuffer> step;   // outputs of `step` for `behind`
    // Rows of an iteration that stand apart elsewhere, by input.
    PooledVector<LineBuffer> picked;
    // Rows of a run in the order of its iterations, where they lie in another one; by port of `ahead` and of `behind`.
    PooledVector<LineBuffer> ahead_aside, behind_aside;
    LineBuffer workspace;          // of `ahead` and `behind`
    LineBuffer step_workspace;     // of the iteration: placed once
    SpinHelper* helper = nullptr;  // while iterations run, where the part's products are shared with another thread
    PooledVector<RowView> in, out;
    PooledVector<RowTrack> tracks_in, tracks_out;
  };
  /// Where an output of a part of the iteration goes.
  struct Target {
    std::int64_t whole = -1;  // an output of the loop
    std::int64_t state = -1;  // held for the next iteration alone
    bool falls = false;       // the rows of the last iteration stand first
  };

  std::shared_ptr<const FusedLoop> loop;
  LoopOperands operands;
  std::int64_t size = 4;  // bytes of an element
  DType dtype = DType::f32;
  std::int64_t first_rows = 0;        // of the first iteration
  std::int64_t most_rows = 0;         // of any iteration
  std::vector<std::int64_t> rows;     // by iteration; empty: all iterations have as many as the first
  std::vector<std::int64_t> offsets;  // of an iteration's rows among all; empty with `rows`
  PooledVector<IterationRows> inputs;
  PooledVector<Feeder> feeders;
  std::optional<LoopBinder> binder;
  PooledVector<Tensor> input_rows;  // held while they are read
  PooledVector<Tensor> widened;     // truth of inputs, as numbers
  std::optional<SequenceOrder> order;
  LoopOperands::Slots ordered;  // which of its steps an iteration is
  bool moves = false;           // rows that stay may have to move together
  PooledVector<Tensor> initial;
  PooledVector<Tensor> shared;     // of the form
  PooledVector<Tensor> invariant;  // outputs of `invariant`
  RowWeights late_weights[3];      // of `ahead`, `step` and `behind`, where they are packed with values of this run
  const RowWeights *ahead_weights = nullptr, *step_weights = nullptr, *behind_weights = nullptr;
  PooledVector<Tensor> whole;                        // by output of the loop
  PooledVector<std::optional<std::size_t>> last_of;  // by output: the state that it is, where its last slot alone is written
  PooledVector<Target> ahead_targets, step_targets, behind_targets;
  PooledVector<std::size_t> changing;  // the states that change, in the order of their next values
  PooledVector<std::size_t> next_of;   // by state: its next value among the outputs of the iteration
  LineArena arena;                     // of the parts
  PooledVector<Part> parts;
  bool shares = false;         // two threads go through the iterations of the only part together
  std::int64_t run_rows = 64;  // of a run of iterations
  std::int64_t work = 1;       // multiply-adds of a row
  std::int64_t done = 0;
  std::int64_t bound = 0;      // iterations whose inputs are known
  std::int64_t published = 0;  // iterations whose slots are written, of outputs that leave

  bool arrives(std::size_t input) const;
  bool leaves(std::size_t output) const { return output < operands.leaving.size() && operands.leaving[output]; }
  bool bind_iteration(std::int64_t iteration, StreamRef stream);
  bool may_pick(std::size_t input) const;
  void pick_rows(Part& part, std::int64_t iteration) const;
  void write_slots(std::size_t output, std::int64_t begin, std::int64_t end) const;
  void read_inputs(StreamRef stream);
  std::vector<std::int64_t> read_slots(std::size_t input, IterationRows& made, StreamRef stream);
  Tensor numbers(const Tensor& x, StreamRef stream);
  void count_rows();
  std::vector<std::int64_t> read_feeder(std::size_t input, IterationRows& made);
  const Target& target_of(std::size_t output) const;
  void read_states(StreamRef stream);
  void read_shared(StreamRef stream);
  std::optional<std::size_t> last_alone(std::size_t output) const;
  void make_outputs(StreamRef stream);
  void make_parts(int threads, StreamRef stream);
  void take_initial(Part& part) const;
  Tensor last_rows(std::size_t state, StreamRef stream) const;
  bool worth_sharing() const;
  void run_shared(ThreadTeam& team, std::int64_t begin, std::int64_t end);
  void run_part(Part& part, std::int64_t begin, std::int64_t end);
  void run_iterations(Part& part, std::int64_t begin, std::int64_t end);
  bool rests(const Part& part, std::int64_t iteration) const;
  void skip_iteration(const Part& part, std::int64_t iteration) const;
  std::int64_t rows_of(std::int64_t iteration) const { return rows.empty() ? first_rows : rows[static_cast<std::size_t>(iteration)]; }
  std::int64_t offset(std::int64_t iteration) const {
    return rows.empty() ? first_rows * iteration : offsets[static_cast<std::size_t>(iteration)];
  }
  std::int64_t live(const Part& part, std::int64_t iteration) const {
    return std::clamp<std::int64_t>(rows_of(iteration) - part.first, 0, part.last - part.first);
  }
  /// Where the rows of an iteration begin among those of all iterations, in an output.
  std::int64_t place(const Target& target, std::int64_t iteration) const {
    return target.falls ? offset(operands.iterations) - offset(iteration) - rows_of(iteration) : offset(iteration);
  }
  RowView source(const Part& part, const passes::Source& from, std::int64_t iteration, std::int64_t row) const;
  RowView target(Part& part, const Target& target, std::size_t port, PooledVector<LineBuffer>& buffers, std::int64_t width,
                 std::int64_t iteration, std::int64_t row) const;
  void gather_views(const FusedLoop::Part& what, Part& part, const PooledVector<Target>& targets, PooledVector<LineBuffer>& buffers,
                    std::int64_t iteration, std::int64_t row) const;
  void launch(const FusedLoop::Part& what, const RowWeights& weights, Part& part, const PooledVector<Target>& targets,
              PooledVector<LineBuffer>& buffers, std::int64_t iteration, std::int64_t row, std::int64_t count);
  void launch_step(Part& part, std::int64_t iteration, std::int64_t row, std::int64_t count);
  bool find_tracks(Part& part, std::int64_t begin, std::int64_t end, std::int64_t row, std::int64_t count) const;
  bool launch_steps(Part& part, std::int64_t begin, std::int64_t end, std::int64_t row, std::int64_t count);
  bool in_line(const passes::Source& from, std::int64_t begin, std::int64_t end) const;
  bool in_line(const Target& target) const { return target.whole < 0 || (parts.size() == 1 && !target.falls); }
  void make_room_aside(const FusedLoop::Part& what, const PooledVector<Target>& targets, PooledVector<LineBuffer> Part::* room,
                       StreamRef stream);
  void launch_run(const FusedLoop::Part& what, const RowWeights& weights, Part& part, const PooledVector<Target>& targets,
                  PooledVector<LineBuffer>& buffers, const PooledVector<LineBuffer>& room, std::int64_t begin, std::int64_t end,
                  std::int64_t total);
  void move_rows(Part& part, std::int64_t iteration);
  void take_states(Part& part, std::int64_t iteration, std::int64_t row);
  void keep_states(Part& part, std::int64_t count);
};

}  // namespace millrace
