// SPDX-License-Identifier: Apache-2.0
// Sessions of a server that outlive their connections, and servers that go away.
#include <millrace/streaming/live/server.h>

#include <chrono>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/frame.h>
#include <millrace/streaming/protocol/little_endian.h>
#include <millrace/streaming/protocol/result.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>
#include <streaming/live/whole_clients.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

/// A connection that blocks.
class Line {
 public:
  explicit Line(const Served& served) : socket_(context_) { socket_.connect({asio::ip::make_address("127.0.0.1"), served.url().port}); }
  void send(const Message& message) {
    boost::system::error_code error;  // the server may have left
    asio::write(socket_, asio::buffer(encode_frame(message)), error);
  }
  ServerMessage read() {
    std::array<char, 5> head{};
    asio::read(socket_, asio::buffer(head));
    std::string payload(read_little_endian<std::uint32_t>(reinterpret_cast<const std::byte*>(head.data())), '\0');
    asio::read(socket_, asio::buffer(payload));
    return replies_.read(Message(static_cast<MessageKind>(head[4]), std::move(payload)));
  }
  bool readable() const { return socket_.available() > 0; }
  /// As a crash would leave it.
  void cut() {
    socket_.set_option(asio::socket_base::linger(true, 0));
    socket_.close();
  }

 private:
  asio::io_context context_;
  asio::ip::tcp::socket socket_;
  ReplyReader replies_;
};

/// The messages that one sequence has sent and received, over any number of connections.
struct Sequence {
  std::vector<Message> messages;
  std::size_t sent = 0;
  std::string bytes;
  std::vector<std::uint64_t> seqs;
  std::uint64_t got = 0;  // messages of the server's, of the session
  std::optional<EndedMessage> ended;
  std::optional<ErrorMessage> error;

  Sequence(const WholeRun& whole, std::size_t i, Random& random) {
    for (const auto piece : cut_anywhere(bytes_of(rows_ = WholeRun::bytes(whole.rows[i])), random))
      messages.push_back(encode_data({}, piece));
    messages.push_back(said(EndMessage()));
  }
  void take(const ServerMessage& message) {
    ++got;
    if (const auto* result = std::get_if<ResultMessage>(&message)) {
      seqs.push_back(result->seq);
      bytes += result->outputs.at(0).bytes;
    }
    if (const auto* end = std::get_if<EndedMessage>(&message)) ended = *end;
    if (const auto* wrong = std::get_if<ErrorMessage>(&message)) error = *wrong;
  }
  void check(const WholeRun& whole, std::size_t i) const {
    CHECK(bytes == WholeRun::bytes(whole.outputs[i]));
    for (std::size_t at = 0; at < seqs.size(); ++at) CHECK(seqs[at] == at);
  }

 private:
  std::string rows_;
};

ErrorMessage refusal(const Served& served, const StartMessage& start) {
  Line line(served);
  line.send(said(start));
  return std::get<ErrorMessage>(line.read());
}

}  // namespace

TEST_CASE("a client whose connections are cut again and again gets every result once, with the bits of the whole run") {
  for (const std::uint64_t seed : seeds(4)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 1, 60, features, hidden);
    ServerOptions options;
    options.limits.resume = std::chrono::seconds(20);
    Served served(program, options);
    Sequence sequence(whole, 0, random);
    auto line = std::make_unique<Line>(served);
    line->send(said(start_of(whole, 0)));
    const StartedMessage started = std::get<StartedMessage>(line->read());
    REQUIRE(started.ticket);
    CHECK(started.resume_seconds == 20.0);
    int resumed = 0;
    while (!sequence.ended) {
      switch (random.between(0, 5)) {
        case 0: {  // the old connection is cut, or just left alone
          const bool cut = random.coin();
          if (cut) line->cut();
          auto next = std::make_unique<Line>(served);
          StartMessage again;
          again.resume = *started.ticket;
          again.acknowledged = sequence.got;
          next->send(said(again));
          const ServerMessage hello = next->read();
          INFO("got ", sequence.got, " ", std::holds_alternative<ErrorMessage>(hello) ? std::get<ErrorMessage>(hello).message : "");
          REQUIRE(std::holds_alternative<StartedMessage>(hello));
          sequence.sent = std::get<StartedMessage>(hello).messages;  // the others were lost on the way
          line = std::move(next);
          ++resumed;
          break;
        }
        case 1: line->send(said(AcknowledgeMessage{sequence.got})); break;
        case 2:
          if (line->readable() || sequence.sent == sequence.messages.size()) sequence.take(line->read());
          break;
        default:
          if (sequence.sent < sequence.messages.size()) line->send(sequence.messages[sequence.sent++]);
      }
    }
    sequence.check(whole, 0);
    MESSAGE("resumed ", resumed, " times");
    line.reset();
    served.stop();
    CHECK(served.server->live_sessions() == 0);
  }
}

TEST_CASE("a session that is resumed says the messages that it took, none too, and the number of the next result that comes") {
  Random random(2);
  const Program program = live_listing(random, features, hidden);
  ServerOptions options;
  options.limits.resume = std::chrono::seconds(20);
  for (const ReplyFormat reply : {ReplyFormat::json, ReplyFormat::binary}) {
    Served served(program, options);
    StartMessage again;
    {
      Line line(served);
      StartMessage start;
      start.reply = reply;
      line.send(said(start));
      const StartedMessage started = std::get<StartedMessage>(line.read());
      CHECK_FALSE(started.resumed);
      again.resume = started.ticket;
    }
    const auto resume = [&](std::uint64_t acknowledged) {
      again.acknowledged = acknowledged;
      auto line = std::make_unique<Line>(served);
      line->send(said(again));
      return line;
    };
    auto line = resume(0);
    const StartedMessage none = std::get<StartedMessage>(line->read());
    CHECK(none.resumed);
    CHECK(none.messages == 0);
    CHECK(none.seq == 0);
    line->send(binary_message(std::string(4 * features * sizeof(float), '\0')));
    line->send(said(FlushMessage()));
    for (int i = 0; i < 5; ++i) line->read();
    line = resume(1);
    const StartedMessage some = std::get<StartedMessage>(line->read());
    CHECK(some.messages == 2);
    CHECK(some.seq == 1);
    CHECK(std::get<ResultMessage>(line->read()).seq == 1);
    line = resume(4);
    CHECK(std::get<StartedMessage>(line->read()).seq == 4);
    CHECK(std::get<FlushedMessage>(line->read()).steps == 4);
  }
}

TEST_CASE("a session without a connection keeps its slot for so long as was said, and then ends") {
  Random random(2);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 1, 9, features, hidden);
  ServerOptions options;
  options.limits.resume = std::chrono::milliseconds(2500);
  options.limits.sessions = 1;
  std::string outcome;  // outlives the server, which says at its end how its last session ended
  Served served(program, options);
  served.ask(
      [&] { served.server->on_session_end = [&](const Server::SessionEnd& end) { outcome = end.started ? end.outcome : outcome; }; });
  StartMessage again;
  {
    Line line(served);
    line.send(said(start_of(whole, 0)));
    again.resume = std::get<StartedMessage>(line.read()).ticket;
  }
  CHECK(refusal(served, start_of(whole, 0)).code == ErrorCode::overload);
  StartMessage wrong = again;
  wrong.resume = std::string(32, '0');
  CHECK(refusal(served, wrong).code == ErrorCode::unknown_ticket);
  wrong = again;
  wrong.acknowledged = 3;
  CHECK(refusal(served, wrong).code == ErrorCode::bad_message);
  {
    Line line(served);
    line.send(said(again));
    REQUIRE(std::holds_alternative<StartedMessage>(line.read()));
  }
  for (int tries = 0; tries < 1000 && served.ask([&] { return served.server->live_sessions(); }) > 0; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(refusal(served, again).code == ErrorCode::unknown_ticket);
  Line line(served);
  line.send(said(start_of(whole, 0)));
  CHECK(std::holds_alternative<StartedMessage>(line.read()));
  CHECK(served.ask([&] { return outcome; }) == "gone");
}

TEST_CASE("a server without that flag gives no ticket") {
  Random random(2);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 1, 9, features, hidden);
  Served served(program);
  Line line(served);
  line.send(said(start_of(whole, 0)));
  const StartedMessage started = std::get<StartedMessage>(line.read());
  CHECK_FALSE(started.ticket);
  CHECK(started.idle_seconds == 60.0);
  line.send(said(AcknowledgeMessage{0}));
  CHECK(std::get<ErrorMessage>(line.read()).code == ErrorCode::bad_message);
}

TEST_CASE("sequences outlive servers that drain one after another under load, and keep their bits") {
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 5, 60, features, hidden);
    ServerOptions options;
    try {
      options.state_key = std::make_shared<const StateKey>(std::string(32, 'k'));
    } catch (const UnsupportedError& absent) {
      MESSAGE("skipped: ", std::string(absent.what()));
      return;
    }
    auto served = std::make_unique<Served>(program, options);
    std::vector<Sequence> sequences;
    std::vector<std::unique_ptr<Line>> lines;
    for (std::size_t i = 0; i < whole.rows.size(); ++i) {
      sequences.emplace_back(whole, i, random);
      lines.push_back(std::make_unique<Line>(*served));
      lines[i]->send(said(start_of(whole, i)));
      REQUIRE(std::holds_alternative<StartedMessage>(lines[i]->read()));
    }
    for (int generation = 0; generation < 4; ++generation) {
      for (int decisions = 0; decisions < 40; ++decisions) {
        const auto i = static_cast<std::size_t>(random.next() % sequences.size());
        if (sequences[i].sent < sequences[i].messages.size() && lines[i]) lines[i]->send(sequences[i].messages[sequences[i].sent++]);
        if (lines[i] && lines[i]->readable()) sequences[i].take(lines[i]->read());
        if (sequences[i].ended) lines[i].reset();
      }
      auto next = std::make_unique<Served>(program, options);
      const auto begun = std::chrono::steady_clock::now();
      std::thread leaving([&] { served->stop(); });
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        Sequence& one = sequences[i];
        if (!lines[i]) continue;
        while (!one.ended && !one.error) one.take(lines[i]->read());
        lines[i].reset();
        if (one.ended) continue;
        REQUIRE(one.error->code == ErrorCode::draining);
        REQUIRE(one.error->saved);
        CHECK(one.error->saved->steps == one.seqs.size());
        one.messages.erase(one.messages.begin(), one.messages.begin() + static_cast<std::ptrdiff_t>(one.error->saved->messages));
        one.sent = 0;
        lines[i] = std::make_unique<Line>(*next);
        StartMessage again;
        again.reply = ReplyFormat::binary;
        again.state = one.error->saved->state;
        lines[i]->send(said(again));
        one.error.reset();
        REQUIRE(std::get<StartedMessage>(lines[i]->read()).seq == one.seqs.size());
      }
      leaving.join();
      served = std::move(next);
      CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(5));
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Sequence& one = sequences[i];
      while (one.sent < one.messages.size() && lines[i]) lines[i]->send(one.messages[one.sent++]);
      while (!one.ended && !one.error) one.take(lines[i]->read());
      CHECK((one.error ? one.error->message : "") == "");
      one.check(whole, i);
    }
  }
}
