// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/tcp.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/distributed/internal/tcp_link.h>
#include <millrace/runtime/distributed/process_run.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cpu_stream.h>

#include "runtime/distributed/rank_threads.h"
#include "support/built.h"
#include "support/loop_over.h"
#include "support/lstm_stack.h"

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

/// One rank, with a stream of its own.
struct Rank {
  Rank(int rank, int size, std::uint16_t port, std::chrono::milliseconds deadline) : number(rank), meeting(member(rank, size, port)) {
    TcpOptions options;
    options.deadline = deadline;
    options.leaving = 2s;
    world = make_tcp_communicator(meeting, std::move(options));
  }
  int number;
  Rendezvous meeting;
  CpuStream stream{std::make_shared<ThreadTeam>(1)};
  std::unique_ptr<Communicator> world;
};

/// The ends of ranks 0 … size − 1.
std::vector<std::string> ranks(int size, const std::function<void(Rank&)>& work, std::chrono::milliseconds deadline = 20s) {
  const std::uint16_t port = free_port();
  std::vector<int> numbers;
  for (int rank = 0; rank < size; ++rank) numbers.push_back(rank);
  return on_threads(numbers, [&](int number) {
    Rank rank(number, size, port, deadline);
    work(rank);
  });
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw Error("not so: " + what);
}

/// Values whose sum depends on the order.
std::vector<float> awkward(int rank) {
  return {rank == 0 ? 1e8f : rank == 1 ? 1.0f : rank == 2 ? -1e8f : 0.3f, 0.1f * static_cast<float>(rank + 1), static_cast<float>(rank)};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_all(const std::vector<std::string>& said, const std::string& wanted) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    INFO("rank ", rank);
    CHECK(said[rank] == wanted);
  }
}

}  // namespace

TEST_CASE("connections of strangers that come as the last rank does leave the world as it is") {
  using tcp = boost::asio::ip::tcp;
  for (int round = 0; round < 10; ++round) {
    const std::uint16_t port = free_port();
    const std::vector<std::string> said = on_threads({0, 1}, [&](int rank) {
      Rendezvous meeting(member(rank, 2, port));
      if (rank == 0) {
        TcpOptions options;
        options.leaving = 10ms;
        const std::unique_ptr<Communicator> world = make_tcp_communicator(meeting, options);
        meeting.exchange("met", "");
        return;
      }
      const std::string where = meeting.exchange("tcp communicator tcp", std::string(32, '-') + " 1 127.0.0.1").at(0);
      const tcp::endpoint door(boost::asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(std::stoi(where.substr(33))));
      boost::asio::io_context io;
      boost::system::error_code error;
      std::vector<tcp::socket> strangers;
      const auto come = [&] {
        for (int i = 0; i < 8; ++i) strangers.emplace_back(io).connect(door, error);
      };
      tcp::socket socket(io);
      socket.connect(door);
      const auto own = std::make_shared<detail::TcpLink>(std::move(socket));
      come();
      own->write({detail::TcpKind::hello, 1, 0, where.substr(0, 32)});
      io.poll();
      come();
      meeting.exchange("met", "");
      own->close();
      io.poll();
    });
    check_all(said, "done");
  }
}

TEST_CASE("connected ranks reduce in the order of the ranks, gather and broadcast") {
  for (const int size : {1, 2, 4}) {
    std::vector<float> sum = awkward(0), most = awkward(0), everything;
    for (int r = 0; r < size; ++r)
      for (std::size_t i = 0; i < 3; ++i) {
        if (r > 0) sum[i] = sum[i] + awkward(r)[i];
        most[i] = std::max(most[i], awkward(r)[i]);
        everything.push_back(awkward(r)[i]);
      }
    check_all(ranks(size,
                    [&](Rank& rank) {
                      Communicator& world = *rank.world;
                      Tensor in = Tensor::from(awkward(rank.number), DDim{3});
                      Tensor greatest(DType::f32, DDim{3}), all(DType::f32, DDim{size, 3}), nothing(DType::f32, DDim{0});
                      Tensor shared = rank.number == size - 1 ? Tensor::from<std::int64_t>({7, 8}) : Tensor(DType::i64, DDim{2});
                      Tensor own = all.select(0, rank.number);
                      copy(in, own, rank.stream);
                      world.all_reduce(in, greatest, Reduce::max, rank.stream);
                      world.all_gather(own, all, rank.stream);
                      world.broadcast(shared, size - 1, rank.stream);
                      world.broadcast(nothing, 0, rank.stream);
                      world.all_reduce(in, in, Reduce::sum, rank.stream);
                      for (const Tensor& each : {in, greatest, all, shared, nothing}) each.ready().wait();
                      expect(in.to_vector<float>() == sum, "the sum, in place");
                      expect(greatest.to_vector<float>() == most, "the greatest");
                      expect(all.to_vector<float>() == everything, "what was gathered, in place");
                      expect(shared.to_vector<std::int64_t>() == std::vector<std::int64_t>{7, 8}, "what was broadcast");
                    }),
              "done");
  }
}

TEST_CASE("messages of a communicator keep their order, wait for nobody else's, and arrive from ranks that have left") {
  constexpr int count = 200;
  check_all(ranks(3,
                  [](Rank& rank) {
                    const int next = (rank.number + 1) % 3, before = (rank.number + 2) % 3;
                    const auto slow = rank.world->duplicate("slow"), fast = rank.world->duplicate("fast");
                    Tensor late(DType::i64, DDim{1});
                    const Point waits = slow->recv(late, before, rank.stream);
                    std::vector<Tensor> come;
                    for (std::int64_t i = 0; i < count; ++i) {
                      fast->send(Tensor::from(std::vector<std::int64_t>(static_cast<std::size_t>(i % 50), i), DDim{i % 50}), next,
                                 rank.stream);
                      come.emplace_back(DType::i64, DDim{i % 50});
                      fast->recv(come.back(), before, rank.stream);
                    }
                    for (std::int64_t i = 0; i < count; ++i) {
                      come[static_cast<std::size_t>(i)].ready().wait();
                      expect(come[static_cast<std::size_t>(i)].to_vector<std::int64_t>() ==
                                 std::vector<std::int64_t>(static_cast<std::size_t>(i % 50), i),
                             "what was sent, in its order");
                    }
                    expect(!waits.reached(), "what nobody sent has not come");
                    Tensor all_here = Tensor::scalar<std::int64_t>(1);
                    rank.world->all_reduce(all_here, all_here, Reduce::sum, rank.stream).wait();
                    slow->send(Tensor::from<std::int64_t>({rank.number}), next, rank.stream);
                    waits.wait();
                    expect(late.to_vector<std::int64_t>() == std::vector<std::int64_t>{before}, "what came late");
                    // Rank 2 sends, and is gone before rank 0 asks.
                    if (rank.number == 2) rank.world->send(Tensor::scalar(4.5f), 0, rank.stream);
                    if (rank.number != 0) return;
                    std::this_thread::sleep_for(100ms);
                    Tensor last(DType::f32, DDim{});
                    rank.world->recv(last, 2, rank.stream).wait();
                    expect(last.item() == 4.5, "the last word of a rank");
                  }),
            "done");
}

TEST_CASE("what ranks do not agree on, or nobody sends, ends for all of them by name, and later calls are refused") {
  const auto wait_for = [](Rank& rank, int from) {
    Tensor got(DType::f32, DDim{2});
    rank.world->recv(got, from, rank.stream).wait();
  };
  const auto other = ranks(3, [&](Rank& rank) {
    if (rank.number == 0) rank.world->send(Tensor::from<std::int32_t>({1}), 1, rank.stream).wait();
    if (rank.number == 1) wait_for(rank, 0);
    if (rank.number == 2) wait_for(rank, 1);
  });
  for (const std::string& said : other) {
    INFO(said);
    CHECK(has(said,
              "communicator 'tcp' of 3 ranks: expected the same of all, found: rank 0 asked for message of i32[1], rank 1 asked for "
              "message of f32[2]"));
  }
  for (const int asked : {0, 1}) CHECK(other[static_cast<std::size_t>(asked)].starts_with("MismatchError: "));  // rank 2 may come too late
  const auto late = ranks(
      3,
      [&](Rank& rank) {
        try {
          wait_for(rank, (rank.number + 1) % 3);
        } catch (const DeadlineError&) {
          expect(rank.world->aborted(), "the world is aborted");
          CHECK_THROWS_AS(wait_for(rank, (rank.number + 1) % 3), AbortedError);
          throw;
        }
      },
      300ms);
  for (const std::string& said : late) CHECK(has(said, "not done within 300 ms: rank "));
  for (const std::string& said : late) CHECK(said.starts_with("DeadlineError: recv from rank "));
  const auto aborted = ranks(2, [&](Rank& rank) {
    if (rank.number == 0) std::this_thread::sleep_for(50ms);
    if (rank.number == 0) rank.world->abort("the user went home");
    wait_for(rank, 1 - rank.number);
  });
  for (const std::string& said : aborted)
    CHECK(has(said, "AbortedError: communicator 'tcp' of 2 ranks was aborted: by rank 0: the user went home"));
  const auto left = ranks(2, [&](Rank& rank) {
    if (rank.number == 0) wait_for(rank, 1);
  });
  CHECK(left[0] == "RankError: recv from rank 1 of f32[2] by rank 0 on communicator 'tcp' of 2 ranks: rank 1 has left");
  CHECK(left[1] == "done");
}

TEST_CASE("calls that make no sense are refused at once, and a value that fails is an error of both sides") {
  check_all(ranks(2,
                  [](Rank& rank) {
                    Tensor value = Tensor::from<float>({1, 2});
                    CHECK_THROWS_AS(rank.world->send(value, rank.number, rank.stream), ArgumentError);
                    CHECK_THROWS_AS(rank.world->broadcast(value, 2, rank.stream), ArgumentError);
                    Tensor other(DType::f64, DDim{2});
                    CHECK_THROWS_AS(rank.world->all_reduce(value, other, Reduce::sum, rank.stream), DTypeError);
                    CHECK_THROWS_AS(rank.world->all_gather(value, other, rank.stream), DTypeError);
                    const auto once = rank.world->duplicate("once");
                    CHECK_THROWS_AS(rank.world->duplicate("once"), ArgumentError);
                    const auto timeline = std::make_shared<Timeline>();
                    if (rank.number == 0) value.storage()->set_ready(Point(timeline, 1));
                    const Point done = rank.number == 0 ? once->send(value, 1, rank.stream) : once->recv(value, 0, rank.stream);
                    timeline->fail(std::make_exception_ptr(IoError("the line is dead")));
                    try {
                      done.wait();
                      expect(false, "it fails");
                    } catch (const IoError&) {
                      expect(rank.number == 0, "the sender has its own error");
                    } catch (const RankError& error) {
                      expect(has(error.what(), "the work of rank 0 failed: the line is dead"), error.what());
                    }
                  }),
            "done");
}

TEST_CASE("a program over ranks that are connected gives rank 0 the bits of one, and what fails on one rank is known to all") {
  const LstmStack stack(3, 4, 7, {9, 0, 4, 1});
  const std::string wanted = bytes_of(run_fifo(run(stack.program, stack.feeds)));
  const auto as_ranks = [](int size, const Program& program, const std::function<Feeds(int)>& feeds, std::map<int, std::string>& found) {
    const std::uint16_t port = free_port();
    std::mutex mutex;
    std::vector<int> numbers;
    for (int rank = 0; rank < size; ++rank) numbers.push_back(rank);
    return on_threads(numbers, [&](int rank) {
      Rendezvous meeting(member(rank, size, port));
      const RunResult result = run_as_rank(meeting, partition_over_ranks(program, size), make_cpu_device(), feeds(rank));
      const std::lock_guard lock(mutex);
      found[rank] = bytes_of(result);
    });
  };
  for (const int size : {1, 2, 4}) {
    std::map<int, std::string> found;
    check_all(as_ranks(size, stack.program, [&](int) { return stack.feeds; }, found), "done");
    CHECK(found[0] == wanted);
    for (int rank = 1; rank < size; ++rank) CHECK(found[rank] == "");
  }
  std::map<int, std::string> found;
  const auto differing =
      as_ranks(2, stack.program, [&](int rank) { return LstmStack(static_cast<std::uint64_t>(rank), 4, 7, {3}).feeds; }, found);
  for (const std::string& said : differing) CHECK(has(said, "MismatchError: run on 2 ranks: expected the same feeds of all, found "));
  // The second loop reads what nobody writes, on rank 1.
  const Program failing = built_program([] {
    const build::Var n = build::input("n", VarType(DType::i64, {}));
    const build::ArrayVar a = build::ArrayVar::typed(n, VarType(DType::f32, {2}), "a");
    loop_over(n, [&](const build::Var& step) { a.write(step, build::constant(Tensor::from<float>({1, 2}))); });
    const build::ArrayVar b = build::ArrayVar::typed(n, VarType(DType::f32, {2}), "b");
    loop_over(n, [&](const build::Var& step) { b.write(step, a.read(step + 1)); });
    build::output("y", b.stack());
  });
  const auto failed = as_ranks(2, failing, [](int) { return Feeds{{"n", Tensor::scalar<std::int64_t>(3)}}; }, found);
  INFO(failed[0], "\n", failed[1]);
  CHECK(failed[1].starts_with("Error: "));
  CHECK(failed[1].ends_with(" (on rank 1)"));
  CHECK(failed[0].starts_with("AbortedError: "));
  for (const std::string& said : failed) CHECK(has(said, "array 'a'"));
}
