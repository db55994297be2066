// SPDX-License-Identifier: Apache-2.0
#include <support/sim_device.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include <millrace/tensor/kernel_floats.h>
#include <millrace/tensor/work_failure.h>
#include <support/random.h>

namespace millrace::testing {
namespace {

constexpr int poison = 0xFF;

}  // namespace

void* SimMemory::allocate(std::size_t bytes) {
  const std::size_t live_now = live_.load();
  if (++allocations_ == fail_allocation_ || bytes > capacity_ || live_now > capacity_ - bytes)
    throw OutOfMemoryError("memory on " + place_.to_string() + ": " + std::to_string(bytes) + " bytes were refused by the device with " +
                           std::to_string(live_now) + " in use");
  void* pointer = host_memory()->allocate(bytes);
  std::memset(pointer, poison, bytes);
  const std::size_t live = live_.fetch_add(bytes) + bytes;
  std::size_t peak = peak_.load();
  while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
  }
  return pointer;
}

void SimMemory::deallocate(void* pointer, std::size_t bytes) noexcept {
  std::memset(pointer, poison, bytes);
  live_.fetch_sub(bytes);
  host_memory()->deallocate(pointer, bytes);
}

struct SimDevice::Ring {
  explicit Ring(const Options& options)
      : drop_wait(options.drop_wait), fail_work(options.fail_work), lose_work(options.lose_work), late(options.late) {}
  mutable std::mutex mutex;
  ThreadTeam team{1};
  std::size_t waits = 0;
  std::size_t drop_wait;
  std::size_t works = 0;
  std::size_t fail_work;
  std::size_t lose_work;
  bool late;
  std::exception_ptr lost;
  std::vector<std::unique_ptr<SimStream>> streams;
};

class SimDevice::SimStream final : public Stream {
 public:
  SimStream(Ring& ring, std::shared_ptr<MemoryResource> memory, int index)
      : ring_(ring), memory_(std::move(memory)), context_(memory_->place(), ring.team, memory_), index_(index) {}

  Place place() const override { return memory_->place(); }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return memory_; }
  bool enter() noexcept override { return false; }
  KernelContext& context() noexcept override { return context_; }
  void leave(std::exception_ptr) noexcept override {}
  void push(std::unique_ptr<Work> work) override {
    const std::lock_guard lock(ring_.mutex);
    items_.push_back({std::move(work), {}, {}});
    ++issued_;
  }
  void wait(const Point& point) override {
    const std::lock_guard lock(ring_.mutex);
    if (point.timeline() == timeline_) return;
    if (++ring_.waits == ring_.drop_wait) return;
    items_.push_back({nullptr, point, {}});
    ++issued_;
  }
  Point position() override {
    const std::lock_guard lock(ring_.mutex);
    return Point(timeline_, issued_);
  }

  /// Work that is enqueued from now on has a timeline of its own, which begins behind queued work.
  void renew() {
    const std::lock_guard lock(ring_.mutex);
    timeline_ = std::make_shared<Timeline>();
    items_.push_back({nullptr, {}, timeline_});
    ++issued_;
  }

  /// With the ring's mutex held.
  bool empty() const noexcept { return items_.empty() && !late_; }
  bool ready() const {
    if (late_) return true;
    if (items_.empty()) return false;
    const Item& head = items_.front();
    return head.work != nullptr || head.renewed != nullptr || head.point.reached() || head.point.error() != nullptr;
  }

  /// Without it: takes the head, which must be ready.
  void take() {
    if (late_) return complete();
    Item item;
    {
      const std::lock_guard lock(ring_.mutex);
      item = std::move(items_.front());
      items_.pop_front();
    }
    if (item.renewed != nullptr) return begin(std::move(item.renewed));
    if (!failed_) run(item);
    const bool late = ring_.late && item.work != nullptr;
    item.work.reset();  // the work's memory goes back before any waiter hears that it is done
    if (!late) return complete();
    const std::lock_guard lock(ring_.mutex);
    late_ = true;
  }

  void abandon() {
    std::deque<Item> items;
    {
      const std::lock_guard lock(ring_.mutex);
      items.swap(items_);
    }
    if (items.empty()) return;
    for (const auto& timeline : {current_, timeline_})
      timeline->fail(std::make_exception_ptr(Error("sim stream: destroyed with " + std::to_string(items.size()) + " steps queued")));
  }

 private:
  struct Item {
    std::unique_ptr<Work> work;  // or null: wait for `point`
    Point point;
    std::shared_ptr<Timeline> renewed;  // or, instead of both, the timeline that begins here
  };

  void begin(std::shared_ptr<Timeline> renewed) {
    complete();
    current_ = std::move(renewed);
    failed_ = nullptr;
    current_->advance(taken_);
  }
  void run(Item& item) {
    if (item.work == nullptr) {
      failed_ = item.point.error();
      return;
    }
    try {
      const bool blows_up = blows();
      if (const std::exception_ptr gone = lost()) throw DeviceError(text_of(gone));  // its own: where it was found is added to it
      if (blows_up) throw DeviceError(place().to_string() + ": work failed, as it was told to");
      const KernelFloats floats;
      item.work->run(context_);
    } catch (...) {
      failed_ = failure_of_work(std::current_exception(), item.work->origin, place(), index_);
    }
  }
  static std::string text_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      return known.what();
    }
  }
  bool blows() {
    const std::lock_guard lock(ring_.mutex);
    const std::size_t work = ++ring_.works;
    if (work == ring_.lose_work)
      ring_.lost = std::make_exception_ptr(DeviceError(place().to_string() + ": work took the device with it, as it was told to"));
    return work == ring_.fail_work;
  }
  std::exception_ptr lost() const {
    const std::lock_guard lock(ring_.mutex);
    return ring_.lost;
  }
  void complete() {
    {
      const std::lock_guard lock(ring_.mutex);
      late_ = false;
    }
    if (failed_) current_->fail(failed_);
    current_->advance(++taken_);
  }

  Ring& ring_;
  std::shared_ptr<MemoryResource> memory_;
  KernelContext context_;
  int index_;
  bool late_ = false;  // the work that was taken last has run, and is not complete
  std::deque<Item> items_;
  std::uint64_t issued_ = 0;
  std::uint64_t taken_ = 0;                                            // touched by the driving thread alone
  std::exception_ptr failed_;                                          // likewise
  std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();  // of positions
  std::shared_ptr<Timeline> current_ = timeline_;                      // of what is taken next, by the driving thread
};

SimDevice::SimDevice(Options options)
    : memory_(std::make_shared<SimMemory>(options.index, options.capacity, options.fail_allocation)),
      cache_(options.caching ? std::make_shared<CachingResource>(memory_, options.capacity) : nullptr),
      base_memory_(memory_),
      ring_(std::make_unique<Ring>(options)) {
  if (options.streams < 1) throw ArgumentError("sim device: expected at least 1 stream, found 0");
  if (cache_ != nullptr) base_memory_ = cache_;
  for (std::size_t i = 0; i < options.streams; ++i)
    ring_->streams.push_back(std::make_unique<SimStream>(*ring_, base_memory_, static_cast<int>(i)));
}

SimDevice::~SimDevice() {
  for (const auto& stream : ring_->streams) stream->abandon();
}

std::size_t SimDevice::stream_count() const noexcept { return ring_->streams.size(); }

StreamRef SimDevice::stream(std::size_t index) { return *ring_->streams[index % ring_->streams.size()]; }

std::exception_ptr SimDevice::lost() {
  const std::lock_guard lock(ring_->mutex);
  return ring_->lost;
}

bool SimDevice::renew() {
  if (lost()) return false;
  for (const auto& stream : ring_->streams) stream->renew();
  return true;
}

std::size_t SimDevice::choices() {
  const std::lock_guard lock(ring_->mutex);
  std::size_t count = 0;
  for (const auto& stream : ring_->streams) count += stream->ready();
  return count;
}

void SimDevice::take(std::size_t choice) {
  std::size_t found = ring_->streams.size();
  {
    const std::lock_guard lock(ring_->mutex);
    for (std::size_t i = 0; i < ring_->streams.size(); ++i) {
      if (!ring_->streams[i]->ready() || choice-- != 0) continue;
      found = i;
      break;
    }
  }
  if (found == ring_->streams.size()) throw IndexError("sim device: fewer steps are ready than the choice asks for");
  ring_->streams[found]->take();
}

std::size_t SimDevice::drain(std::uint64_t seed) {
  Random random(seed);
  std::size_t taken = 0;
  for (std::size_t count = choices(); count > 0; count = choices()) {
    take(static_cast<std::size_t>(random.next() % count));
    ++taken;
  }
  return taken;
}

bool SimDevice::idle() const {
  const std::lock_guard lock(ring_->mutex);
  for (const auto& stream : ring_->streams)
    if (!stream->empty()) return false;
  return true;
}

std::size_t SimDevice::works() const {
  const std::lock_guard lock(ring_->mutex);
  return ring_->works;
}

void SimDevice::release_cached() noexcept {
  if (cache_ != nullptr) cache_->release_cached();
}

std::size_t SimDevice::waits() const {
  const std::lock_guard lock(ring_->mutex);
  return ring_->waits;
}

}  // namespace millrace::testing
