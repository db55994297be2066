// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/rendezvous.h>

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <millrace/runtime/distributed/nccl.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

#include "runtime/distributed/rank_threads.h"

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;
using tcp = boost::asio::ip::tcp;

namespace {

RendezvousOptions within(std::chrono::milliseconds deadline) {
  RendezvousOptions options;
  options.deadline = deadline;
  options.hello = 300ms;
  return options;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A stranger that speaks to rank 0 without being a rank.
struct Stranger {
  explicit Stranger(std::uint16_t port) : socket(io) {
    boost::system::error_code error = boost::asio::error::would_block;
    for (int i = 0; i < 200 && error; ++i) {
      socket.close(error);
      socket.connect({boost::asio::ip::address_v4::loopback(), port}, error);
      if (error) std::this_thread::sleep_for(10ms);
    }
  }
  void say(const std::string& bytes) {
    boost::system::error_code ignored;
    boost::asio::write(socket, boost::asio::buffer(bytes), ignored);
  }
  boost::asio::io_context io;
  tcp::socket socket;
};

}  // namespace

TEST_CASE("ranks that come in any order get the blobs of all, exchange after exchange") {
  for (const int size : {1, 2, 5}) {
    const std::uint16_t port = free_port();
    std::vector<int> ranks;
    for (int rank = size - 1; rank >= 0; --rank) ranks.push_back(rank);
    const auto said = on_threads(ranks, [&](int rank) {
      if (rank == 0) std::this_thread::sleep_for(30ms);
      Rendezvous meeting(member(rank, size, port), within(20s));
      for (const std::string name : {"id", "addresses"}) {
        std::vector<std::string> wanted;
        for (int r = 0; r < size; ++r) wanted.push_back(r == 1 ? std::string(1000, 'x') : name + std::to_string(r) + std::string(1, '\0'));
        if (meeting.exchange(name, wanted[static_cast<std::size_t>(rank)]) != wanted) throw MismatchError("other blobs");
      }
    });
    for (const std::string& each : said) CHECK(each == "done");
  }
}

TEST_CASE("ranks that do not come are named to all that did, and rank 0 that does not come to those that wait for it") {
  const std::uint16_t port = free_port();
  const auto said = on_threads({0, 2}, [&](int rank) { const Rendezvous meeting(member(rank, 4, port), within(400ms)); });
  CHECK(said[0] == "DeadlineError: rendezvous at 127.0.0.1:" + std::to_string(port) + ": ranks 1, 3 did not come within 400 ms");
  CHECK(said[1] == said[0]);
  const auto alone = on_threads({1}, [&](int rank) { const Rendezvous meeting(member(rank, 2, port), within(200ms)); });
  CHECK(has(alone[0], "DeadlineError: rendezvous: rank 1 did not reach rank 0 at 127.0.0.1:" + std::to_string(port) + " within 200 ms"));
}

TEST_CASE("a rank that leaves, is late, or is at another exchange ends it for all, by name") {
  const auto exchange = [](const std::function<void(int, Rendezvous&)>& work) {
    const std::uint16_t port = free_port();
    return on_threads({0, 1, 2}, [&](int rank) {
      Rendezvous meeting(member(rank, 3, port), within(rank == 2 ? 5000ms : 600ms));
      work(rank, meeting);
    });
  };
  const auto left = exchange([](int rank, Rendezvous& meeting) {
    if (rank != 2) static_cast<void>(meeting.exchange("id", "x"));
  });
  CHECK(left[0] == "RankError: rendezvous, exchange 'id': rank 2 has left");
  CHECK(left[1] == left[0]);
  const auto late = exchange([](int rank, Rendezvous& meeting) {
    if (rank == 2) std::this_thread::sleep_for(1500ms);
    static_cast<void>(meeting.exchange("id", "x"));
  });
  CHECK(late[0] == "DeadlineError: rendezvous, exchange 'id': rank 2 did not come within 600 ms");
  CHECK(late[1] == late[0]);
  CHECK(late[2] != "done");
  const auto other =
      exchange([](int rank, Rendezvous& meeting) { static_cast<void>(meeting.exchange(rank == 2 ? "address" : "id", "x")); });
  CHECK(other[0] == "MismatchError: rendezvous: rank 0 is at exchange 'id', rank 2 at 'address'");
  CHECK(other[1] == other[0]);
  CHECK(other[2] == other[0]);
  const auto over = exchange([](int rank, Rendezvous& meeting) {
    CHECK_THROWS_AS(static_cast<void>(meeting.exchange(rank == 2 ? "address" : "id", "x")), MismatchError);
    static_cast<void>(meeting.exchange("id", "x"));
  });
  for (const std::string& each : over) CHECK(each == "RankError: rendezvous: it is over, an exchange failed before");
}

TEST_CASE("ranks that were told another size, and a second rank of one number, are refused while the others go on") {
  const std::uint16_t port = free_port();
  const auto said = on_threads({0, 1, 2, 3, 4}, [&](int at) {
    const int rank = at == 3 ? 1 : at == 4 ? 2 : at;
    if (at == 2) std::this_thread::sleep_for(1000ms);
    if (at == 3) std::this_thread::sleep_for(500ms);
    Rendezvous meeting(member(rank, at == 4 ? 7 : 3, port), within(5s));
    static_cast<void>(meeting.exchange("id", "x"));
  });
  for (const int at : {0, 1, 2}) CHECK(said[static_cast<std::size_t>(at)] == "done");
  CHECK(has(said[3], "MismatchError: "));
  CHECK(has(said[3], "rank 1 is there already"));
  CHECK(has(said[4], "expected 3 ranks, as rank 0 was told, found 7"));
}

TEST_CASE("strangers that say nothing, nonsense or too much, and many of them, hold nobody up for long") {
  const std::uint16_t port = free_port();
  const auto said = on_threads({0, 1, 9}, [&](int rank) {
    if (rank < 2) {
      if (rank == 1) std::this_thread::sleep_for(200ms);
      Rendezvous meeting(member(rank, 2, port), within(20s));
      if (meeting.exchange("id", rank == 0 ? "of 0" : "") != std::vector<std::string>{"of 0", ""}) throw MismatchError("other blobs");
      return;
    }
    std::vector<std::unique_ptr<Stranger>> strangers;
    for (int i = 0; i < 100; ++i) strangers.push_back(std::make_unique<Stranger>(port));
    strangers[1]->say("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    strangers[2]->say(std::string("MLRV\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 16));
    strangers[3]->say(std::string("MLRV\0\0\0\0\x0c\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0", 28));          // rank 0 once more
    strangers[4]->say(std::string("MLRV\0\0\0\0\x0c\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\xff\xff\xff\xff", 28));  // a rank beyond all
    strangers[5]->say(std::string("MLRV\x02\0\0\0\x02\0\0\0\0\0\0\0xx", 18));
    std::this_thread::sleep_for(600ms);
  });
  for (const std::string& each : said) CHECK(each == "done");
}

TEST_CASE("what a rank gives wrongly is its own error, and a thread that runs tasks must not block") {
  CHECK_THROWS_AS(Rendezvous(member(2, 2, 1)), ArgumentError);
  RankEnvironment nowhere = member(1, 2, 1);
  nowhere.address = "256.1.1.1";
  CHECK_THROWS_AS(Rendezvous(nowhere, within(100ms)), ArgumentError);
  Rendezvous alone(member(0, 1, 1));
  CHECK(alone.exchange("id", "x") == std::vector<std::string>{"x"});
  CHECK_THROWS_AS(static_cast<void>(alone.exchange("", "x")), ArgumentError);
  CHECK_THROWS_AS(static_cast<void>(alone.exchange("id", std::string(65 * 1024, 'x'))), ArgumentError);
  struct Try {
    static task<void> inside() {
      const Rendezvous meeting(member(0, 1, 1));
      co_return;
    }
  };
  ThreadExecutor executor(1);
  CHECK_THROWS_AS(sync_wait(executor, Try::inside()), BlockingError);
}

TEST_CASE("the environment says rank, size and meeting place, or by name what is wrong with it") {
  using Variables = std::map<std::string, std::string>;
  const auto read = [](const Variables& variables) {
    return rank_environment([&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  const auto error_of = [&](const Variables& variables) {
    try {
      static_cast<void>(read(variables));
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  CHECK_FALSE(read({}).has_value());
  CHECK_FALSE(read({{"MASTER_ADDR", "10.0.0.1"}}).has_value());
  const auto plain = read({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}, {"PMI_RANK", "9"}});
  REQUIRE(plain.has_value());
  CHECK(plain->rank == 2);
  CHECK(plain->world_size == 4);
  CHECK(plain->address == "10.0.0.1");
  CHECK(plain->port == 1234);
  CHECK(plain->source == "RANK and WORLD_SIZE");
  const auto mpi = read({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  REQUIRE(mpi.has_value());
  CHECK(mpi->address == "127.0.0.1");
  CHECK(mpi->port == 29500);
  CHECK(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}})->source == "PMI_RANK and PMI_SIZE");
  CHECK(error_of({{"RANK", "0"}}) == "expected RANK and WORLD_SIZE together, found RANK alone");
  CHECK(error_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}) == "RANK: expected a number from 0 to 3, found '4'");
  CHECK(error_of({{"RANK", "x"}, {"WORLD_SIZE", "4"}}) == "RANK: expected a number from 0 to 3, found 'x'");
  CHECK(has(error_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE: expected a number from 1 to"));
  CHECK(error_of({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "70000"}}) ==
        "MASTER_PORT: expected a number from 1 to 65535, found '70000'");
  CHECK(error_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}) ==
        "MASTER_ADDR: expected the address of rank 0, found none, and OMPI_COMM_WORLD_LOCAL_SIZE says that 2 of 4 ranks are here");
}

TEST_CASE("a communicator over NCCL says what is missing for it: the build's NCCL, or the device") {
  Rendezvous alone(member(0, 1, free_port()), within(20s));
  NcclOptions options;
  options.device = 99;
  if (nccl_status() == "not in this build") {
    CHECK_THROWS_WITH_AS(make_nccl_communicator(alone, options), doctest::Contains("MILLRACE_NCCL=ON"), UnsupportedError);
  } else {
    CHECK_THROWS_WITH_AS(make_nccl_communicator(alone, options), doctest::Contains("found cuda:99"), PlaceError);
  }
}
