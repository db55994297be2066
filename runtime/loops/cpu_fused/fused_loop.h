// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/loops/cpu_fused/row_kernel.h>
#include <millrace/runtime/lowering/loop_form.h>
#include <millrace/runtime/lowering/passes.h>

namespace millrace {

/// A while op made ready to run as one piece of work on the CPU: products that depend on no state for a run of iterations at once, the rest iteration
/// by iteration on rows that stay in cache, over as many threads as there are. Immutable, shared. The same bits as the loop iteration by iteration.
class FusedLoop {
 public:
  /// UnsupportedError says what does not fit.
  FusedLoop(const Program& program, int block, const Op& loop);

  const LoopForm& form() const noexcept { return form_; }
  /// The iteration before and after each pass, and what runs when.
  std::string to_string() const;

 private:
  friend class FusedRun;
  /// One part of an iteration and its kernel; none when the part is empty.
  struct Part {
    std::vector<passes::Source> inputs;
    std::optional<RowKernel> kernel;
    std::vector<std::size_t> shared;  ///< places of the shared ones among `inputs`
    bool multiplies = false;          ///< has a product or a cell
  };
  static Part part_of(const passes::Phase& phase);
  std::string describe() const;

  LoopForm form_;
  std::vector<std::pair<std::string, std::string>> passes_;  ///< name, program behind it
  std::optional<Program> invariant_;
  std::vector<passes::Source> invariant_inputs_;
  Part ahead_, step_, behind_;
  std::vector<passes::Source> outputs_;  ///< of the form, then the next states that change
  std::size_t step_outputs_ = 0;
};

class FusedRun;

/// What a fused loop works on.
struct FusedOperands {
  /// A run that makes the slots of an input, beside this one (wavefront.h).
  struct Source {
    const FusedRun* run = nullptr;
    std::size_t output = 0;
  };
  /// The slot at the first iteration, and how much further it is with each one: `stride` of the form's index.
  struct Slots {
    std::int64_t first = 0;
    std::int64_t stride = 1;
  };
  std::vector<TensorArray> inputs;
  std::vector<Source> sources;  ///< by input; none, or a null run: the slots are there
  std::vector<bool> arriving;   ///< by input: slots come while the iterations run, the first one is there; empty: none do
  std::vector<Slots> read;
  std::vector<std::optional<SlotValue>> boots;  ///< by input: what stands before slot 0, where the loop looks there; as the batch wants it
  std::vector<TensorArray> outputs;
  std::vector<bool> leaving;  ///< by output: somebody takes its slots while the iterations run; empty: nobody does
  std::vector<Slots> written;
  std::vector<SlotValue> states;  ///< before the first iteration; with an order: as the batch wants them
  std::vector<Tensor> shared;
  std::int64_t iterations = 0;
};

/// One run of a fused loop. Nothing is written before `finish`, but what `publish` writes.
class FusedRun {
 public:
  /// Null when the values do not fit after all (slots that are not there yet, extents that differ, …): then the loop must run iteration by iteration,
  /// which says what is wrong, if anything is. States and shared values are ready, not just issued.
  static std::unique_ptr<FusedRun> prepare(std::shared_ptr<const FusedLoop> loop, FusedOperands operands, StreamRef stream);
  ~FusedRun();

  /// The most rows that an iteration has.
  std::int64_t rows() const noexcept;
  /// Multiply-adds of all iterations, or what takes as long.
  std::int64_t work() const noexcept;
  /// Extents of the slots that output `output` will have, stacked: the array is of fixed size and has no order.
  DDim stacked(std::size_t output) const;
  /// Whether slots arrive or leave while the iterations run. Then the loop goes some iterations at a time: await `next_slots`, `bind`, `advance` to there,
  /// `publish`.
  bool passes_slots() const noexcept;
  /// What the next iteration waits for: arrays whose slots arrive, and the slots.
  std::vector<std::pair<TensorArray, std::int64_t>> next_slots() const;
  /// Takes what arrives for the iterations before `end`, as far as it is there. False when that is nothing, or it does not fit: then the loop can
  /// only go on iteration by iteration, from `turned` on.
  bool bind(std::int64_t end, StreamRef stream);
  /// Writes what leaves of the iterations that are done.
  void publish();
  /// Iterations that `advance` has begun, and iterations that it may come to.
  std::int64_t turned() const noexcept;
  std::int64_t bound() const noexcept;
  /// Shares the rows out among `threads` threads, once, before the first iteration.
  void deal(int threads, StreamRef stream);
  /// Some milliseconds of iterations, on the team of `stream`, done when its position is reached: where others use the stream too, that may be
  /// later. Not beyond iteration `limit`, what has arrived, or what feeds the loop. False when there are none left.
  bool advance(StreamRef stream, std::int64_t limit = std::numeric_limits<std::int64_t>::max());
  /// Writes the arrays and gives the last states, in the order of the form, of the iterations that `advance` began, which are done: all, or one at
  /// least.
  std::vector<SlotValue> finish(StreamRef stream);
  std::int64_t iterations() const noexcept;
  const FusedLoop& loop() const noexcept;

 private:
  friend class Wavefront;
  struct State;
  explicit FusedRun(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // shared with work that is still on the stream
};

/// How many iterations loops that pass slots on, and run one behind the other, go at a time. A run of K iterations costs what its messages and tasks cost
/// (c), T / K times; whoever waits for it begins K iterations (of w each) later. T c / K + K w is least where K = sqrt(T c / w); a run has rows enough
/// for a product all the same.
std::int64_t iterations_of_a_run(const std::vector<const FusedRun*>& runs);

}  // namespace millrace
