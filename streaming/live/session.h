// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/streaming/audio/audio_front_end.h>
#include <millrace/streaming/audio/segmenter.h>
#include <millrace/streaming/live/batcher.h>
#include <millrace/streaming/live/saved_state.h>
#include <millrace/streaming/live/sent_messages.h>
#include <millrace/streaming/live/served_model.h>
#include <millrace/streaming/protocol/limits.h>
#include <millrace/streaming/protocol/message.h>
#include <millrace/streaming/protocol/one_or_many.h>

namespace millrace {

/// The services that a session needs from its server. Each member may throw a ProtocolError, which ends the session.
class SessionHost {
 public:
  /// Where the session begins: which of several batchers.
  virtual Batcher& choose() = 0;
  /// By which states are saved and taken; null: they are not, and `why_no_seal` says why.
  virtual const StateSeal* seal() const noexcept { return nullptr; }
  virtual std::string why_no_seal() const { return "this server saves no states"; }
  /// A ticket by which the session can be resumed, asked for once, at its start; empty: it cannot.
  virtual std::string issue_ticket() { return {}; }
  /// The client wants this connection to go on with the session of that ticket, which it has got so many messages of.
  virtual void resume(const std::string& ticket, std::uint64_t acknowledged);

 protected:
  SessionHost() = default;
  ~SessionHost() = default;
};

/// One client's side of the protocol (docs/protocol.md), as a state machine without I/O: messages in, messages out. Its queues are bounded:
/// `wants_input` says when to stop reading, and it does not step while more than `limits.queued_out` bytes of replies wait. It never throws
/// for what a client sends: it answers and ends. Not thread-safe; lives on its batcher's thread.
class Session final : private Batcher::Sink {
 public:
  /// `batcher` and `limits` outlive it.
  Session(std::shared_ptr<const ServedModel> model, Batcher& batcher, const Limits& limits);
  /// The same, where `start` finds out which batcher it is.
  Session(std::shared_ptr<const ServedModel> model, SessionHost& host, const Limits& limits);
  Session(std::shared_ptr<const ServedModel> model, Batcher& batcher, Limits&& limits) = delete;
  /// Leaves the batcher, in whatever state.
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// What the client said. False when that was nothing: data without a byte.
  bool receive(Message message);
  /// The client went away without a word, or the server wants the session gone: nothing more is sent.
  void abandon();
  /// Ends the session with an error message: `code` is idle, slow_reader, draining or overload.
  void refuse(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry_after_ms = {});
  /// The server goes away: when all that arrived has been answered the session ends with `draining`, and its state where it can be saved.
  void drain();
  /// The client has another connection, over which it gets what it has not got of the messages so far: `acknowledged` of them, without `started`.
  /// ProtocolError (unknown_ticket) when some of the others are not held any more.
  void resume(std::uint64_t acknowledged);
  void check_resume(std::uint64_t acknowledged) const;
  /// By which it is resumed; empty: it cannot.
  std::string_view ticket() const noexcept { return special().sent ? std::string_view(special().sent->ticket()) : std::string_view(); }
  /// Bytes that a start may have.
  std::size_t most_start_bytes() const noexcept;
  /// Called whenever there is output that was not there before, or may be room for input. Set once; must not destroy the session.
  std::function<void()> on_change;

  bool started() const noexcept { return id_ != 0; }
  /// False: read no further for now.
  bool wants_input() const noexcept;
  /// The next message for the client; call `written` when it has gone.
  bool has_output() const noexcept { return !outgoing_.empty(); }
  Message take_output();
  void written(std::size_t bytes);
  /// More is about to be said, whatever the client does, and little waits: replies to the rows of one chunk may go out together. `on_change`
  /// follows.
  bool about_to_say_more() const noexcept;
  /// Nothing will be added to the output: when it is empty, close with `close_code`.
  bool over() const noexcept { return over_; }
  std::uint16_t close_code() const noexcept { return outcome_ == Outcome::error ? close_code_of(error_) : close_code_normal; }

  /// How it ended: "ended", the name of an error, or "gone" when the client went without a word; "live" before.
  std::string_view outcome() const noexcept;
  /// What the client was told of an error; empty when there was none.
  std::string why() const { return special().why ? *special().why : std::string(); }
  /// Rows that wait for their step, about.
  std::size_t waiting_rows() const noexcept;

  /// The ledger: steps whose rows were taken, and those answered.
  std::uint64_t steps() const noexcept { return special().steps_before + answered_; }
  const std::string& label() const noexcept { return special().label; }

 private:
  struct Labelled {
    Segmenter segmenter;
    std::size_t output = 0;
    std::size_t index = 0;
  };

  /// What few sessions have. The others hold no memory for it.
  struct Special {
    std::string label{};
    std::unique_ptr<std::string> why{};                // of an error: a session that waits has no room for it
    std::uint64_t steps_before = 0;                    // the last reset
    std::optional<std::vector<std::size_t>> wanted{};  // outputs of the results, by number: those of a level stand together. None: all
    std::vector<Tensor> given{};                       // for the start, and each reset
    AudioFrontEnd* audio = nullptr;
    std::vector<Labelled> labels{};
    std::vector<std::uint64_t> closed{};   // sequences of each inner level that closed
    std::unique_ptr<SentMessages> sent{};  // of a session that can be resumed
  };

  /// A message that takes effect when all before it has: in the queue it stands among the data.
  struct Mark {
    enum class Kind : std::uint8_t { open, close, flush, reset, save, leave, end };
    Kind kind = Kind::end;
    int level = 0;
    std::uint64_t messages = 0;  // of the client's, so far: of a save
  };

  void start(const StartMessage& message);
  bool take_data(Message message);
  void take_control(const Message& message);
  void take_mark(Mark mark);
  void take_mark(const OpenMessage& message);
  void take_mark(const CloseMessage& message);
  void take_save();
  void acknowledge(std::uint64_t messages);
  void pass_save(const Mark& mark);
  std::string why_not_saved() const;
  SavedState state_with(std::vector<Tensor> states) const;
  std::optional<SavedMessage> seal(std::vector<Tensor> states, std::string& why);
  void go_on_from(SavedState& saved, const StartMessage& message);
  SavedState unsealed(const StartMessage& message) const;
  StartedMessage greeting() const;
  bool pass(const Mark& mark);
  void pass_boundary(const Mark& mark);
  void check_whole(const char* at) const;
  void check_not_stuck() const;
  void begin_anew();
  const Special& special() const noexcept;
  Special& make_special();
  const std::vector<std::size_t>& wanted() const;
  void choose_outputs(const StartMessage& message);
  std::vector<Tensor> take_given(const StartMessage& message);
  void make_sources(const StartMessage& message);
  void find_audio();
  std::vector<RowSource*> sources() const;
  void make_labels();
  std::unique_ptr<RowSource> make_source(std::size_t input, const StartMessage& message) const;
  void feed();
  void send(Message message);
  void send_rows(std::uint64_t seq, std::optional<int> level, std::span<const std::span<const std::byte>> rows);
  void go_on();
  void end_with(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry_after_ms,
                std::optional<SavedMessage> saved = {});
  void leave();
  void label_step(std::span<const std::span<const std::byte>> rows);
  void send_segment(const std::optional<Segment>& segment);

  void step(std::uint64_t seq, std::span<const std::span<const std::byte>> rows) override;
  void crossed(std::size_t boundary, std::span<const std::span<const std::byte>> rows) override;
  void failed(std::uint64_t seq, std::exception_ptr error) override;
  void drained() override;
  void saved(std::vector<Tensor> states) override;

  struct Chunk {
    std::size_t source = 0;
    std::string bytes{};
    std::size_t taken = 0;                    // of bytes: a name, and what the source has
    std::optional<Mark> mark = std::nullopt;  // instead of bytes
  };

  std::shared_ptr<const ServedModel> model_;
  SessionHost* host_ = nullptr;
  Batcher* batcher_ = nullptr;  // none before the start where there is a host
  const Limits& limits_;
  LiveId id_ = 0;  // 0: not started
  OneOrMany<std::unique_ptr<RowSource>> sources_;
  std::unique_ptr<Special> special_;
  std::list<Chunk> incoming_;  // lists: an idle session holds no block of an empty queue
  std::size_t incoming_bytes_ = 0;
  std::list<Message> outgoing_;
  std::size_t outgoing_bytes_ = 0;  // with those that are being written
  std::uint64_t answered_ = 0;
  std::uint64_t received_ = 0;    // messages of the client's, less its start and what it acknowledges
  std::uint64_t saved_with_ = 0;  // of them, those in the state that is being saved
  int open_ = 0;                  // levels of inner sequences that are open, as far as the queue has been worked off
  int open_said_ = 0;             // and as far as the client has said
  ReplyFormat reply_ = ReplyFormat::json;
  bool crossing_ = false;   // a boundary is on its way
  bool resetting_ = false;  // the sequence ends, to begin anew
  bool saving_ = false;     // its states are on their way
  bool leaving_ = false;    // to be told with `draining`
  bool end_said_ = false;
  bool feeding_ = false;
  bool over_ = false;
  enum class Outcome : std::uint8_t { live, ended, gone, error };
  Outcome outcome_ = Outcome::live;
  ErrorCode error_ = ErrorCode::failed;
};

}  // namespace millrace
