// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/runtime.h>
#include <millrace/runtime/task/async_task.h>
#include <millrace/runtime/task/deadline.h>
#include <millrace/streaming/live/batcher.h>
#include <millrace/streaming/live/saved_state.h>
#include <millrace/tensor/lod_tensor.h>

namespace millrace {

/// Options of a program that is kept live. Every bound is one of memory, and so of lag.
struct LiveOptions {
  RecurrenceOptions recurrence;
  Place place = CpuPlace{};                         ///< one of the runtime's
  Backend backend = Backend::automatic;             ///< of ticks, as StateSlab takes it
  std::size_t max_rows = 4096;                      ///< of one tick
  std::size_t sessions = 65536;                     ///< that live at once
  std::size_t queued_in = std::size_t{256} << 10;   ///< bytes of each input of a session that wait for their step
  std::shared_ptr<const StateKey> state_key;        ///< seals what is saved; none: a key of the model's own, whose states nobody else takes
  std::size_t queued_out = std::size_t{256} << 10;  ///< bytes of results of a session that wait to be taken, before it steps no further

  LiveOptions() = default;
};

/// The beginning of a sequence.
struct LiveStart {
  std::string name;                     ///< what errors call it, beside its number
  std::map<std::string, Tensor> given;  ///< values that the program takes at the start; those left out are zeros
  std::string state;                    ///< what `save` gave, here or where the same model and key are: the sequence goes on from there

  LiveStart() = default;
};

/// Rows by the name of an input or an output.
using LiveRows = std::map<std::string, LoDTensor>;

/// Results of some sequences: of each output the rows of ids[0], then those of ids[1], …, which level 0 of its LoD tells apart.
struct LiveBatch {
  std::vector<LiveId> ids;
  LiveRows outputs;
  std::vector<LiveId> ended;                                  ///< all of whose results have been given now
  std::vector<std::pair<LiveId, std::exception_ptr>> failed;  ///< likewise; why there will be no more
  LiveBatch() = default;
};

/// A step that failed, and with it its session: `what()` names session and step.
class LiveError : public Error {
 public:
  explicit LiveError(const std::string& what, LiveId session, std::uint64_t step, std::exception_ptr cause)
      : Error(what), session_(session), step_(step), cause_(std::move(cause)) {}
  LiveId session() const noexcept { return session_; }
  /// The first step without a result, from 0.
  std::uint64_t step() const noexcept { return step_; }
  const std::exception_ptr& cause() const noexcept { return cause_; }

 private:
  LiveId session_;
  std::uint64_t step_;
  std::exception_ptr cause_;
};

/// A reader of a session's results that is no task: LiveSession::try_next tells it when to ask again.
class LiveReader {
 public:
  virtual ~LiveReader() = default;
  /// Results, or the end, may be there. Called on any thread, without a lock of the model's: also on that of the model's ticks, whose end a LiveModel waits for, so
  /// that a model which is destroyed here ends the process with a message. A session may be.
  virtual void on_news() noexcept = 0;
};

namespace detail {
class LiveCore;
class LiveSessionState;
}  // namespace detail

/// One live sequence of a LiveModel: rows go in as they arrive, results come out as they are made. A handle: destroying it cancels the session.
///
/// Each operation is a task, to be awaited by a task of the model's runtime, and `async_x(…, token)` the same for any completion token, as
/// `async_start` says: where handlers are called, and how an allocator and a cancellation slot are used. An operation that is cancelled takes nothing
/// back of what it has done and does nothing later: a reset or finish that still waits for its turn never happens. The session goes on. With a deadline an
/// operation that takes longer is cancelled, and throws DeadlineError.
///
/// Memory that runs out (std::bad_alloc, OutOfMemoryError) changes nothing, so that the operation can be called again. There are two exceptions. A `push` of inner
/// sequences ends the session with the error. A `push` that has queued some of its rows ends it after some seconds without memory for the others.
///
/// Operations that say something (all but `next` and `cancel`) take effect in order, one at a time: ArgumentError while another is under way. `next` may
/// run beside them, and has to where more is said than the queues hold. Errors: ArgumentError, DTypeError, ShapeError, LoDError and UninitializedError name the
/// session and what was expected; ArgumentError of a handle without a session (made by default, or moved from), which has no executor and so throws from the call itself; LiveError when a step failed; CancelledError once the session was cancelled, or its model is gone. Thread-safe.
class LiveSession {
 public:
  using Limit = std::optional<Duration>;

  LiveSession() = default;
  LiveSession(LiveSession&&) noexcept = default;
  LiveSession& operator=(LiveSession&& other) noexcept;
  ~LiveSession();

  LiveId id() const noexcept;
  /// Steps that have a result.
  std::uint64_t steps() const;

  /// Rows of inputs, any number of each. Done when all are queued. An inner level of LoD opens and closes inner sequences around its rows; names, dtypes, shapes and
  /// levels of all inputs are checked before the first of them opens.
  task<void> push(LiveRows rows, Limit deadline = {}) const;
  /// `push` where the program has one input.
  task<void> push(LoDTensor rows, Limit deadline = {}) const;
  template <class T>
  task<void> push(std::span<const T> values, Limit deadline = {}) const {
    return push_bytes(dtype_of<T>, std::as_bytes(values), deadline);
  }
  /// The results that are there and were not taken, at least one; nothing when the sequence has ended. Of each output of a step [n, …], without LoD; an output of
  /// inner sequences stands there when some have closed, a row each.
  task<std::optional<LiveRows>> next(Limit deadline = {}) const;
  /// `push` and `next` where they need not wait, for a caller that is no task. False, and nothing has changed, where they would: for room for all of the
  /// rows, for another operation that says something, for a result. Rows with inner sequences are for `push`, and so are more rows of an input than the
  /// queue ever has room for: those are an ArgumentError. Other errors are those of `push` and `next`.
  bool try_push(const LiveRows& rows) const;
  /// `try_push` of the bytes of whole rows of the only input, in row-major order.
  bool try_push(std::span<const std::byte> rows) const;
  /// Where this gives false, `reader` is told once when something is there; a session has one such reader, the last one given.
  bool try_next(std::optional<LiveRows>& made, const std::shared_ptr<LiveReader>& reader = nullptr) const;
  /// `try_next` with a tensor for each output of the recurrence, in its order: of a step, then of each boundary, where no row is there for some.
  bool try_next(std::optional<std::vector<Tensor>>& made, const std::shared_ptr<LiveReader>& reader = nullptr) const;
  /// An inner sequence of level 1 … levels − 1 begins, or ends.
  task<void> open_level(int level, Limit deadline = {}) const;
  task<void> close_level(int level, Limit deadline = {}) const;
  /// Done when nothing more can be answered of what was said: the number of steps since the start or the last reset.
  task<std::uint64_t> flush(Limit deadline = {}) const;
  /// Ends the sequence and begins it anew: open levels close, each step is answered, then the state is that of the start.
  task<void> reset(Limit deadline = {}) const;
  /// Where the sequence stands when all that was pushed and can be answered is, sealed (StateSeal): with it `open` of this model, of another one or of
  /// a server, with the same program and key, goes on with the same bits. The session itself goes on, too. UnsupportedError without the part openssl.
  task<std::string> save(Limit deadline = {}) const;
  /// A second session of the same model from where this one then stands. Its results begin there. OverflowError as `open`.
  task<LiveSession> fork(Limit deadline = {}) const;
  /// No row follows. Open levels close; `next` gives the rows that are left, then nothing.
  task<void> finish(Limit deadline = {}) const;
  /// The session is over at once: whoever waits for it hears CancelledError.
  void cancel() const noexcept;

  template <class Token>
  auto async_push(LiveRows rows, Token&& token, Limit deadline = {}) const {
    return async_start(executor(), push(std::move(rows), deadline), std::forward<Token>(token), "push");
  }
  template <class Token>
  auto async_push(LoDTensor rows, Token&& token, Limit deadline = {}) const {
    return async_start(executor(), push(std::move(rows), deadline), std::forward<Token>(token), "push");
  }
  template <class T, class Token>
  auto async_push(std::span<const T> values, Token&& token, Limit deadline = {}) const {
    return async_start(executor(), push(values, deadline), std::forward<Token>(token), "push");
  }
  template <class Token>
  auto async_next(Token&& token, Limit deadline = {}) const {
    return async_start(executor(), next(deadline), std::forward<Token>(token), "next");
  }
  template <class Token>
  auto async_open_level(int level, Token&& token, Limit deadline = {}) const {
    return async_start(executor(), open_level(level, deadline), std::forward<Token>(token), "open_level");
  }
  template <class Token>
  auto async_close_level(int level, Token&& token, Limit deadline = {}) const {
    return async_start(executor(), close_level(level, deadline), std::forward<Token>(token), "close_level");
  }
  template <class Token>
  auto async_flush(Token&& token, Limit deadline = {}) const {
    return async_start(executor(), flush(deadline), std::forward<Token>(token), "flush");
  }
  template <class Token>
  auto async_reset(Token&& token, Limit deadline = {}) const {
    return async_start(executor(), reset(deadline), std::forward<Token>(token), "reset");
  }
  template <class Token>
  auto async_save(Token&& token, Limit deadline = {}) const {
    return async_start(executor(), save(deadline), std::forward<Token>(token), "save");
  }
  template <class Token>
  auto async_fork(Token&& token, Limit deadline = {}) const {
    return async_start(executor(), fork(deadline), std::forward<Token>(token), "fork");
  }
  template <class Token>
  auto async_finish(Token&& token, Limit deadline = {}) const {
    return async_start(executor(), finish(deadline), std::forward<Token>(token), "finish");
  }

 private:
  friend class LiveModel;
  explicit LiveSession(std::shared_ptr<detail::LiveSessionState> sequence) noexcept : sequence_(std::move(sequence)) {}
  const std::shared_ptr<detail::LiveSessionState>& present() const;
  detail::LiveSessionState& state() const;
  Executor& executor() const;
  task<void> push_bytes(DType dtype, std::span<const std::byte> bytes, Limit deadline) const;
  Tensor rows_of(DType dtype, std::span<const std::byte> bytes) const;

  std::shared_ptr<detail::LiveSessionState> sequence_;
};

/// While one lives, what `LiveSession::try_push` queues begins no step by itself (what a task says does, and takes along what is queued): rows that many sessions push one after the other share a step. It begins when
/// the last of these objects goes, once half of the sessions have pushed, or behind the step that is under way.
class [[nodiscard]] LiveGathering {
 public:
  explicit LiveGathering(std::shared_ptr<detail::LiveCore> core) noexcept;
  LiveGathering(LiveGathering&&) noexcept = default;
  LiveGathering& operator=(LiveGathering&&) = delete;
  ~LiveGathering();

 private:
  std::shared_ptr<detail::LiveCore> core_;
};

/// A program over sequences that are still arriving: any number of live sessions, whose steps are batched as they become ready, on a thread of the
/// model's own. A sequence has the bits of one run of the whole, however its rows were cut and whoever shares its ticks. Nothing polls.
///
/// Its sessions may outlive it: they then end with CancelledError. A runtime with threads of its own may go first: the threads go on
/// until the model has gone. A session may be destroyed behind both, and called behind one of them. With a context or executor of the embedder's the runtime outlives the model. Thread-safe.
class LiveModel {
 public:
  /// UnsupportedError names the op that keeps the program from being fed live; else as `make_recurrence` and `StateSlab`.
  explicit LiveModel(Runtime& runtime, const Program& program, LiveOptions options = {});
  ~LiveModel();
  LiveModel(const LiveModel&) = delete;
  LiveModel& operator=(const LiveModel&) = delete;

  const Recurrence& recurrence() const noexcept;
  std::size_t live_sessions() const;
  Batcher::Stats stats() const;
  LiveGathering gather() const;

  using Limit = LiveSession::Limit;  ///< an operation that takes longer is cancelled, and throws DeadlineError

  /// A new sequence. OverflowError when `sessions` live already; ArgumentError names a given value that the program does not take,
  /// or says that there is a state beside it; UninitializedError for a value that nothing was written to; SavedStateError refuses a state.
  task<LiveSession> open(LiveStart start = {}, Limit deadline = {}) const;

  /// Pieces of several sequences at once: level 0 of the LoD says how many rows (with levels below: inner sequences, which open and close) go to each
  /// of `ids`. ArgumentError for an id that is not live, or stands twice. Done when all are queued; the sequences do not wait for one another. An error of one
  /// session takes no rows from the others: when all are queued or refused, the error of the first in the order of `ids` is thrown.
  task<void> push(std::vector<LiveId> ids, LiveRows rows, Limit deadline = {}) const;
  task<void> push(std::vector<LiveId> ids, LoDTensor rows, Limit deadline = {}) const;
  /// The results that became ready of any of its sequences, at least one row, end or failure; nothing when no session is left. Results are given once, here or by a
  /// session's own `next`.
  task<std::optional<LiveBatch>> next(Limit deadline = {}) const;

  template <class Token>
  auto async_open(LiveStart start, Token&& token, Limit deadline = {}) const {
    return async_start(executor(), open(std::move(start), deadline), std::forward<Token>(token), "open");
  }
  template <class Token>
  auto async_push(std::vector<LiveId> ids, LiveRows rows, Token&& token, Limit deadline = {}) const {
    return async_start(executor(), push(std::move(ids), std::move(rows), deadline), std::forward<Token>(token), "push");
  }
  template <class Token>
  auto async_push(std::vector<LiveId> ids, LoDTensor rows, Token&& token, Limit deadline = {}) const {
    return async_start(executor(), push(std::move(ids), std::move(rows), deadline), std::forward<Token>(token), "push");
  }
  template <class Token>
  auto async_next(Token&& token, Limit deadline = {}) const {
    return async_start(executor(), next(deadline), std::forward<Token>(token), "next");
  }

 private:
  Executor& executor() const;
  std::shared_ptr<const void> means_;  // of the runtime, which may go first
  std::shared_ptr<detail::LiveCore> core_;
};

}  // namespace millrace
