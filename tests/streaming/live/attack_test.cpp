// SPDX-License-Identifier: Apache-2.0
// Honest sessions beside many hostile clients. MILLRACE_ATTACKERS and MILLRACE_HONEST say how many of each (100 of each kind, and 20), MILLRACE_RATE the rows a second of
// an honest one (25): docs/reliability.md has figures of 2,000 and 500. Lags and processor times are told, and not checked: they are the machine's.
#include <millrace/streaming/live/server.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <pthread.h>
#include <time.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/protocol/frame.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>
#include <streaming/live/whole_clients.h>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

using asio::ip::tcp;
constexpr std::int64_t features = 3, hidden = 64;

std::size_t number(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Of an honest session, a second.
double rows_a_second() {
  static const auto rate = static_cast<double>(number("MILLRACE_RATE", 25));
  return rate;
}

/// Processor seconds of a thread of this process, or of all.
double processor_seconds(clockid_t clock) {
  timespec used{};
  ::clock_gettime(clock, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

/// Hostile clients, on a thread of their own. Slow ones say a byte of `start` after each `pause`. Silent ones say `start`, send `rows` for as long as the server takes them, and read
/// nothing. Each begins again when the server lets it go.
class Attackers {
 public:
  Attackers(const StreamUrl& url, std::size_t count, std::string start, std::chrono::milliseconds pause, std::string rows = {})
      : endpoint_(asio::ip::make_address("127.0.0.1"), url.port), start_(std::move(start)), rows_(std::move(rows)), pause_(pause) {
    for (std::size_t i = 0; i < count; ++i) attack(std::make_shared<One>(context_));
    thread_ = std::thread([this] { context_.run(); });
    ::pthread_getcpuclockid(thread_.native_handle(), &clock_);
  }
  ~Attackers() {
    context_.stop();
    thread_.join();
  }
  std::size_t connections() const { return connections_; }
  double seconds() const { return processor_seconds(clock_); }

 private:
  struct One {
    explicit One(asio::io_context& context) : socket(context), timer(context) {}
    tcp::socket socket;
    asio::steady_timer timer;
    std::size_t said = 0;
  };
  void attack(const std::shared_ptr<One>& one) {
    one->socket = tcp::socket(context_);
    one->said = 0;
    one->socket.open(tcp::v4());
    one->socket.set_option(asio::socket_base::receive_buffer_size(4096));
    one->socket.set_option(asio::socket_base::send_buffer_size(4096));
    one->socket.set_option(asio::socket_base::linger(true, 0));  // no port waits for its peer
    one->socket.async_connect(endpoint_, [this, one](boost::system::error_code error) {
      if (error) return again(one);
      ++connections_;
      rows_.empty() ? say(one) : say_all(one);
    });
  }
  void again(const std::shared_ptr<One>& one) {
    one->timer.expires_after(100ms);
    one->timer.async_wait([this, one](boost::system::error_code) { attack(one); });
  }
  void say(const std::shared_ptr<One>& one) {
    one->timer.expires_after(pause_);
    one->timer.async_wait([this, one](boost::system::error_code) {
      boost::system::error_code error;
      if (one->said + 1 < start_.size()) asio::write(one->socket, asio::buffer(start_.data() + one->said++, 1), error);
      error || one->socket.available(error) > 0 ? again(one) : say(one);
    });
  }
  void say_all(const std::shared_ptr<One>& one) {
    asio::async_write(one->socket, asio::buffer(start_),
                      [this, one](boost::system::error_code error, std::size_t) { error ? again(one) : send_rows(one); });
  }
  void send_rows(const std::shared_ptr<One>& one) {
    asio::async_write(one->socket, asio::buffer(rows_),
                      [this, one](boost::system::error_code error, std::size_t) { error ? again(one) : send_rows(one); });
  }

  asio::io_context context_{1};
  tcp::endpoint endpoint_;
  const std::string start_, rows_;
  const std::chrono::milliseconds pause_;
  std::atomic<std::size_t> connections_{0};
  std::thread thread_;
  clockid_t clock_{};
};

struct Seen {
  double middle = 0, late = 0;  // seconds of lag: the median, and that of one step in a hundred
  double server_us = 0;         // processor time of the server, a step of the honest sessions
};

/// Streams so many sequences at their rate, checks their bits, and gives how long behind its row each result was.
Seen honest(const Served& served, const WholeRun& whole, std::size_t count, double seconds,
            const std::vector<const Attackers*>& attackers = {}) {
  const auto server_seconds = [&] {
    double all = processor_seconds(CLOCK_PROCESS_CPUTIME_ID) - processor_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (const Attackers* one : attackers) all -= one->seconds();
    return all;
  };
  const double rate = rows_a_second();
  const auto rows = static_cast<std::size_t>(rate * seconds);
  std::vector<ClientPlan> plans(count);
  for (std::size_t i = 0; i < count; ++i) {
    plans[i] = plan_for(whole, i % whole.rows.size());
    plans[i].unit_bytes = features * sizeof(float);
    plans[i].bytes.resize(std::min(plans[i].bytes.size(), rows * plans[i].unit_bytes));
    plans[i].units_per_second = rate;
  }
  ClientOptions options;
  options.speed = 1;
  options.paced_piece = 40ms;
  options.limits.handshake = 60s;
  std::vector<double> lags;
  const double before = server_seconds();
  const std::vector<ClientRecord> records = stream_plans(served.url(), plans, options);
  const double used = server_seconds() - before;
  for (std::size_t i = 0; i < count; ++i) {
    INFO("session ", i);
    CHECK(records[i].error == "");
    REQUIRE(records[i].outputs.size() == 1);
    CHECK(records[i].outputs[0] == WholeRun::bytes(whole.outputs[i % whole.rows.size()]).substr(0, records[i].outputs[0].size()));
    CHECK(records[i].outputs[0].size() == plans[i].bytes.size() / features * hidden);
    for (std::size_t step = 0; step < records[i].received.size(); ++step)
      lags.push_back(std::chrono::duration<double>(records[i].received[step] - records[i].begun).count() -
                     static_cast<double>(step + 1) / rate);
  }
  std::sort(lags.begin(), lags.end());
  REQUIRE_FALSE(lags.empty());
  return {lags[lags.size() / 2], lags[lags.size() * 99 / 100], 1e6 * used / static_cast<double>(lags.size())};
}

}  // namespace

TEST_CASE("clients that say a start byte by byte, and clients that never read, are cut off and do honest sessions no harm") {
  const std::size_t attackers = number("MILLRACE_ATTACKERS", 100), sessions = number("MILLRACE_HONEST", 20);
  const double seconds = attackers > 100 ? 10 : 2;
  Random random(1);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 8, 2000, features, hidden);
  ServerOptions options;
  options.limits.sessions = attackers + sessions + 64;
  options.limits.handshake = attackers > 100 ? 5s : 2s;
  options.limits.stuck_writer = options.limits.handshake;
  std::map<std::string, std::size_t> ends;  // outlives the server
  Served served(program, options);
  served.ask([&] { served.server->on_session_end = [&](const Server::SessionEnd& end) { ++ends[std::string(end.outcome)]; }; });
  const Seen alone = honest(served, whole, sessions, seconds);
  const std::string start = encode_frame(text_message(R"({"type":"start","version":1})"));
  std::string rows;
  while (rows.size() < 16384) rows += encode_frame(binary_message(std::string(16 * features * sizeof(float), '\1')));
  Seen attacked;
  std::uint64_t steps = 0;
  std::size_t connections = 0;
  {
    const std::chrono::milliseconds pause = options.limits.handshake / 8;  // slow enough to be late, and not for the first four bytes
    const Attackers slow(served.url(), attackers, start, pause), silent(served.url(), attackers, start, pause, rows);
    while (slow.connections() < attackers || silent.connections() < attackers) std::this_thread::sleep_for(10ms);
    const auto stepped = [&] { return served.ask([&] { return served.server->stats().rows; }); };
    const std::uint64_t before = stepped();
    attacked = honest(served, whole, sessions, seconds, {&slow, &silent});
    steps = stepped() - before;
    const auto cut = [&](const char* outcome) { return served.ask([&] { return ends[outcome]; }); };
    for (int tries = 0; tries < 6000 && (cut("idle") < attackers || cut("slow_reader") < attackers); ++tries)
      std::this_thread::sleep_for(10ms);
    CHECK(cut("idle") >= attackers);
    CHECK(cut("slow_reader") >= attackers);
    connections = slow.connections() + silent.connections();
  }
  const Seen after = honest(served, whole, sessions, seconds);
  MESSAGE(sessions, " sessions of ", rows_a_second(), " rows a second beside ", attackers, " slow and ", attackers, " silent clients (",
          connections, " connections, ", steps, " steps of all): lag ms, median and p99: alone ", 1000 * alone.middle, " ",
          1000 * alone.late, ", attacked ", 1000 * attacked.middle, " ", 1000 * attacked.late, ", after ", 1000 * after.middle, " ",
          1000 * after.late, "; processor time of the server for each of their steps, us: alone ", alone.server_us, ", attacked ",
          attacked.server_us, ", after ", after.server_us);
  const auto how = served.ask([&] { return ends; });
  for (const auto& [outcome, count] : how) {
    INFO(outcome, ": ", count);
    CHECK((outcome == "ended" || outcome == "idle" || outcome == "slow_reader" || outcome == "gone"));
  }
  CHECK(how.at("ended") == 3 * sessions);
}

TEST_CASE("connections that come and go leave nothing behind") {
  const std::size_t times = number("MILLRACE_CONNECTS", 500);
  Random random(1);
  Served served(live_listing(random, features, hidden));
  asio::io_context context;
  const std::string start = encode_frame(text_message(R"({"type":"start","version":1})"));
  for (std::size_t i = 0; i < times; ++i) {
    tcp::socket socket(context);
    socket.connect({asio::ip::make_address("127.0.0.1"), served.url().port});
    socket.set_option(asio::socket_base::linger(true, 0));
    if (i % 4 == 1) asio::write(socket, asio::buffer(start.substr(0, 7)));
    if (i % 4 == 2) asio::write(socket, asio::buffer(start));
    if (i % 4 == 3) asio::write(socket, asio::buffer("GET / HTTP/1.1\r\n", 16));
  }
  for (int tries = 0; tries < 1000 && served.ask([&] { return served.server->live_sessions() + served.server->newcomers(); }) > 0; ++tries)
    std::this_thread::sleep_for(10ms);
  CHECK(served.ask([&] { return served.server->live_sessions(); }) == 0);
  CHECK(served.ask([&] { return served.server->newcomers(); }) == 0);
  CHECK(served.ask([&] { return served.server->counts().connections; }) <= times);
}
