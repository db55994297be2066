// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/listener.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/bind_cancellation_slot.hpp>

#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/tensor/error.h>
#include <streaming/transport/loopback.h>

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("a port that is in use, text that is no address, and an address that others can reach, are refused by name") {
  asio::io_context context;
  Listener first(context.get_executor(), "127.0.0.1", 0);
  CHECK(first.address() == "127.0.0.1");
  CHECK(first.port() != 0);
  const std::string taken = "listen: 127.0.0.1:" + std::to_string(first.port()) + ": Address already in use";
  CHECK_THROWS_WITH_AS(Listener(context.get_executor(), "127.0.0.1", first.port()), taken.c_str(), IoError);
  CHECK_THROWS_WITH_AS(Listener(context.get_executor(), "localhost", 0), "listen: expected an IP address, found 'localhost'",
                       ArgumentError);
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1"})
    CHECK_THROWS_WITH_AS(Listener(context.get_executor(), address, 0), doctest::Contains("TLS and a token"), ArgumentError);
}

TEST_CASE("closing, and cancelling, ends a pending accept") {
  asio::io_context context;
  Listener listener(context.get_executor(), "127.0.0.1", 0);
  asio::cancellation_signal signal;
  std::vector<error_code> results;
  const auto keep = [&](error_code error, asio::ip::tcp::socket) { results.push_back(error); };
  listener.async_accept(asio::bind_cancellation_slot(signal.slot(), keep));
  context.poll();
  signal.emit(asio::cancellation_type::terminal);
  context.restart();
  context.run();
  listener.async_accept(keep);
  listener.close();
  listener.close();
  context.restart();
  context.run();
  REQUIRE(results.size() == 2);
  CHECK(results[0] == asio::error::operation_aborted);
  CHECK(results[1] == asio::error::operation_aborted);
}

TEST_CASE("a listener that goes away ends its pending accept") {
  asio::io_context context;
  std::optional<error_code> result;
  {
    Listener listener(context.get_executor(), "127.0.0.1", 0);
    listener.async_accept([&](error_code error, asio::ip::tcp::socket) { result = error; });
  }
  context.run();
  REQUIRE(result);
  CHECK(*result == asio::error::operation_aborted);
}

TEST_CASE("without descriptors newcomers are refused, and taken again once there are some") {
  Loopback loop;
  asio::ip::tcp::socket early(loop.context, asio::ip::tcp::v4()), late(loop.context, asio::ip::tcp::v4());
  loop.context.poll();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(late.native_handle()) + 40;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::vector<int> all;
  for (int next; (next = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) all.push_back(next);

  std::vector<std::string> told;
  loop.listener.refuse_with("over http", "otherwise");
  loop.listener.on_scarce([&](const std::string& why) { told.push_back(why); });
  std::optional<error_code> accepted;
  loop.listener.async_accept([&](error_code error, asio::ip::tcp::socket) { accepted = error; });
  const asio::ip::tcp::endpoint to(asio::ip::make_address("127.0.0.1"), loop.listener.port());
  early.connect(to);
  asio::write(early, asio::buffer(std::string("GET /stream")));
  CHECK(loop.read_to_end(early) == "over http");
  CHECK(told == std::vector<std::string>{"Too many open files"});
  CHECK_FALSE(accepted);

  for (int one : all) ::close(one);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  late.connect(to);
  loop.run_until([&] { return accepted.has_value(); });
  CHECK_FALSE(*accepted);
}
