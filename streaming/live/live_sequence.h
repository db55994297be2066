// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include <millrace/streaming/live/batcher.h>
#include <millrace/streaming/live/saved_state.h>
#include <millrace/streaming/protocol/one_or_many.h>
#include <millrace/streaming/protocol/row_source.h>

namespace millrace {

/// One live sequence, as a server's Session and a LiveSession both are: its sources, its inner sequences, how it is saved, restored and begun anew. A state
/// machine over a Batcher, without I/O, lock or coroutine. A derived class feeds the sources, decides when each verb is due, and takes the events.
///
/// The verbs `cross`, `save`, `end` and `begin_anew` take effect between steps: they are called when the sequence has `settled`. Nothing is fed until the event
/// that answers `cross`, `save` or `begin_anew`. Events come from `Batcher::finish`, or from inside `fed`, `end` and `begin_anew`. Not thread-safe; it lives
/// where its batcher does.
class LiveSequence : private Batcher::Sink {
 public:
  LiveSequence(const LiveSequence&) = delete;
  LiveSequence& operator=(const LiveSequence&) = delete;

  /// 0 before it begins.
  LiveId id() const noexcept { return id_; }
  bool begun() const noexcept { return id_ != 0; }
  /// It ended, failed or left; or never begins.
  bool over() const noexcept { return over_; }
  /// Steps that were answered since the start or the last `begin_anew`, and before that.
  std::uint64_t answered() const noexcept { return answered_; }
  std::uint64_t answered_before() const noexcept { return rare_ ? rare_->answered_before : 0; }

 protected:
  using Sources = std::vector<std::unique_ptr<RowSource>>;
  using Row = std::span<const std::span<const std::byte>>;  ///< one row of each output

  LiveSequence() = default;
  explicit LiveSequence(Batcher& batcher) noexcept : batcher_(&batcher) {}
  /// Leaves the batcher, in whatever state.
  ~LiveSequence() override;

  // ---- Beginning ----

  /// One source per input: those of the recurrence, then those of its boundaries. `from`: where another sequence was saved; or only its `given`, as Tick::Start
  /// has it. Its states are for `begin`. ParseError for what its pending bytes cannot be.
  void prepare(Sources sources, const SavedState& from);
  void begin(Batcher& batcher, std::vector<Tensor> states);

  // ---- Going on ----

  OneOrMany<std::unique_ptr<RowSource>>& sources() noexcept { return sources_; }
  const OneOrMany<std::unique_ptr<RowSource>>& sources() const noexcept { return sources_; }
  Batcher& batcher() const noexcept { return *batcher_; }
  /// Levels of inner sequences that are open.
  int open_levels() const noexcept { return open_; }
  /// Inner sequences of `level` that closed since the start or the last `begin_anew`.
  std::uint64_t closed(int level) const { return rare_->closed.at(static_cast<std::size_t>(level)); }
  /// A verb has not been answered yet.
  bool under_way() const noexcept { return verb_ != Verb::none; }
  bool begins_anew() const noexcept { return verb_ == Verb::begin_anew; }
  /// All that can be answered has been, and no verb is under way.
  bool settled() const { return verb_ == Verb::none && batcher_->settled(id_); }
  /// Sources were given rows.
  void fed() { batcher_->changed(id_); }
  /// The inner sequence of `level` opens or closes; `on_crossed` follows. ArgumentError for another level than that which is next, where an input has more
  /// rows than another or a part of a row, or where an input of the boundary has no row.
  void cross(bool opens, int level);
  /// `on_saved` follows.
  void save();
  /// No row follows. Throws as `RowSource::end` does. `on_drained` follows once the rest has been stepped. No inner sequence is open.
  void end();
  /// Ends the sequence as `end` does, and begins it anew, as it was at its start: `on_drained`, and behind it `on_begun_anew`.
  void begin_anew();
  /// The sequence is over, and nothing follows.
  void leave() noexcept;
  /// The saved state of the sequence, to which a derived class may add.
  SavedState state_with(std::vector<Tensor> states) const;

  // ---- Events ----

  virtual void on_step(std::uint64_t seq, Row row) = 0;
  /// `row`: of the boundary's outputs; `number`: of the inner sequence that closed, from 0.
  virtual void on_crossed(std::size_t boundary, std::uint64_t number, Row row) = 0;
  virtual void on_saved(std::vector<Tensor> states) = 0;
  /// Step `seq` failed; the derived class leaves.
  virtual void on_failed(std::uint64_t seq, std::exception_ptr error) = 0;
  /// All rows were stepped. `anew`: the sequence goes on with its start, unless the derived class leaves here.
  virtual void on_drained(bool anew) = 0;
  virtual void on_begun_anew() = 0;

 private:
  enum class Verb : std::uint8_t { none, cross, save, begin_anew };
  /// Members that few sequences need.
  struct Rare {
    std::vector<Tensor> given{};
    std::vector<std::uint64_t> closed{};  // by level
    std::uint64_t answered_before = 0;
  };

  void check_whole(const char* verb) const;
  void check_arrived(const Recurrence::Boundary& boundary) const;
  std::vector<RowSource*> source_list() const;

  void step(std::uint64_t seq, Row row) final;
  void crossed(std::size_t boundary, Row row) final;
  void failed(std::uint64_t seq, std::exception_ptr error) final;
  void drained() final;
  void saved(std::vector<Tensor> states) final;

  Batcher* batcher_ = nullptr;
  LiveId id_ = 0;
  OneOrMany<std::unique_ptr<RowSource>> sources_;
  std::unique_ptr<Rare> rare_;
  std::uint64_t answered_ = 0;
  int open_ = 0;
  Verb verb_ = Verb::none;
  bool over_ = false;
};

}  // namespace millrace
