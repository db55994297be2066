// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include <millrace/tensor/watermark.h>
#include <millrace/tensor/with_cuda/check.h>

namespace millrace::cuda {

class StreamState;

/// A word of the host's memory that devices see, and what it was raised to, or will be.
struct MarkWord {
  std::uint64_t* on_host = nullptr;
  std::uint64_t* on_device = nullptr;
  std::uint64_t base = 0;
};

/// The words of a device's watermarks. One that comes back goes out again with a higher base: a kernel that raises it late, and a stream that
/// waits for what it was, do no harm, so they need not be awaited. Thread-safe; lives as long as one of its words is used.
class MarkWords {
 public:
  explicit MarkWords(int device) : device_(device) {}
  ~MarkWords();
  MarkWords(const MarkWords&) = delete;
  MarkWords& operator=(const MarkWords&) = delete;

  MarkWord take();
  void give_back(MarkWord word, std::uint64_t steps) noexcept;

 private:
  int device_;
  std::mutex mutex_;
  std::vector<void*> blocks_;
  std::vector<MarkWord> free_;
};

/// The watermark of one run of kernels on a CUDA stream. Its mutex is held around nothing but CUDA.
class CudaWatermark final : public Watermark, public std::enable_shared_from_this<CudaWatermark> {
 public:
  CudaWatermark(std::weak_ptr<StreamState> producer, std::shared_ptr<MarkWords> words, int device, std::uint64_t steps);
  ~CudaWatermark() override;

  std::uint64_t* word() const noexcept override { return word_.on_device; }
  std::uint64_t base() const noexcept override { return word_.base; }

  /// The event that the next launch records once all its blocks run; and that this launch, which raises the word to `steps`, was made.
  cudaEvent_t launching();
  void launched(std::uint64_t steps);

  bool is_of(const StreamState* stream) const noexcept { return producer_.lock().get() == stream; }
  /// The stream of its kernels; null when that is gone.
  std::shared_ptr<StreamState> producer() const noexcept { return producer_.lock(); }
  /// Makes `other` wait for `value` on the device. False where that cannot be had: no kernel that raises the word so far was started
  /// yet, or the driver knows no waiting for a word.
  bool order(std::uint64_t value, StreamState& other);
  /// Fails it, and the streams that wait in the driver for what is not reached. One of another device, which outlives the kernel's, would
  /// wait there for ever: the host raises the word in the kernel's place.
  void abandon(std::exception_ptr error) noexcept;

  // For the waiter.
  /// Steps by the word.
  std::uint64_t seen() const noexcept;
  /// The highest value that has a waiter and a started kernel raises.
  std::uint64_t due() const;
  /// The device is through with the stream: a value that is not reached by now never will be.
  void end() noexcept;

 protected:
  void asked(std::uint64_t value) override;

 private:
  struct Launch {
    std::uint64_t steps;
    cudaEvent_t begun;
  };
  struct Follower {
    std::weak_ptr<StreamState> stream;
    int device;
    std::uint64_t value;
  };
  void watch();
  void follow(std::uint64_t value, StreamState& other);

  std::weak_ptr<StreamState> producer_;
  std::shared_ptr<MarkWords> words_;
  MarkWord word_;
  int device_;
  std::uint64_t steps_;
  mutable std::mutex mutex_;
  cudaEvent_t next_ = nullptr;
  std::vector<Launch> launches_;
  std::vector<Follower> followers_;  // streams that were made to wait in the driver
  std::uint64_t wanted_ = 0;
};

}  // namespace millrace::cuda
