// SPDX-License-Identifier: Apache-2.0 Programs that others write over arrays: nested loops, loops that read each other's previous iteration,
// reads before writes, cancellation at any point. Each over many seeded schedules: the same bits, nothing left behind.
#include <millrace/runtime/array/tensor_array.h>

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/tensor/launch.h>
#include <support/drive.h>
#include <support/random.h>

namespace millrace {
namespace {

using testing::Schedule;
using testing::SimDevice;
using Values = std::vector<float>;

Tensor constant(float value, StreamRef stream) {
  Tensor out(DType::f32, DDim{1}, stream.memory());
  launch<0, 1>({}, {&out}, [out, value](ThreadTeam&) { *static_cast<float*>(out.raw_mutable()) = value; }, stream);
  return out;
}

/// a·0.6 + b·0.3 + 1.
Tensor blend(const Tensor& a, const Tensor& b, StreamRef stream) {
  Tensor out(DType::f32, DDim{1}, stream.memory());
  launch<2, 1>(
      {&a, &b}, {&out},
      [a, b, out](ThreadTeam&) {
        *static_cast<float*>(out.raw_mutable()) =
            *static_cast<const float*>(a.raw()) * .6f + *static_cast<const float*>(b.raw()) * .3f + 1.f;
      },
      stream);
  return out;
}

StreamRef stream_of(SimDevice* device, std::int64_t number) { return device->stream(static_cast<std::size_t>(number)); }

task<Values> on_host(TensorArray array, StreamRef stream) {
  LoDTensor all = co_await array.concat(stream);
  co_await ready(all.ready());
  co_return all.tensor().to_vector<float>();
}

// ---- Two loops that read each other's previous iteration ----

constexpr std::int64_t iterations = 8;

task<void> mutual(TensorArray mine, TensorArray other, std::int64_t lane, SimDevice* device) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = mine.writer(me, mine.name());
  const LoDTensor boot(constant(static_cast<float>(lane), stream_of(device, lane)));
  for (std::int64_t t = 0; t < iterations; ++t) {
    const StreamRef stream = stream_of(device, t + lane);
    SlotValue own = co_await mine.read(t - 1, boot, stream);
    SlotValue theirs = co_await other.read(t - 1, boot, stream);
    writer.write(t, blend(own.tensor(), theirs.tensor(), stream));
  }
}

task<Values> two_loops(SimDevice* device) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray a = TensorArray(iterations).named("a");
  const TensorArray b = TensorArray(iterations).named("b");
  scope.spawn(mutual(a, b, 0, device), "loop a");
  scope.spawn(mutual(b, a, 1, device), "loop b");
  co_await scope.join();
  Values values = co_await on_host(a, stream_of(device, 0));
  const Values more = co_await on_host(b, stream_of(device, 1));
  values.insert(values.end(), more.begin(), more.end());
  co_return values;
}

Values in_order(task<Values> (*program)(SimDevice*)) {
  Schedule schedule(0, SeededExecutor::Policy::fifo, {.streams = 1});
  return schedule.run(program(&schedule.device));
}

/// The program over `count` seeds: bits of the single stream each time. Gives the number of distinct traces.
std::size_t over_seeds(task<Values> (*program)(SimDevice*), std::uint64_t count) {
  const Values wanted = in_order(program);
  std::set<std::uint64_t> traces;
  for (const std::uint64_t seed : testing::seeds(count)) {
    INFO("seed ", seed);
    Schedule schedule(seed, seed % 2 == 0 ? SeededExecutor::Policy::random : SeededExecutor::Policy::pct, {.streams = 2});
    const Values found = schedule.run(program(&schedule.device));
    CHECK(found == wanted);
    CHECK(schedule.device.idle());
    traces.insert(schedule.executor.trace_hash());
  }
  CHECK(live_frames() == 0);
  return traces.size();
}

TEST_CASE("two loops that read each other's previous iteration give equal bits over 1000 seeds and more than 100 traces") {
  const std::size_t traces = over_seeds(two_loops, 1000);
  if (testing::seeds(1000).size() == 1000) CHECK(traces >= 100);
}

TEST_CASE("a seed replays to the same trace") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Schedule first(seed);
    Schedule second(seed);
    CHECK(first.run(two_loops(&first.device)) == second.run(two_loops(&second.device)));
    CHECK(first.executor.trace_hash() == second.executor.trace_hash());
    CHECK(first.executor.decisions() == second.executor.decisions());
  }
}

// ---- Nested loops ----

/// An inner loop of its own arrays for each iteration of the outer one; the outer state is the inner loop's last.
task<Tensor> inner_loop(Tensor from, std::int64_t count, SimDevice* device) {
  const TensorArray inner = TensorArray(count).named("inner");
  const LoDTensor boot(from);
  for (std::int64_t t = 0; t < count; ++t) {
    const StreamRef stream = stream_of(device, t);
    SlotValue last = co_await inner.read(t - 1, boot, stream);
    inner.write(t, blend(last.tensor(), from, stream));
  }
  SlotValue last = co_await inner.read(count - 1, boot, stream_of(device, 0));
  co_return last.tensor();
}

task<void> outer_iteration(TensorArray outer, std::int64_t t, SimDevice* device) {
  const StreamRef stream = stream_of(device, t);
  const LoDTensor boot(constant(2, stream));
  SlotValue last = co_await outer.read(t - 1, boot, stream);
  const Tensor state = co_await inner_loop(last.tensor(), t % 3, device);
  outer.write(t, state);
}

task<Values> nested(SimDevice* device) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray outer = TensorArray(6).named("outer");
  for (std::int64_t t = 5; t >= 0; --t) scope.spawn(outer_iteration(outer, t, device), "outer iteration " + std::to_string(t));
  co_await scope.join();
  Values values = co_await on_host(outer, stream_of(device, 1));
  co_return values;
}

TEST_CASE("nested loops, the outer one as a task for each iteration, give equal bits under every schedule") {
  const std::size_t traces = over_seeds(nested, 300);
  if (testing::seeds(300).size() == 300) CHECK(traces >= 100);
}

// ---- Cancellation at random points ----

enum class End { done, cancelled };

End cancelled_after(std::int64_t decisions, Schedule& schedule) {
  Running<Values> running = start_run(schedule.executor, two_loops(&schedule.device), "cancelled");
  for (; decisions > 0 && schedule.executor.step();) --decisions;
  running.cancel();
  schedule.executor.run();
  CHECK(running.ended());
  try {
    static_cast<void>(running.get());
  } catch (const CancelledError&) {
    return End::cancelled;
  }
  return End::done;
}

TEST_CASE("a run that is cancelled at any point ends at once and leaves no frame, no memory and no work") {
  std::size_t cancelled = 0;
  std::size_t done = 0;
  for (const std::uint64_t seed : testing::seeds(500)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    Schedule schedule(seed);
    const End end = cancelled_after(random.between(0, 150), schedule);
    (end == End::cancelled ? cancelled : done) += 1;
    schedule.device.drain(seed);
    CHECK(live_frames() == 0);
    CHECK(schedule.device.sim_memory().live_bytes() == 0);
    CHECK(schedule.device.idle());
  }
  if (testing::seeds(500).size() == 500) {
    CHECK(cancelled > 50);
    CHECK(done > 10);
  }
}

// ---- Early reads ----

task<void> late_reader(TensorArray array, std::int64_t t, Values* seen) {
  SlotValue value = co_await array.read(t);
  co_await ready(value.ready());
  (*seen)[static_cast<std::size_t>(t)] = static_cast<float>(value.tensor().item());
}

task<Values> early_reads(SimDevice* device) {
  TaskInfo& me = co_await this_task::info();
  Values seen(12);
  Scope scope(me);
  const TensorArray array = TensorArray::growable().named("growing");
  for (std::int64_t t = 11; t >= 0; --t) scope.spawn(late_reader(array, t, &seen), "reader");
  for (int i = 0; i < 3; ++i) co_await this_task::yield();
  for (std::int64_t t = 0; t < 12; ++t) array.write((t * 5) % 12, constant(static_cast<float>((t * 5) % 12), stream_of(device, t)));
  co_await scope.join();
  co_return seen;
}

TEST_CASE("readers that come before their slots are written all get their own slot") {
  over_seeds(early_reads, 200);
  CHECK(in_order(early_reads) == Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
}

// ---- A failure inside a loop ----

task<void> failing(TensorArray array) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = array.writer(me, "failing loop");
  writer.write(0, Tensor::scalar(1.0f));
  co_await this_task::yield();
  throw ShapeError("iteration 1: rows do not fit");
}

task<void> with_failure(TensorArray array) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(failing(array), "failing loop");
  Values seen(3);
  scope.spawn(late_reader(array, 2, &seen), "reader");
  co_await scope.join();
}

TEST_CASE("an error in a writer is what the run ends with, or the slot that it left unwritten") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    Schedule schedule(seed);
    std::string what;
    try {
      schedule.run(with_failure(TensorArray(3).named("states")));
    } catch (const Error& error) {
      what = error.what();
    }
    CHECK((what.find("iteration 1") != std::string::npos || what.find("'failing loop'") != std::string::npos));
    CHECK(live_frames() == 0);
  }
}

}  // namespace
}  // namespace millrace
