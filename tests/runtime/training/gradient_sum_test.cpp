// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/gradient_sum.h>

#include <numeric>

#include <doctest/doctest.h>

#include <millrace/runtime/distributed/local.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

#include "runtime/distributed/rank_threads.h"
#include "support/random.h"

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
