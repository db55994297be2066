// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <millrace/tensor/cuda/recording_device.h>
#include <millrace/tensor/tensor.h>

/// A loop as one CUDA graph: the kernels of an iteration, recorded once, in a conditional node that the device leaves when a step counter of its
/// own has come to the number of iterations. An iteration's kernels work on places that stay where they are; the kernels before and behind them copy
/// the slot that the counter names to and from these. Addresses are looked up in a table on the device, so that a run changes no graph.
namespace millrace::cuda {

/// The operands of an iteration. Extents are those of a whole iteration; with `ragged`, axis 0 is the rows of the first iteration, and no later iteration has more.
struct LoopIteration {
  struct Place {
    DType dtype = DType::f32;
    DDim dims;
  };
  std::vector<Place> inputs;
  std::vector<Place> states;
  std::vector<Place> shared;  ///< the same in all iterations
  /// By state: its next value among the results of `run`. None: it does not change.
  std::vector<std::optional<std::size_t>> next;
  std::size_t outputs = 0;  ///< the first so many results are outputs of the iteration
  bool ragged = false;      ///< later iterations may have fewer rows
  bool moves = false;       ///< and those that stay may have to move together
  /// Enqueues one iteration on the device's stream, on inputs, states and shared values, in this order. Gives outputs and next values. Called
  /// several times while the graph is made.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& values)> run;
};

/// One run of a loop. Everything on the device, contiguous, and of the extents of the iteration; `inputs` and `outputs` but for their rows.
struct LoopSlots {
  /// The beginning of each iteration's slot, and the tensors that own the slots.
  struct Input {
    std::vector<const void*> slots;
    std::vector<Tensor> held;
  };
  std::int64_t iterations = 0;     ///< at least 1
  std::vector<std::int64_t> rows;  ///< by iteration, with `ragged`
  /// With `moves`, for each iteration the rows of the iteration before that it goes on with (none for iteration 0).
  std::vector<std::vector<std::int64_t>> kept;
  std::vector<Input> inputs;
  std::vector<Tensor> states;   ///< before the first iteration
  std::vector<Tensor> shared;   ///< anywhere
  std::vector<Tensor> outputs;  ///< all iterations one behind the other
  std::vector<Tensor> last;     ///< by state: after the last iteration; of those that do not change nothing is written
};

/// The executable graph of a loop for one set of extents, with the memory that it works in. It stays until the last run is done.
class LoopGraph {
 public:
  virtual ~LoopGraph() = default;
  /// Extents of an iteration's outputs.
  virtual const std::vector<LoopIteration::Place>& outputs() const noexcept = 0;
  /// Nodes of the graph's body, and how many iterations they are: where an iteration is a few kernels, several stand behind one another.
  virtual std::size_t nodes() const noexcept = 0;
  virtual std::int64_t iterations_at_once() const noexcept = 0;
  /// Enqueues a run behind what makes its tensors, on the stream of the recording device; returns at once, with a number for `cancel`. Runs
  /// follow one another. A fault of a kernel fails that stream, as everywhere.
  virtual std::int64_t run(LoopSlots slots) = 0;
  /// Ends the run early, at an iteration that the device chooses. No effect on a run that is over.
  virtual void cancel(std::int64_t run) noexcept = 0;
};

/// Records the iteration as a graph. UnsupportedError names the part of the iteration that cannot be recorded; other errors are those of its ops.
std::shared_ptr<LoopGraph> record_loop(const std::shared_ptr<RecordingDevice>& device, const LoopIteration& iteration);

}  // namespace millrace::cuda
