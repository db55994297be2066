// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <millrace/runtime/loops/cpu_fused/fused_loop.h>

namespace millrace {

/// Several fused loops that run concurrently, each on one thread: the layers of a stack, of which one is at a run of iterations while those
/// above it are at runs before (LoopOperands::sources), or loops that do not depend on one another. The same bits as one loop after the other.
class Wavefront final : public LoopStages {
 public:
  /// Whether `rows` rows gain more by this than by being dealt to the threads.
  static bool pays(std::int64_t rows, int threads);

  /// `runs` in the order in which they feed one another, not yet dealt; at least one, all of the same stream, whose team has `threads` threads.
  Wavefront(std::vector<FusedRun*> runs, int threads);
  ~Wavefront() override;

  bool advance(std::int64_t end) override;
  std::int64_t stride() const override;

 private:
  struct Stages;
  std::vector<FusedRun*> runs_;
  std::shared_ptr<Stages> stages_;  // shared with work that is still on the stream
};

}  // namespace millrace
