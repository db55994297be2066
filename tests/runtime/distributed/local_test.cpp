// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/local.h>

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cpu_stream.h>
#include <support/random.h>
#include <support/sim_device.h>

using namespace millrace;
using namespace std::chrono_literals;
using testing::Random, testing::seeds, testing::SimDevice;

namespace {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

/// A world of ranks in one thread: rank r on `sim:r`, all moved by one seed together with their tasks.
struct World {
  explicit World(int size, std::uint64_t seed = 1, LocalOptions options = {}, SimDevice::Options device = {})
      : executor(seed, seed % 2 == 0 ? SeededExecutor::Policy::pct : SeededExecutor::Policy::random) {
    if (options.deadline) options.executor = &executor;
    ranks = make_local_communicators(size, options);
    for (int r = 0; r < size; ++r) {
      device.index = r;
      device.late = seed % 3 == 0;
      devices.push_back(std::make_unique<SimDevice>(device));
      executor.add_source(*devices.back());
    }
  }
  ~World() {
    for (auto& device : devices) executor.remove_source(*device);
  }
  StreamRef stream(int rank, std::size_t index = 0) { return devices[static_cast<std::size_t>(rank)]->stream(index); }
  Communicator& operator[](int rank) { return *ranks[static_cast<std::size_t>(rank)]; }
  /// A tensor on the device of a rank, under way.
  Tensor put(int rank, const std::vector<float>& values) {
    return clone(Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}), stream(rank));
  }
  Tensor room(int rank, const DDim& dims, DType dtype = DType::f32) { return Tensor(dtype, dims, stream(rank).memory()); }

  SeededExecutor executor;
  std::vector<std::unique_ptr<SimDevice>> devices;
  Ranks ranks;
};

/// The end of the point: "done", or the text of its error, whose type must be E.
template <class E>
std::string error_of(const Point& point) {
  try {
    point.check();
  } catch (const Error& error) {
    return (dynamic_cast<const E*>(&error) != nullptr ? "" : "of another type: ") + std::string(error.what());
  }
  return point.reached() ? "done" : "under way";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

task<> waits_for(Point point, std::string* said) {
  try {
    co_await ready(point);
    *said = "done";
  } catch (const Error& error) {
    *said = error.what();
  }
}

}  // namespace

TEST_CASE("values of all ranks are added in the order of the ranks: the same bits on each, whoever comes first, on whatever place") {
  Random random(7);
  std::vector<std::vector<float>> values(4);
  for (auto& of_rank : values)
    for (int i = 0; i < 37; ++i) of_rank.push_back(random.real() * 1e3f);
  std::vector<float> wanted = values[0];
  for (std::size_t i = 0; i < wanted.size(); ++i)
    for (std::size_t r = 1; r < 4; ++r) wanted[i] += values[r][i];
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    World world(4, seed);
    CpuStream host(std::make_shared<ThreadTeam>(1));
    Random order(seed);
    std::vector<int> ranks{0, 1, 2, 3};
    for (std::size_t i = 3; i > 0; --i) std::swap(ranks[i], ranks[order.next() % (i + 1)]);
    std::vector<Tensor> sums(4);
    for (const int r : ranks) {
      const bool on_host = r == 2;
      Tensor in = on_host ? Tensor::from(values[2], DDim{37}) : world.put(r, values[static_cast<std::size_t>(r)]);
      Tensor out = order.coin() ? in : on_host ? Tensor(DType::f32, DDim{37}) : world.room(r, {37});  // in place, or not
      sums[static_cast<std::size_t>(r)] = out;
      const Point done = world[r].all_reduce(in, out, Reduce::sum, on_host ? StreamRef(host) : world.stream(r));
      CHECK(done == out.ready());
      if (r != ranks.back()) CHECK_FALSE(done.reached());
    }
    world.executor.run();
    for (const Tensor& sum : sums) CHECK(sum.to_vector<float>() == wanted);
  }
}

TEST_CASE("every dtype is reduced, and NaN wins in min and max") {
  World world(3);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8}) {
    for (const auto& [reduce, wanted] : {std::pair(Reduce::sum, 9.0), {Reduce::min, 2.0}, {Reduce::max, 4.0}}) {
      INFO(name_of(dtype), " ", to_string(reduce));
      std::vector<Tensor> out;
      for (int r = 0; r < 3; ++r) {
        Tensor in(dtype, DDim{2});
        in[{0}] = 2 + r;
        in[{1}] = 3;
        CpuStream stream(std::make_shared<ThreadTeam>(1));
        out.emplace_back(dtype, DDim{2});
        static_cast<void>(world[r].all_reduce(in, out.back(), reduce, stream));
      }
      for (const Tensor& one : out) CHECK(static_cast<double>(std::as_const(one)[{0}]) == wanted);
    }
  }
}

TEST_CASE("broadcast, all_gather and messages bring the elements of one rank to others, in the order of sending") {
  for (const std::uint64_t seed : seeds(30)) {
    INFO("seed ", seed);
    World world(3, seed);
    std::vector<Tensor> all, of_one, received;
    for (int r = 2; r >= 0; --r) {
      const auto value = static_cast<float>(r);
      all.push_back(world.room(r, {3, 2}));
      static_cast<void>(world[r].all_gather(world.put(r, {value, value + 0.5f}), all.back(), world.stream(r)));
      of_one.push_back(r == 1 ? world.put(1, {7, 8, 9}) : world.room(r, {3}));
      static_cast<void>(world[r].broadcast(of_one.back(), 1, world.stream(r, 1)));
    }
    for (int i = 0; i < 4; ++i) {
      received.push_back(world.room(2, {1}));
      if (i % 2 == 0) static_cast<void>(world[2].recv(received.back(), 0, world.stream(2)));
      static_cast<void>(world[0].send(world.put(0, {static_cast<float>(i)}), 2, world.stream(0)));
      if (i % 2 == 1) static_cast<void>(world[2].recv(received.back(), 0, world.stream(2)));
    }
    world.executor.run();
    for (const Tensor& one : all) CHECK(one.to_vector<float>() == std::vector<float>{0, 0.5f, 1, 1.5f, 2, 2.5f});
    for (const Tensor& one : of_one) CHECK(one.to_vector<float>() == std::vector<float>{7, 8, 9});
    for (std::size_t i = 0; i < 4; ++i) CHECK(received[i].to_vector<float>() == std::vector<float>{static_cast<float>(i)});
  }
}

TEST_CASE("duplicates have an order of their own") {
  World world(2);
  const auto a = world[0].duplicate("a");
  const auto b = world[1].duplicate("a");
  CHECK(a->name() == "local/a");
  CHECK_THROWS_AS(static_cast<void>(world[0].duplicate("a")), ArgumentError);
  Tensor first = world.room(1, {1});
  Tensor second = world.room(1, {1});
  static_cast<void>(world[0].send(world.put(0, {1}), 1, world.stream(0)));
  static_cast<void>(a->send(world.put(0, {2}), 1, world.stream(0)));
  static_cast<void>(b->recv(second, 0, world.stream(1)));
  static_cast<void>(world[1].recv(first, 0, world.stream(1)));
  world.executor.run();
  CHECK(first.item() == 1);
  CHECK(second.item() == 2);
}

TEST_CASE("ranks that ask for different things all hear what each asked for") {
  World world(3);
  std::vector<Point> points;
  for (int r = 0; r < 3; ++r) {
    Tensor value = r == 2 ? clone(Tensor::from<std::int32_t>({1, 2}), world.stream(r)) : world.put(r, {1, 2, 3});
    points.push_back(world[r].all_reduce(value, value, r == 1 ? Reduce::max : Reduce::sum, world.stream(r)));
  }
  world.executor.run();
  for (const Point& point : points) {
    const std::string said = error_of<MismatchError>(point);
    CHECK(said ==
          "on communicator 'local' of 3 ranks: expected the same of all, found: rank 0 asked for all_reduce (sum) of f32[3], rank 1 asked "
          "for "
          "all_reduce (max) of f32[3], rank 2 asked for all_reduce (sum) of i32[2]");
  }
  Tensor small = world.room(1, {2});
  const Point sent = world[0].send(world.put(0, {1}), 1, world.stream(0));
  const Point received = world[1].recv(small, 0, world.stream(1));
  CHECK(has(error_of<MismatchError>(sent), "rank 0 asked for message of f32[1], rank 1 asked for message of f32[2]"));
  CHECK(error_of<MismatchError>(received) == error_of<MismatchError>(sent));
  // The order goes on behind it.
  for (int r = 0; r < 3; ++r) {
    Tensor value = world.put(r, {1});
    points[static_cast<std::size_t>(r)] = world[r].all_reduce(value, value, Reduce::sum, world.stream(r));
  }
  world.executor.run();
  for (const Point& point : points) CHECK(error_of<Error>(point) == "done");
}

TEST_CASE("what a rank gives wrongly is its own error, before anything is ordered") {
  World world(2);
  Tensor value = world.put(0, {1, 2});
  Tensor frozen = world.room(0, {2});
  frozen.storage()->freeze();
  CHECK_THROWS_AS(static_cast<void>(world[0].send(value, 0, world.stream(0))), ArgumentError);
  CHECK_THROWS_AS(static_cast<void>(world[0].recv(value, 2, world.stream(0))), ArgumentError);
  CHECK_THROWS_AS(static_cast<void>(world[0].broadcast(value, -1, world.stream(0))), ArgumentError);
  CHECK_THROWS_AS(static_cast<void>(world[0].send(value, 1, world.stream(1))), PlaceError);
  CHECK_THROWS_AS(static_cast<void>(world[0].all_reduce(value, frozen, Reduce::sum, world.stream(0))), ReadOnlyError);
  CHECK_THROWS_AS(static_cast<void>(world[0].all_gather(value, value, world.stream(0))), ShapeError);
  CHECK_THROWS_AS(static_cast<void>(world[0].send(world.room(0, {2}), 1, world.stream(0))), UninitializedError);
  Tensor wide = world.room(0, {2, 2}).permute({1, 0});
  CHECK_THROWS_AS(static_cast<void>(world[0].recv(wide, 1, world.stream(0))), ArgumentError);
  CHECK_THROWS_AS(static_cast<void>(make_local_communicators(0)), ArgumentError);
  LocalOptions no_clock;
  no_clock.deadline = 1s;
  CHECK_THROWS_AS(static_cast<void>(make_local_communicators(2, no_clock)), ArgumentError);
}

TEST_CASE("a rank that leaves fails what others expect of it, now and later, and what it sent still arrives") {
  World world(3);
  Tensor value = world.put(0, {1});
  Tensor in = world.room(0, {1});
  static_cast<void>(world[2].send(world.put(2, {5}), 0, world.stream(2)));
  const Point reduced = world[0].all_reduce(value, value, Reduce::sum, world.stream(0));
  const auto copy_of_0 = world[0].duplicate("x");
  Tensor other = world.room(0, {1});
  const Point message = copy_of_0->recv(other, 2, world.stream(0));
  world.executor.run();
  CHECK_FALSE(reduced.reached());
  world.ranks[2].reset();
  CHECK(error_of<RankError>(reduced) ==
        "all_reduce (sum) of f32[1] on communicator 'local' of 3 ranks: a rank has left: rank 0 came, ranks 1, 2 did not");
  CHECK(has(error_of<RankError>(message), "message of f32[1] from rank 2 to rank 0 on communicator 'local/x' of 3 ranks: a rank has left"));
  Tensor late = world.put(1, {1});
  CHECK(has(error_of<RankError>(world[1].all_reduce(late, late, Reduce::sum, world.stream(1))), "rank 1 came, ranks 0, 2 did not"));
  const Point arrives = world[0].recv(in, 2, world.stream(0));
  CHECK(has(error_of<RankError>(world[1].send(world.put(1, {1}), 2, world.stream(1))), "a rank has left"));
  world.executor.run();
  CHECK(error_of<Error>(arrives) == "done");
  CHECK(in.item() == 5);
}

TEST_CASE("when a rank leaves, what it waited for itself ends too, and nothing is left behind the last one") {
  LocalOptions options;
  options.deadline = 1h;
  SeededExecutor executor(1);
  options.executor = &executor;
  CpuDevice device;
  Point own, sent, late;
  {
    Ranks ranks = make_local_communicators(2, options);
    Tensor room(DType::f32, DDim{1});
    own = ranks[1]->recv(room, 0, device.stream(0));
    sent = ranks[1]->send(Tensor::from<float>({1}), 0, device.stream(0));
    ranks[1].reset();
    CHECK(has(error_of<RankError>(own), "a rank has left"));
    late = ranks[0]->send(Tensor::from<float>({1}), 1, device.stream(0));
    CHECK(has(error_of<RankError>(late), "a rank has left"));
    CHECK(error_of<Error>(sent) == "under way");
  }
  CHECK(has(error_of<RankError>(sent), "a rank has left"));
}

TEST_CASE("an abort ends what is under way on every rank, wakes who waits, and is what later calls throw") {
  World world(2);
  Tensor a = world.put(0, {1});
  Tensor b = world.room(1, {4});
  const Point reduced = world[0].all_reduce(a, a, Reduce::sum, world.stream(0));
  const auto duplicate = world[1].duplicate("x");
  const Point received = duplicate->recv(b, 0, world.stream(1));
  std::string said;
  Running<void> waiting = start_run(world.executor, waits_for(reduced, &said));
  world.executor.run();
  CHECK_FALSE(waiting.ended());
  world[1].abort("enough");
  world[1].abort("again");
  world.executor.run();
  CHECK(waiting.ended());
  CHECK(said == "communicator 'local' of 2 ranks was aborted: by rank 1: enough");
  CHECK(has(error_of<AbortedError>(received), "by rank 1: enough"));
  CHECK(duplicate->aborted());
  CHECK(world[0].aborted());
  CHECK_THROWS_AS(static_cast<void>(world[0].all_reduce(a, b, Reduce::sum, world.stream(0))), Error);
  Tensor c = world.put(0, {1});
  CHECK_THROWS_AS(static_cast<void>(world[0].all_reduce(c, c, Reduce::sum, world.stream(0))), AbortedError);
  CHECK_THROWS_AS(static_cast<void>(world[0].duplicate("y")), AbortedError);
}

TEST_CASE("a rank that does not come in time is named, and the communicator is aborted") {
  LocalOptions options;
  options.deadline = 5s;
  World world(3, 1, options);
  Tensor a = world.put(0, {1});
  Tensor b = world.room(2, {1});
  const Point reduced = world[0].all_reduce(a, a, Reduce::sum, world.stream(0));
  world.executor.advance(4s);
  const Point received = world[2].recv(b, 1, world.stream(2));
  CHECK(error_of<Error>(reduced) == "under way");
  world.executor.advance(2s);
  CHECK(error_of<DeadlineError>(reduced) ==
        "all_reduce (sum) of f32[1] on communicator 'local' of 3 ranks: not done within 5000000000 ns: rank 0 came, ranks 1, 2 did not");
  CHECK(has(error_of<AbortedError>(received), "was aborted: all_reduce (sum) of f32[1]"));
  // An operation that was done in time has no deadline any more.
  World punctual(2, 1, options);
  std::vector<Tensor> values{punctual.put(0, {1}), punctual.put(1, {2})};
  for (int r = 0; r < 2; ++r) {
    Tensor& value = values[static_cast<std::size_t>(r)];
    static_cast<void>(punctual[r].all_reduce(value, value, Reduce::sum, punctual.stream(r)));
  }
  punctual.executor.advance(60s);
  CHECK(values[1].item() == 3);
  CHECK_FALSE(punctual[0].aborted());
}

TEST_CASE("a fault on the device of one rank reaches the coroutine of every rank, with its op, place and stream, and other work goes on") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    World world(3, seed);
    SimDevice faulty({.index = 9, .fail_work = 1});
    world.executor.add_source(faulty);
    std::vector<std::string> said(3);
    std::vector<Running<void>> running;
    for (int r = 0; r < 3; ++r) {
      const StreamRef stream = r == 1 ? faulty.stream(1) : world.stream(r);
      Tensor value = clone(Tensor::from<float>({1, 2}), stream);
      const Point done = world[r].all_reduce(value, value, Reduce::sum, stream);
      running.push_back(start_run(world.executor, waits_for(done, &said[static_cast<std::size_t>(r)])));
    }
    world.executor.run();
    for (const std::string& one : said)
      CHECK(one ==
            "all_reduce (sum) of f32[2] on communicator 'local' of 3 ranks: the work of rank 1 failed: sim:9: work failed, as it was told "
            "to (on "
            "sim:9, stream 1)");
    Tensor again = world.put(2, {3});
    const Point sent = world[2].send(again, 0, world.stream(2));
    Tensor in = world.room(0, {1});
    static_cast<void>(world[0].recv(in, 2, world.stream(0)));
    world.executor.run();
    CHECK(in.item() == 3);
    CHECK(sent.reached());
    world.executor.remove_source(faulty);
  }
}

TEST_CASE("ranks on threads of their own: many rounds give the same bits on each, and a rank that dies ends them all") {
  constexpr int size = 4;
  Tracer tracer;
  LocalOptions options;
  options.tracer = &tracer;
  Ranks ranks = make_local_communicators(size, options);
  std::vector<std::vector<float>> last(size);
  std::vector<std::string> said(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> mine = std::move(ranks[static_cast<std::size_t>(r)]);
      CpuDevice device(1, 2);
      Tensor value = Tensor::from<float>({0.1f * static_cast<float>(r + 1), 1});
      try {
        for (int round = 0; round < 200; ++round) {
          if (r == 3 && round == 150) return;  // leaves
          Tensor sum(DType::f32, DDim{2});
          mine->all_reduce(value, sum, Reduce::sum, device.stream(static_cast<std::size_t>(round))).wait();
          Tensor got(DType::f32, DDim{2});
          {
            const CommunicatorGroup both(*mine);
            const Point out = mine->send(sum, (r + 1) % size, device.stream(0));
            mine->recv(got, (r + size - 1) % size, device.stream(1)).wait();
            out.wait();
          }
          CHECK(std::memcmp(got.raw(), sum.raw(), 8) == 0);
          if (round < 149) last[static_cast<std::size_t>(r)] = sum.to_vector<float>();
        }
      } catch (const RankError& error) {
        said[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < size; ++r) CHECK(last[static_cast<std::size_t>(r)] == last[0]);
  for (int r = 0; r < 3; ++r) CHECK(has(said[static_cast<std::size_t>(r)], "a rank has left"));
  CHECK(tracer.events("collective").size() > 150);
}

TEST_CASE("abort from another thread wakes waiters of every rank, however they came") {
  for (int round = 0; round < 50; ++round) {
    Ranks ranks = make_local_communicators(3);
    ThreadExecutor executor(2);
    CpuDevice device;
    Tensor value = Tensor::from<float>({1});
    std::vector<Tensor> outs(2, Tensor());
    std::vector<std::string> said(2);
    std::vector<Running<void>> running;
    for (std::size_t r = 0; r < 2; ++r) {
      outs[r] = Tensor(DType::f32, DDim{1});
      running.push_back(start_run(executor, waits_for(ranks[r]->all_reduce(value, outs[r], Reduce::sum, device.stream(0)), &said[r])));
    }
    std::thread stopper([&] { ranks[2]->abort("stop"); });
    for (auto& one : running) one.get();
    stopper.join();
    for (const std::string& one : said) CHECK(has(one, "was aborted: by rank 2: stop"));
  }
}

TEST_CASE("the one rank of a world of one gets back what it gives") {
  const auto self = make_self_communicator();
  CpuDevice device;
  CHECK(self->world_size() == 1);
  const Tensor in = Tensor::from<float>({1, 2});
  Tensor out(DType::f32, DDim{2});
  Tensor all(DType::f32, DDim{1, 2});
  Tensor same = in;
  self->all_reduce(in, out, Reduce::sum, device.stream(0)).wait();
  self->all_gather(in, all, device.stream(0)).wait();
  self->broadcast(same, 0, device.stream(0)).wait();
  CHECK(out.to_vector<float>() == in.to_vector<float>());
  CHECK(all.to_vector<float>() == in.to_vector<float>());
  CHECK_THROWS_AS(static_cast<void>(self->send(in, 0, device.stream(0))), ArgumentError);
  CHECK_THROWS_AS(static_cast<void>(self->broadcast(same, 1, device.stream(0))), ArgumentError);
  CHECK_THROWS_AS(static_cast<void>(self->all_gather(in, out, device.stream(0))), ShapeError);
  CHECK(self->duplicate("x")->name() == "self/x");
  self->abort("done");
  CHECK(self->aborted());
  CHECK_THROWS_AS(static_cast<void>(self->all_reduce(in, out, Reduce::sum, device.stream(0))), AbortedError);
}
