// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/tensor/stream.h>

namespace millrace {

/// A CPU stream: a strand plus a thread team. Work runs to completion in the caller when nothing is queued before it; behind a point that
/// is not yet reached it queues, and runs on the thread that reaches the point. Unlike a device's, an error that ran in the caller stays
/// with that caller: it is thrown there and the stream goes on. A stream that failed otherwise (queued work threw, or a point it waited for
/// failed) runs nothing any more. Work finds the floating-point environment of
/// kernels (kernel_floats.h: round to nearest, subnormals are zeros); the thread gets its own back.
class CpuStream final : public Stream, private Waiter {
 public:
  /// `team` is shared by the streams of a place and used by one of them at a time.
  CpuStream(std::shared_ptr<ThreadTeam> team, std::shared_ptr<MemoryResource> memory = host_memory());
  /// Every enqueued piece of work must have run.
  ~CpuStream() override;

  Place place() const override { return CpuPlace{}; }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return memory_; }
  bool enter() noexcept override;
  KernelContext& context() noexcept override { return context_; }
  void leave(std::exception_ptr error) noexcept override;
  void push(std::unique_ptr<Work> work) override;
  void wait(const Point& point) override;
  Point position() override;

 private:
  struct Queue;
  void complete(std::exception_ptr error) noexcept override;
  void drain() noexcept;

  std::shared_ptr<ThreadTeam> team_;
  std::shared_ptr<MemoryResource> memory_;
  KernelContext context_;
  std::unique_ptr<Queue> queue_;
};

}  // namespace millrace
