// SPDX-License-Identifier: Apache-2.0
// The bounded ring for endless input (TensorArray::window).
#include <millrace/runtime/array/tensor_array.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/tensor/launch.h>
#include <millrace/tensor/sanitized.h>
#include <support/drive.h>
#include <support/random.h>

namespace millrace {
namespace {

using testing::run_fifo;
using testing::Schedule;

/// Items live in `memory`, which counts what is held.
task<void> produce(TensorArray window, std::shared_ptr<MemoryResource> memory, std::int64_t items, std::int64_t* written,
                   std::int64_t* read, std::int64_t* most_unread) {
  for (std::int64_t i = 0; i < items; ++i) {
    Tensor item(DType::i64, DDim{}, memory);
    *item.mutable_data<std::int64_t>() = i;
    co_await window.append(item);
    ++*written;
    *most_unread = std::max(*most_unread, *written - *read);
  }
  window.close();
}

task<void> consume(TensorArray window, std::int64_t* read) {
  for (;;) {
    const bool more = co_await window.has(*read);
    if (!more) break;
    SlotValue value = co_await window.read(*read);
    if (value.tensor().item_int() != *read) FAIL("item " << value.tensor().item_int() << " in slot " << *read);
    ++*read;
  }
}

task<void> pump(TensorArray window, std::shared_ptr<MemoryResource> memory, std::int64_t items, std::int64_t* read,
                std::int64_t* most_unread) {
  TaskInfo& me = co_await this_task::info();
  std::int64_t written = 0;
  Scope scope(me);
  scope.spawn(produce(window, memory, items, &written, read, most_unread), "producer");
  scope.spawn(consume(window, read), "consumer");
  co_await scope.join();
}

TEST_CASE("a window of capacity 4 keeps the order of a million items and suspends its writer when 4 are unread") {
  std::int64_t read = 0;
  std::int64_t most_unread = 0;
  const auto memory = std::make_shared<testing::SimMemory>(0);
  const TensorArray window = TensorArray::window(4).named("audio");
  constexpr std::int64_t items = sanitized ? 20'000 : 1'000'000;
  run_fifo(pump(window, memory, items, &read, &most_unread));
  CHECK(read == items);
  CHECK(most_unread == 4);
  CHECK(window.size() == items);
  CHECK(memory->peak_bytes() <= 7 * sizeof(std::int64_t));  // 4 unread, one parked, one in each hand
  CHECK(memory->live_bytes() == 0);
  CHECK(live_frames() == 0);
}

TEST_CASE("a window keeps its order and its bound under every schedule") {
  for (const std::uint64_t seed : testing::seeds(300)) {
    INFO("seed ", seed);
    std::int64_t read = 0;
    std::int64_t most_unread = 0;
    Schedule schedule(seed, seed % 2 == 0 ? SeededExecutor::Policy::random : SeededExecutor::Policy::pct);
    schedule.run(pump(TensorArray::window(1 + static_cast<std::int64_t>(seed % 5)), host_memory(), 50, &read, &most_unread));
    CHECK(read == 50);
    CHECK(most_unread <= 1 + static_cast<std::int64_t>(seed % 5));
  }
}

task<void> produce_on(TensorArray window, std::int64_t items, StreamRef stream) {
  for (std::int64_t i = 0; i < items; ++i) {
    Tensor value(DType::i64, DDim{1024}, stream.memory());
    launch<0, 1>({}, {&value}, [value, i](ThreadTeam&) { *static_cast<std::int64_t*>(value.raw_mutable()) = i; }, stream);
    co_await window.append(value);
  }
  window.close();
}

/// Adds what it reads to `sum`, on its own stream: never waits for the device.
task<void> sum_on(TensorArray window, Tensor sum, StreamRef stream) {
  for (std::int64_t i = 0;; ++i) {
    const bool more = co_await window.has(i);
    if (!more) break;
    SlotValue value = co_await window.read(i);
    const Tensor& item = value.tensor();
    launch<1, 1>(
        {&item}, {&sum},
        [item, sum](ThreadTeam&) { *static_cast<std::int64_t*>(sum.raw_mutable()) += *static_cast<const std::int64_t*>(item.raw()); },
        stream);
  }
}

task<void> device_pump(TensorArray window, Tensor sum, StreamRef first, StreamRef second) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(produce_on(window, 500, first), "producer");
  scope.spawn(sum_on(window, sum, second), "consumer");
  co_await scope.join();
}

TEST_CASE("a window bounds what is queued on a device that lags behind the tasks") {
  for (const std::uint64_t seed : testing::seeds(20)) {
    INFO("seed ", seed);
    Schedule schedule(seed);
    Tensor sum(DType::i64, DDim{}, schedule.device.memory());
    *static_cast<std::int64_t*>(sum.raw_mutable()) = 0;
    sum.storage()->mark_written();
    schedule.run(device_pump(TensorArray::window(4), sum, schedule.device.stream(0), schedule.device.stream(1)));
    CHECK(sum.item_int() == 500 * 499 / 2);
    // 4 slots that are not yet there, one parked, and those whose elements are there but were not yet added.
    CHECK(schedule.device.sim_memory().peak_bytes() < 300 * 8192);
    CHECK(schedule.device.sim_memory().live_bytes() == 8);
  }
  CHECK(live_frames() == 0);
}

task<void> read_twice(TensorArray window) {
  window.append(Tensor::scalar(1.0f));
  SlotValue first = co_await window.read(0);
  SlotValue again = co_await window.read(0);
}

TEST_CASE("a slot leaves its window after as many readings as it has readers") {
  CHECK_THROWS_AS(run_fifo(read_twice(TensorArray::window(2))), WindowError);
  run_fifo(read_twice(TensorArray::window(2, 2)));
  CHECK_THROWS_AS(TensorArray::window(-1), ArgumentError);
  CHECK_THROWS_AS(TensorArray::window(1, 0), ArgumentError);
}

task<void> never_awaits(TensorArray window) {
  for (int i = 0; i < 3; ++i) window.append(Tensor::scalar(1.0f));
  for (int i = 0; i < 3; ++i) SlotValue value = co_await window.read(i);
}

TEST_CASE("a write to a full window whose result is dropped fails by name") {
  std::string what;
  try {
    run_fifo(never_awaits(TensorArray::window(2).named("audio")));
  } catch (const WindowError& error) {
    what = error.what();
  }
  INFO(what);
  CHECK(what.find("slot 2 of window 'audio' (capacity 2") != std::string::npos);
  CHECK(what.find("await the result") != std::string::npos);
}

task<void> fill_only(TensorArray window) {
  for (int i = 0; i < 5; ++i) co_await window.append(Tensor::scalar(1.0f));
}

TEST_CASE("a window that nobody reads is a deadlock that names window, capacity and slot") {
  std::string what;
  try {
    run_fifo(fill_only(TensorArray::window(2).named("audio")), "producer");
  } catch (const DeadlockError& error) {
    what = error.what();
  }
  INFO(what);
  CHECK(what.find("room for slot 2 in window 'audio' (capacity 2") != std::string::npos);
  CHECK(what.find("'producer'") != std::string::npos);
  CHECK(live_frames() == 0);
}

task<void> cancelled_pump(TensorArray window) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  std::int64_t counts[3] = {};
  scope.spawn(produce(window, host_memory(), 100, &counts[0], &counts[1], &counts[2]), "producer");
  co_await this_task::yield();
  co_await this_task::yield();
  scope.cancel();
  co_await scope.join();
}

TEST_CASE("a writer that waits for room can be cancelled") {
  const TensorArray window = TensorArray::window(2);
  run_fifo(cancelled_pump(window));
  CHECK(window.state(1) == SlotState::written);
  CHECK(window.state(2) == SlotState::empty);
  CHECK(live_frames() == 0);
}

/// Its run waits for somebody outside.
task<> append_held(TensorArray window, float value) {
  TaskInfo& me = co_await this_task::info();
  const ExternalHold hold(me.run());
  SlotWrite write = window.append(Tensor::scalar(value));
  co_await write;
}
task<double> read_held(TensorArray window, std::int64_t index) {
  TaskInfo& me = co_await this_task::info();
  const ExternalHold hold(me.run());
  SlotRead read = window.read(index);
  SlotValue value = co_await read;
  co_return value.tensor().item();
}
task<bool> has_held(TensorArray window, std::int64_t index) {
  TaskInfo& me = co_await this_task::info();
  const ExternalHold hold(me.run());
  SlotHas has = window.has(index);
  const bool there = co_await has;
  co_return there;
}

TEST_CASE("the slot of a cancelled append goes to the append behind it") {
  for (const std::int64_t capacity : {0, 1, 2}) {
    INFO("capacity ", capacity);
    SeededExecutor executor(0, SeededExecutor::Policy::fifo);
    const TensorArray window = TensorArray::window(capacity);
    std::vector<Running<void>> writes;
    for (std::int64_t i = 0; i < capacity + 3; ++i) {
      writes.push_back(start_run(executor, append_held(window, static_cast<float>(i)), "writer"));
      executor.run();
    }
    CHECK(window.size() == capacity + 3);
    writes[static_cast<std::size_t>(capacity)].cancel();  // the first that waits
    executor.run();
    CHECK_THROWS_AS(writes[static_cast<std::size_t>(capacity)].get(), CancelledError);
    CHECK(window.size() == capacity + 2);
    for (std::int64_t i = 0; i < capacity + 2; ++i) {
      Running<double> read = start_run(executor, read_held(window, i), "reader");
      executor.run();
      CHECK(read.get() == static_cast<double>(i < capacity ? i : i + 1));
    }
    for (std::int64_t i = 0; i < capacity + 3; ++i)
      if (i != capacity) writes[static_cast<std::size_t>(i)].get();
    Running<double> read = start_run(executor, read_held(window, capacity + 2), "reader");
    Running<void> write = start_run(executor, append_held(window, 9), "writer");
    executor.run();
    CHECK(read.get() == 9);
    write.get();
  }
  CHECK(live_frames() == 0);
}

TEST_CASE("an append of a task that was cancelled before leaves its window as it was") {
  SeededExecutor executor(0, SeededExecutor::Policy::fifo);
  const TensorArray window = TensorArray::window(1);
  Running<void> first = start_run(executor, append_held(window, 1), "writer");
  executor.run();
  first.get();
  Running<void> cancelled = start_run(executor, append_held(window, 2), "writer");
  cancelled.cancel();
  executor.run();
  CHECK_THROWS_AS(cancelled.get(), CancelledError);
  CHECK(window.size() == 1);
  Running<void> later = start_run(executor, append_held(window, 3), "writer");
  for (const double expected : {1.0, 3.0}) {
    Running<double> read = start_run(executor, read_held(window, expected == 1 ? 0 : 1), "reader");
    executor.run();
    CHECK(read.get() == expected);
  }
  later.get();
}

TEST_CASE("a reader learns of the end of a closed window when the last append is cancelled") {
  SeededExecutor executor(0, SeededExecutor::Policy::fifo);
  const TensorArray window = TensorArray::window(1);
  std::vector<Running<void>> writes;
  for (int i = 0; i < 2; ++i) writes.push_back(start_run(executor, append_held(window, 1), "writer"));
  executor.run();
  window.close();
  Running<bool> there = start_run(executor, has_held(window, 1), "reader");
  executor.run();
  writes[1].cancel();
  executor.run();
  CHECK_FALSE(there.get());
  CHECK_THROWS_AS(writes[1].get(), CancelledError);
  writes[0].get();
}

/// Both sides count what they have done, and each finds where the other one is.
task<void> offer(TensorArray window, std::int64_t items, std::int64_t* offered, const std::int64_t* taken, bool* apart) {
  for (std::int64_t i = 0; i < items; ++i) {
    co_await window.append(Tensor::scalar(static_cast<float>(i)));
    *apart = *apart || *taken < i + 1;  // a write is done when its slot was read
    *offered = i + 1;
  }
  window.close();
}

task<void> accept(TensorArray window, std::int64_t* taken, const std::int64_t* offered, bool* apart) {
  for (;; ++*taken) {
    const bool more = co_await window.has(*taken);
    if (!more) break;
    *apart = *apart || *offered < *taken;  // no write runs ahead
    SlotValue value = co_await window.read(*taken);
    *apart = *apart || value.tensor().item() != static_cast<double>(*taken);
  }
}

task<void> meet(TensorArray window, std::int64_t items, std::int64_t* offered, std::int64_t* taken, bool* apart) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(offer(window, items, offered, taken, apart), "producer");
  scope.spawn(accept(window, taken, offered, apart), "consumer");
  co_await scope.join();
}

TEST_CASE("a window of capacity 0 is a rendezvous: each write is done when its slot was read, under every schedule") {
  for (const std::uint64_t seed : testing::seeds(200)) {
    INFO("seed ", seed);
    Schedule schedule(seed);
    std::int64_t offered = 0;
    std::int64_t taken = 0;
    bool apart = false;
    schedule.run(meet(TensorArray::window(0), 20, &offered, &taken, &apart));
    CHECK(offered == 20);
    CHECK(taken == 20);
    CHECK_FALSE(apart);
  }
  CHECK(live_frames() == 0);
}

TEST_CASE("a rendezvous that nobody reads is a deadlock that names the slot") {
  std::string what;
  try {
    run_fifo(fill_only(TensorArray::window(0).named("audio")), "producer");
  } catch (const DeadlockError& error) {
    what = error.what();
  }
  INFO(what);
  CHECK(what.find("slot 0 in window 'audio' (capacity 0") != std::string::npos);
}

task<void> write_until_cancelled(TensorArray window, bool* cancelled) {
  try {
    co_await window.append(Tensor::scalar(2.0f));
  } catch (const CancelledError&) {
    *cancelled = true;
    throw;
  }
}

/// Slot 0 is read between the cancellation of the writer of slot 1, which waits for its room, and the writer's turn.
task<void> read_behind_cancellation(TensorArray window, bool* cancelled) {
  TaskInfo& me = co_await this_task::info();
  const auto kept = window.writer(me, "main");
  co_await window.append(Tensor::scalar(1.0f));
  Scope scope(me);
  scope.spawn(write_until_cancelled(window, cancelled), "writer");
  co_await this_task::yield();
  co_await this_task::yield();
  scope.cancel();
  co_await window.read(0);
  try {
    co_await scope.join();
  } catch (const CancelledError&) {
  }
}

TEST_CASE("a write that is cancelled is either withdrawn or written, and its writer hears which") {
  const TensorArray window = TensorArray::window(1);
  bool cancelled = false;
  run_fifo(read_behind_cancellation(window, &cancelled));
  CHECK(cancelled == (window.state(1) != SlotState::written));
  CHECK(live_frames() == 0);
}

TEST_CASE("a rendezvous whose writer is cancelled withdraws its offer") {
  const TensorArray window = TensorArray::window(0);
  run_fifo(cancelled_pump(window));
  CHECK(window.state(0) == SlotState::empty);
  CHECK(live_frames() == 0);
}

task<void> write_by_name(TensorArray window, int* done) {
  auto first = window.append(Tensor::from<float>({1}));
  co_await std::move(first);
  auto second = window.append(Tensor::from<float>({2}));
  co_await second;
  *done = 1;
}
task<void> read_two(TensorArray window) {
  co_await window.read(0);
  co_await window.read(1);
}
task<void> write_and_read(TensorArray window, int* done) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(write_by_name(window, done), "writer");
  scope.spawn(read_two(window), "reader");
  co_await scope.join();
}

TEST_CASE("the result of a write is awaited by name, moved or not") {
  int done = 0;
  run_fifo(write_and_read(TensorArray::window(1), &done));
  CHECK(done == 1);
}

}  // namespace
}  // namespace millrace
