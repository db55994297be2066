// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/heartbeat.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <sys/time.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include "runtime/distributed/rank_threads.h"

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

HeartbeatOptions quick() {
  HeartbeatOptions made;
  made.interval = 50ms;
  made.silence = 1500ms;
  made.meeting = 20s;
  return made;
}

/// A rank in a process of its own, whose life ends with that of the object.
class RankProcess {
 public:
  RankProcess(int rank, int size, std::uint16_t port) : process_(::fork()) {
    if (process_ != 0) return;
    try {
      Rendezvous meeting(member(rank, size, port));
      const Heartbeat heartbeat(meeting, [](const std::string&) {}, quick());
      meeting.exchange("connected", "");
      std::this_thread::sleep_for(60s);
    } catch (const std::exception&) {
    }
    ::_exit(0);
  }
  ~RankProcess() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  void signal(int number) const { ::kill(process_, number); }

 private:
  pid_t process_;
};

/// The errors that ranks 0 and 1, threads here, hear after `act` was done to rank 2, a process.
std::vector<std::string> heard_after(int number) {
  const std::uint16_t port = free_port();
  const RankProcess third(2, 3, port);
  std::vector<std::string> heard(2, "nothing");
  on_threads({0, 1}, [&](int rank) {
    Rendezvous meeting(member(rank, 3, port));
    std::promise<std::string> said;
    std::future<std::string> sentence = said.get_future();
    const Heartbeat heartbeat(meeting, [&](const std::string& text) { said.set_value(text); }, quick());
    meeting.exchange("connected", "");
    if (rank == 0) third.signal(number);
    if (sentence.wait_for(15s) == std::future_status::ready) heard[static_cast<std::size_t>(rank)] = sentence.get();
    // Rank 1 has heard of it from rank 0, which is there until then.
    std::this_thread::sleep_for(rank == 0 ? 300ms : 0ms);
  });
  return heard;
}

}  // namespace

TEST_CASE("ranks that say farewell are not missed, and a world of one needs no connection") {
  const std::uint16_t port = free_port();
  std::vector<std::string> lost(3);
  HeartbeatOptions patient = quick();
  patient.silence = 20s;
  const std::vector<std::string> said = on_threads({0, 1, 2}, [&](int rank) {
    Rendezvous meeting(member(rank, 3, port));
    const Heartbeat heartbeat(
        meeting, [&, rank](const std::string& sentence) { lost[static_cast<std::size_t>(rank)] = sentence; }, patient);
    std::this_thread::sleep_for(rank == 2 ? 50ms : 2000ms);
  });
  CHECK(said == std::vector<std::string>(3, "done"));
  // Rank 0 may end before rank 1 does: that is a farewell too.
  for (const std::string& sentence : lost) CHECK(sentence == "");
  Rendezvous alone(member(0, 1, free_port()));
  CHECK_NOTHROW(Heartbeat(alone, [](const std::string&) {}));
}

TEST_CASE("all ranks hear which rank has died, at once, and which one has stopped, after its silence") {
  CHECK(heard_after(SIGKILL) == std::vector<std::string>(2, "rank 2 has died: its connection ended"));
  CHECK(heard_after(SIGSTOP) == std::vector<std::string>(2, "rank 2 gave no sign of life for 1500 ms"));
}

TEST_CASE("connections that said no rank end when the ranks have met, and those that come meanwhile do no harm") {
  using tcp = boost::asio::ip::tcp;
  for (int round = 0; round < 10; ++round) {
    const std::uint16_t port = free_port();
    std::string lost;
    int open = 0;
    const std::vector<std::string> said = on_threads({0, 1}, [&](int rank) {
      Rendezvous meeting(member(rank, 2, port));
      if (rank == 0) {
        const Heartbeat heartbeat(meeting, [&](const std::string& sentence) { lost = sentence; }, quick());
        meeting.exchange("looked", "");
        return;
      }
      const std::string where = meeting.exchange("heartbeat", "").at(0);
      const std::size_t space = where.find(' ');
      const tcp::endpoint door(boost::asio::ip::make_address(where.substr(0, space)),
                               static_cast<std::uint16_t>(std::stoi(where.substr(space + 1))));
      boost::asio::io_context io;
      boost::system::error_code error;
      std::vector<tcp::socket> strangers;
      tcp::socket own(io);
      const auto come = [&](int count) {
        for (int i = 0; i < count; ++i) strangers.emplace_back(io).connect(door, error);
      };
      come(round == 0 ? 80 : 8);  // more than are kept
      own.connect(door);
      come(8);
      boost::asio::write(own, boost::asio::buffer(std::string("rank 1\n")));
      come(8);
      for (tcp::socket& stranger : strangers) {
        const timeval most{5, 0};
        ::setsockopt(stranger.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
        // A listener that closes during a handshake may leave the other end connected to nobody until that end sends something.
        char byte = 'x';
        ::send(stranger.native_handle(), &byte, 1, MSG_NOSIGNAL);
        if (open == 0 && ::recv(stranger.native_handle(), &byte, 1, 0) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) ++open;
      }
      boost::asio::write(own, boost::asio::buffer(std::string("farewell\n")), error);
      meeting.exchange("looked", "");
    });
    CHECK(said == std::vector<std::string>(2, "done"));
    CHECK(open == 0);
    CHECK(lost == "");
  }
}

TEST_CASE("a rank that takes too long to appear, or impossible times, are errors") {
  Rendezvous alone(member(0, 1, free_port()));
  HeartbeatOptions wrong = quick();
  wrong.silence = wrong.interval;
  CHECK_THROWS_WITH_AS(Heartbeat(
                           alone, [](const std::string&) {}, wrong),
                       "heartbeat: expected an interval above 0 ms and a longer silence, found 50 ms and 50 ms", ArgumentError);
}
