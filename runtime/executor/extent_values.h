// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <millrace/runtime/executor/compiled_program.h>
#include <millrace/runtime/program/value.h>

namespace millrace {

/// By op of block 0: whether its outputs follow from extents and constants alone, as shapes, counts, zeros of a first state, and masks do. Empty where
/// there is none.
std::vector<bool> find_extent_ops(const CompiledProgram& program);

/// The outputs of these ops as an earlier run computed them. A run with the same extents takes them over. Used by one run at a time.
class ExtentValues {
 public:
  /// Outputs of one op with more bytes are not kept.
  static constexpr std::size_t most_bytes = 64 << 10;
  /// Limit for the outputs of all ops together.
  static constexpr std::size_t most_bytes_together = 1 << 20;

  /// The kept outputs of op `place` for these inputs; an absent input is null. Empty: the op has to run.
  std::span<const Value> recall(std::size_t place, std::span<const Value* const> inputs) const;
  /// Keeps the outputs that op `place` has computed, read-only. The result is the outputs that the run goes on with: numbers that equal those kept
  /// before stay the same tensor, so that ops which read them need not run. Empty: the outputs are not kept.
  std::span<const Value> keep(std::size_t place, const CompiledOp& op, std::span<const Value* const> inputs,
                              std::span<const Value> outputs);
  /// Whether a kept output lies in `storage`.
  bool holds(const Allocation* storage) const noexcept;

 private:
  /// An input as the op saw it: its extents, and the tensor where the op reads elements.
  struct Seen {
    DType dtype = DType::f32;
    DDim dims;
    std::optional<Tensor> read;
  };
  struct Kept {
    std::vector<std::optional<Seen>> inputs;
    std::vector<Value> outputs;  ///< empty: nothing is kept
    std::size_t bytes = 0;
  };
  std::vector<Kept> kept_;  ///< by op of block 0
  std::size_t bytes_ = 0;
};

/// The values that runs of one program have left for later ones. Runs side by side have values of their own. Thread-safe.
class ExtentValuesPool {
 public:
  std::unique_ptr<ExtentValues> take();
  void give_back(std::unique_ptr<ExtentValues> values) noexcept;
  /// Lets go of all: a run has lacked the memory that they hold.
  void clear() noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ExtentValues>> free_;
};

}  // namespace millrace
