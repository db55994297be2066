// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/listener.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/bind_cancellation_slot.hpp>

#include <new>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/tensor/error.h>
#include <streaming/transport/loopback.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// The descriptor of this process that listens on `port`.
int listening_on(std::uint16_t port) {
  for (int one = 3; one < 1024; ++one) {
    int listens = 0;
    socklen_t size = sizeof listens;
    sockaddr_in address{};
    socklen_t length = sizeof address;
    if (::getsockopt(one, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    if (::getsockname(one, reinterpret_cast<sockaddr*>(&address), &length) == 0 && ntohs(address.sin_port) == port) return one;
  }
  return -1;
}

/// Descriptors up to a limit a little above those of now, all of which are in use until this goes.
class ScarceDescriptors {
 public:
  explicit ScarceDescriptors(int above) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit low = before_;
    low.rlim_cur = static_cast<rlim_t>(above) + 40;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    for (int next; (next = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) all_.push_back(next);
  }
  ~ScarceDescriptors() {
    for (int one : all_) ::close(one);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  /// Frees the highest.
  void free_one() {
    ::close(all_.back());
    all_.pop_back();
  }

 private:
  rlimit before_{};
  std::vector<int> all_;
};

}  // namespace

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

TEST_CASE("a listener that accepts all goes on behind a newcomer that could not be taken, and takes no more at once than it may") {
  asio::io_context context;
  Listener listener(context.get_executor(), "127.0.0.1", 0);
  std::vector<asio::ip::tcp::socket> clients;
  for (int i = 0; i < 5; ++i) {
    clients.emplace_back(context);
    clients.back().connect({asio::ip::make_address("127.0.0.1"), listener.port()});
  }
  int newcomers = 0;
  std::vector<int> at_once;
  listener.accept_all(
      [&](const asio::ip::tcp::socket&) {
        ++at_once.back();
        if (++newcomers == 2) throw std::bad_alloc();
      },
      [&] {
        at_once.push_back(0);
        return std::size_t{3};
      });
  while (newcomers < 5) context.run_one();
  CHECK(at_once == std::vector<int>{3, 2});
  listener.wake();  // somebody waits already
  clients.emplace_back(context);
  clients.back().connect({asio::ip::make_address("127.0.0.1"), listener.port()});
  while (newcomers < 6) context.run_one();
  listener.close();
  listener.wake();
  context.restart();
  context.run();
  CHECK(newcomers == 6);
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
  std::optional<ScarceDescriptors> scarce(std::in_place, late.native_handle());

  std::vector<std::string> told;
  int refused = 0;
  loop.listener.on_refused([&] { ++refused; });
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
  CHECK(refused == 1);

  scarce.reset();
  late.connect(to);
  loop.run_until([&] { return accepted.has_value(); });
  CHECK_FALSE(*accepted);
}

TEST_CASE("descriptors that run short are taken from connections that are worth less, and a listener may take the last of them") {
  for (const bool takes_last : {false, true}) {
    INFO("takes the last: ", takes_last);
    Loopback loop;
    asio::ip::tcp::socket client(loop.context, asio::ip::tcp::v4());
    loop.context.poll();
    ScarceDescriptors scarce(client.native_handle());
    int asked = 0, refused = 0;
    loop.listener.on_refused([&] { ++refused; });
    if (takes_last) {
      loop.listener.take_last_descriptors();
      scarce.free_one();
    } else {
      loop.listener.make_room_with([&] {
        scarce.free_one();
        return ++asked <= 2;  // for none at all, and for one of the last
      });
    }
    std::optional<error_code> accepted;
    loop.listener.async_accept([&](error_code error, asio::ip::tcp::socket) { accepted = error; });
    client.connect({asio::ip::make_address("127.0.0.1"), loop.listener.port()});
    loop.run_until([&] { return accepted.has_value(); });
    CHECK_FALSE(*accepted);
    CHECK(asked == (takes_last ? 0 : 2));
    CHECK(refused == 0);
  }
}

TEST_CASE("an error of a newcomer or of the network passes, is told, and leaves the listener listening") {
  Loopback loop;
  std::vector<std::string> told;
  loop.listener.on_scarce([&](const std::string& why) { told.push_back(why); });
  std::optional<error_code> accepted;
  loop.listener.async_accept([&](error_code error, asio::ip::tcp::socket) { accepted = error; });
  loop.context.poll();
  // Another socket, which no accept takes, stands in the place of the one that listens.
  const int listens = listening_on(loop.listener.port());
  REQUIRE(listens >= 0);
  const int kept = ::dup(listens), other = ::socket(AF_INET, SOCK_DGRAM, 0);
  REQUIRE(::dup2(other, listens) == listens);
  asio::ip::tcp::socket client(loop.context);
  client.connect({asio::ip::make_address("127.0.0.1"), loop.listener.port()});
  loop.run_until([&] { return !told.empty(); });
  CHECK(told == std::vector<std::string>{"Operation not supported"});
  CHECK_FALSE(accepted);
  REQUIRE(::dup2(kept, listens) == listens);
  loop.run_until([&] { return accepted.has_value(); });
  CHECK_FALSE(*accepted);
  ::close(kept);
  ::close(other);
}
