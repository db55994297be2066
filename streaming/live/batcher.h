// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/streaming/live/tick.h>
#include <millrace/streaming/protocol/one_or_many.h>
#include <millrace/streaming/protocol/row_source.h>

namespace millrace {

/// One sequence that the batcher knows; ids are never used twice.
using LiveId = std::uint64_t;

/// Where a sequence goes on that was saved.
struct LiveOrigin {
  std::vector<Tensor> states{};  ///< one per state of the recurrence; none: it begins
  std::uint64_t seq = 0;
};

/// Forms each tick from the sequences that are ready: no clock, no window, no polling. The class does no I/O: its driver calls `take` when
/// `ready`, has a StateSlab run the tick (on any thread), and hands the result to `finish`. At most one tick is out at a time; sequences that become
/// ready meanwhile join the next. A sequence is ready when each of its sources holds a row and it may step. Not thread-safe.
///
/// A tick takes every ready sequence that keeps its pace: one with at most `few_rows` rows that wait. Sequences that are ahead of theirs, because their clients send
/// faster than they step, share the rows that `limit_ahead` leaves them, in turns; they have no limit while no other sequence lives.
class Batcher {
 public:
  /// Where results go.
  class Sink {
   public:
    virtual ~Sink() = default;
    /// Step `seq` of the sequence: one row of each output, in the recurrence's order.
    virtual void step(std::uint64_t seq, std::span<const std::span<const std::byte>> rows) = 0;
    /// Step `seq` failed, and the sequence is over.
    virtual void failed(std::uint64_t seq, std::exception_ptr error) = 0;
    /// An inner sequence opened or closed, as `cross` asked: one row of each output of the boundary.
    virtual void crossed(std::size_t, std::span<const std::span<const std::byte>>) {}
    /// The states of the sequence, as `save` asked.
    virtual void saved(std::vector<Tensor>) {}
    /// All rows of ended sources were stepped. Called once, unless the sequence failed or was closed.
    virtual void drained() = 0;
  };

  static constexpr std::size_t few_rows = 64;

  struct Stats {
    std::uint64_t ticks = 0;
    std::uint64_t rows = 0;
    std::uint64_t largest = 0;
  };

  /// `max_rows`: of one tick.
  explicit Batcher(std::shared_ptr<const Recurrence> recurrence, std::size_t max_rows = 4096);

  /// A sequence that steps as soon as there are rows. `sources`: one per live input (those of the recurrence, then those of its boundaries,
  /// in their order), owned by the caller, who tells `changed` when one got
  /// rows or ended. They and `sink` live until `close`. `given`: see Tick::Start.
  LiveId open(std::vector<RowSource*> sources, Sink& sink, std::vector<Tensor> given = {}, LiveOrigin from = {});
  /// The sink hears of the states behind a tick to come, and steps no further before. ArgumentError unless `settled`.
  void save(LiveId id);
  /// The sequence goes over a boundary of the recurrence in a tick to come, and steps no further before. ArgumentError unless `settled`, and
  /// unless each input of the boundary holds a row.
  void cross(LiveId id, std::size_t boundary);
  /// The sequence is part of the tick that is out, or of one to come: its sink will hear of it without anything else arriving.
  bool will_step(LiveId id) const;
  /// Nothing of the sequence is out, nothing can be done for it, and no crossing is to come.
  bool settled(LiveId id) const;
  /// The sequence begins anew: its state from `given`, its steps from 0, its rows from these sources. When it is settled or drained.
  void restart(LiveId id, std::vector<RowSource*> sources, std::vector<Tensor> given = {});
  /// Rows arrived, or the last one has.
  void changed(LiveId id);
  /// Whether the sequence may step: false while its results have nowhere to go. True at first.
  void allow(LiveId id, bool may_step);
  /// The sequence goes away; its slot is used again only after a tick that holds it came back. No call to its sink follows.
  void close(LiveId id);

  /// The memory of all sequences is gone: each sink whose sequence is not over hears that it failed. No tick is out.
  void lose(const std::exception_ptr& error);

  const Recurrence& recurrence() const noexcept { return *recurrence_; }

  /// A tick can be taken: none is out, and a sequence is ready or has to be started.
  bool ready() const noexcept;
  /// A sequence is ready, whether or not a tick is out.
  bool waiting() const noexcept { return !prompt_.empty() || !ahead_.empty(); }
  /// Rows of a tick that sequences ahead of their pace may have beside the others; at least 1. No limit by default.
  void limit_ahead(std::size_t rows) noexcept { most_ahead_ = std::max<std::size_t>(rows, 1); }
  /// Forms the next tick. One `tick` is given again and again, so that its memory is used again; none of its tensors is held elsewhere.
  void take(Tick& tick);
  Tick take();
  /// Calls the sinks, in the order of rows. A sink may call any member here but `take` and `finish`. What a sink throws, such as memory that ran out, is its own
  /// sequence's failure.
  void finish(const TickResult& result);

  bool tick_out() const noexcept { return tick_out_; }
  std::size_t live() const noexcept;
  const Stats& stats() const noexcept { return stats_; }

 private:
  static constexpr std::int32_t no_crossing = -1, saving = -2;
  /// Small: there are as many as live sessions.
  struct Sequence {
    LiveId id = 0;
    Slot slot = 0;
    OneOrMany<RowSource*> sources;
    Sink* sink = nullptr;  // null: closed while it was out
    std::uint64_t seq = 0;
    std::int32_t crossing = no_crossing;  // the boundary to go over before the next row; `saving`: its states are to be saved
    bool may_step = true;
    enum class Queue : std::uint8_t { none, prompt, ahead } queue = Queue::none;  // where it waits for its tick
    bool out = false;
    bool over = false;  // failed or drained: nothing follows
  };
  std::size_t waiting_rows(const Sequence& sequence) const;
  bool can_step(const Sequence& sequence) const;
  void release(Slot slot);
  void review(Sequence& sequence);
  void review_crossing(Sequence& sequence, std::int32_t crossing);
  using Ready = std::pmr::set<LiveId>;  // in the order of opening, so that ticks do not depend on hashes or addresses
  void wait_in(Sequence& sequence, Sequence::Queue queue);
  void choose();
  void choose_from(const Ready& ready, LiveId& cursor, std::size_t most);
  void take_row(Tick& tick, Sequence& sequence, std::size_t row) const;
  Tick::Crossing make_crossing(const Sequence& sequence) const;
  void take_crossing(Tick::Crossing& crossing, Sequence& sequence) const;
  Sequence* came_back(LiveId id);
  template <class Tell>
  void tell(LiveId id, Tell tell_sink);
  void finish_rows(const TickResult& result);
  void finish_crossing(const TickResult::Crossed& crossed, LiveId id);
  void finish_save(const TickResult::Saved& saved, LiveId id);
  static void fail(Sequence& sequence, std::uint64_t seq, const std::exception_ptr& error);
  std::size_t first_source(std::size_t boundary) const;

  std::shared_ptr<const Recurrence> recurrence_;
  std::size_t max_rows_;
  // There are as many sequences as live sessions: their nodes lie side by side, without gaps.
  std::pmr::unsynchronized_pool_resource pool_{{.max_blocks_per_chunk = 256, .largest_required_pool_block = 128}};
  std::pmr::map<LiveId, Sequence> sequences_{&pool_};
  Ready prompt_{&pool_}, ahead_{&pool_};
  std::size_t most_ahead_ = std::numeric_limits<std::size_t>::max();
  std::vector<Tick::Start> starts_;
  std::vector<LiveId> chosen_;  // for the tick that is out
  std::vector<LiveId> out_;     // rows of the tick that is out
  std::vector<LiveId> crossing_out_;
  std::vector<LiveId> saving_out_;
  std::vector<std::span<const std::byte>> row_;  // of each output, for a sink
  std::size_t closed_out_ = 0;                   // closed while out
  bool tick_out_ = false;
  std::vector<Slot> free_;
  Slot next_slot_ = 0;
  LiveId next_id_ = 1;
  LiveId prompt_cursor_ = 0,
         ahead_cursor_ = 0;  // where the next tick begins, so that no sequence starves when more are ready than one tick takes
  bool half_up_ = false;     // half of an odd tick is rounded up, and next time down
  Stats stats_;
};

}  // namespace millrace
