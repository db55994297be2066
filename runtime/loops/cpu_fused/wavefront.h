// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include <millrace/runtime/loops/cpu_fused/fused_loop.h>

namespace millrace {

/// Several fused loops side by side, each on one thread: the layers of a stack, of which one is at a run of iterations while those above it are
/// at runs before (FusedOperands::sources), or loops that have nothing to do with one another. The same bits as one loop after the other.
class Wavefront {
 public:
  /// Whether `rows` rows gain more by this than by being dealt to the threads.
  static bool pays(std::int64_t rows, int threads);

  /// `runs` in the order in which they feed one another, not yet dealt; at least one. `threads` is the size of the stream's team.
  Wavefront(std::vector<std::unique_ptr<FusedRun>> runs, int threads, StreamRef stream);
  ~Wavefront();

  /// As FusedRun::advance, for all of them.
  bool advance(StreamRef stream, std::int64_t limit = std::numeric_limits<std::int64_t>::max());
  const std::vector<std::unique_ptr<FusedRun>>& runs() const noexcept { return runs_; }
  /// The runs, in the same order, to be finished. What `advance` began is done.
  std::vector<std::unique_ptr<FusedRun>> take();

 private:
  struct Stages;
  std::vector<std::unique_ptr<FusedRun>> runs_;
  std::shared_ptr<Stages> stages_;  // shared with work that is still on the stream
};

}  // namespace millrace
