// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/task/wait.h>
#include <millrace/streaming/live/live_model.h>
#include <millrace/streaming/live/saved_state.h>
#include <millrace/streaming/live/state_slab.h>

/// What live_model.h stands on: sequences without I/O under one lock, and the ticks on a thread. Not for others.
namespace millrace::detail {

/// Something changed: tasks wait for it, and look again. Everything here is used with the core's mutex held.
class LiveSignal {
 public:
  class SignalWait;
  std::uint64_t version() const noexcept { return version_; }
  /// Who waits is moved to `woken`, to be woken without the mutex.
  void raise(SignalWait*& woken) noexcept;

 private:
  friend class SignalWait;
  std::uint64_t version_ = 0;
  SignalWait* first_ = nullptr;
};

/// `co_await wait` until the signal is raised after `seen`. An external wait of the run: rows come from outside.
class LiveSignal::SignalWait final : public ExternalWait {
 public:
  explicit SignalWait(std::mutex& mutex, LiveSignal& signal, std::uint64_t seen) noexcept : mutex_(mutex), signal_(signal), seen_(seen) {}

 private:
  friend class LiveSignal;
  friend class LiveCore;
  Armed arm() noexcept override;
  bool disarm() noexcept override;
  std::string describe() const override { return "rows or results of a live session"; }

  std::mutex& mutex_;
  LiveSignal& signal_;
  std::uint64_t seen_;
  SignalWait* next_ = nullptr;
};

/// The batcher, the states and the thread of the ticks. What is made ready under the lock is sent off, and who waits is woken, when it is let go.
class LiveCore : public std::enable_shared_from_this<LiveCore> {
 public:
  LiveCore(Runtime& runtime, const Program& program, LiveOptions options);

  class Locked {
   public:
    explicit Locked(LiveCore& core) : core_(core), lock_(core.mutex) {}
    ~Locked();
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    LiveCore& core_;
    std::unique_lock<std::mutex> lock_;
  };

  /// Waits for the tick that is out; nothing lives afterwards.
  void shut_down() noexcept;
  std::size_t output_count() const noexcept;
  /// By which states leave the process; made when it is first asked for. Without the mutex. UnsupportedError without the part openssl.
  const StateSeal& seal();

  Runtime& runtime;
  const LiveOptions options;
  const std::shared_ptr<const Recurrence> recurrence;
  std::mutex mutex;
  Batcher batcher;
  std::map<LiveId, LiveSequence*> sequences;  // until their end was given
  std::set<LiveId> ready;                     // of which `LiveModel::next` has something to say
  LiveSignal changed;
  LiveSignal::SignalWait* woken = nullptr;

 private:
  class Job;
  void pump();

  StateSlab slab_;
  std::once_flag seal_made_;
  std::unique_ptr<StateSeal> seal_;
  std::unique_ptr<ThreadExecutor> worker_ = std::make_unique<ThreadExecutor>(1);
  std::condition_variable came_back_;
  bool shut_ = false;
};

/// One sequence: its queue, what was said of it last, and its results. Used under the core's lock.
class LiveSequence final : public Batcher::Sink, public std::enable_shared_from_this<LiveSequence> {
 public:
  struct Mark {
    enum class Kind : std::uint8_t { open, close, flush, reset, save, finish };
    Kind kind = Kind::finish;
    int level = 0;
  };
  struct Rows {
    std::string bytes{};
    std::int64_t count = 0;
  };

  LiveSequence(std::shared_ptr<LiveCore> core, std::string name, std::vector<Tensor> given);
  /// The same, from where another one was saved.
  LiveSequence(std::shared_ptr<LiveCore> core, std::string name, SavedState from);
  ~LiveSequence() override;
  LiveSequence(const LiveSequence&) = delete;
  LiveSequence& operator=(const LiveSequence&) = delete;
  void begin();
  /// Takes effect when what was said before has: `mark` is gone then, or why it cannot is in `refused`.
  void say(Mark next);
  /// Whole rows of an input, as many as there is room for; how many bytes that were.
  std::size_t feed(std::size_t input, std::span<const std::byte> bytes);
  void end_with(std::exception_ptr why);
  std::vector<Rows> take();
  /// The state that a completed save left.
  SavedState take_saved();
  /// Something that its reader, or that of the model, wants to know.
  bool has_news() const noexcept { return results > 0 || over; }
  void check_goes_on() const;
  const Recurrence::Input& input(std::size_t index, std::optional<int>& level) const;
  std::string label() const;
  void notify();

  const std::shared_ptr<LiveCore> core;
  const std::string name;
  LiveId id = 0;
  LiveSignal signal;
  std::vector<std::unique_ptr<RowSource>> sources;
  std::optional<Mark> mark;
  std::exception_ptr refused;
  std::exception_ptr error;   // why it is over, unless it ended well
  std::vector<Rows> outputs;  // of a step, then of each boundary
  std::int64_t results = 0;   // rows of outputs, steps without outputs too
  std::size_t waiting_bytes = 0;
  std::uint64_t answered = 0;
  std::uint64_t answered_before = 0;  // the last reset
  std::vector<std::uint64_t> closed;  // inner sequences, by level
  int open = 0;
  bool busy = false;
  bool over = false;

 private:
  void advance();
  void advance_once();
  void cross(bool opens, int level);
  void check_whole(bool at_end) const;
  void make_sources();
  std::vector<RowSource*> source_list() const;
  void keep(std::size_t first, std::span<const std::span<const std::byte>> rows);
  void leave();

  void step(std::uint64_t seq, std::span<const std::span<const std::byte>> rows) override;
  void crossed(std::size_t boundary, std::span<const std::span<const std::byte>> rows) override;
  void failed(std::uint64_t seq, std::exception_ptr cause) override;
  void drained() override;
  void saved(std::vector<Tensor> states) override;

  std::vector<Tensor> given_;
  std::optional<SavedState> from_;   // until it begins
  std::optional<SavedState> saved_;  // until it is taken
  bool crossing_ = false;
  bool resetting_ = false;
  bool saving_ = false;
};

}  // namespace millrace::detail
