// SPDX-License-Identifier: Apache-2.0
// Loops in one piece that pass their slots on to other ranks while they run.
#include <millrace/runtime/distributed/partition_run.h>

#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/distributed/local.h>
#include <millrace/runtime/distributed/process_run.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/trace/tracer.h>

#include "runtime/distributed/rank_threads.h"
#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/built.h"
#include "support/loop_over.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

std::vector<layers::LstmWeights> lstm_weights(Random& random, const std::vector<std::int64_t>& inputs, std::int64_t h) {
  std::vector<layers::LstmWeights> made;
  for (const std::int64_t c : inputs)
    made.push_back({random_tensor(random, {c, 4 * h}), random_tensor(random, {h, 4 * h}), random_tensor(random, {4 * h}), {}, {}});
  return made;
}

/// Layers of LSTM cells over ragged rows or a dense batch, in one direction or in both; long enough for several runs of iterations.
struct Stack {
  Program program;
  Feeds feeds;

  explicit Stack(Random& random, std::int64_t layers, std::int64_t h, std::int64_t iterations) {
    const bool dense = random.between(0, 1) == 0, both = random.between(0, 2) == 0;
    std::vector<std::int64_t> widths;
    for (std::int64_t layer = 0; layer < layers; ++layer)
      for (int way = 0; way < (both ? 2 : 1); ++way) widths.push_back(layer == 0 ? 3 : both ? 2 * h : h);
    const auto weights = lstm_weights(random, widths, h);
    program = built_program([&] {
      layers::LstmOptions options;
      if (both) options.direction = layers::Direction::bidirectional;
      const VarType type = dense ? VarType(DType::f32, {DDim::unknown, DDim::unknown, 3}) : VarType(DType::f32, {DDim::unknown, 3}, 1);
      const layers::LstmResult made = layers::lstm({input("x", type)}, weights, options);
      output("y", made.y);
      output("h", made.h.front());
      output("c", made.c.back());
    });
    if (dense) {
      feeds.emplace("x", random_tensor(random, {iterations, random.between(1, 20), 3}));
      return;
    }
    std::vector<std::int64_t> lengths{iterations};
    for (std::int64_t i = random.between(0, 20); i > 0; --i)
      lengths.push_back(random.between(0, 2) == 0 ? 0 : random.between(0, iterations));
    std::swap(lengths.front(), lengths.back());
    const LoD lod = LoD::from_lengths({lengths});
    feeds.emplace("x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod));
  }
};

std::vector<RunResult> on_ranks(const Partition& partition, const Feeds& feeds, int threads, RunOptions options = {}) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int rank = 0; rank < partition.ranks; ++rank) devices.push_back(make_cpu_device(threads));
  return run_on_local_ranks(partition, devices, feeds, options);
}

std::string error_of(const Partition& partition, const Feeds& feeds) {
  try {
    static_cast<void>(on_ranks(partition, feeds, 1));
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

RunOptions traced(Tracer& tracer) {
  RunOptions options;
  options.backend = Backend::fused;
  options.tracer = &tracer;
  return options;
}

}  // namespace

TEST_CASE("fused loops that pass slots on while they run give the bits of one rank, whatever ranks, threads and lengths") {
  for (const std::uint64_t seed : seeds(24)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t layers = random.between(1, 4), h = random.between(1, 40), iterations = random.between(1, 300);
    const Stack stack(random, layers, h, iterations);
    const std::string wanted = bits(on_cpu(stack.program, stack.feeds));
    const int ranks = static_cast<int>(random.between(2, 4));
    const Partition partition = partition_over_ranks(stack.program, ranks);
    for (const int threads : {1, 2}) {
      INFO(ranks, " ranks of ", threads, " threads");
      const std::vector<RunResult> found = on_ranks(partition, stack.feeds, threads);
      CHECK(bits(found[0]) == wanted);
      for (const Partition::Loop& loop : partition.loops) CHECK(found[static_cast<std::size_t>(loop.rank)].fused_loops > 0);
    }
    if (seed % 3 != 0) continue;
    const std::uint16_t port = free_port();
    std::mutex mutex;
    std::map<int, std::string> by_rank;
    std::vector<int> numbers;
    for (int rank = 0; rank < ranks; ++rank) numbers.push_back(rank);
    const auto said = on_threads(numbers, [&](int rank) {
      Rendezvous meeting(member(rank, ranks, port));
      const RunResult result = run_as_rank(meeting, partition, make_cpu_device(), stack.feeds);
      const std::lock_guard lock(mutex);
      by_rank[rank] = bits(result);
    });
    for (const std::string& each : said) CHECK(each == "done");
    CHECK(by_rank[0] == wanted);
  }
}

TEST_CASE("a layer works on a step while the one before it on another rank is beyond the next, in runs of iterations") {
  Random random(7);
  const std::int64_t iterations = 6000, h = 128;
  const auto weights = lstm_weights(random, {3, h}, h);
  bool overlaps = false;
  // (Where other programs have the cores, the second thread may come too late.)
  for (int tries = 0; tries < 6 && !overlaps; ++tries) {
    const bool dense = tries % 2 == 1;
    const VarType type = dense ? VarType(DType::f32, {DDim::unknown, DDim::unknown, 3}) : VarType(DType::f32, {DDim::unknown, 3}, 1);
    const Program program = built_program([&] { output("y", layers::lstm({input("x", type)}, weights).y); });
    const LoD lod = LoD::from_lengths({{iterations, iterations / 2, 0, iterations}});
    Feeds feeds;
    if (dense)
      feeds.emplace("x", random_tensor(random, {iterations, 3, 3}));
    else
      feeds.emplace("x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod));
    Tracer tracer;
    const std::vector<RunResult> found = on_ranks(partition_over_ranks(program, 2), feeds, 1, traced(tracer));
    CHECK(bits(found[0]) == bits(on_cpu(program, feeds)));
    for (const RunResult& each : found) CHECK(each.fused_loops == 1);
    std::map<std::uint64_t, std::vector<Tracer::Event>> by_loop;
    for (const Tracer::Event& event : tracer.events("iterations")) by_loop[event.track].push_back(event);
    REQUIRE(by_loop.size() == 2);
    for (const auto& each : by_loop) CHECK(each.second.size() > 10);
    // Each begins its first run of iterations before the other one comes to its last.
    const auto& one = by_loop.begin()->second;
    const auto& other = by_loop.rbegin()->second;
    overlaps = one.front().begin_ns < other.back().begin_ns && other.front().begin_ns < one.back().begin_ns;
  }
  CHECK(overlaps);
}

TEST_CASE("where a slot that arrives does not fit, the loop goes on iteration by iteration behind the iterations that it has done") {
  // Slots without an order, of which some have other rows than the first.
  const Program program = built_program([] {
    const Var n = input("n", VarType(DType::i64, {}));
    const build::ArrayVar x = build::ArrayVar::of(input("x", VarType::array_of(DType::f32, DDim{DDim::unknown, 2}, false)));
    const build::ArrayVar a = build::ArrayVar::typed(n, VarType(DType::f32, {DDim::unknown, 2}), "a");
    loop_over(n, [&](const Var& step) { a.write(step, x.read(step) + 1.0); });
    const build::ArrayVar b = build::ArrayVar::typed(n, VarType(DType::f32, {DDim::unknown, 2}), "b");
    const build::ArrayVar c = build::ArrayVar::typed(n, VarType(DType::f32, {DDim::unknown, 2}), "c");
    Var count = constant(5);
    Var step = constant(0);
    build::WhileLoop loop = build::while_loop({step, count});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var in = a.read(step);
      b.write(step, in * 2.0);
      c.write(step, in - 1.0);
      count.update(count + 3);
      step.update(step + 1);
    }
    output("count", count);
    output("b", b.concat());
    output("c", c.concat());
  });
  Random random(2);
  const Partition partition = partition_over_ranks(program, 2);
  const std::int64_t iterations = 9;
  for (const std::int64_t other : {1, 4, 8}) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(iterations), 2);
    lengths[static_cast<std::size_t>(other)] = 3;
    const millrace::TensorArray x = millrace::TensorArray::split(random_tensor(random, {2 * iterations + 1, 2}), lengths);
    const Feeds feeds{{"n", Tensor::scalar<std::int64_t>(iterations)}, {"x", x}};
    const std::vector<RunResult> found = on_ranks(partition, feeds, 1);
    CHECK(bits(found[0]) == bits(on_cpu(program, feeds)));
    std::int64_t all = 0;
    for (const RunResult& each : found) all += each.iterations;
    CHECK(all == on_cpu(program, feeds).iterations);
  }
  CHECK(error_of(partition, {{"n", Tensor::scalar<std::int64_t>(iterations)},
                             {"x", millrace::TensorArray::split(random_tensor(random, {6, 2}), {2, 2, 2})}})
            .find("(on rank") != std::string::npos);
}

TEST_CASE("a rank that fails in the middle, and a run that is cancelled, end all ranks, and leave nothing") {
  Random random(4);
  const auto weights = lstm_weights(random, {3, 24, 24}, 24);
  const Program program =
      built_program([&] { output("y", layers::lstm({input("x", VarType(DType::f32, {DDim::unknown, 3}, 1))}, weights).y); });
  const LoD lod = LoD::from_lengths({{400, 10, 0, 123}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod)}};
  const Partition partition = partition_over_ranks(program, 3);
  const std::string wanted = bits(on_cpu(program, feeds));
  std::size_t ended = 0;
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random order(seed);
    SeededExecutor executor(seed, policy_of(seed));
    auto communicators = make_local_communicators(3);
    std::vector<Running<RunResult>> running;
    for (int rank = 0; rank < 3; ++rank)
      running.push_back(start_run(executor,
                                  run_part(PartitionPart(partition, rank), std::move(communicators[static_cast<std::size_t>(rank)]), feeds),
                                  "rank " + std::to_string(rank)));
    for (std::int64_t steps = order.between(1, 200); steps > 0 && executor.step(); --steps) {
    }
    const auto victim = static_cast<std::size_t>(seed % 3);
    running[victim].cancel();
    executor.run();
    for (std::size_t rank = 0; rank < 3; ++rank) {
      REQUIRE(running[rank].ended());
      try {
        const RunResult result = running[rank].get();
        if (rank == 0) CHECK(bits(result) == wanted);
      } catch (const CancelledError&) {
        ++ended;
      } catch (const CommunicationError&) {
        ++ended;
        CHECK(rank != victim);
      }
    }
  }
  CHECK(2 * ended > seeds(20).size());
  CHECK(live_frames() == 0);
}
