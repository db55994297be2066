// SPDX-License-Identifier: Apache-2.0
// The cost of one client to the others: the limits of docs/protocol.md, seen from outside.
#include <millrace/streaming/live/server.h>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/frame.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

/// The outcomes of a server's sessions, as they end.
class Ends {
 public:
  void listen_to(Served& served) {
    served.ask([&] {
      served.server->on_session_end = [this](const Server::SessionEnd& end) {
        const std::lock_guard lock(mutex_);
        outcomes_.emplace_back(end.outcome);
      };
    });
  }
  std::size_t count(const std::string& outcome) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count(outcomes_.begin(), outcomes_.end(), outcome));
  }
  /// Waits for one, for at most 20 s.
  bool saw(const std::string& outcome) const {
    for (int i = 0; i < 2000 && count(outcome) == 0; ++i) std::this_thread::sleep_for(10ms);
    return count(outcome) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> outcomes_;
};

std::string handshake() {
  return "GET /stream HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
         "Sec-WebSocket-Version: 13\r\n\r\n";
}
/// A connection that says what it likes.
struct Raw {
  Raw() : socket(context, tcp::v4()) {}  // not connected yet
  explicit Raw(const Served& served, const char* from = "127.0.0.1") : Raw() {
    socket.bind({asio::ip::make_address(from), 0});
    connect(served);
  }
  void connect(const Served& served) { socket.connect({asio::ip::make_address("127.0.0.1"), served.url().port}); }
  bool say(const std::string& text) {
    boost::system::error_code error;
    asio::write(socket, asio::buffer(text), error);
    return !error;
  }
  /// Becomes a WebSocket. Nothing may follow the request before its answer.
  void upgrade() {
    CHECK(say(handshake()));
    std::string answer;
    asio::read_until(socket, asio::dynamic_buffer(answer), "\r\n\r\n");
    CHECK(answer.starts_with("HTTP/1.1 101"));
  }
  std::string to_end() {
    std::string all;
    asio::read(socket, asio::dynamic_buffer(all), ended);
    return all;
  }
  asio::io_context context;
  boost::system::error_code ended;  // how `to_end` came to its end
  tcp::socket socket;
};

/// So many descriptors at most, for as long as this lives.
class LowLimit {
 public:
  explicit LowLimit(rlim_t most) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit low{most, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  }
  LowLimit(const LowLimit&) = delete;
  LowLimit& operator=(const LowLimit&) = delete;
  ~LowLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

std::string control(const std::string& text) { return encode_frame(text_message(text)); }
const std::string plain_start = R"({"type":"start","version":1})";

/// A WebSocket frame of a client, masked with zeros.
std::string web_frame(unsigned first, const std::string& payload) {
  return std::string{static_cast<char>(first), static_cast<char>(0x80 + payload.size())} + std::string(4, '\0') + payload;
}

/// WebSockets whose first message is refused, one after the other, and that do not answer the close.
std::vector<std::unique_ptr<Raw>> refused_web_clients(Served& served, std::uint64_t count) {
  std::vector<std::unique_ptr<Raw>> clients;
  while (clients.size() < count) {
    clients.push_back(std::make_unique<Raw>(served));
    clients.back()->upgrade();
    CHECK(clients.back()->say(web_frame(0x81, R"({"type":"end"})")));
    while (served.ask([&] { return served.server->counts().refused.count("bad_message"); }) < clients.size())
      std::this_thread::sleep_for(1ms);
  }
  return clients;
}

Program listing_of(std::int64_t features = 3, std::int64_t hidden = 4) {
  Random random(1);
  return live_listing(random, features, hidden);
}

}  // namespace

TEST_CASE("connections that never start keep nobody out, and the oldest of them are told to come back") {
  ServerOptions options;
  options.limits.sessions = 4;
  options.limits.newcomers = 8;
  Served served(listing_of(), options);
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(std::make_unique<Raw>(served));
    CHECK(silent.back()->say(control(plain_start).substr(0, 9)));
    if (i == 8) CHECK(silent.front()->to_end().find("\"code\":\"overload\"") != std::string::npos);
  }
  for (int i = 0; i < 6; ++i) {
    const ClientRecord record = stream_plans(served.url(), std::vector<ClientPlan>(1)).at(0);
    CHECK(record.error == "");
  }
  CHECK(served.ask([&] { return served.server->newcomers(); }) <= 8);
  CHECK(served.ask([&] { return served.server->live_sessions(); }) == 0);
}

TEST_CASE("an address with many newcomers displaces its own, and not those of another") {
  ServerOptions options;
  options.limits.newcomers = 8;
  Served served(listing_of(), options);
  Raw early(served);
  CHECK(early.say(control(plain_start).substr(0, 9)));
  std::vector<std::unique_ptr<Raw>> many;
  for (int i = 0; i < 40; ++i) many.push_back(std::make_unique<Raw>(served, "127.0.0.2"));
  while (served.ask([&] { return served.server->counts().connections; }) < 41) std::this_thread::sleep_for(1ms);
  CHECK(early.say(control(plain_start).substr(9) + control(R"({"type":"end"})")));
  CHECK(early.to_end().find("\"type\":\"ended\"") != std::string::npos);
}

TEST_CASE("refused WebSockets that never answer the close are as many as newcomers, and the oldest goes for one more") {
  ServerOptions options;
  options.limits.newcomers = 8;
  options.limits.handshake = 60s;  // also of a close
  options.limits.stuck_writer = 60s;
  Served served(listing_of(), options);
  const auto begun = Clock::now();
  const auto refused = refused_web_clients(served, 9);
  CHECK(refused.front()->to_end().find("\"code\":\"bad_message\"") != std::string::npos);
  CHECK(Clock::now() - begun < 30s);
}

TEST_CASE("a session that is over, and resumed before its connection has closed, leaves nothing among those that go") {
  ServerOptions options;
  options.limits.newcomers = 4;
  options.limits.handshake = 60s;
  options.limits.stuck_writer = 60s;
  options.limits.resume = 60s;
  Served served(listing_of(), options);
  {
    Raw first(served);
    first.upgrade();
    CHECK(first.say(web_frame(0x81, plain_start)));
    std::string said;
    asio::read_until(first.socket, asio::dynamic_buffer(said), "\"ticket\":\"");
    const auto at = said.find("\"ticket\":\"") + 10;
    while (said.find('"', at) == said.npos) asio::read(first.socket, asio::dynamic_buffer(said), asio::transfer_exactly(1));
    const std::string ticket = said.substr(at, said.find('"', at) - at);
    CHECK(first.say(web_frame(0x81, R"({"type":"end"})")));
    asio::read_until(first.socket, asio::dynamic_buffer(said), "\"ended\"");  // and the close has no answer
    Raw second(served);
    CHECK(second.say(control(R"({"type":"start","version":1,"resume":")" + ticket + R"(","acknowledged":0})")));
    CHECK(second.to_end().find("\"ended\"") != std::string::npos);
  }
  const auto refused = refused_web_clients(served, 8);
  CHECK(refused.front()->to_end().find("\"code\":\"bad_message\"") != std::string::npos);
}

TEST_CASE("near the limit of descriptors newcomers make room for one more, and beside sessions alone one is told and counted") {
  Served served(listing_of());
  std::vector<std::unique_ptr<Raw>> clients;
  for (int i = 0; i < 160; ++i) clients.push_back(std::make_unique<Raw>());
  std::optional<LowLimit> low;
  low.emplace((static_cast<rlim_t>(clients.back()->socket.native_handle()) + 40) * 10 / 9);  // whose nine tenths leave room for 40
  const auto connections = [&] { return served.ask([&] { return served.server->counts().connections; }); };
  std::size_t next = 0;
  for (; next < 80; ++next) clients[next]->connect(served);  // and say nothing
  while (connections() < next) std::this_thread::sleep_for(1ms);
  const std::size_t newcomers = served.ask([&] { return served.server->newcomers(); });
  CHECK(newcomers > 10);
  CHECK(newcomers <= 40);
  std::string refusal;
  for (; next < 160 && refusal.empty(); ++next) {
    clients[next]->connect(served);
    CHECK(clients[next]->say(control(plain_start)));
    std::string said;
    boost::system::error_code gone;
    asio::read_until(clients[next]->socket, asio::dynamic_buffer(said), "}", gone);
    if (said.find("\"type\":\"started\"") == std::string::npos) refusal = said;
  }
  low.reset();
  CHECK(refusal.find("no descriptor is left for another connection") != std::string::npos);
  CHECK(next > 100);
  CHECK(connections() == next);
  CHECK(served.ask([&] { return served.server->counts().refused.count("overload"); }) >= 1);
}

TEST_CASE("a session that is over, and one that was refused, hold no slot while their connections close") {
  ServerOptions options;
  options.limits.sessions = 1;
  options.limits.sessions_per_address = 1;
  Served served(listing_of(), options);
  Raw first(served), second(served), third(served);
  CHECK(first.say(control(plain_start)));
  while (served.ask([&] { return served.server->live_sessions(); }) == 0) std::this_thread::sleep_for(1ms);
  CHECK(second.say(control(plain_start)));
  const std::string refused = second.to_end();
  CHECK(refused.find("\"code\":\"overload\"") != std::string::npos);
  CHECK(refused.find("\"retry_after_ms\":1000") != std::string::npos);
  CHECK(first.say(control(R"({"type":"end"})")));
  while (served.ask([&] { return served.server->live_sessions(); }) == 1) std::this_thread::sleep_for(1ms);
  // The first has not closed its side yet.
  CHECK(third.say(control(plain_start) + control(R"({"type":"end"})")));
  CHECK(third.to_end().find("\"type\":\"ended\"") != std::string::npos);
}

TEST_CASE("before its start a connection may say 16 KiB, and control messages have a bound of their own") {
  Served served(listing_of());
  const std::string long_start = R"({"type":"start","version":1,"session":")" + std::string(16400, 'x') + "\"}";
  Raw early(served), data(served), late(served);
  CHECK(early.say(control(long_start)));
  CHECK(early.to_end().find("expected a start of at most 16384 bytes") != std::string::npos);
  CHECK(data.say(encode_frame(binary_message(std::string(20000, 'x')))));
  CHECK(data.to_end().find("too_big") != std::string::npos);
  CHECK(late.say(control(plain_start) + encode_frame(binary_message(std::string(12 * 8000, '\0'))) + control(std::string(70000, ' '))));
  CHECK(late.to_end().find("65536 of them text") != std::string::npos);
}

TEST_CASE("a reader that stood still is told why it was left when it reads on") {
  for (const bool web : {false, true}) {
    INFO("web ", web);
    ServerOptions options;
    options.limits.stuck_writer = 4000ms;
    Ends ends;
    Served served(listing_of(3, 1024), options);
    ends.listen_to(served);
    Raw client(served);
    if (web) {
      client.upgrade();
      CHECK(client.say(web_frame(0x81, plain_start)));
      for (int i = 0; i < 1500; ++i) CHECK(client.say(web_frame(0x82, std::string(12, '\1'))));
    } else {
      CHECK(client.say(control(plain_start) + encode_frame(binary_message(std::string(12 * 1500, '\1')))));
    }
    REQUIRE(ends.saw("slow_reader"));
    const std::string all = client.to_end();
    CHECK(all.size() > 100000);
    CHECK(all.substr(all.size() - std::min<std::size_t>(all.size(), 300)).find("\"code\":\"slow_reader\"") != std::string::npos);
  }
}

TEST_CASE("a WebSocket client that had said much more when it was refused reads why, up to the end of the stream") {
  ServerOptions options;
  options.limits.handshake = 1000ms;  // also of a close
  Served served(listing_of(), options);
  Raw client(served);
  client.upgrade();
  std::string said = web_frame(0x81, plain_start) + web_frame(0x81, plain_start);
  for (int i = 0; i < 3000; ++i) said += web_frame(0x82, std::string(12, '\1'));
  CHECK(client.say(said));
  const std::string answered = client.to_end();
  CHECK(client.ended == asio::error::eof);
  CHECK(answered.find("\"code\":\"bad_message\"") != std::string::npos);
  CHECK(answered.find('\x88') != std::string::npos);
}

TEST_CASE("a WebSocket ping counts as life, data without a byte does not") {
  ServerOptions options;
  options.limits.idle = 1500ms;  // far above the time that a busy machine keeps this thread waiting
  Ends ends;
  Served served(listing_of(), options);
  ends.listen_to(served);
  Raw pings(served);
  pings.upgrade();
  CHECK(pings.say(web_frame(0x81, plain_start)));
  const auto begun = Clock::now();
  while (Clock::now() - begun < 4000ms) {
    CHECK(pings.say(web_frame(0x89, "hi")));
    std::this_thread::sleep_for(30ms);
  }
  CHECK(ends.count("idle") == 0);
  const std::string said = pings.to_end();
  CHECK(said.find("\x8a\x02hi") != std::string::npos);
  CHECK(said.find("\"code\":\"idle\"") != std::string::npos);
  Raw empty(served);
  CHECK(empty.say(control(plain_start)));
  for (int i = 0; i < 2000 && ends.count("idle") < 2; ++i) {
    empty.say(encode_frame(binary_message("")));
    std::this_thread::sleep_for(10ms);
  }
  CHECK(ends.count("idle") == 2);
}

TEST_CASE("a message in fragments without end is refused, one in many with bytes is taken") {
  Served served(listing_of());
  Raw honest(served), hostile(served);
  std::string pieces = web_frame(0x01, "");
  honest.upgrade();
  hostile.upgrade();
  for (const char c : plain_start) pieces += web_frame(0x00, std::string(1, c));
  CHECK(honest.say(pieces + web_frame(0x80, "") + web_frame(0x81, R"({"type":"end"})")));
  CHECK(honest.to_end().find("\"type\":\"ended\"") != std::string::npos);
  CHECK(hostile.say(web_frame(0x81, plain_start) + web_frame(0x02, "")));
  std::string empty;
  for (int i = 0; i < 1000; ++i) empty += web_frame(0x00, "");
  int thousands = 0;
  while (thousands < 20000 && hostile.say(empty)) ++thousands;
  CHECK(thousands < 20000);
}

TEST_CASE("a request for a WebSocket that ends at any of its bytes leaves nothing behind") {
  Served served(listing_of());
  const std::string request = handshake();
  for (std::size_t cut = 0; cut <= request.size(); ++cut) {
    INFO("bytes ", cut);
    Raw client(served);
    CHECK((cut == 0 || client.say(request.substr(0, cut))));
    client.socket.shutdown(tcp::socket::shutdown_send);
    CHECK(client.to_end().starts_with("HTTP/1.1 101") == (cut == request.size()));
  }
  for (int i = 0; i < 2000 && served.ask([&] { return served.server->newcomers(); }) > 0; ++i) std::this_thread::sleep_for(10ms);
  CHECK(served.ask([&] { return served.server->newcomers(); }) == 0);
  CHECK(stream_plans(served.url(), std::vector<ClientPlan>(1)).at(0).error == "");
}

TEST_CASE("a client that ends its half of the connection before its sequence is gone") {
  for (const bool web : {false, true}) {
    INFO("web ", web);
    Ends ends;
    Served served(listing_of());
    ends.listen_to(served);
    Raw client(served);
    if (web) client.upgrade();
    CHECK(client.say(web ? web_frame(0x81, plain_start) : control(plain_start)));
    while (served.ask([&] { return served.server->live_sessions(); }) == 0) std::this_thread::sleep_for(1ms);
    client.socket.shutdown(tcp::socket::shutdown_send);
    CHECK(client.to_end().find("\"type\":\"started\"") != std::string::npos);
    CHECK(ends.saw("gone"));
    CHECK(served.ask([&] { return served.server->live_sessions(); }) == 0);
  }
}

TEST_CASE("frames that no WebSocket has are answered with their close code, and end that session alone") {
  struct Broken {
    const char* what;
    std::string bytes;
    const char* outcome;
    std::string close;  // the code, as it is sent
  };
  const std::string violation = "\x03\xea", bad_text = "\x03\xef", too_big = "\x03\xf1";
  const std::string mask(4, '\0');
  const std::vector<Broken> all{
      {"no mask", "\x81\x05hello", "bad_message", violation},
      {"a reserved bit", web_frame(0xc1, "hello"), "bad_message", violation},
      {"a reserved opcode", web_frame(0x83, "hello"), "bad_message", violation},
      {"a ping in fragments", web_frame(0x09, "hello"), "bad_message", violation},
      {"a ping of 126 bytes", "\x89\xfe" + std::string("\0\x7e", 2) + mask + std::string(126, 'x'), "bad_message", violation},
      {"a continuation of nothing", web_frame(0x80, "hello"), "bad_message", violation},
      {"a message within another", web_frame(0x01, "{") + web_frame(0x81, "}"), "bad_message", violation},
      {"a close of one byte", web_frame(0x88, "x"), "bad_message", violation},
      {"text that is not UTF-8", web_frame(0x81, "\xff\xfe"), "bad_text", bad_text},
      {"half of a character", web_frame(0x81, "\xe2\x82"), "bad_text", bad_text},
      {"2^62 bytes", "\x82\xff" + std::string("\x40\0\0\0\0\0\0\0", 8) + mask, "too_big", too_big},
  };
  Ends ends;
  Served served(listing_of());
  ends.listen_to(served);
  Raw beside(served);
  CHECK(beside.say(control(plain_start)));
  std::map<std::string, std::size_t> wanted;
  std::vector<std::unique_ptr<Raw>> clients;
  for (const Broken& broken : all) {
    clients.push_back(std::make_unique<Raw>(served));
    clients.back()->upgrade();
    CHECK(clients.back()->say(web_frame(0x81, plain_start) + broken.bytes));
    ++wanted[broken.outcome];
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Broken& broken = all[i];
    INFO(broken.what);
    const std::string said = clients[i]->to_end();
    const std::size_t close = said.rfind('\x88');
    REQUIRE(close != std::string::npos);
    CHECK(said.substr(close + 2, 2) == broken.close);
  }
  for (const auto& [outcome, count] : wanted) {
    INFO(outcome);
    for (int i = 0; i < 2000 && ends.count(outcome) < count; ++i) std::this_thread::sleep_for(10ms);
    CHECK(ends.count(outcome) == count);
  }
  CHECK(beside.say(encode_frame(binary_message(std::string(12, '\1'))) + control(R"({"type":"end"})")));
  const std::string answered = beside.to_end();
  CHECK(answered.find("\"type\":\"ended\"") != std::string::npos);
  CHECK(answered.find("\"steps\":1") != std::string::npos);
}

TEST_CASE("starts that a stranger would try are refused by name") {
  ServerOptions options;
  options.limits.resume = 10s;
  Served served(listing_of(), options);
  const auto answer = [&](const std::string& bytes) {
    Raw client(served);
    CHECK(client.say(bytes));
    return client.to_end();
  };
  const auto start_with = [](const std::string& more) { return control(R"({"type":"start","version":1,)" + more + "}"); };
  const auto refused = [&](const std::string& bytes, const std::string& code) {
    INFO(bytes);
    CHECK(answer(bytes).find("\"code\":\"" + code + "\"") != std::string::npos);
  };
  refused(control(plain_start) + control(plain_start), "bad_message");
  refused(start_with(R"("model":"nobody")"), "unknown_model");
  for (const std::string& ticket : {std::string(32, '0'), std::string("a"), std::string(8000, 'f')})
    refused(start_with(R"("resume":")" + ticket + "\""), "unknown_ticket");
  for (const std::string& state : {std::string("AAAA"), std::string("no base64"), std::string(4000, 'A')})
    refused(start_with(R"("state":")" + state + "\""), "bad_state");
  refused(control(R"({"type":"end"})"), "bad_message");
  refused(encode_frame(binary_message("x")), "bad_message");
  refused(control("\xff"), "bad_text");
  CHECK(served.ask([&] { return served.server->live_sessions(); }) == 0);
  CHECK(stream_plans(served.url(), std::vector<ClientPlan>(1)).at(0).error == "");
}

TEST_CASE("pings without end whose answers nobody reads end as silence does") {
  ServerOptions options;
  options.limits.idle = 1000ms;
  options.limits.stuck_writer = 500ms;
  Ends ends;
  Served served(listing_of(), options);
  ends.listen_to(served);
  Raw client(served);
  client.upgrade();
  CHECK(client.say(web_frame(0x81, plain_start)));
  std::string pings;
  for (int i = 0; i < 500; ++i) pings += web_frame(0x89, std::string(120, 'x'));
  std::size_t said = 0;
  while (client.say(pings)) said += pings.size();  // until the server lets it go
  CHECK(said < std::size_t{256} << 20);
  CHECK(ends.saw("idle"));
  CHECK(served.ask([&] { return served.server->live_sessions(); }) == 0);
}

TEST_CASE("while more rows wait than the bound nobody else may start, and is told when to come back") {
  Program sum;
  {
    using namespace millrace::build;
    const Guard guard(sum);
    const Var a = input("a", VarType(DType::f32, {DDim::unknown, 1}, 1));
    const Var b = input("b", VarType(DType::f32, {DDim::unknown, 1}, 1));
    output("y", a + b);
  }
  ServerOptions options;
  options.limits.waiting_rows = 100;
  Served served(sum, options);
  Raw one(served), other(served);
  const auto rows = encode_data("a", std::as_bytes(std::span<const char>(std::string(4 * 1000, '\0'))));
  CHECK(one.say(control(plain_start) + encode_frame(rows)));
  while (served.ask([&] { return served.server->waiting_rows(); }) < 1000) std::this_thread::sleep_for(1ms);
  // Rows beyond the first of one that sends ahead are not in anybody's way.
  CHECK(stream_plans(served.url(), std::vector<ClientPlan>(1)).at(0).error == "");
  CHECK(other.say(control(plain_start) + encode_frame(rows)));
  std::string error;
  for (int i = 0; i < 500 && error.empty(); ++i) error = stream_plans(served.url(), std::vector<ClientPlan>(1)).at(0).error;
  CHECK(error.starts_with("overload: about 128 rows wait for their step"));
}
