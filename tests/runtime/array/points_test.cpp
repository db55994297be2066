// SPDX-License-Identifier: Apache-2.0
// Slots on streams: issued is not ready, watermarks, slabs (TensorArray::prepare, watermark).
#include <millrace/runtime/array/tensor_array.h>

#include <doctest/doctest.h>

#include <vector>

#include <millrace/runtime/array/slab.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/tensor/launch.h>
#include <support/drive.h>
#include <support/random.h>

namespace millrace {
namespace {

using testing::run_fifo;
using testing::Schedule;

/// out = in + 1 for one f32, on `stream`; `in` may be null: then 0.
void plus_one(const Tensor* in, Tensor out, StreamRef stream) {
  const Tensor from = in == nullptr ? Tensor() : *in;
  launch<1, 1>(
      {in}, {&out},
      [from, out](ThreadTeam&) {
        *static_cast<float*>(out.raw_mutable()) = (from.elements() == 0 ? 0.0f : *static_cast<const float*>(from.raw())) + 1.0f;
      },
      stream);
}

task<void> chain(TensorArray array, testing::SimDevice* device, std::int64_t slots, bool in_place) {
  for (std::int64_t t = 0; t < slots; ++t) {
    const StreamRef stream = device->stream(static_cast<std::size_t>(t));
    const Tensor out = in_place ? array.prepare(t, DType::f32, DDim{1}, stream) : Tensor(DType::f32, DDim{1}, stream.memory());
    if (t == 0) {
      plus_one(nullptr, out, stream);
    } else {
      SlotValue previous = co_await array.read(t - 1);
      plus_one(&previous.tensor(), out, stream);
    }
    array.write(t, out);
  }
}

task<float> last_of(TensorArray array, testing::SimDevice* device, std::int64_t slots, bool in_place) {
  task<void> loop = chain(array, device, slots, in_place);
  co_await std::move(loop);
  SlotValue last = co_await array.read(slots - 1);
  CHECK(!last.ready().reached());
  CHECK_THROWS_AS((void)last.tensor().item(), NotReadyError);
  co_await ready(last.ready());
  co_return static_cast<float>(last.tensor().item());
}

TEST_CASE("a slot is issued before it is ready, so that the next iteration enqueues behind it") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    Schedule schedule(seed, SeededExecutor::Policy::fifo, {.streams = 3});
    CHECK(schedule.run(last_of(TensorArray(20), &schedule.device, 20, seed % 2 == 0)) == 20.0f);
  }
  CHECK(live_frames() == 0);
}

task<void> write_awaited(TensorArray array, testing::SimDevice* device) {
  const StreamRef stream = device->stream(0);
  const Tensor out(DType::f32, DDim{1}, stream.memory());
  plus_one(nullptr, out, stream);
  CHECK(!out.ready().reached());
  co_await array.write(0, out);
  CHECK(out.ready().reached());
}

TEST_CASE("an awaited write is done when the slot's elements are there") {
  Schedule schedule(1);
  schedule.run(write_awaited(TensorArray(1), &schedule.device));
}

task<Tensor> chain_and_stack(TensorArray array, testing::SimDevice* device, std::int64_t slots) {
  task<void> loop = chain(array, device, slots, true);
  co_await std::move(loop);
  const StreamRef stream = device->stream(1);
  Tensor stacked = co_await array.stack(stream);
  co_await ready(stacked.ready());
  co_return stacked;
}

TEST_CASE("slots that were prepared lie in one slab, which stack hands out without a copy") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    Schedule schedule(seed, SeededExecutor::Policy::random, {.streams = 3});
    const TensorArray array(8);
    const Tensor stacked = schedule.run(chain_and_stack(array, &schedule.device, 8));
    CHECK(stacked.dims() == DDim{8, 1});
    CHECK(stacked.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(schedule.device.sim_memory().peak_bytes() == 32);
    CHECK(stacked.is_read_only());
  }
}

TEST_CASE("a slot of a slab has its own readiness and can be frozen alone") {
  testing::SimDevice device;
  const TensorArray array(2);
  Tensor first = array.prepare(0, DType::f32, DDim{1}, device.stream(0));
  Tensor second = array.prepare(1, DType::f32, DDim{1}, device.stream(0));
  CHECK(static_cast<const float*>(second.raw()) == static_cast<const float*>(first.raw()) + 1);
  plus_one(nullptr, first, device.stream(0));
  device.drain(0);
  plus_one(nullptr, second, device.stream(0));
  array.write(0, first);
  CHECK(first.ready().reached());
  CHECK(!second.ready().reached());
  CHECK(first.is_read_only());
  CHECK(!second.is_read_only());
  device.drain(0);
  CHECK(array.prepare(1, DType::f64, DDim{1}, device.stream(0)).dtype() == DType::f64);
  CHECK_THROWS_AS(array.prepare(2, DType::f32, DDim{1}, device.stream(0)), IndexError);
}

TEST_CASE("the watermark counts the slots that are there, in order") {
  const TensorArray array(3);
  CHECK(array.watermark(0).reached());
  array.write(1, Tensor::scalar(1.0f));
  CHECK(!array.watermark(1).reached());
  array.write(0, Tensor::scalar(1.0f));
  CHECK(array.watermark(2).reached());
  CHECK(!array.watermark(3).reached());
  CHECK(array.watermark(3).error() == nullptr);
  array.close();
  CHECK(array.watermark(3).error() != nullptr);
  CHECK(array.watermark(2).reached());
  CHECK_THROWS_AS(TensorArray::window(2).watermark(1), UnsupportedError);
}

TEST_CASE("the point of more slots than a fixed array has fails at once, and the others are reached all the same") {
  const Tensor rows = Tensor::from<float>({1, 2}).reshape({2, 1});
  const TensorArray written(2), filled(2), growable;
  written.write(0, rows);
  filled.fill(rows, {0, 1, 2});
  growable.write(0, rows);
  for (const TensorArray& array : {written, filled}) {
    CHECK_THROWS_AS(array.watermark(3).check(), IndexError);
    CHECK_THROWS_AS(array.watermark(-1).check(), IndexError);
    CHECK(array.watermark(1).reached());
  }
  CHECK(!written.watermark(2).reached());
  CHECK(written.watermark(2).error() == nullptr);
  written.write(1, rows);
  CHECK(written.watermark(2).reached());
  CHECK(!growable.watermark(3).reached());
  CHECK(growable.watermark(3).error() == nullptr);
}

TEST_CASE("memory for slots that no integer can number is refused, and many slots have memory of their own") {
  testing::SimDevice device;
  CHECK_THROWS_AS(TensorArray(2).prepare(0, DType::f32, DDim{std::int64_t{1} << 61}, device.stream(0)), OverflowError);
  CHECK_THROWS_AS(TensorArray(8).prepare(0, DType::f32, DDim{std::int64_t{1} << 61}, device.stream(0)), OverflowError);
  const TensorArray many(std::int64_t{1} << 40);
  const Tensor first = many.prepare(0, DType::f32, DDim{2}, device.stream(0));
  CHECK(first.storage()->bytes() == first.bytes());
}

/// Waits for the watermark alone, on a stream: the host reads no slot.
task<float> watermark_on_stream(TensorArray array, testing::SimDevice* device, testing::SimDevice* other, std::int64_t slots) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(chain(array, device, slots, true), "loop");
  const StreamRef stream = other->stream(0);
  float seen = 0;
  const Tensor last = array.prepare(slots - 1, DType::f32, DDim{1}, device->stream(0));
  stream.wait(array.watermark(slots));
  stream.enqueue([&seen, last](ThreadTeam&) { seen = *static_cast<const float*>(last.raw()); });
  co_await scope.join();
  co_await ready(stream.position());
  co_return seen;
}

TEST_CASE("a stream can wait for a watermark") {
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    Schedule schedule(seed, SeededExecutor::Policy::random, {.streams = 2});
    // The waiting stream is one of its own: behind its wait no iteration may be enqueued.
    testing::SimDevice other({.index = 1, .streams = 1});
    schedule.executor.add_source(other);
    CHECK(schedule.run(watermark_on_stream(TensorArray(5), &schedule.device, &other, 5)) == 5.0f);
    schedule.executor.remove_source(other);
  }
}

}  // namespace
}  // namespace millrace
