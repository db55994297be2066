// SPDX-License-Identifier: Apache-2.0
// Run alone this is a world of one; the entries runtime.distributed.mpi_ranks.N run it as N processes.
#include <millrace/runtime/distributed/mpi.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/tensor/copy.h>
#include <millrace/tensor/cpu_stream.h>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

CpuStream& stream() {
  static CpuStream made(std::make_shared<ThreadTeam>(1));
  return made;
}

/// The world lives as long as the process: MPI is initialised once.
Communicator& world() {
  static const std::unique_ptr<Communicator> made = make_mpi_communicator({.name = "test", .deadline = 20s});
  return *made;
}

/// Values whose sum depends on the order.
std::vector<float> awkward(int rank, std::size_t count) {
  std::vector<float> made(count);
  for (std::size_t i = 0; i < count; ++i)
    made[i] = (rank == 0 ? 1e8f : rank == 1 ? 1.0f : rank == 2 ? -1e8f : 0.3f) + 0.1f * static_cast<float>(i % 97);
  return made;
}

}  // namespace

TEST_CASE("ranks over MPI add in the order of the ranks, whatever the size, in place and not") {
  for (const std::size_t count : {0, 1, 3, 5000, 70001}) {
    std::vector<float> wanted = awkward(0, count);
    for (int rank = 1; rank < world().world_size(); ++rank) {
      const std::vector<float> more = awkward(rank, count);
      for (std::size_t i = 0; i < count; ++i) wanted[i] = wanted[i] + more[i];
    }
    const auto extent = static_cast<std::int64_t>(count);
    Tensor in = Tensor::from(awkward(world().rank(), count), DDim{extent});
    Tensor out(DType::f32, DDim{extent});
    world().all_reduce(in, out, Reduce::sum, stream()).wait();
    CHECK(out.to_vector<float>() == wanted);
    world().all_reduce(in, in, Reduce::sum, stream()).wait();
    CHECK(in.to_vector<float>() == wanted);
  }
}

TEST_CASE("ranks over MPI reduce integers and extremes, gather in place, and broadcast from any rank") {
  const int ranks = world().world_size(), rank = world().rank();
  Tensor numbers = Tensor::from<std::int64_t>({rank, -rank});
  world().all_reduce(numbers, numbers, Reduce::max, stream());
  Tensor least = Tensor::from<double>({static_cast<double>(rank)});
  world().all_reduce(least, least, Reduce::min, stream());
  Tensor all(DType::f32, DDim{ranks, 2});
  Tensor own = all.select(0, rank);
  copy(Tensor::from<float>({static_cast<float>(rank), 0.5f}), own, stream());
  world().all_gather(own, all, stream());
  Tensor shared = rank == ranks - 1 ? Tensor::from<std::int64_t>({7, 8}) : Tensor(DType::i64, DDim{2});
  world().broadcast(shared, ranks - 1, stream());
  for (const Tensor& each : {numbers, least, all, shared}) each.ready().wait();
  CHECK(numbers.to_vector<std::int64_t>() == std::vector<std::int64_t>{ranks - 1, 0});
  CHECK(least.to_vector<double>() == std::vector<double>{0});
  std::vector<float> wanted;
  for (int other = 0; other < ranks; ++other) wanted.insert(wanted.end(), {static_cast<float>(other), 0.5f});
  CHECK(all.to_vector<float>() == wanted);
  CHECK(shared.to_vector<std::int64_t>() == std::vector<std::int64_t>{7, 8});
}

TEST_CASE("messages over MPI keep their order, and a duplicate has an order of its own") {
  const int ranks = world().world_size(), rank = world().rank();
  const auto other = world().duplicate("other");
  if (ranks > 1) {
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    Tensor late(DType::i64, DDim{1});
    const Point waits = other->recv(late, before, stream());
    std::vector<Tensor> come;
    for (std::int64_t i = 0; i < 100; ++i) {
      world().send(Tensor::from(std::vector<std::int64_t>(static_cast<std::size_t>(i % 7), i), DDim{i % 7}), next, stream());
      come.emplace_back(DType::i64, DDim{i % 7});
      world().recv(come.back(), before, stream());
    }
    for (std::int64_t i = 0; i < 100; ++i) {
      come[static_cast<std::size_t>(i)].ready().wait();
      CHECK(come[static_cast<std::size_t>(i)].to_vector<std::int64_t>() == std::vector<std::int64_t>(static_cast<std::size_t>(i % 7), i));
    }
    CHECK(!waits.reached());
    Tensor here = Tensor::scalar<std::int64_t>(1);
    world().all_reduce(here, here, Reduce::sum, stream()).wait();
    CHECK(here.item_int() == ranks);
    other->send(Tensor::from<std::int64_t>({rank}), next, stream());
    waits.wait();
    CHECK(late.to_vector<std::int64_t>() == std::vector<std::int64_t>{before});
  }
  Tensor one = Tensor::scalar<float>(1);
  other->all_reduce(one, one, Reduce::sum, stream()).wait();
  CHECK(one.to_vector<float>() == std::vector<float>{static_cast<float>(ranks)});
}

TEST_CASE("ranks over MPI that ask for different things all hear what each asked for, and go on") {
  if (world().world_size() == 1) return;
  Tensor mine(DType::f32, DDim{world().rank() == 0 ? 2 : 3});
  std::fill_n(mine.mutable_data<float>(), mine.elements(), 0.0f);
  mine.storage()->mark_written();
  const Point point = world().all_reduce(mine, mine, Reduce::sum, stream());
  try {
    point.wait();
    FAIL("no error");
  } catch (const MismatchError& error) {
    CHECK(std::string(error.what()).find("rank 0 asked for all_reduce (sum) of f32[2], rank 1 asked for all_reduce (sum) of f32[3]") !=
          std::string::npos);
  }
  Tensor one = Tensor::scalar<float>(1);
  world().all_reduce(one, one, Reduce::sum, stream()).wait();
  CHECK(one.to_vector<float>() == std::vector<float>{static_cast<float>(world().world_size())});
}

TEST_CASE("arguments are checked before anything is sent over MPI") {
  Tensor whole(DType::f32, DDim{2}), numbers(DType::i32, DDim{2});
  whole.storage()->mark_written();
  CHECK_THROWS_AS(world().all_reduce(whole, numbers, Reduce::sum, stream()), DTypeError);
  CHECK_THROWS_AS(world().broadcast(whole, world().world_size(), stream()), ArgumentError);
  CHECK_THROWS_AS(world().send(whole, world().rank(), stream()), ArgumentError);
  CHECK_THROWS_AS(make_mpi_communicator({.name = "never", .deadline = 0s}), ArgumentError);
  CHECK(mpi_status().find("MPI") != std::string::npos);
}
