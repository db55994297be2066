// SPDX-License-Identifier: Apache-2.0
// Programs with gradients on several ranks: layers as a wavefront, forwards and backwards.
#include <millrace/runtime/distributed/partition_run.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/distributed/process_run.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/trace/tracer.h>

#include "runtime/distributed/rank_threads.h"
#include "runtime/distributed/sim_ranks.h"
#include "support/built.h"
#include "support/program_runs.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

struct Net {
  std::int64_t layers = 2, units = 8, inputs = 3;
  bool gru = false, dense = false, both = false;
};

/// Small enough for gradients over thousands of steps.
Tensor small(Random& random, const DDim& dims) {
  std::vector<float> values = random_tensor(random, dims).to_vector<float>();
  for (float& value : values) value *= 0.1f;
  return Tensor::from(values, dims);
}

/// A stack of layers, the mean of the squares of its rows as loss, and the gradients of its weights as outputs "d NAME".
Program with_gradients(Random& random, const Net& net) {
  Program program = built_program([&] {
    const VarType type =
        net.dense ? VarType(DType::f32, {DDim::unknown, DDim::unknown, net.inputs}) : VarType(DType::f32, {DDim::unknown, net.inputs}, 1);
    const Var x = input("x", type);
    const std::int64_t ways = net.both ? 2 : 1, gates = net.gru ? 3 : 4;
    std::vector<layers::LstmWeights> lstm;
    std::vector<layers::GruWeights> gru;
    for (std::int64_t i = 0; i < net.layers * ways; ++i) {
      const std::int64_t from = i < ways ? net.inputs : ways * net.units;
      const Tensor w = small(random, {from, gates * net.units}), r = small(random, {net.units, gates * net.units});
      if (net.gru)
        gru.push_back({w, r, {}, {}});
      else
        lstm.push_back({w, r, small(random, {gates * net.units}), {}, {}});
    }
    const layers::Direction direction = net.both ? layers::Direction::bidirectional : layers::Direction::forward;
    const Var y = net.gru ? layers::gru({x}, gru, {.direction = direction}).y : layers::lstm({x}, lstm, {.direction = direction}).y;
    const Var plain = net.dense ? y : drop_lod(y);
    output("loss", mean_loss(plain * plain));
  });
  const VarId loss = program.outputs()[0].var;
  for (const Gradient& gradient : append_backward(program, loss, {})) {
    REQUIRE(gradient.gradient != no_var);
    program.add_output("d " + program.var(gradient.var).name, gradient.gradient);
  }
  return program;
}

Feeds random_feeds(Random& random, const Net& net, std::int64_t steps) {
  if (net.dense) return {{"x", random_tensor(random, {steps, random.between(1, 5), net.inputs})}};
  LoD::Level lengths{steps};
  for (std::int64_t i = random.between(0, 6); i > 0; --i) lengths.push_back(random.between(0, 3) == 0 ? 0 : random.between(1, steps));
  std::swap(lengths.front(), lengths.back());
  const LoD lod = LoD::from_lengths({lengths});
  return {{"x", LoDTensor(random_tensor(random, {lod.rows(), net.inputs}), lod)}};
}

std::vector<RunResult> on_ranks(const Partition& partition, const Feeds& feeds, RunOptions options = {}) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int rank = 0; rank < partition.ranks; ++rank) devices.push_back(make_cpu_device(1));
  return run_on_local_ranks(partition, devices, feeds, options);
}

std::size_t ranks_with_loops(const Partition& partition) {
  std::set<int> ranks;
  for (const Partition::Loop& loop : partition.loops) ranks.insert(loop.rank);
  return ranks.size();
}

}  // namespace

TEST_CASE("losses and gradients of layers on 2 and 4 ranks have the bits of one rank") {
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    const Net net{random.between(1, 4),      random.between(1, 10),     random.between(1, 4),
                  random.between(0, 1) == 0, random.between(0, 1) == 0, random.between(0, 2) == 0};
    const Program program = with_gradients(random, net);
    const Feeds feeds = random_feeds(random, net, random.between(1, 40));
    const std::string wanted = bits(on_cpu(program, feeds));
    for (const int ranks : {1, 2, 4}) {
      const Partition partition = partition_over_ranks(program, ranks);
      INFO(partition.to_string());
      CHECK(bits(on_ranks(partition, feeds)[0]) == wanted);
      CHECK(ranks_with_loops(partition) >= std::min<std::size_t>(static_cast<std::size_t>(ranks), static_cast<std::size_t>(net.layers)));
    }
  }
}

TEST_CASE("ranks that are connected give rank 0 the losses and gradients of one rank") {
  for (const std::uint64_t seed : seeds(2)) {
    INFO("seed ", seed);
    Random random(seed);
    const Net net{4, 6, 2, seed % 2 == 0, false, false};
    const Program program = with_gradients(random, net);
    const Feeds feeds = random_feeds(random, net, 30);
    const Partition partition = partition_over_ranks(program, 4);
    const std::uint16_t port = free_port();
    std::mutex mutex;
    std::map<int, std::string> by_rank;
    const auto said = on_threads({0, 1, 2, 3}, [&](int rank) {
      Rendezvous meeting(member(rank, 4, port));
      const RunResult result = run_as_rank(meeting, partition, make_cpu_device(), feeds);
      const std::lock_guard lock(mutex);
      by_rank[rank] = bits(result);
    });
    for (const std::string& each : said) CHECK(each == "done");
    CHECK(by_rank[0] == bits(on_cpu(program, feeds)));
  }
}

TEST_CASE("backward of a layer begins before that of the layer above it on another rank has ended, as forward does") {
  Random random(9);
  std::size_t forwards = 0, backwards = 0;
  for (const std::uint64_t seed : seeds(8)) {
    INFO("seed ", seed);
    const Net net{3, 4, 3, seed % 2 == 1, false, false};
    const Program program = with_gradients(random, net);
    const Feeds feeds = random_feeds(random, net, 20);
    const Partition partition = partition_over_ranks(program, 3);
    Tracer tracer;
    CHECK(on_sim_ranks(partition, feeds, seed, {}, -1, &tracer) == bits(on_cpu(program, feeds)));
    // Rank 2 has the last layer: its inputs reach it forwards, and rank 0 gets gradients alone.
    forwards += arrives_before_the_end(tracer, 2, 1);
    backwards += arrives_before_the_end(tracer, 0, 1);
  }
  CHECK(2 * forwards >= seeds(8).size());
  CHECK(2 * backwards >= seeds(8).size());
}

TEST_CASE("backward loops are where their forward loops are, which kept values for them, and send their first gradients while they run") {
  Random random(9);
  for (const bool gru : {false, true}) {
    const Net net{2, 96, 3, gru, false, false};
    const Program program = with_gradients(random, net);
    const Feeds feeds = random_feeds(random, net, 1000);
    const Partition partition = partition_over_ranks(program, 2);
    INFO(partition.to_string());
    REQUIRE(partition.loops.size() == 4);
    const int wanted[] = {0, 1, 1, 0};
    for (std::size_t i = 0; i < 4; ++i) CHECK(partition.loops[i].rank == wanted[i]);
    for (const Partition::Transfer& transfer : partition.transfers) CHECK(transfer.name.find("kept") == std::string::npos);
    Tracer tracer;
    RunOptions options;
    options.backend = Backend::fused;
    options.tracer = &tracer;
    CHECK(bits(on_ranks(partition, feeds, options)[0]) == bits(on_cpu(program, feeds)));
    std::map<std::uint64_t, std::pair<std::int64_t, std::int64_t>> by_loop;  // when its first and its last iterations began
    for (const Tracer::Event& event : tracer.events("iterations"))
      by_loop.try_emplace(event.track, event.begin_ns, 0).first->second.second = event.begin_ns;
    REQUIRE(by_loop.size() == 4);
    std::vector<std::pair<std::int64_t, std::int64_t>> loops;
    for (const auto& [track, times] : by_loop) loops.push_back(times);
    std::sort(loops.begin(), loops.end());
    std::size_t sent = 0;  // while the backward loop of rank 1 ran, which begins as the third
    for (const Tracer::Event& event : tracer.events("collective"))
      if (event.name.starts_with("message of u8") && event.name.find("from rank 1 to rank 0") != std::string::npos)
        sent += event.begin_ns > loops[2].first && event.begin_ns < loops[2].second;
    CHECK(sent > 0);
  }
}
