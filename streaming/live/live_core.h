// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/task/wait.h>
#include <millrace/streaming/live/live_model.h>
#include <millrace/streaming/live/live_place.h>
#include <millrace/streaming/live/live_sequence.h>

/// The parts of live_model.h: a LivePlace under one lock, and LiveSequences with queues of results. Not for others.
namespace millrace::detail {

/// Something changed: tasks wait for it, and look again. Everything here is used with the core's mutex held.
class LiveSignal {
 public:
  class SignalWait;
  std::uint64_t version() const noexcept { return version_; }
  /// Waiters are moved to `woken`, to be woken without the mutex.
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

/// The place of a model, whose batcher lives under one lock. When the lock is released, ready ticks are sent off and waiters are woken, without any
/// memory: where there is none for a tick, the thread of ticks tries again.
class LiveCore final : public LivePlace, public std::enable_shared_from_this<LiveCore> {
 public:
  LiveCore(Runtime& runtime, std::shared_ptr<const Recurrence> recurrence, LiveOptions options);

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

  /// A session has rows that the batcher does not know of, for want of memory: it hears of them when there is some.
  void review_later() noexcept;
  /// Waits for the tick that is out; nothing lives afterwards.
  void shut_down() noexcept;
  const Recurrence& recurrence() const noexcept { return batcher().recurrence(); }
  /// The seal of states that leave the process; made when it is first asked for. Without the mutex. UnsupportedError without the part openssl.
  const StateSeal& seal();

  Executor& executor;
  const LiveOptions options;
  std::mutex mutex;
  std::map<LiveId, LiveSessionState*> sessions;  // until their end was given
  std::set<LiveId> ready;                        // of which `LiveModel::next` has something to say; nodes are those of the sessions
  LiveSignal changed;
  LiveSignal::SignalWait* woken = nullptr;
  std::list<std::shared_ptr<LiveReader>> told;
  int gatherings = 0;
  std::size_t gathered = 0;  // pushes since steps began to be held back
  bool prompt = false;       // a task said something that no gathering holds back
  bool gone = false;         // the model; its sessions may live on

 private:
  /// Tries to send off a tick for which there was no memory.
  class Retry final : public Runnable {
   public:
    explicit Retry(LiveCore& core) noexcept : core_(core) {}
    void execute() noexcept override;

   private:
    LiveCore& core_;
  };

  bool holds_back() noexcept;
  void try_again() noexcept;
  void tick_done() noexcept override;
  void starved() noexcept override;

  const std::shared_ptr<const Recurrence> recurrence_;
  std::once_flag seal_made_;
  std::unique_ptr<StateSeal> seal_;
  std::condition_variable came_back_;
  Retry retry_{*this};
  bool retrying_ = false;
  bool reviewing_ = false;  // sessions may have rows that the batcher does not know of
};

/// One session: a LiveSequence, the mark that was said last, and the results. Used under the core's lock.
class LiveSessionState final : public LiveSequence, public std::enable_shared_from_this<LiveSessionState> {
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

  /// `from`: the state of a session that was saved; or only the values that the sequence is given.
  LiveSessionState(std::shared_ptr<LiveCore> core, std::string name, SavedState from);
  ~LiveSessionState() override;
  void begin();
  /// Queues a mark, which takes effect when all before it has: then `mark` is gone, or `refused` holds the reason why it cannot.
  void say(Mark next);
  /// The task that said `mark` waits no longer: a mark that has not begun to take effect never does.
  void withdraw() noexcept;
  /// Bytes of whole rows of an input that there is room for.
  std::size_t room(std::size_t input) const;
  /// ArgumentError for more bytes than there ever is room for.
  void check_may_fit(std::size_t input, std::size_t bytes) const;
  /// Whole rows of an input, as many as there is room for; how many bytes that were.
  std::size_t feed(std::size_t input, std::span<const std::byte> bytes);
  /// `feed` of so many bytes asks for no memory then.
  void reserve(std::size_t input, std::size_t bytes);
  void end_with(std::exception_ptr why) noexcept;
  /// Into as many as there are outputs, which are empty.
  void take(std::vector<Rows>& into) noexcept;
  /// The state that a completed save left.
  SavedState take_saved();
  /// Something that its reader, or that of the model, wants to know.
  bool has_news() const noexcept { return results > 0 || ended; }
  void check_goes_on() const;
  std::size_t input_count() const noexcept { return sources().size(); }
  std::size_t row_bytes(std::size_t input) const { return sources()[input]->row_bytes(); }
  const Recurrence::Input& input(std::size_t index, std::optional<int>& level) const;
  std::string label() const;
  void notify() noexcept;
  /// `next` has nothing more to say of the session; `end`: nor will it.
  void forget_news(bool end) noexcept;
  using LiveSequence::begins_anew;
  using LiveSequence::fed;
  using LiveSequence::open_levels;

  const std::shared_ptr<LiveCore> core;
  const std::string name;
  LiveSignal signal;
  std::list<std::shared_ptr<LiveReader>> reader;  // one at most, until it is told
  std::set<LiveId>::node_type news;               // its node in the core's `ready`, while it is not there
  std::optional<Mark> mark;
  bool begun_mark = false;  // `mark` is the save or the reset that is under way
  std::exception_ptr refused;
  std::exception_ptr error;   // why it is over, unless it ended well
  std::vector<Rows> outputs;  // of a step, then of each boundary
  std::int64_t results = 0;   // rows of outputs, steps without outputs too
  std::size_t waiting_bytes = 0;
  bool busy = false;
  bool ended = false;

 private:
  void advance();
  void advance_once();
  void check_whole() const;
  bool end_begun_mark() noexcept;
  Sources make_sources() const;
  void keep(std::size_t first, Row row);

  void on_step(std::uint64_t seq, Row row) override;
  void on_crossed(std::size_t boundary, std::uint64_t number, Row row) override;
  void on_saved(std::vector<Tensor> states) override;
  void on_failed(std::uint64_t seq, std::exception_ptr cause) override;
  void on_drained(bool anew) override;
  void on_begun_anew() override;

  std::optional<SavedState> from_;   // until it begins
  std::optional<SavedState> saved_;  // until it is taken
};

/// Outputs of a step, and of all boundaries.
std::size_t output_count(const Recurrence& recurrence) noexcept;

/// CancelledError with the session's label and `why`; without them where there is no memory for the text.
std::exception_ptr cancelled(const LiveSessionState& session, const char* why) noexcept;

}  // namespace millrace::detail
