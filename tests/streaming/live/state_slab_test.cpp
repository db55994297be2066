// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/state_slab.h>

#include <doctest/doctest.h>

#include <millrace/tensor/work_failure.h>
#include <streaming/live/live_model.h>
#include <support/driven_device.h>

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

/// The results of six live sequences of a listing whose ticks a seed draws: the bytes of each, up to its end or to the step that failed.
struct Lived {
  std::vector<std::string> wanted, got;
  std::vector<bool> ended = std::vector<bool>(6);  // by a failure
  std::size_t failed = 0;
  std::string lost;  // what the place was lost by
};

void note(Lived& lived, const std::exception_ptr& lost) {
  try {
    if (lost) std::rethrow_exception(lost);
  } catch (const PlaceLostError& error) {
    lived.lost = error.what();
  }
}

Lived live_through(std::uint64_t seed, const std::shared_ptr<Device>& device, const std::function<void()>& made = [] {}) {
  Random random(seed);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 6, 12, features, hidden);
  StateSlab slab(recurrence_of(program), device);
  made();
  std::vector<Slot> slots;
  for (Slot i = 0; i < 6; ++i) slots.push_back(random.between(0, 3) * 6 + i);
  std::vector<std::int64_t> at(6, 0);
  Lived lived;
  lived.got.resize(6);
  for (std::size_t i = 0; i < 6; ++i) lived.wanted.push_back(WholeRun::bytes(whole.outputs[i]));
  Tick first;
  for (std::size_t i = 0; i < 6; ++i) first.starts.push_back({slots[i], {whole.boots[i]}});
  slab.run(first);
  while (true) {
    std::vector<std::size_t> left, who;
    for (std::size_t i = 0; i < 6; ++i)
      if (at[i] < whole.rows[i].dim(0)) left.push_back(i);
    if (left.empty()) return lived;
    for (const std::size_t i : left)
      if (random.coin()) who.push_back(i);
    if (who.empty()) continue;
    Tick tick;
    for (const std::size_t i : who) tick.slots.push_back(slots[i]);
    tick.inputs.push_back(gathered(whole, who, at));
    const TickResult result = slab.run(tick);
    REQUIRE(result.slots == tick.slots);
    note(lived, result.lost);
    const std::string bytes = result.outputs.empty() ? std::string() : WholeRun::bytes(result.outputs[0]);  // none: a row alone that failed
    std::vector<bool> failed(who.size());
    for (const auto& failure : result.failures) failed[failure.row] = true;
    for (std::size_t k = 0; k < who.size(); ++k) {
      if (failed[k]) {
        ++lived.failed;
        lived.ended[who[k]] = true;
        at[who[k]] = whole.rows[who[k]].dim(0);
        continue;
      }
      lived.got[who[k]] += bytes.substr(k * hidden * sizeof(float), hidden * sizeof(float));
      ++at[who[k]];
    }
  }
}

}  // namespace

TEST_CASE("a sequence has the bits of the whole run, whatever its slot and whoever shares its ticks") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    const Lived lived = live_through(seed, std::make_shared<CpuDevice>(1 + static_cast<int>(seed % 2)));
    CHECK(lived.failed == 0);
    CHECK(lived.got == lived.wanted);
  }
}

TEST_CASE("live sequences on a device have the same bits, in whatever order and however late its streams complete") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Driven driven(seed, {.caching = seed % 3 == 0, .late = seed % 2 == 0});
    const Lived lived = live_through(seed, driven.device());
    CHECK(lived.failed == 0);
    CHECK(lived.got == lived.wanted);
  }
}

/// Works and allocations of a simulated device when the model was there, and at the end.
struct Counted {
  std::size_t works[2] = {};
  std::size_t allocations[2] = {};

  explicit Counted(std::uint64_t seed) {
    Driven driven(seed, {});
    const auto count = [&](int at) {
      driven.settle();
      works[at] = driven.sim().works();
      allocations[at] = driven.sim().sim_memory().allocations();
    };
    live_through(seed, driven.device(), [&] { count(0); });
    count(1);
  }
};

/// Each answer is right, also of sequences that failed later.
void check_answers(const Lived& lived) {
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(lived.wanted[i].starts_with(lived.got[i]));
    if (!lived.ended[i]) CHECK(lived.got[i] == lived.wanted[i]);
  }
}

TEST_CASE("memory that runs out once costs at most the row that was alone, and the device stays good") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    const Counted counted(seed);
    Random random(seed);
    for (int i = 0; i < 6; ++i) {
      const auto which = static_cast<std::size_t>(
          random.between(static_cast<std::int64_t>(counted.allocations[0]) + 1, static_cast<std::int64_t>(counted.allocations[1])));
      INFO("allocation ", which);
      Driven driven(seed, {.fail_allocation = which, .late = i % 2 == 0});
      const Lived lived = live_through(seed, driven.device());
      CHECK(lived.lost == "");
      CHECK(lived.failed <= 1);
      check_answers(lived);
    }
  }
}

TEST_CASE("work that fails once costs those whose state it was writing, and all others keep their bits") {
  std::size_t unharmed = 0;
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    const Counted counted(seed);
    Random random(seed);
    for (int i = 0; i < 8; ++i) {
      const auto which = static_cast<std::size_t>(
          random.between(static_cast<std::int64_t>(counted.works[0]) + 1, static_cast<std::int64_t>(counted.works[1])));
      INFO("work ", which);
      Driven driven(seed, {.fail_work = which, .late = i % 2 == 0});
      const Lived lived = live_through(seed, driven.device());
      CHECK(lived.lost == "");
      check_answers(lived);
      unharmed += lived.failed == 0;
    }
  }
  CHECK(unharmed > 0);
}

TEST_CASE("a device that is lost ends every sequence with its reason, and what was answered before is right") {
  for (const std::uint64_t seed : seeds(4)) {
    INFO("seed ", seed);
    const Counted counted(seed);
    Random random(seed);
    const auto which = static_cast<std::size_t>(
        random.between(static_cast<std::int64_t>(counted.works[0]) + 1, static_cast<std::int64_t>(counted.works[1]) - 40));
    Driven driven(seed, {.lose_work = which, .late = seed % 2 == 0});
    const Lived lived = live_through(seed, driven.device());
    CHECK(lived.lost.starts_with("sim:0 is lost: sim:0: work took the device with it"));
    CHECK(lived.failed > 0);
    check_answers(lived);
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
  for (const bool device : {false, true}) {
    Driven driven(3, {.late = true});
    StateSlab slab(recurrence_of(live_lookup(), options), device ? driven.device() : nullptr);
    for (int round = 0; round < 2; ++round) {
      Tick tick;
      tick.starts = {{0, {}}, {1, {}}, {2, {}}};
      tick.slots = {0, 1, 2};
      tick.inputs = {Tensor::from<std::int64_t>({2, 99, 1}).reshape({3, 1})};
      if (round == 1) slab.start(tick);
      const TickResult result = round == 0 ? slab.run(tick) : slab.finish();
      CHECK_THROWS_AS(slab.finish(), UninitializedError);
      REQUIRE(result.failures.size() == 1);
      CHECK(result.failures[0].row == 1);
      CHECK_THROWS_AS(std::rethrow_exception(result.failures[0].error), IndexError);
      CHECK(result.outputs.at(0).to_vector<float>() == std::vector<float>{5, 6, 0, 0, 3, 4});
      CHECK(slab.state(0, 0).to_vector<float>() == std::vector<float>{5, 6});
      CHECK(slab.state(0, 2).to_vector<float>() == std::vector<float>{3, 4});
      CHECK(result.lost == nullptr);
    }
  }
}

TEST_CASE("asking for a state that is not there says which there are") {
  Random random(1);
  StateSlab slab(recurrence_of(live_listing(random, features, hidden)));
  CHECK(slab.bytes() == 0);
  CHECK_THROWS_AS(slab.state(0, 0), IndexError);
}
