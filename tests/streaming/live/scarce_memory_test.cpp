// SPDX-License-Identifier: Apache-2.0
// Memory that runs out on the thread of the sockets: the connection that asked for it ends, and no other.
#include <millrace/streaming/live/server.h>

#include <chrono>
#include <string>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/frame.h>
#include <streaming/live/allocation_count.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t row_bytes = 12;

std::string control(const std::string& text) { return encode_frame(text_message(text)); }
std::string data(std::size_t bytes) { return encode_frame(binary_message(std::string(bytes, '\1'))); }
const std::string start = R"({"type":"start","version":1})", end = R"({"type":"end"})";

/// A WebSocket frame of a client, masked with zeros.
std::string web_frame(unsigned first, const std::string& payload) {
  std::string head{static_cast<char>(first)};
  if (payload.size() < 126) {
    head += static_cast<char>(0x80 + payload.size());
  } else {
    head += '\xff';
    for (int shift = 56; shift >= 0; shift -= 8) head += static_cast<char>((payload.size() >> shift) & 0xff);
  }
  return head + std::string(4, '\0') + payload;
}
const std::string upgrade =
    "GET /stream HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "
    "dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// A connection that blocks.
class Line {
 public:
  explicit Line(const Served& served) : socket_(context_) { socket_.connect({asio::ip::make_address("127.0.0.1"), served.url().port}); }
  void say(const std::string& text) {
    boost::system::error_code gone;
    asio::write(socket_, asio::buffer(text), gone);
  }
  std::string to(const std::string& mark) {
    std::string all;
    boost::system::error_code gone;
    asio::read_until(socket_, asio::dynamic_buffer(all), mark, gone);
    return all;
  }
  std::string to_end() {
    std::string all;
    boost::system::error_code gone;
    asio::read(socket_, asio::dynamic_buffer(all), gone);
    return all;
  }

 private:
  asio::io_context context_;
  asio::ip::tcp::socket socket_;
};

Program listing() {
  Random random(1);
  return live_listing(random, 3, 4);
}

/// A whole session: whether all its results came.
bool answered(Line& line, std::size_t rows) {
  line.say(data(row_bytes * rows) + control(end));
  const std::string all = line.to_end();
  return all.find("\"type\":\"ended\",\"steps\":" + std::to_string(rows) + "}") != std::string::npos;
}

}  // namespace

TEST_CASE("a message that finds no memory ends its connection with overload, and the sessions beside it go on") {
  for (const bool web : {false, true}) {
    INFO("web ", web);
    Served served(listing());
    Line honest(served), greedy(served);
    honest.say(control(start));
    CHECK(honest.to("started").find("started") != std::string::npos);
    if (web) {
      greedy.say(upgrade);
      CHECK(greedy.to("\r\n\r\n").starts_with("HTTP/1.1 101"));
    }
    greedy.say(web ? web_frame(0x81, start) : control(start));
    CHECK(greedy.to("started").find("started") != std::string::npos);
    if (!served.ask([] { return fail_allocations({200000, {}}); })) return;
    const std::string much(900000, '\1');
    greedy.say(web ? web_frame(0x82, much) : encode_frame(binary_message(much)));
    const std::string told = greedy.to_end();
    if (!web) CHECK(told.find("\"code\":\"overload\",\"message\":\"no memory is left for a message that arrives\"") != std::string::npos);
    CHECK(served.ask([] { return end_allocation_faults(); }) > 0);
    CHECK(answered(honest, 5));
    CHECK(served.ask([&] { return served.server->models()[0].counts->ended.count("overload"); }) == 1);
  }
}

TEST_CASE("whichever large allocation of a connection fails, it ends, and the sessions beside it and behind it go on") {
  for (const bool web : {false, true}) {
    Served served(listing());
    Line honest(served);
    honest.say(control(start));
    CHECK(honest.to("started").find("started") != std::string::npos);
    // Asio and the standard library do not survive every small one that fails: `millrace serve` keeps a reserve for those.
    constexpr std::size_t least = 512;
    std::uint64_t hit = 1;
    for (std::uint64_t at = 0; hit > 0; ++at) {
      INFO("web ", web, " allocation ", at);
      REQUIRE(at < 5000);
      if (!served.ask([at] { return fail_allocations({least, at}); })) return;
      Line line(served);
      if (web) {
        line.say(upgrade);
        if (line.to("\r\n\r\n").starts_with("HTTP/1.1 101"))
          line.say(web_frame(0x81, start) + web_frame(0x82, std::string(row_bytes * 3, '\1')) + web_frame(0x81, end));
      } else {
        line.say(control(start) + data(row_bytes * 3) + control(end));
      }
      const std::string all = line.to_end();
      hit = served.ask([] { return end_allocation_faults(); });
      if (hit == 0) CHECK(all.find("\"type\":\"ended\"") != std::string::npos);
    }
    CHECK(answered(honest, 5));
    for (int tries = 0; tries < 500 && served.ask([&] { return served.server->live_sessions() + served.server->newcomers(); }) > 0; ++tries)
      std::this_thread::sleep_for(10ms);
    CHECK(served.ask([&] { return served.server->live_sessions(); }) == 0);
    CHECK(served.ask([&] { return served.server->newcomers(); }) == 0);
  }
}
