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
#include <millrace/streaming/live/live_sequence.h>
#include <millrace/streaming/live/sent_messages.h>
#include <millrace/streaming/live/served_model.h>
#include <millrace/streaming/protocol/limits.h>
#include <millrace/streaming/protocol/message.h>

namespace millrace {

/// The services that a session needs from its server. Each member may throw a ProtocolError, which ends the session.
class SessionHost {
 public:
  /// The model that a start asks for, by its name; empty: that of the connection. Called once, ahead of what follows.
  virtual std::shared_ptr<const ServedModel> model_named(const std::string& name) = 0;
  /// The model's name, as `started` gives it to the client; empty: left out.
  virtual std::string model_name() const { return {}; }
  /// Admits the session, and gives the batcher in which it begins. ProtocolError (overload) where there is no room for it.
  virtual Batcher& choose() = 0;
  /// The seal by which states are saved and taken; null: they are not, and `why_no_seal` says why.
  virtual const StateSeal* seal() const noexcept { return nullptr; }
  virtual std::string why_no_seal() const { return "this server saves no states"; }
  /// Bytes of the longest state that a start may have, whichever model it asks for.
  virtual std::size_t most_state_bytes() const noexcept { return 0; }
  /// A ticket by which the session can be resumed once it is issued, asked for at its start; empty: it cannot.
  virtual std::string new_ticket() const { return {}; }
  /// `ticket` finds the session from now on, which knows it by itself behind this call. Called once; without effect where it throws.
  virtual void issue_ticket(const std::string& ticket) { static_cast<void>(ticket); }
  /// The client wants this connection to go on with the session of that ticket, which it has got so many messages of.
  virtual void resume(const std::string& ticket, std::uint64_t acknowledged);

 protected:
  SessionHost() = default;
  ~SessionHost() = default;
};

/// One client's side of the protocol (docs/protocol.md), as a state machine without I/O: messages in, a LiveSequence, messages out. Its queues are bounded:
/// `wants_input` says when to stop reading, and it neither steps nor answers `flush` and `reset` while more than `limits.queued_out` bytes of replies wait; 16 KiB
/// are enough where many rows wait as well: a client that sends ahead gets replies as fast as it reads them. It never throws
/// for what a client sends: it answers and ends. Not thread-safe; lives on its batcher's thread.
class Session final : private LiveSequence {
 public:
  /// `batcher` and `limits` outlive it.
  Session(std::shared_ptr<const ServedModel> model, Batcher& batcher, const Limits& limits);
  /// A session whose `start` names its model; `host` gives the model and its batcher. `host` and `limits` outlive it.
  Session(SessionHost& host, const Limits& limits);
  Session(std::shared_ptr<const ServedModel> model, Batcher& batcher, Limits&& limits) = delete;

  /// A message of the client. False when it said nothing: data without a byte.
  bool receive(Message message);
  /// The client went away without a word, or the server wants the session gone: nothing more is sent.
  void abandon();
  /// Ends the session with an error message: `code` is idle, slow_reader, draining or overload.
  void refuse(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry_after_ms = {});
  /// Memory ran out for what the session does, or another error that is none of the client's: it ends with `failed`. Not from within another member or `on_change`.
  void fail();
  /// The server goes away: when all that arrived has been answered the session ends with `draining`, and its state where it can be saved.
  void drain();
  /// The client has another connection, over which it gets what it has not got of the messages so far: `acknowledged` of them, without `started`.
  /// ProtocolError (unknown_ticket) when some of the others are not held any more.
  void resume(std::uint64_t acknowledged);
  void check_resume(std::uint64_t acknowledged) const;
  /// The ticket by which the session is resumed; empty: it cannot.
  std::string_view ticket() const noexcept { return special().sent ? std::string_view(special().sent->ticket()) : std::string_view(); }
  /// Bytes that a start may have.
  std::size_t most_start_bytes() const noexcept;
  /// Called whenever there is output that was not there before, or may be room for input. Set once; must not destroy the session.
  std::function<void()> on_change;

  bool started() const noexcept { return begun(); }
  /// False: read no further for now. Its queue is full, it has more rows than it will step soon, or it is held up.
  bool wants_input() const noexcept;
  /// The next message for the client; call `written` when it has gone.
  bool has_output() const noexcept { return !outgoing_.empty(); }
  Message take_output();
  void written(std::size_t bytes);
  /// More replies will come without another message of the client, and few wait: replies to the rows of one chunk may go out together. `on_change`
  /// follows.
  bool about_to_say_more() const noexcept;
  /// Nothing will be added to the output: when it is empty, close with `close_code`.
  using LiveSequence::over;
  std::uint16_t close_code() const noexcept { return outcome_ == Outcome::error ? close_code_of(error_) : close_code_normal; }

  /// Its outcome: "ended", the name of an error, or "gone" when the client went without a word; "live" before.
  std::string_view outcome() const noexcept;
  /// The text of the error that the client was told of; empty when there was none.
  std::string why() const { return special().why ? *special().why : std::string(); }
  /// Rows that wait for their step, about.
  std::size_t waiting_rows() const noexcept;
  /// Nothing of the session waits for a step, is in one, or is to be sent: it is the client's turn.
  bool awaits_client() const noexcept {
    return outgoing_.empty() && waiting_rows() == 0 && !(begun() && !over() && batcher().will_step(id()));
  }
  /// Its replies wait for the client, and no row steps before they go.
  bool held_up() const noexcept;

  /// The ledger: steps whose rows were taken, and those answered.
  std::uint64_t steps() const noexcept { return answered_before() + answered(); }
  const std::string& label() const noexcept { return special().label; }

 private:
  struct Labelled {
    Segmenter segmenter;
    std::size_t output = 0;
    std::size_t index = 0;
  };

  /// State that few sessions have. The others hold no memory for it.
  struct Special {
    std::string label{};
    std::unique_ptr<std::string> why{};                // of an error: a session that waits has no room for it
    std::optional<std::vector<std::size_t>> wanted{};  // outputs of the results, by number: those of a level stand together. None: all
    AudioFrontEnd* audio = nullptr;
    std::vector<Labelled> labels{};
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
  void choose_model(const std::string& name);
  bool take_data(Message message);
  void take_control(const Message& message);
  void take_mark(Mark mark);
  void take_mark(const OpenMessage& message);
  void take_mark(const CloseMessage& message);
  void take_save();
  void acknowledge(std::uint64_t messages);
  void pass_save(const Mark& mark);
  std::string why_not_saved() const;
  std::optional<SavedMessage> seal(std::vector<Tensor> states, std::string& why);
  void go_on_from(const SavedState& saved, const StartMessage& message);
  SavedState unsealed(const StartMessage& message) const;
  StartedMessage greeting() const;
  std::uint64_t next_result() const;
  bool pass(const Mark& mark);
  bool has_room() const noexcept;
  /// More replies wait than may: no step, flush or reset adds to them.
  bool output_full() const noexcept;
  bool far_ahead() const noexcept;
  void check_not_stuck() const;
  const Special& special() const noexcept;
  Special& make_special();
  const std::vector<std::size_t>& wanted() const;
  void choose_outputs(const StartMessage& message);
  std::vector<Tensor> given_of(const StartMessage& message) const;
  Sources make_sources(const StartMessage& message) const;
  void find_audio();
  void make_labels();
  std::unique_ptr<RowSource> make_source(std::size_t input, const StartMessage& message) const;
  void feed();
  void send(Message message);
  void send_rows(std::uint64_t seq, std::optional<int> level, Row row);
  void go_on();
  void end_with(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry_after_ms,
                std::optional<SavedMessage> saved = {});
  /// Ends the session with the exception that is being handled.
  void end_with_caught();
  void drop_input() noexcept;
  void label_step(Row row);
  void send_segment(const std::optional<Segment>& segment);

  void on_step(std::uint64_t seq, Row row) override;
  void on_crossed(std::size_t boundary, std::uint64_t number, Row row) override;
  void on_saved(std::vector<Tensor> states) override;
  void on_failed(std::uint64_t seq, std::exception_ptr error) override;
  void on_drained(bool anew) override;
  void on_begun_anew() override;

  struct Chunk {
    std::size_t source = 0;
    std::string bytes{};
    std::size_t taken = 0;                    // of bytes: a name, and what the source has
    std::optional<Mark> mark = std::nullopt;  // instead of bytes
  };

  std::shared_ptr<const ServedModel> model_;
  SessionHost* host_ = nullptr;
  const Limits& limits_;
  std::unique_ptr<Special> special_;
  std::list<Chunk> incoming_;  // lists: an idle session holds no block of an empty queue
  std::size_t incoming_bytes_ = 0;
  std::list<Message> outgoing_;
  std::size_t outgoing_bytes_ = 0;  // with those that are being written
  std::uint64_t received_ = 0;      // messages of the client's, less its start and what it acknowledges
  std::uint64_t saved_with_ = 0;    // of them, those in the state that is being saved
  int open_said_ = 0;               // levels of inner sequences that are open, as far as the client has said
  ReplyFormat reply_ = ReplyFormat::json;
  bool leaving_ = false;  // its states, which are on their way, are to be told with `draining`
  bool end_said_ = false;
  bool feeding_ = false;
  enum class Outcome : std::uint8_t { live, ended, gone, error };
  Outcome outcome_ = Outcome::live;
  ErrorCode error_ = ErrorCode::failed;
};

}  // namespace millrace
