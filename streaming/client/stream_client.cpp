// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/client/stream_client.h>

#include <algorithm>
#include <cmath>
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

class Session;

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
  std::vector<std::shared_ptr<Session>> sessions_;
  std::vector<ClientRecord> records_;
  std::size_t to_arrive_ = 0;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<Group> group, std::size_t index, ClientPlan plan)
      : group_(std::move(group)), index_(index), plan_(std::move(plan)), timer_(group_->executor) {}

  void connect(const StreamUrl& url) {
    async_connect_stream(group_->executor, url, group_->options.connect_options(),
                         [self = shared_from_this()](error_code error, std::unique_ptr<MessageStream> stream) {
                           if (self->over_) return;
                           if (error) return self->end("cannot connect: " + error.message());
                           self->stream_ = std::move(stream);
                           self->write(text_message(to_json(self->plan_.start)), &Session::nothing_follows);
                           self->expect_start();
                           self->read();
                         });
  }
  /// Everybody is there: data flows.
  void go() {
    if (over_) return;
    record_.begun = group_->begun;
    send_piece();
  }
  void abort() { end("cut off"); }

 private:
  using Next = void (Session::*)();

  // ---- Out ----
  void nothing_follows() {}
  void write(Message message, Next next) {
    stream_->async_write(std::move(message), [self = shared_from_this(), next](error_code error) {
      // A server that refuses a session says why before it closes: the reader finds it.
      if (error || self->over_) return;
      ((*self).*next)();
    });
  }
  void send_piece() {
    if (next_message_ < plan_.script.size()) {
      const Message& next = plan_.script[next_message_++];
      group_->progress.sent += next.payload.size();
      group_->tell();
      return write(next, &Session::send_piece);
    }
    const std::size_t left = plan_.bytes.size() - sent_;
    if (left == 0) return write(text_message(to_json(EndMessage{})), &Session::nothing_follows);
    const ClientOptions& options = group_->options;
    const double rate = plan_.units_per_second * options.speed;
    if (rate > 0) return send_when_due(rate);
    const std::size_t piece = options.next_piece ? options.next_piece(index_) : options.piece_bytes;
    send(std::min(left, std::min(piece, options.limits.message / 2)));
  }
  void send_when_due(double rate) {
    const double seconds = std::chrono::duration<double>(group_->options.paced_piece).count();
    const double most = static_cast<double>(group_->options.limits.message / 2 / plan_.unit_bytes);
    const auto units = static_cast<std::size_t>(std::max(1.0, std::min(most, std::round(seconds * plan_.units_per_second))));
    const std::size_t bytes = std::min(plan_.bytes.size() - sent_, units * plan_.unit_bytes);
    constexpr double latest = 1e9;  // seconds that the clock can hold
    const double due = std::min(latest, static_cast<double>((sent_ + bytes) / plan_.unit_bytes) / rate);
    timer_.expires_at(record_.begun + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due)));
    timer_.async_wait([self = shared_from_this(), bytes](error_code error) {
      if (!error && !self->over_) self->send(bytes);
    });
  }
  void send(std::size_t bytes) {
    const std::string_view piece = std::string_view(plan_.bytes).substr(sent_, bytes);
    const bool several = record_.started->inputs.size() > 1;
    sent_ += bytes;
    group_->progress.sent += bytes;
    group_->tell();
    write(encode_data(several ? std::string_view(plan_.input) : std::string_view(), std::as_bytes(std::span<const char>(piece))),
          &Session::send_piece);
  }

  // ---- In ----
  void expect_start() {
    timer_.expires_after(group_->options.limits.handshake);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->over_ && !self->record_.started) self->end("the server did not answer in time");
    });
  }
  void read() {
    stream_->async_read([self = shared_from_this()](error_code error, Message message) {
      if (self->over_) return;
      if (error)
        return self->end(error == asio::error::eof ? "the server went away before the end" : "the connection failed: " + error.message());
      try {
        self->take(self->reader_.read(message));
      } catch (const Error& wrong) {
        return self->end(std::string("a reply that the protocol does not have: ") + wrong.what());
      }
      if (!self->over_) self->read();
    });
  }
  void take(const ServerMessage& message) {
    std::visit([this](const auto& said) { on(said); }, message);
  }
  void on(const StartedMessage& said) {
    timer_.cancel();
    record_.started = said;
    record_.outputs.resize(said.outputs.size());
    arrive();
  }
  void on(const ResultMessage& said) {
    std::uint64_t& next = next_seq_[said.level.value_or(0)];
    if (said.seq != next)
      throw ProtocolError(ErrorCode::bad_message, "expected seq " + std::to_string(next) + ", found " + std::to_string(said.seq));
    next += said.steps;
    // Steps whose rows have no bytes cost the server nothing, but the client its record of them.
    if (said.steps > group_->options.limits.message)
      throw ProtocolError(ErrorCode::bad_message, "expected at most " + std::to_string(group_->options.limits.message) +
                                                      " steps in a message, found " + std::to_string(said.steps));
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
    if (group_->options.on_result)
      group_->options.on_result(index_, said, std::chrono::duration<double>(Clock::now() - record_.begun).count());
  }
  void on(const SegmentMessage& said) { record_.segments.push_back(said); }
  void on(const SavedMessage&) {}
  void on(const FlushedMessage& said) { record_.flushed.push_back(said.steps); }
  void on(const ResetDoneMessage& said) {
    record_.resets.push_back(said.steps);
    next_seq_.clear();
  }
  void on(const EndedMessage& said) {
    record_.steps = said.steps;
    end({});
  }
  void on(const ErrorMessage& said) { end(std::string(name_of(said.code)) + ": " + said.message); }

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
    if (stream_) stream_->abort();
    const auto held = shared_from_this();  // the group lets go of it
    arrive();
    group_->over(index_, std::move(record_));
  }

  std::shared_ptr<Group> group_;
  const std::size_t index_;
  const ClientPlan plan_;
  ClientRecord record_;
  ReplyReader reader_;
  std::unique_ptr<MessageStream> stream_;
  asio::steady_timer timer_;
  std::size_t sent_ = 0;
  std::size_t next_message_ = 0;
  std::map<int, std::uint64_t> next_seq_;  // by level of a result; 0: a step
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
  for (std::size_t i = 0; i < plans.size(); ++i) sessions_.push_back(std::make_shared<Session>(shared_from_this(), i, std::move(plans[i])));
  const auto all = sessions_;
  for (const auto& session : all) session->connect(url);
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

StartedMessage describe_server(const StreamUrl& url, const ClientOptions& options) {
  ClientOptions how;
  how.limits = options.limits;
  how.token = options.token;
  how.tls = options.tls;
  how.token_in_clear = options.token_in_clear;
  const std::vector<ClientRecord> records = stream_plans(url, std::vector<ClientPlan>(1), std::move(how));
  const std::string host = url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
  if (!records[0].error.empty()) throw IoError("server at " + host + ":" + std::to_string(url.port) + ": " + records[0].error);
  return *records[0].started;
}

}  // namespace millrace
