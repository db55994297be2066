// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/state_slab.h>

#include <doctest/doctest.h>

#include <streaming/live/live_model.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 5, hidden = 7;

/// Row `t` of each sequence, as a tick's input.
Tensor gathered(const WholeRun& whole, const std::vector<std::size_t>& who, const std::vector<std::int64_t>& at) {
  const auto rows = static_cast<std::int64_t>(who.size());
  Tensor made(DType::f32, {rows, 1, features});
  float* to = made.mutable_data<float>();
  for (std::size_t i = 0; i < who.size(); ++i)
    std::memcpy(to + i * features, whole.rows[who[i]].data<float>() + at[who[i]] * features, features * sizeof(float));
  return made;
}

}  // namespace

TEST_CASE("a sequence has the bits of the whole run, whatever its slot and whoever shares its ticks") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 6, 12, features, hidden);
    StateSlab slab(recurrence_of(program), std::make_shared<CpuDevice>(static_cast<int>(random.between(1, 2))));
    std::vector<Slot> slots;
    for (Slot i = 0; i < 6; ++i) slots.push_back(random.between(0, 3) * 6 + i);
    std::vector<std::int64_t> at(6, 0);
    std::vector<std::string> got(6);
    Tick first;
    for (std::size_t i = 0; i < 6; ++i) first.starts.push_back({slots[i], {whole.boots[i]}});
    slab.run(first);
    while (true) {
      std::vector<std::size_t> left, who;
      for (std::size_t i = 0; i < 6; ++i)
        if (at[i] < whole.rows[i].dim(0)) left.push_back(i);
      if (left.empty()) break;
      for (const std::size_t i : left)
        if (random.coin()) who.push_back(i);
      if (who.empty()) continue;
      Tick tick;
      for (const std::size_t i : who) tick.slots.push_back(slots[i]);
      tick.inputs.push_back(gathered(whole, who, at));
      const TickResult result = slab.run(tick);
      REQUIRE(result.failures.empty());
      REQUIRE(result.slots == tick.slots);
      const std::string bytes = WholeRun::bytes(result.outputs.at(0));
      for (std::size_t k = 0; k < who.size(); ++k) {
        got[who[k]] += bytes.substr(k * hidden * sizeof(float), hidden * sizeof(float));
        ++at[who[k]];
      }
    }
    for (std::size_t i = 0; i < 6; ++i) CHECK(got[i] == WholeRun::bytes(whole.outputs[i]));
  }
}

TEST_CASE("a slot that starts again holds nothing of the sequence before it") {
  RecurrenceOptions options;
  options.states = {{"sum", "next_sum"}};
  StateSlab slab(recurrence_of(live_lookup(), options));
  const auto step = [&](bool start, std::int64_t index) {
    Tick tick;
    if (start) tick.starts.push_back({3, {}});
    tick.slots = {3};
    tick.inputs = {Tensor::from<std::int64_t>({index}).reshape({1, 1})};
    const TickResult result = slab.run(tick);
    REQUIRE(result.failures.empty());
    return result.outputs.at(0).to_vector<float>();
  };
  CHECK(step(true, 2) == std::vector<float>{5, 6});
  CHECK(step(false, 0) == std::vector<float>{6, 8});
  CHECK(slab.state(0, 3).to_vector<float>() == std::vector<float>{6, 8});
  CHECK(step(true, 1) == std::vector<float>{3, 4});
}

TEST_CASE("a row that fails fails alone, and its companions keep their bits") {
  RecurrenceOptions options;
  options.states = {{"sum", "next_sum"}};
  StateSlab slab(recurrence_of(live_lookup(), options));
  Tick tick;
  tick.starts = {{0, {}}, {1, {}}, {2, {}}};
  tick.slots = {0, 1, 2};
  tick.inputs = {Tensor::from<std::int64_t>({2, 99, 1}).reshape({3, 1})};
  const TickResult result = slab.run(tick);
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].row == 1);
  CHECK_THROWS_AS(std::rethrow_exception(result.failures[0].error), IndexError);
  CHECK(result.outputs.at(0).to_vector<float>() == std::vector<float>{5, 6, 0, 0, 3, 4});
  CHECK(slab.state(0, 0).to_vector<float>() == std::vector<float>{5, 6});
  CHECK(slab.state(0, 2).to_vector<float>() == std::vector<float>{3, 4});
}

TEST_CASE("asking for a state that is not there says which there are") {
  Random random(1);
  StateSlab slab(recurrence_of(live_listing(random, features, hidden)));
  CHECK(slab.bytes() == 0);
  CHECK_THROWS_AS(slab.state(0, 0), IndexError);
}
