// SPDX-License-Identifier: Apache-2.0
// Waiters for the steps of a kernel that goes on: streams of the device, the host, coroutines, slots of an array.
#include <millrace/tensor/watermark.h>

#include <doctest/doctest.h>

#include <gpu/spin.h>
#include <millrace/kernels/binary.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <support/test_place.h>

namespace millrace::testing {
namespace {

std::shared_ptr<Device> two_streams() { return make_device(Place::parse(test_place()), 1, 2); }

bool is_emulated() { return cuda_devices().front().name == "emulated"; }

std::vector<std::int64_t> integers(const Tensor& tensor) { return tensor.copy_to(CpuPlace{}).to_vector<std::int64_t>(); }

/// An array of the steps' stamps, each ready behind the watermark; and all of them, ready when the kernels have ended.
struct Producer {
  TensorArray slots;
  Tensor stamps;
  std::shared_ptr<Watermark> watermark;
};

Producer produce(const SteppedWork& work, StreamRef stream) {
  Producer made{TensorArray(work.steps), {}, stream.watermark(static_cast<std::uint64_t>(work.steps))};
  made.stamps = stepped(work, made.watermark, stream);
  std::vector<std::int64_t> offsets;
  for (std::int64_t t = 0; t <= work.steps; ++t) offsets.push_back(t);
  made.slots.fill(made.stamps, offsets, made.watermark);
  return made;
}

SteppedWork steps_of(std::int64_t milliseconds, std::int64_t a_launch = 8) {
  SteppedWork work;
  work.nanoseconds = milliseconds * 1'000'000;
  work.a_launch = a_launch;
  return work;
}

task<std::vector<Tensor>> consume(TensorArray slots, std::int64_t nanoseconds, std::vector<Tensor>* doubled, StreamRef stream) {
  std::vector<Tensor> made;
  for (std::int64_t t = 0; t < slots.size(); ++t) {
    SlotValue step = co_await slots.read(t);
    doubled->push_back(add(step.tensor(), step.tensor(), stream));
    made.push_back(spin(nanoseconds, &step.tensor(), stream));
  }
  co_return made;
}

task<void> await_point(Point point) { co_await ready(point); }

/// A span for each step that a coroutine saw, in which it read the step's stamps.
task<void> look(TensorArray slots, Tracer* tracer, std::vector<std::int64_t>* seen) {
  for (std::int64_t t = 0; t < slots.size(); ++t) {
    SlotValue step = co_await slots.read(t);
    co_await ready(step.ready());
    const TraceSpan span(tracer, "slot", "a step is there", 0, t);
    const std::vector<std::int64_t> stamps = integers(step.tensor());
    seen->insert(seen->end(), stamps.begin(), stamps.end());
  }
}

}  // namespace

TEST_CASE("another stream works on step t while the kernel that makes the steps is at t + 1, however many are a launch") {
  for (const std::int64_t a_launch : {8, 3}) {
    INFO(a_launch, " steps a launch");
    const auto device = two_streams();
    // The kernels are loaded: CUDA may wait for a device to load one.
    const Tensor loaded = produce(steps_of(0), device->stream(0)).stamps;
    add(loaded, loaded, device->stream(0)).ready().wait();
    spin(0, nullptr, device->stream(1)).ready().wait();
    ThreadExecutor executor(1);
    const SteppedWork work = steps_of(is_emulated() ? 20 : 2, a_launch);
    const Producer producer = produce(work, device->stream(0));
    std::vector<Tensor> doubled;
    const std::vector<Tensor> consumed = sync_wait(executor, consume(producer.slots, work.nanoseconds / 2, &doubled, device->stream(1)));
    const std::vector<std::int64_t> made = integers(producer.stamps);
    int overlaps = 0;
    for (std::size_t t = 0; t < consumed.size(); ++t) {
      const std::vector<std::int64_t> reader = integers(consumed[t]);
      CHECK(integers(doubled[t]) == std::vector<std::int64_t>{2 * made[2 * t], 2 * made[2 * t + 1]});
      CHECK(reader[0] >= made[2 * t + 1] - 100'000);  // the clock ticks coarsely
      if (t + 1 < consumed.size()) overlaps += reader[0] < made[2 * t + 3] && made[2 * t + 2] < reader[1] ? 1 : 0;
    }
    // Threads that stand for streams share the cores with whatever else runs here.
    CHECK(overlaps >= (is_emulated() ? 1 : static_cast<int>(work.steps) - 3));
  }
}

TEST_CASE("a coroutine sees a step's rows while the kernel goes on, and the trace shows it") {
  const auto device = two_streams();
  ThreadExecutor executor(1);
  Tracer tracer;
  std::vector<std::int64_t> seen;
  const SteppedWork work = steps_of(20);
  const Producer producer = produce(work, device->stream(0));
  {
    const TraceSpan span(&tracer, "kernel", "eight steps", 1);
    sync_wait(executor, look(producer.slots, &tracer, &seen));
    producer.stamps.ready().wait();
  }
  CHECK(seen == integers(producer.stamps));
  const Tracer::Event kernel = tracer.events("kernel").at(0);
  const std::vector<Tracer::Event> steps = tracer.events("slot");
  REQUIRE(steps.size() == 8);
  // It had seen the first of eight steps before the last one began.
  CHECK(steps[0].end_ns < kernel.end_ns - work.nanoseconds);
  CHECK(producer.slots.watermark(8).timeline() == producer.watermark);
}

TEST_CASE("the host waits for a step, and behind the stream of the kernel nobody does") {
  const auto device = two_streams();
  const Producer producer = produce(steps_of(5, 2), device->stream(0));
  const Tensor own = add(producer.slots.peek(7)->tensor(), producer.slots.peek(7)->tensor(), device->stream(0));
  for (const std::uint64_t t : {1, 4, 3, 8}) {
    Point(producer.watermark, t).wait();
    CHECK(producer.watermark->reached() >= t);
  }
  const std::vector<std::int64_t> made = integers(producer.stamps);
  CHECK(integers(own) == std::vector<std::int64_t>{2 * made[14], 2 * made[15]});
}

TEST_CASE("who waits for a kernel that was not started yet comes behind it once it was") {
  const auto device = two_streams();
  const auto gate = std::make_shared<Timeline>();
  device->stream(0).wait(Point(gate, 1));
  const Producer producer = produce(steps_of(1, 3), device->stream(0));
  const Tensor sum = add(producer.slots.peek(4)->tensor(), producer.slots.peek(4)->tensor(), device->stream(1));
  CHECK_FALSE(sum.ready().reached());
  gate->advance(1);
  const std::vector<std::int64_t> found = integers(sum);
  const std::vector<std::int64_t> made = integers(producer.stamps);
  CHECK(found == std::vector<std::int64_t>{2 * made[8], 2 * made[9]});
}

TEST_CASE("a word serves one watermark after another, and who waits gets the rows of its own") {
  const auto device = two_streams();
  std::vector<Tensor> sums;
  std::vector<Tensor> made;
  for (int i = 0; i < 300; ++i) {
    const Producer producer = produce(steps_of(0, 5), device->stream(static_cast<std::size_t>(i)));
    const Tensor last = producer.slots.peek(7)->tensor();
    sums.push_back(add(last, last, device->stream(static_cast<std::size_t>(i) + 1)));
    made.push_back(producer.stamps);
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::vector<std::int64_t> stamps = integers(made[i]);
    CHECK(integers(sums[i]) == std::vector<std::int64_t>{2 * stamps[14], 2 * stamps[15]});
  }
}

TEST_CASE("a fault of the stream, a point that fails before its kernel and the device's end reach whoever waits for a watermark") {
  ThreadExecutor executor(1);
  {
    const auto device = two_streams();
    const Tensor index(DType::i64, DDim{1}, device->stream(0).memory());
    copy(Tensor::from<std::int64_t>({7}), index, device->stream(0));
    static_cast<void>(gather(ones(DDim{3}, DType::f32, device->stream(0)), index, 0, device->stream(0)));
    const Producer producer = produce(steps_of(1), device->stream(0));
    CHECK_THROWS_WITH_AS(sync_wait(executor, await_point(Point(producer.watermark, 8))), doctest::Contains("found 7"), IndexError);
  }
  {
    const auto device = two_streams();
    const auto gate = std::make_shared<Timeline>();
    device->stream(0).wait(Point(gate, 1));
    const Producer producer = produce(steps_of(1), device->stream(0));
    const Tensor sum = add(producer.slots.peek(4)->tensor(), producer.slots.peek(4)->tensor(), device->stream(1));
    gate->fail(std::make_exception_ptr(IoError("the line is dead")));
    CHECK_THROWS_WITH_AS(Point(producer.watermark, 1).wait(), "the line is dead", IoError);
    CHECK_THROWS_WITH_AS(sum.ready().wait(), "the line is dead", IoError);
  }
  auto device = two_streams();
  const auto never = device->stream(0).watermark(3);
  device.reset();
  CHECK_THROWS_WITH_AS(Point(never, 3).wait(), doctest::Contains("behind step 0 of 3"), Error);
}

TEST_CASE("streams of the host say of no kernel how far it is") { CHECK(CpuDevice().stream(0).watermark(3) == nullptr); }

}  // namespace millrace::testing
