// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/client/stream_client.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/append.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/result.h>
#include <millrace/streaming/transport/wire_error.h>

namespace millrace {
namespace {

using Clock = ClientRecord::Clock;
using asio::any_io_executor;

class ClientSession;

/// All sessions of one call, and what waits for the last of them.
class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(const any_io_executor& on, ClientOptions how, ClientHandler handler)
      : executor(on),
        options(std::move(how)),
        handler_(std::move(handler)),
        completes_on_(asio::get_associated_executor(handler_, on)),
        work_(completes_on_) {}

  void begin(const StreamUrl& url, std::vector<ClientPlan> plans);
  /// A session has been admitted, or will never be.
  void arrived();
  void over(std::size_t index, ClientRecord record);
  void abort();
  void tell() const {
    if (options.on_progress) options.on_progress(progress);
  }

  const any_io_executor executor;
  const ClientOptions options;
  ClientProgress progress;
  Clock::time_point begun;

 private:
  void complete();

  ClientHandler handler_;
  asio::any_completion_executor completes_on_;
  asio::executor_work_guard<asio::any_completion_executor> work_;
  std::vector<std::shared_ptr<ClientSession>> sessions_;
  std::vector<ClientRecord> records_;
  std::size_t to_arrive_ = 0;
};

/// Answers that a plan asks for.
struct Asked {
  explicit Asked(const ClientPlan& plan) : saves(plan.save ? 1 : 0), bytes(plan.bytes.size()) {
    for (const Message& message : plan.script) {
      if (message.kind == MessageKind::binary)
        bytes += message.payload.size();
      else
        count(message.payload);
    }
  }
  /// Steps that the bytes bring about, at most: each takes a row of every input of a step. Nothing where that is not known: of audio, of rows without
  /// bytes, behind a state, with which rows may wait.
  std::optional<std::uint64_t> most_steps(const ClientPlan& plan, const std::vector<PortSpec>& inputs) const {
    std::size_t row = 0;
    for (const PortSpec& input : inputs) {
      if (input.audio) return std::nullopt;
      if (!input.level) row += static_cast<std::size_t>(input.shape.elements()) * size_of(input.dtype);
    }
    if (plan.start.state || row == 0) return std::nullopt;
    return bytes / row;
  }

  /// Steps that a server answers that takes all there is to send; nothing where that is not known: of audio, of rows without bytes, behind a state.
  static std::optional<std::uint64_t> all_steps(const ClientPlan& plan, const std::vector<PortSpec>& inputs) {
    const bool several = inputs.size() > 1;
    if (plan.start.state || (several && !plan.bytes.empty())) return std::nullopt;
    std::map<std::string, std::size_t, std::less<>> sent;
    if (!several && !inputs.empty()) sent[inputs.front().name] = plan.bytes.size();
    try {
      for (const Message& message : plan.script) {
        if (message.kind != MessageKind::binary) continue;
        const DataView data = parse_data(message, several);
        sent[several || inputs.empty() ? std::string(data.input) : inputs.front().name] += data.bytes.size();
      }
    } catch (const Error&) {  // it breaks the protocol
      return std::nullopt;
    }
    std::optional<std::uint64_t> steps;
    for (const PortSpec& input : inputs) {
      const std::size_t row = static_cast<std::size_t>(input.shape.elements()) * size_of(input.dtype);
      if (input.audio) return std::nullopt;
      if (input.level) continue;
      if (row == 0) return std::nullopt;
      steps = std::min<std::uint64_t>(steps.value_or(std::numeric_limits<std::uint64_t>::max()), sent[input.name] / row);
    }
    return steps;
  }

  std::size_t flushes = 0, resets = 0, saves = 0;
  std::size_t bytes = 0;  // of rows, and of the names before them

 private:
  void count(const std::string& text) {
    try {
      const ClientMessage said = parse_client_message(text, text.size());
      flushes += std::holds_alternative<FlushMessage>(said) ? 1 : 0;
      resets += std::holds_alternative<ResetMessage>(said) ? 1 : 0;
      saves += std::holds_alternative<SaveMessage>(said) ? 1 : 0;
    } catch (const Error&) {  // a script may break the protocol, to see what the server says
    }
  }
};

/// One session, over any number of connections: each start, and what was sent behind it, can be gone back to.
class ClientSession : public std::enable_shared_from_this<ClientSession> {
 public:
  ClientSession(std::shared_ptr<Group> group, std::size_t index, ClientPlan plan, StreamUrl url)
      : group_(std::move(group)),
        index_(index),
        plan_(std::move(plan)),
        url_(std::move(url)),
        asked_(plan_),
        start_(plan_.start),
        timer_(group_->executor),
        answer_timer_(group_->executor),
        silence_timer_(group_->executor) {}

  void connect() {
    async_connect_stream(group_->executor, url_, group_->options.connect_options(),
                         [self = shared_from_this()](error_code error, std::unique_ptr<MessageStream> stream) {
                           if (self->over_) return;
                           if (error) return self->lose("cannot connect: " + error.message());
                           self->stream_ = std::move(stream);
                           self->greet();
                         });
  }
  /// Everybody is there: data flows.
  void go() {
    if (over_) return;
    record_.begun = group_->begun;
    flowing_ = true;
    send_more();
  }
  void abort() { end("cut off"); }

 private:
  /// The part of the plan that has been sent.
  struct Position {
    std::size_t message = 0;  // of the script
    std::size_t byte = 0;
    bool last = false;  // `end`, or `save` in its place
    std::uint64_t sent = 0;
  };
  /// The amount that had been received.
  struct Received {
    std::vector<std::size_t> outputs{};
    std::size_t steps = 0, segments = 0, flushed = 0, resets = 0;
    std::map<int, std::uint64_t> next_seq{};
  };

  // ---- Out ----
  void greet() {
    StartMessage first = start_;
    if (resuming()) {
      first = StartMessage();
      first.resume = ticket_;
      first.acknowledged = got_;
    }
    write(text_message(to_json(first)));
    expect_start();
    read();
  }
  void write(Message message) {
    writing_ = true;
    heard_ = Clock::now();
    stream_->async_write(std::move(message), [self = shared_from_this(), connection = connection_](error_code error) {
      // A server that refuses a session says why before it closes: the reader finds it.
      if (error || self->over_ || connection != self->connection_) return;
      self->writing_ = false;
      self->heard_ = Clock::now();
      self->send_more();
    });
  }
  /// A server is silent that owes the end, or takes nothing, and of which nothing at all came for so long.
  void listen_for_silence() {
    const auto most = group_->options.silence;
    if (most.count() == 0) return;
    const bool owes = taken_ && (writing_ || at_.last);
    const auto now = Clock::now();
    if (owes && now - heard_ >= most) return lose("the server said nothing for " + std::to_string(most.count()) + " ms, and owes replies");
    silence_timer_.expires_at(owes ? heard_ + most : now + most);
    silence_timer_.async_wait([self = shared_from_this(), connection = connection_](error_code error) {
      if (!error && !self->over_ && connection == self->connection_) self->listen_for_silence();
    });
  }
  /// The next message, if one is due and none is on its way.
  void send_more() {
    if (over_ || writing_ || !flowing_ || !taken_) return;
    constexpr std::uint64_t many_messages = 32, many_bytes = 16384;  // a server holds those that were not acknowledged
    if (!ticket_.empty() && (got_ - acknowledged_ >= many_messages || got_bytes_ >= many_bytes)) {
      acknowledged_ = got_;
      got_bytes_ = 0;
      return write(text_message(to_json(AcknowledgeMessage{got_})));
    }
    if (record_.state && !std::exchange(end_said_, true)) return write(text_message(to_json(EndMessage{})));
    if (at_.last) return;
    if (at_.message < plan_.script.size()) {
      const Message& next = plan_.script[at_.message++];
      return send(next, next.payload.size());
    }
    const std::size_t left = plan_.bytes.size() - at_.byte;
    if (left == 0) {
      at_.last = true;
      return send(text_message(plan_.save ? to_json(SaveMessage{}) : to_json(EndMessage{})), 0);
    }
    const ClientOptions& options = group_->options;
    const double rate = plan_.units_per_second * options.speed;
    if (rate > 0) return send_when_due(rate);
    const std::size_t piece = options.next_piece ? options.next_piece(index_) : options.piece_bytes;
    send_bytes(std::min(left, std::min(piece, options.limits.message / 2)));
  }
  void send_when_due(double rate) {
    if (waiting_) return;
    const double seconds = std::chrono::duration<double>(group_->options.paced_piece).count();
    const double most = static_cast<double>(group_->options.limits.message / 2 / plan_.unit_bytes);
    const auto units = static_cast<std::size_t>(std::max(1.0, std::min(most, std::round(seconds * plan_.units_per_second))));
    const std::size_t bytes = std::min(plan_.bytes.size() - at_.byte, units * plan_.unit_bytes);
    constexpr double latest = 1e9;  // seconds that the clock can hold
    const double due = std::min(latest, static_cast<double>((at_.byte + bytes) / plan_.unit_bytes) / rate);
    const auto when = record_.begun + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due));
    if (Clock::now() >= when) return send_bytes(bytes);
    waiting_ = true;
    timer_.expires_at(when);
    timer_.async_wait([self = shared_from_this()](error_code) {
      self->waiting_ = false;
      self->send_more();
    });
  }
  void send_bytes(std::size_t bytes) {
    const std::string_view piece = std::string_view(plan_.bytes).substr(at_.byte, bytes);
    const bool several = record_.started->inputs.size() > 1;
    at_.byte += bytes;
    send(encode_data(several ? std::string_view(plan_.input) : std::string_view(), std::as_bytes(std::span<const char>(piece))), bytes);
  }
  void send(Message message, std::size_t bytes) {
    at_.sent += bytes;
    group_->progress.sent += bytes;
    sent_.push_back(at_);
    group_->tell();
    write(std::move(message));
  }

  // ---- In ----
  void expect_start() {
    answer_timer_.expires_after(group_->options.limits.handshake);
    answer_timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->over_ && !self->taken_) self->lose("the server did not answer in time");
    });
  }
  void read() {
    stream_->async_read([self = shared_from_this(), connection = connection_](error_code error, Message message) {
      if (self->over_ || connection != self->connection_) return;
      if (error)
        return self->lose(error == asio::error::eof ? "the server went away before the end" : "the connection failed: " + error.message());
      try {
        self->heard_ = Clock::now();
        const ServerMessage said = self->reader_.read(message);
        if (self->taken_) {
          ++self->got_;
          self->got_bytes_ += message.payload.size();
        }
        self->take(said);
      } catch (const Error& wrong) {
        return self->end(std::string("a reply that the protocol does not have: ") + wrong.what());
      }
      if (self->over_ || connection != self->connection_) return;
      self->send_more();
      self->read();
    });
  }
  void take(const ServerMessage& message) {
    if (record_.state) {  // behind it nothing counts
      if (std::holds_alternative<EndedMessage>(message) || std::holds_alternative<ErrorMessage>(message)) end({});
      return;
    }
    std::visit([this](const auto& said) { on(said); }, message);
  }
  void on(const StartedMessage& said) {
    answer_timer_.cancel();
    if (taken_) throw ProtocolError(ErrorCode::bad_message, "expected one started, found another");
    taken_ = true;
    lost_since_.reset();
    if (!record_.started) {
      record_.started = said;
      record_.outputs.resize(said.outputs.size());
      most_steps_ = asked_.most_steps(plan_, said.inputs);
      all_steps_ = Asked::all_steps(plan_, said.inputs);
      next_seq_[0] = said.seq;
      at_start_ = received();
    } else if (resuming()) {
      if (said.messages > sent_.size())
        throw ProtocolError(ErrorCode::bad_message,
                            "expected at most " + std::to_string(sent_.size()) + " messages taken, found " + std::to_string(said.messages));
      sent_.resize(said.messages);
      go_back_to(sent_.empty() ? start_at_ : sent_.back());
      ++record_.resumed;
    } else {
      check_same(said);
      start_over();
      ++record_.restarted;
    }
    ticket_ = said.ticket.value_or("");
    listen_for_silence();
    arrive();
    send_more();
  }
  void on(const ResultMessage& said) {
    const int level = said.level.value_or(0);
    // Sequences of a level that closed before a saved state are known to the server alone.
    std::uint64_t& next = next_seq_.try_emplace(level, start_.state && level != 0 ? said.seq : 0).first->second;
    if (said.seq != next)
      throw ProtocolError(ErrorCode::bad_message, "expected seq " + std::to_string(next) + ", found " + std::to_string(said.seq));
    next += said.steps;
    // Steps whose rows have no bytes cost the server nothing, but the client its record of them.
    if (said.steps > group_->options.limits.message)
      throw ProtocolError(ErrorCode::bad_message, "expected at most " + std::to_string(group_->options.limits.message) +
                                                      " steps in a message, found " + std::to_string(said.steps));
    if (most_steps_ && !said.level && said.steps > *most_steps_ - record_.received.size())
      throw ProtocolError(ErrorCode::bad_message,
                          "expected at most " + std::to_string(*most_steps_) + " steps, as many as rows are sent, found more");
    // The reader has seen that these are the outputs of their level.
    std::size_t i = 0;
    for (const ResultMessage::Output& output : said.outputs) {
      while (record_.started->outputs[i].name != output.name) ++i;
      record_.outputs[i] += output.bytes;
    }
    if (said.level) return;
    record_.received.resize(record_.received.size() + said.steps, Clock::now());
    group_->progress.steps += said.steps;
    group_->tell();
    if (group_->options.on_result && record_.received.size() > std::exchange(told_, std::max(told_, record_.received.size())))
      group_->options.on_result(index_, said, std::chrono::duration<double>(Clock::now() - record_.begun).count());
  }
  void on(const SegmentMessage& said) { record_.segments.push_back(said); }
  void on(const SavedMessage& said) {
    check_asked("saved", 0, asked_.saves);
    if (!plan_.save) return;
    record_.state = said.state;
    record_.steps = said.steps;
    if (!resuming()) end({});  // else its server would hold the session: an end follows
  }
  void on(const FlushedMessage& said) {
    check_asked("flushed", record_.flushed.size(), asked_.flushes);
    record_.flushed.push_back(said.steps);
  }
  void on(const ResetDoneMessage& said) {
    check_asked("reset", record_.resets.size(), asked_.resets);
    check_steps("reset", said.steps);
    record_.resets.push_back(said.steps);
    next_seq_.clear();
  }
  void on(const EndedMessage& said) {
    check_steps("ended", said.steps);
    check_all(said.steps);
    record_.steps = said.steps;
    end({});
  }
  void on(const ErrorMessage& said) {
    const std::string why = (said.unknown_code.empty() ? std::string(name_of(said.code)) : said.unknown_code) + ": " + said.message;
    if (said.code == ErrorCode::draining && taken_) return move(said, why);
    if (said.code == ErrorCode::unknown_ticket && resuming()) {
      ticket_.clear();
      return lose(why);
    }
    const bool passes = said.code == ErrorCode::overload || said.code == ErrorCode::draining;
    passes&& record_.started && !taken_ ? lose(why) : end(why);
  }

  static void check_asked(const char* type, std::size_t had, std::size_t asked) {
    if (had >= asked)
      throw ProtocolError(ErrorCode::bad_message, "expected '" + std::string(type) + "' " + std::to_string(asked) +
                                                      " times, as often as it is asked for, found another");
  }
  /// Each step has a result, where an output of steps was asked for.
  void check_steps(const char* type, std::uint64_t steps) const {
    const std::vector<PortSpec>& outputs = record_.started->outputs;
    if (record_.started->reply == ReplyFormat::none) return;
    if (std::all_of(outputs.begin(), outputs.end(), [](const PortSpec& output) { return output.level.has_value(); })) return;
    const auto found = next_seq_.find(0);
    const std::uint64_t results = found == next_seq_.end() ? 0 : found->second;
    if (steps != results)
      throw ProtocolError(ErrorCode::bad_message, std::string(type) + ".steps: expected " + std::to_string(results) +
                                                      ", as many as results, found " + std::to_string(steps));
  }

  void check_all(std::uint64_t steps) const {
    if (!all_steps_) return;
    for (const std::uint64_t before : record_.resets) steps += before;
    if (steps != *all_steps_)
      throw ProtocolError(ErrorCode::bad_message, "ended.steps: expected " + std::to_string(*all_steps_) +
                                                      " in all, as many as rows that there are to send, found " + std::to_string(steps));
  }

  // ---- From one connection to the next ----
  bool resuming() const noexcept { return !ticket_.empty(); }
  Received received() {
    Received now;
    for (const std::string& output : record_.outputs) now.outputs.push_back(output.size());
    now.steps = record_.received.size();
    now.segments = record_.segments.size();
    now.flushed = record_.flushed.size();
    now.resets = record_.resets.size();
    now.next_seq = next_seq_;
    return now;
  }
  void go_back_to(const Position& position) {
    group_->progress.sent -= at_.sent - position.sent;
    at_ = position;
    timer_.cancel();
  }
  /// All that came since the start comes again.
  void start_over() {
    go_back_to(start_at_);
    sent_.clear();
    for (std::size_t i = 0; i < record_.outputs.size(); ++i) record_.outputs[i].resize(at_start_.outputs[i]);
    group_->progress.steps -= record_.received.size() - at_start_.steps;
    record_.received.resize(at_start_.steps);
    record_.segments.resize(at_start_.segments);
    record_.flushed.resize(at_start_.flushed);
    record_.resets.resize(at_start_.resets);
    next_seq_ = at_start_.next_seq;
    got_ = got_bytes_ = acknowledged_ = 0;
  }
  void check_same(const StartedMessage& said) const {
    const auto same = [](const PortSpec& a, const PortSpec& b) { return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape; };
    const std::vector<PortSpec>& before = record_.started->outputs;
    if (!std::equal(before.begin(), before.end(), said.outputs.begin(), said.outputs.end(), same) || said.seq != at_start_.next_seq.at(0))
      throw ProtocolError(ErrorCode::bad_message, "expected the outputs and the seq that the session had before, found others");
  }
  /// The server goes away: the session goes on elsewhere, from its state where it has one.
  void move(const ErrorMessage& said, const std::string& why) {
    if (said.saved) {
      const std::uint64_t held = said.saved->messages;
      if (held > sent_.size())
        throw ProtocolError(ErrorCode::bad_message,
                            "expected at most " + std::to_string(sent_.size()) + " messages in the state, found " + std::to_string(held));
      if (held > 0) start_at_ = sent_[held - 1];
      start_.state = said.saved->state;
      start_.given.clear();
      at_start_ = received();
    }
    ticket_.clear();
    lose(why);
  }
  /// Connects again while there is time for it, as long as each connection but a few gets the session further.
  void lose(std::string why) {
    const auto now = Clock::now();
    constexpr int most_in_vain = 10;
    if (taken_) in_vain_ = record_.received.size() > furthest_ ? 0 : in_vain_ + 1;
    furthest_ = std::max(furthest_, record_.received.size());
    const bool first = !lost_since_;
    if (first) lost_since_ = now;
    if (!record_.started || now - *lost_since_ >= group_->options.reconnect || in_vain_ > most_in_vain) return end(std::move(why));
    ++connection_;
    taken_ = writing_ = false;
    reader_ = ReplyReader();
    if (stream_) stream_->abort();
    stream_.reset();
    answer_timer_.expires_after(first ? std::chrono::milliseconds(0) : std::chrono::milliseconds(50));
    answer_timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->over_) self->connect();
    });
  }

  // ---- Ends ----
  void arrive() {
    if (!arrived_) group_->arrived();
    arrived_ = true;
  }
  void end(std::string error) {
    if (over_) return;
    over_ = true;
    record_.error = std::move(error);
    timer_.cancel();
    answer_timer_.cancel();
    silence_timer_.cancel();
    if (stream_) stream_->abort();
    const auto held = shared_from_this();  // the group lets go of it
    arrive();
    group_->over(index_, std::move(record_));
  }

  std::shared_ptr<Group> group_;
  const std::size_t index_;
  const ClientPlan plan_;
  const StreamUrl url_;
  const Asked asked_;
  std::optional<std::uint64_t> most_steps_, all_steps_;
  StartMessage start_;  // that a connection begins with where no ticket is known
  Position start_at_;   // behind what that start has
  Received at_start_;
  ClientRecord record_;
  ReplyReader reader_;
  std::unique_ptr<MessageStream> stream_;
  asio::steady_timer timer_;         // of the next piece
  asio::steady_timer answer_timer_;  // of the answer to a start, and of the next try to connect
  asio::steady_timer silence_timer_;
  Clock::time_point heard_{};  // when a message came last, or one began or ended on its way
  std::string ticket_;
  std::vector<Position> sent_;  // behind each message since the start
  Position at_;
  std::map<int, std::uint64_t> next_seq_;  // by level of a result; 0: a step
  std::uint64_t got_ = 0;                  // messages since the start, without `started`
  std::uint64_t got_bytes_ = 0, acknowledged_ = 0;
  std::size_t told_ = 0, furthest_ = 0;  // steps
  std::optional<Clock::time_point> lost_since_;
  std::uint64_t connection_ = 0;  // its number
  int in_vain_ = 0;
  bool flowing_ = false;  // all sessions have arrived
  bool taken_ = false;    // the server said so on this connection
  bool writing_ = false;
  bool waiting_ = false;  // until the next piece is due
  bool end_said_ = false;
  bool arrived_ = false;
  bool over_ = false;
};

void Group::begin(const StreamUrl& url, std::vector<ClientPlan> plans) {
  progress.sessions = to_arrive_ = plans.size();
  records_.resize(plans.size());
  if (plans.empty()) return complete();
  auto slot = asio::get_associated_cancellation_slot(handler_);
  if (slot.is_connected())
    slot.assign([weak = weak_from_this()](asio::cancellation_type type) {
      const auto self = weak.lock();
      if (self && (type & asio::cancellation_type::terminal) != asio::cancellation_type::none)
        asio::post(self->executor, [self] { self->abort(); });
    });
  for (const ClientPlan& plan : plans) {
    progress.bytes += plan.bytes.size();
    for (const Message& message : plan.script) progress.bytes += message.payload.size();
  }
  for (std::size_t i = 0; i < plans.size(); ++i)
    sessions_.push_back(std::make_shared<ClientSession>(shared_from_this(), i, std::move(plans[i]), url));
  const auto all = sessions_;
  for (const auto& session : all) session->connect();
}

void Group::arrived() {
  if (--to_arrive_ > 0) return;
  begun = Clock::now();
  // Not from within the message that made the last one arrive.
  asio::post(executor, [self = shared_from_this()] {
    const auto all = self->sessions_;
    for (const auto& session : all)
      if (session) session->go();
  });
}

void Group::over(std::size_t index, ClientRecord record) {
  records_[index] = std::move(record);
  sessions_[index].reset();
  ++progress.over;
  tell();
  if (progress.over == records_.size()) complete();
}

void Group::abort() {
  const auto all = sessions_;
  for (const auto& session : all)
    if (session) session->abort();
}

void Group::complete() {
  // Never from within the initiating function, nor from within a session.
  asio::post(executor, [self = shared_from_this()] {
    auto handler = std::move(self->handler_);
    asio::dispatch(self->completes_on_, asio::append(std::move(handler), std::move(self->records_)));
    self->work_.reset();
  });
}

}  // namespace

void stream_plans(const any_io_executor& executor, StreamUrl url, std::vector<ClientPlan> plans, ClientOptions options,
                  ClientHandler handler) {
  const auto group = std::make_shared<Group>(executor, std::move(options), std::move(handler));
  group->begin(url, std::move(plans));
}

std::vector<ClientRecord> stream_plans(const StreamUrl& url, std::vector<ClientPlan> plans, ClientOptions options) {
  asio::io_context context(1);
  std::vector<ClientRecord> records;
  async_stream_plans(context.get_executor(), url, std::move(plans), std::move(options),
                     [&records](std::vector<ClientRecord> got) { records = std::move(got); });
  context.run();
  return records;
}

ConnectOptions ClientOptions::connect_options() const {
  ConnectOptions how(limits);
  how.token = token;
  how.tls = tls;
  how.token_in_clear = token_in_clear;
  return how;
}

StartedMessage describe_server(const StreamUrl& url, const ClientOptions& options, const std::string& model) {
  ClientOptions how;
  how.limits = options.limits;
  how.silence = options.silence;
  how.token = options.token;
  how.tls = options.tls;
  how.token_in_clear = options.token_in_clear;
  std::vector<ClientPlan> plans(1);
  plans[0].start.model = model;
  const std::vector<ClientRecord> records = stream_plans(url, std::move(plans), std::move(how));
  const std::string host = url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
  if (!records[0].error.empty()) throw IoError("server at " + host + ":" + std::to_string(url.port) + ": " + records[0].error);
  return *records[0].started;
}

}  // namespace millrace
