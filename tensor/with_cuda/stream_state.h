// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <millrace/tensor/point.h>
#include <millrace/tensor/with_cuda/launched.h>
#include <millrace/tensor/with_cuda/queue.h>

namespace millrace::cuda {

class CudaWatermark;
class Waiters;
class StreamState;

/// The positions of one CUDA stream. Survives it: then every value is reached, or failed.
class StreamTimeline final : public Timeline {
 public:
  /// The stream, or null once it is closed.
  std::shared_ptr<StreamState> state() const;
  void attach(std::weak_ptr<StreamState> state);
  /// The error with which the stream has failed before `value`, or one that it came behind on the device has; else null. Looks at the words of their
  /// kernels: for a caller that knows from CUDA alone that the device got so far. `asked`: the streams that were looked at, and how far.
  using Asked = std::vector<std::pair<const StreamState*, std::uint64_t>>;
  std::exception_ptr trouble(std::uint64_t value, Asked& asked) const;

 protected:
  void asked(std::uint64_t value) override;
  void expected(std::uint64_t value) override;

 private:
  mutable std::mutex mutex_;
  std::weak_ptr<StreamState> state_;
};

/// The state of the device side of a stream: how far work was handed to CUDA, and the waiters for its completion. Thread-safe. Its mutex is
/// the innermost of all: nothing is called under it but CUDA.
class StreamState : public std::enable_shared_from_this<StreamState> {
 public:
  StreamState(int device, Waiters& waiters, std::uint64_t* words_on_host, std::uint64_t* words_on_device);
  ~StreamState();

  /// For users of the stream: `renew` changes it.
  const std::shared_ptr<StreamTimeline>& timeline() const noexcept { return timeline_; }
  const Queue& queue() const noexcept { return queue_; }
  Queue& queue() noexcept { return queue_; }

  /// Everything up to `value` was handed to CUDA.
  void handed(std::uint64_t value);
  std::uint64_t handed() const noexcept { return handed_.load(std::memory_order_acquire); }
  /// Work is being handed over from now until `handed` says so.
  void handing() noexcept { handing_.store(true, std::memory_order_release); }
  /// Behind this position nothing uses what is given back now: work that is being handed over may do so.
  std::uint64_t past() const noexcept {
    const std::uint64_t more = handing_.load(std::memory_order_acquire) ? 1 : 0;
    return handed() + more;
  }
  /// Whether `past`, as it once was, was handed over.
  bool is_handed(std::uint64_t value) const noexcept { return !handing_.load(std::memory_order_acquire) || value <= handed(); }
  /// Sees to it that the timeline reaches `value` once the device does.
  void ask(std::uint64_t value);
  /// Records where the stream is, when it was handed no more than `value` was to be.
  void expect(std::uint64_t value);
  /// Makes `other` wait for `value`. False when that was not handed to CUDA yet.
  bool order(std::uint64_t value, cudaStream_t other, int other_device);
  /// Work enqueued with position `at` and later comes behind `value` of `other`, which CUDA sees to: this fails with the error of that.
  void follow(std::shared_ptr<StreamTimeline> other, std::uint64_t value, std::uint64_t at);
  /// See StreamTimeline::trouble.
  std::exception_ptr trouble(std::uint64_t value, StreamTimeline::Asked& asked);
  /// The error that took the device away, or null. Asks CUDA.
  std::exception_ptr gone() const;
  /// Waits for all that was handed to CUDA. False when the device is gone.
  bool settle();
  /// After `settle`: a stream that failed begins a timeline of its own, behind what it did.
  void renew();
  /// The point to which the device is known to have come. Asks nobody.
  std::uint64_t seen() const noexcept;
  /// True when all that was handed to CUDA is done, which `seen` knows from then on. Asks CUDA.
  bool idle() const;
  /// Writes a word of the device's memory behind what was handed over: at the cost of no copy. False where the driver has no such writes.
  bool write(std::uint64_t* word, std::uint64_t value);
  /// Keeps memory that is not this device's until what is being handed over is done.
  void keep(std::shared_ptr<Allocation> storage);
  void fail(std::exception_ptr error) noexcept;
  /// Fails the stream on the waiter's thread: a caller of `asked` holds locks that waiters take.
  void doom(std::exception_ptr error) noexcept;

  /// A watermark that kernels of the stream raise: it fails when the stream does.
  void add(const std::shared_ptr<CudaWatermark>& watermark);
  /// It has a waiter, and its kernel was started.
  void watch(std::shared_ptr<CudaWatermark> watermark);

  // For the waiter.
  struct Mark {
    std::uint64_t value = 0;
    cudaEvent_t event = nullptr;
    bool word = false;  ///< the device's word tells of it too
  };
  /// Whether there is anything to look for.
  bool in_flight() const;
  /// Reads the device's word and what it says of faults; completes what is reached. True when there was progress.
  bool look();
  /// Asks CUDA, which knows of failures and of kernels that ended before their watermark, too. True when there was progress.
  bool ask_device();

  /// Waits until the device is done with the stream and completes its timeline; the waiter must have left it alone.
  void close() noexcept;

 private:
  struct Followed {
    std::shared_ptr<StreamTimeline> timeline;
    std::uint64_t value;        // of it
    std::uint64_t first, last;  // of this stream: what came behind it first, and last
  };
  struct Kept {
    std::uint64_t value;
    std::shared_ptr<Allocation> storage;
  };

  /// These are called with the mutex held.
  cudaError_t record(Mark& made, bool word);
  const Mark* recorded(std::uint64_t value) const;
  cudaError_t mark(std::uint64_t value);
  void prune();

  std::shared_ptr<StreamTimeline> current() const;
  void fail(std::exception_ptr error, const std::shared_ptr<StreamTimeline>& timeline) noexcept;
  void reach(std::uint64_t value) noexcept;
  bool look_at_watermarks();
  bool check_watched();
  bool faulted() noexcept;
  bool in_trouble(std::uint64_t value, bool reached);
  std::exception_ptr lost(cudaError_t code, const char* call) const;

  std::shared_ptr<StreamTimeline> timeline_ = std::make_shared<StreamTimeline>();
  Waiters& waiters_;
  Queue queue_;
  Launched launched_;
  std::uint64_t* progress_;  // written by the device
  std::uint64_t* fault_;     // likewise
  std::uint64_t* progress_on_device_;

  std::atomic<std::uint64_t> handed_{0};
  mutable std::atomic<std::uint64_t> idle_at_{0};  // the position at which CUDA said last that all was done
  std::atomic<bool> handing_{false};
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> wanted_;  // values that have a waiter and were not handed over yet
  std::deque<Mark> marks_;             // the marks that the waiter looks for, ascending
  std::deque<Mark> points_;            // other recorded marks, ascending
  std::vector<cudaEvent_t> spare_;
  std::deque<Kept> kept_;
  std::vector<Followed> followed_;  // streams not known yet to have succeeded
  std::vector<std::weak_ptr<CudaWatermark>> watermarks_;
  std::vector<std::shared_ptr<CudaWatermark>> watched_;
  std::exception_ptr doom_;
  bool closed_ = false;
  bool has_word_ = true;  // false: the driver writes none, and events alone tell
};

}  // namespace millrace::cuda
