// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/loops/cpu_fused/row_kernel.h>
#include <millrace/runtime/loops/loop_backend.h>
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
  /// The iteration before and after each pass, and the order in which its parts run.
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
  /// Iterations that change nothing where a truth is false for all rows: each output is then zeros or a state as it was, and states stay.
  struct Rest {
    std::size_t input = 0;                           ///< the truth, one number a row
    std::vector<std::optional<std::size_t>> states;  ///< by output of the form: the state that it shows; none: zeros
  };
  /// A choice between rows by one number a row.
  struct Choice {
    std::size_t input = 0;             ///< of the form: the number
    std::optional<std::size_t> state;  ///< of the form, taken where the number is 0; none: zeros
  };
  void prepare(LoopForm form);
  std::optional<Choice> choice_of(const passes::Source& output) const;
  std::optional<Rest> find_rest() const;
  Part part_of(const passes::Phase& phase, std::optional<DType> numbers);
  void check_handed_on(const Part& part) const;
  std::string describe() const;

  LoopForm form_;
  std::vector<std::pair<std::string, std::string>> passes_;  ///< name, program behind it
  std::optional<Program> invariant_;
  std::vector<passes::Source> invariant_inputs_;
  Part ahead_, step_, behind_;
  std::vector<passes::Source> outputs_;  ///< of the form, then the next states that change
  std::size_t step_outputs_ = 0;
  std::optional<Rest> rest_;
  std::optional<std::int64_t> most_rows_;  ///< of an iteration, where an op looks along the rows: a block has all of them
  std::vector<std::shared_ptr<MemoryResource>> output_memory_;  ///< of the form's outputs; null: the stream's
};

/// One run of a fused loop. Nothing is written before `finish`, except by `publish`.
class FusedRun final : public LoopRun {
 public:
  /// UnsupportedError says which values do not fit: slots that are not there yet, extents that differ, …. States and shared values are ready,
  /// not just issued. `sources` are runs of fused loops. `stream` is a CPU stream.
  FusedRun(std::shared_ptr<const FusedLoop> loop, LoopOperands operands, StreamRef stream);
  ~FusedRun() override;

  const LoopForm& form() const noexcept override;
  std::int64_t iterations() const noexcept override;
  std::int64_t iterations_done() const noexcept override;
  std::int64_t iterations_bound() const noexcept override;
  bool passes_slots() const noexcept override;
  std::vector<std::pair<TensorArray, std::int64_t>> next_slots() const override;
  bool bind(std::int64_t end) override;
  /// Runs on the team of the stream. Where others use the stream too, that may be later.
  bool advance(std::int64_t end) override;
  bool brief() const override;
  void publish() override;
  std::vector<SlotValue> finish() override;
  Point position() const override { return stream_.position(); }
  std::optional<DDim> stacked(std::size_t output) const override;

  /// The most rows that an iteration has.
  std::int64_t rows() const noexcept;
  /// Multiply-adds of all iterations, or work that takes as long.
  std::int64_t work() const noexcept;
  /// Shares the rows out among `threads` threads, once, before the first iteration.
  void deal(int threads);

 private:
  friend class Wavefront;
  struct State;
  std::shared_ptr<State> state_;  // shared with work that is still on the stream
  StreamRef stream_;
};

/// The number of iterations that loops which pass slots on, and run one behind the other, go at a time. A run of K iterations costs its messages and tasks
/// (c), T / K times; a loop that waits for it begins K iterations (of w each) later. T c / K + K w is least where K = sqrt(T c / w); a run has rows enough
/// for a product all the same.
std::int64_t iterations_of_a_run(const std::vector<const FusedRun*>& runs);

}  // namespace millrace
