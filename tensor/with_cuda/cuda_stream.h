// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/with_cuda/memory_pool.h>
#include <millrace/tensor/with_cuda/stream_state.h>
#include <millrace/tensor/with_cuda/watermark.h>

namespace millrace::cuda {

/// A CUDA stream. Work is started by the caller at once; behind a point of another CUDA stream CUDA itself waits; behind any other point, or
/// one whose work is itself still on the host, work queues on the host and is started by the thread that reaches the point.
class CudaStream final : public Stream, private Waiter {
 public:
  CudaStream(std::shared_ptr<StreamState> state, std::shared_ptr<MemoryPool> pool, std::shared_ptr<MarkWords> words, std::size_t index);
  ~CudaStream() override;

  Place place() const override { return CudaPlace{state_->queue().device}; }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return memory_; }
  bool enter() noexcept override;
  KernelContext& context() noexcept override { return context_; }
  void leave(std::exception_ptr error) noexcept override;
  void push(std::unique_ptr<Work> work) override;
  void wait(const Point& point) override;
  Point position() override;
  void uses(const std::shared_ptr<Allocation>& storage) override;
  std::shared_ptr<Watermark> watermark(std::uint64_t steps) override;

  /// Waits for what was handed to CUDA. False when work waits on the host, or the device is gone.
  bool settle();
  /// After `settle` of all streams of the device: takes work again if it had failed.
  void renew();

 private:
  struct Item {
    std::unique_ptr<Work> work;  // or null: wait for `point`
    Point point;
  };

  void complete(std::exception_ptr error) noexcept override;
  void drain() noexcept;
  bool pass(const Point& point);
  void follow(const std::shared_ptr<Timeline>& other, std::uint64_t value);
  void run(Work& work) noexcept;
  void fail(std::exception_ptr error) noexcept;

  std::shared_ptr<StreamState> state_;
  std::shared_ptr<MemoryPool> pool_;
  std::shared_ptr<MarkWords> words_;
  std::size_t index_;
  std::shared_ptr<MemoryResource> memory_;
  ThreadTeam team_{1};
  KernelContext context_;
  std::recursive_mutex mutex_;  // recursive: work may enqueue work
  std::deque<Item> items_;
  std::uint64_t issued_ = 0;
  bool suspended_ = false;  // the head waits for its point
  bool failed_ = false;
  int depth_ = 0;   // of those that entered
  int before_ = 0;  // the device of the thread that entered
};

}  // namespace millrace::cuda
