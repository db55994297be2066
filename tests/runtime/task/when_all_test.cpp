// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/when_all.h>

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

#include "support/random.h"

#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>

using namespace millrace;

namespace {

task<int> slow_square(int x) {
  for (int i = 0; i < x % 3; ++i) co_await this_task::yield();
  co_return x* x;
}

task<int> fails() {
  co_await this_task::yield();
  throw std::runtime_error("one of them");
}

task<> adds(int* sum, int x) {
  co_await this_task::yield();
  *sum += x;
}

}  // namespace

TEST_CASE("results come in the order of the works under every schedule") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    std::vector<task<int>> works;
    for (int i = 0; i < 6; ++i) works.push_back(slow_square(i));
    CHECK(sync_wait(executor, when_all(std::move(works))) == std::vector<int>{0, 1, 4, 9, 16, 25});
  }
}

TEST_CASE("the first error is thrown once all have ended") {
  SeededExecutor executor(1);
  std::vector<task<int>> works;
  works.push_back(slow_square(2));
  works.push_back(fails());
  CHECK_THROWS_WITH_AS(sync_wait(executor, when_all(std::move(works))), "one of them", std::runtime_error);
}

TEST_CASE("works without a result, and no works at all") {
  SeededExecutor executor(1);
  int sum = 0;
  std::vector<task<>> works;
  for (int i = 1; i <= 4; ++i) works.push_back(adds(&sum, i));
  sync_wait(executor, when_all(std::move(works)));
  CHECK(sum == 10);
  CHECK(sync_wait(executor, when_all(std::vector<task<int>>())).empty());
}
