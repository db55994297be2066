// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <millrace/runtime/loops/cuda_graph/loop_graph.h>

/// One step of live sequences as one CUDA graph. Its first kernel reads the rows that arrived from the host's memory. Then the states of the sequences that
/// step are taken from slabs, by slot, and the kernels of the step follow. The last kernels write the outputs to the host's memory, and the next states to the slots.
namespace millrace::cuda {

/// The operands of a step.
struct TickStep {
  /// State `slab` [slots, …], contiguous, on the device: its address is part of the graph.
  struct State {
    Tensor slab;
    bool gathered = true;             ///< `run` wants its rows; else it finds them in the slab, by slot
    std::optional<std::size_t> next;  ///< the next value among the results of `run`; none: it stays, or `run` writes the slab itself
  };
  /// The arguments of `run`. Rows beyond those of a tick are copies of its first one, and nothing of them is kept; `slots` names that one's slot for
  /// them too, so a kernel that writes by slot looks at `bounds`.
  struct Values {
    std::vector<Tensor> inputs;  ///< [rows, …]
    std::vector<Tensor> states;  ///< by state: [rows, …]; an empty tensor where it is not gathered
    Tensor slots;                ///< i64[rows]
    Tensor bounds;               ///< i64[2]: 0, and how many rows the tick has
  };
  std::int64_t rows = 1;                     ///< of a tick at most
  std::vector<LoopIteration::Place> inputs;  ///< extents with `rows` in front
  std::vector<State> states;
  std::size_t outputs = 0;  ///< the first so many results are outputs of the step
  /// Enqueues the step on the device's stream. Gives outputs and next values, [rows, …] each. Called while the graph is made.
  std::function<std::vector<Tensor>(const Values&)> run;
  std::shared_ptr<MemoryResource> pinned;  ///< of the host, which the device reads and writes: rows that arrive, and outputs
};

/// The executable graph of a step for so many rows, with the memory that it works in.
class TickGraph {
 public:
  virtual ~TickGraph() = default;
  virtual std::int64_t rows() const noexcept = 0;
  /// Kernels of the graph.
  virtual std::size_t nodes() const noexcept = 0;
  /// A step that was started: views of one block of pinned memory, which are there when `done` is.
  struct Started {
    std::vector<Tensor> outputs{};
    Point done{};
    std::shared_ptr<const std::atomic<bool>> begun{};  ///< once `done` failed: false, the device was given nothing of it
  };
  /// One step of `slots`, at least one and at most `rows`, none twice; row i of each input, on the host and contiguous, is that of slots[i].
  /// The call does not wait: steps run in the order in which they were started, and a failure of one fails its `done`. Nothing of the device is
  /// allocated. OutOfMemoryError when there is no pinned memory, before anything is enqueued.
  virtual Started start(const std::vector<std::int64_t>& slots, const std::vector<Tensor>& inputs) = 0;
};

/// Records the step as a graph. UnsupportedError names the part of the step that cannot be recorded; other errors are those of its ops.
std::shared_ptr<TickGraph> record_tick(const std::shared_ptr<RecordingDevice>& device, const TickStep& step);

}  // namespace millrace::cuda
