// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/gradient_sum.h>

#include <algorithm>
#include <map>
#include <numeric>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/distributed/local.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/runtime/training/initialiser.h>
#include <millrace/runtime/training/trainer.h>

#include "runtime/distributed/rank_threads.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::training;

TEST_CASE("sequences are dealt to ranks by rows, each to one rank, in the order of the batch") {
  const LoD lod = LoD::from_lengths({{5, 0, 3, 3, 1, 8}});
  const std::vector<std::int64_t> batch{5, 4, 3, 2, 1, 0};
  CHECK(deal_to_ranks(lod, batch, 1) == std::vector<std::vector<std::int64_t>>{batch});
  CHECK(deal_to_ranks(lod, batch, 2) == std::vector<std::vector<std::int64_t>>{{5, 2}, {4, 3, 1, 0}});
  CHECK(deal_to_ranks(lod, {}, 3) == std::vector<std::vector<std::int64_t>>(3));
  const LoD nested = LoD::from_lengths({{2, 1}, {3, 1, 2}});
  CHECK(deal_to_ranks(nested, {0, 1}, 2) == std::vector<std::vector<std::int64_t>>{{0}, {1}});
  CHECK_THROWS_AS(deal_to_ranks(lod, batch, 0), ArgumentError);
  CHECK_THROWS_AS(deal_to_ranks(lod, {6}, 2), IndexError);
}

TEST_CASE("no rank has more rows than an equal share and the longest sequence, for random lengths") {
  Random random(23);
  INFO("seed 23");
  for (int i = 0; i < 200; ++i) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(random.between(0, 40)));
    for (std::int64_t& length : lengths) length = random.between(0, 30);
    std::vector<std::int64_t> batch(lengths.size());
    std::iota(batch.begin(), batch.end(), std::int64_t{0});
    const int ranks = static_cast<int>(random.between(1, 6));
    const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    std::vector<std::int64_t> seen;
    for (const auto& dealt : deal_to_ranks(LoD::from_lengths({lengths}), batch, ranks)) {
      std::int64_t rows = 0;
      for (const std::int64_t sequence : dealt) rows += lengths[static_cast<std::size_t>(sequence)];
      CHECK(rows <= all / ranks + longest);
      seen.insert(seen.end(), dealt.begin(), dealt.end());
    }
    std::sort(seen.begin(), seen.end());
    CHECK(seen == batch);
  }
}

TEST_CASE("gradients that come in any order are summed by shares, and a rank without rows adds zeros") {
  const std::vector<GradientSum::Item> items{{"a", DType::f32, {2}}, {"b", DType::f64, {}}, {"c", DType::f32, {1, 3}}};
  auto ranks = make_local_communicators(3);
  std::vector<Tensors> sums(3);
  const auto said = on_threads({0, 1, 2}, [&](int rank) {
    GradientSum sum(*ranks[static_cast<std::size_t>(rank)], items, rank == 2 ? 0 : rank == 0 ? 0.25 : 0.75, 8);
    CHECK(sum.takes("a"));
    CHECK(!sum.takes("loss"));
    CHECK(!sum.provides("a"));
    if (rank == 2) {
      sum.send_zeros();
    } else {
      const float x = rank == 0 ? 4 : 8;
      std::vector<std::pair<std::string, Tensor>> made{
          {"a", Tensor::from<float>({x, -x})}, {"b", Tensor::scalar<double>(x)}, {"c", Tensor::from<float>({0, x, 1}).reshape({1, 3})}};
      if (rank == 1) std::swap(made[0], made[2]);
      ThreadExecutor executor(1);
      for (const auto& [output, gradient] : made) sync_wait(executor, sum.send(output, Value(gradient), nullptr));
    }
    sums[static_cast<std::size_t>(rank)] = sum.sums();
  });
  CHECK(said == std::vector<std::string>(3, "done"));
  for (const Tensors& found : sums) {
    CHECK(found.at("a").to_vector<float>() == std::vector<float>{7, -7});
    CHECK(found.at("b").to_vector<double>() == std::vector<double>{7});
    CHECK(found.at("c").dims() == DDim{1, 3});
    CHECK(found.at("c").to_vector<float>() == std::vector<float>{0, 7, 1});
  }
}

TEST_CASE("a share that is none is refused") {
  const auto alone = make_self_communicator();
  CHECK_THROWS_WITH_AS(GradientSum(*alone, {}, 1.5), "gradient sum: expected a share from 0 to 1, found 1.5", ArgumentError);
}

TEST_CASE("gradients of the upper layers of four leave while loops of the layers below still run") {
  constexpr std::int64_t units = 100, layers_count = 4;  // the gradients of a layer fill a bucket
  Program model;
  {
    const build::Guard guard(model);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, units}, 1));
    const LayerInit init(1);
    build::Var y = x;
    for (int i = 0; i < layers_count; ++i) {
      const std::string name = "lstm" + std::to_string(i);
      y = layers::lstm({y}, {init.lstm(name, units, units)}, {.name = name}).y;
    }
    const build::Var plain = build::drop_lod(y);
    build::output("loss", build::mean_loss(plain * plain));
  }
  Random random(4);
  const LoD lod = LoD::from_lengths({{200, 150, 0, 180}});
  const LoDTensor x(random_tensor(random, {lod.rows(), units}), lod);
  Tracer tracer;
  LocalOptions local;
  local.tracer = &tracer;
  const auto communicators = make_local_communicators(2, local);
  const auto said = on_threads({0, 1}, [&](int rank) {
    TrainerOptions options;
    options.run.tracer = &tracer;
    Trainer trainer(model, options);
    static_cast<void>(trainer.compute({{"x", x}}, *communicators[static_cast<std::size_t>(rank)], 0.5));
  });
  for (const std::string& each : said) CHECK(each == "done");
  const std::vector<Tracer::Event> sums = tracer.events("collective");
  REQUIRE(std::ssize(sums) >= layers_count + 1);  // the last is that of the loss
  // Four loops forwards, four backwards. The slower rank has loops to go when it has sent the gradients of the uppermost layer.
  std::map<std::uint64_t, std::int64_t> ends;
  for (const Tracer::Event& event : tracer.events("iteration")) {
    std::int64_t& end = ends[event.track];
    end = std::max(end, event.end_ns);
  }
  std::vector<std::int64_t> last;
  for (const auto& [track, end] : ends) last.push_back(end);
  std::sort(last.begin(), last.end());
  REQUIRE(last.size() == 2 * layers_count);
  CHECK(sums[0].end_ns < last.back());
  for (std::size_t layer = 0; layer + 1 < layers_count; ++layer) CHECK(sums[layer].begin_ns < last.back());
}
