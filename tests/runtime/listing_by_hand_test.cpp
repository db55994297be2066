// SPDX-License-Identifier: Apache-2.0 The canonical listing as a coroutine over TensorArrays: one loop, or one task for each iteration, on the
// CPU and on streams that complete in any order. Case 25.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

// [headers of the listing]
#include <millrace/kernels/activation.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/matmul.h>
#include <millrace/runtime/array/pack.h>
#include <millrace/runtime/array/shrink.h>
#include <millrace/runtime/array/unpack.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/tensor/device.h>
// [headers of the listing]
#include <millrace/runtime/task/scope.h>
#include <millrace/tensor/copy.h>
#include <support/drive.h>
#include <support/random.h>

namespace millrace {
namespace {

using testing::run_fifo;
using testing::Schedule;

// [listing by hand]
using namespace millrace;

struct Weights {
  Weights(Tensor u, Tensor w) : U(std::move(u)), W(std::move(w)) {}
  Tensor U, W;
};

Tensor step_of(const SlotValue& pre_state, const SlotValue& step_input, const Weights& weights, StreamRef stream) {
  const Tensor from_state = matmul(pre_state.tensor(), weights.U, stream);
  const Tensor from_input = matmul(step_input.tensor(), weights.W, stream);
  return sigmoid(add(from_state, from_input, stream), stream);
}

task<LoDTensor> listing(LoDTensor x, LoDTensor boot_state, Weights weights, bool sort_by_length, Device* device) {
  const auto [steps, order] = unpack(x, 0, sort_by_length, device->stream(0));
  const std::int64_t n = steps.size();
  const TensorArray states = TensorArray(n, order).named("states");
  const TensorArray outputs = TensorArray(n, order).named("outputs");
  for (std::int64_t step = 0; step != n; ++step) {
    const StreamRef stream = device->stream(static_cast<std::size_t>(step));
    SlotValue step_input = co_await steps.read(step);
    SlotValue last_state = co_await states.read(step - 1, boot_state, stream);
    SlotValue pre_state = shrink(last_state, step_input, stream);
    const Tensor state = step_of(pre_state, step_input, weights, stream);
    states.write(step, state);
    outputs.write(step, state, share);
  }
  LoDTensor y = co_await pack(outputs, 0, order, device->stream(0));
  co_await ready(y.ready());
  co_return y;
}
// [listing by hand]

task<void> iteration(TensorArray steps, TensorArray states, TensorArray outputs, std::int64_t step, LoDTensor boot_state, Weights weights,
                     Device* device) {
  const StreamRef stream = device->stream(static_cast<std::size_t>(step));
  SlotValue step_input = co_await steps.read(step);
  SlotValue last_state = co_await states.read(step - 1, boot_state, stream);
  SlotValue pre_state = shrink(last_state, step_input, stream);
  const Tensor state = step_of(pre_state, step_input, weights, stream);
  states.write(step, state);
  outputs.write(step, state, share);
}

/// Each iteration a task of its own: the slots alone put them in order.
task<LoDTensor> listing_by_iterations(LoDTensor x, LoDTensor boot_state, Weights weights, bool sort_by_length, Device* device) {
  TaskInfo& me = co_await this_task::info();
  const auto [steps, order] = unpack(x, 0, sort_by_length, device->stream(0));
  const TensorArray states = TensorArray(steps.size(), order).named("states");
  const TensorArray outputs = TensorArray(steps.size(), order).named("outputs");
  Scope scope(me);
  for (std::int64_t step = steps.size() - 1; step >= 0; --step)
    scope.spawn(iteration(steps, states, outputs, step, boot_state, weights, device), "iteration " + std::to_string(step));
  LoDTensor y = co_await pack(outputs, 0, order, device->stream(1));
  co_await scope.join();
  co_await ready(y.ready());
  co_return y;
}

/// Rows, lengths and boots of case 25, or seeded ones of any width.
struct Problem {
  std::vector<float> rows, boots;
  LoD::Level lengths;
  std::int64_t features = 1, hidden = 1;
  std::vector<float> u{.7f}, w{-.3f};

  LoDTensor x() const {
    return LoDTensor(Tensor::from(rows, {static_cast<std::int64_t>(rows.size()) / features, features}), LoD::from_lengths({lengths}));
  }
  LoDTensor boot() const { return Tensor::from(boots, {static_cast<std::int64_t>(lengths.size()), hidden}); }
  Weights weights() const { return Weights(Tensor::from(u, {hidden, hidden}), Tensor::from(w, {features, hidden})); }
  /// Sequence `i` alone.
  Problem alone(std::size_t i) const {
    Problem one = *this;
    std::int64_t begin = 0;
    for (std::size_t k = 0; k < i; ++k) begin += lengths[k];
    one.rows.assign(rows.begin() + begin * features, rows.begin() + (begin + lengths[i]) * features);
    one.boots.assign(boots.begin() + static_cast<std::int64_t>(i) * hidden, boots.begin() + static_cast<std::int64_t>(i + 1) * hidden);
    one.lengths = {lengths[i]};
    return one;
  }
};

Problem case_25() {
  Problem problem;
  problem.rows = {1, 2, 3, 4, 5, 6};
  problem.lengths = {2, 1, 3, 0};
  problem.boots = {.1f, .2f, .3f, .4f};
  return problem;
}

Problem seeded(std::uint64_t seed) {
  testing::Random random(seed);
  Problem problem;
  problem.features = random.between(1, 5);
  problem.hidden = random.between(1, 9);
  const auto fill = [&](std::vector<float>& values, std::int64_t count) {
    values.clear();
    for (std::int64_t i = 0; i < count; ++i) values.push_back(random.real());
  };
  std::int64_t rows = 0;
  for (std::int64_t i = random.between(1, 5); i > 0; --i) {
    problem.lengths.push_back(random.between(0, 6));
    rows += problem.lengths.back();
  }
  fill(problem.rows, rows * problem.features);
  fill(problem.boots, static_cast<std::int64_t>(problem.lengths.size()) * problem.hidden);
  fill(problem.u, problem.hidden * problem.hidden);
  fill(problem.w, problem.features * problem.hidden);
  return problem;
}

std::vector<float> on_cpu(const Problem& problem, bool sort) {
  CpuDevice cpu;
  const LoDTensor y = run_fifo(listing(problem.x(), problem.boot(), problem.weights(), sort, &cpu));
  CHECK(y.lod() == LoD::from_lengths({problem.lengths}));
  return y.tensor().to_vector<float>();
}

/// The same on a simulated device, driven by `seed`.
std::vector<float> on_sim(const Problem& problem, bool sort, bool by_iterations, Schedule& schedule) {
  const StreamRef stream = schedule.device.stream(0);
  const LoDTensor x = problem.x();
  const Weights host = problem.weights();
  const LoDTensor moved(clone(x.tensor(), stream), x.lod());
  const LoDTensor boot(clone(problem.boot().tensor(), stream));
  const Weights weights(clone(host.U, stream), clone(host.W, stream));
  task<LoDTensor> work = by_iterations ? listing_by_iterations(moved, boot, weights, sort, &schedule.device)
                                       : listing(moved, boot, weights, sort, &schedule.device);
  const LoDTensor y = schedule.run(std::move(work));
  return y.tensor().to_vector<float>();
}

TEST_CASE("the canonical listing gives the values of case 25") {
  const std::vector<float> wanted{.442752f, .427986f, .318646f, .270912f, .212426f, .160933f};
  for (const bool sort : {true, false}) {
    const std::vector<float> found = on_cpu(case_25(), sort);
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(found[i] == doctest::Approx(wanted[i]).epsilon(2e-6));
    CHECK(found == on_cpu(case_25(), true));
  }
}

TEST_CASE("each sequence of case 25 gives the same bits alone and together") {
  const Problem together = case_25();
  const std::vector<float> all = on_cpu(together, true);
  std::vector<float> joined;
  for (std::size_t i = 0; i < together.lengths.size(); ++i) {
    const std::vector<float> one = on_cpu(together.alone(i), i % 2 == 0);
    joined.insert(joined.end(), one.begin(), one.end());
  }
  CHECK(joined == all);
}

TEST_CASE("any ragged batch gives the same bits sorted, unsorted, alone and together") {
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    const Problem problem = seeded(seed);
    const std::vector<float> sorted = on_cpu(problem, true);
    CHECK(on_cpu(problem, false) == sorted);
    std::vector<float> joined;
    for (std::size_t i = 0; i < problem.lengths.size(); ++i) {
      const std::vector<float> one = on_cpu(problem.alone(i), true);
      joined.insert(joined.end(), one.begin(), one.end());
    }
    CHECK(joined == sorted);
  }
}

TEST_CASE("streams that complete in any order give the bits of the CPU") {
  const std::vector<float> wanted = on_cpu(case_25(), true);
  std::set<std::uint64_t> traces;
  for (const std::uint64_t seed : testing::seeds(300)) {
    INFO("seed ", seed);
    Schedule schedule(seed, seed % 3 == 0 ? SeededExecutor::Policy::pct : SeededExecutor::Policy::random, {.streams = 1 + seed % 4});
    CHECK(on_sim(case_25(), seed % 2 == 0, seed % 5 != 0, schedule) == wanted);
    traces.insert(schedule.executor.trace_hash());
  }
  CHECK(3 * traces.size() >= testing::seeds(300).size());
  CHECK(live_frames() == 0);
}

TEST_CASE("dropping a wait between streams changes the bits of the listing under some seed") {
  const std::vector<float> wanted = on_cpu(case_25(), true);
  std::size_t noticed = 0;
  constexpr std::size_t drops = 8;
  for (std::size_t drop = 1; drop <= drops; ++drop) {
    bool wrong = false;
    for (std::uint64_t seed = 1; seed <= 60 && !wrong; ++seed) {
      Schedule schedule(seed, SeededExecutor::Policy::random, {.streams = 3, .drop_wait = drop});
      wrong = on_sim(case_25(), true, true, schedule) != wanted;
    }
    noticed += wrong;
  }
  INFO("dropped waits that were noticed: ", noticed, " of ", drops);
  CHECK(noticed >= drops / 2);
}

}  // namespace
}  // namespace millrace
