// SPDX-License-Identifier: Apache-2.0
// One array, tasks on several threads.
#include <millrace/runtime/array/tensor_array.h>

#include <doctest/doctest.h>

#include <string>

#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/device.h>

namespace millrace {
namespace {

task<void> produce(TensorArray to, std::int64_t items) {
  for (std::int64_t i = 0; i < items; ++i) co_await to.append(Tensor::scalar(i));
  to.close();
}

task<void> add_up(TensorArray from, std::int64_t* sum) {
  for (std::int64_t i = 0;; ++i) {
    const bool more = co_await from.has(i);
    if (!more) break;
    SlotValue value = co_await from.read(i);
    *sum += value.tensor().item_int();
  }
}

task<void> pass_on(TensorArray from, TensorArray to) {
  for (std::int64_t i = 0;; ++i) {
    const bool more = co_await from.has(i);
    if (!more) break;
    SlotValue value = co_await from.read(i);
    co_await to.append(value);
  }
  to.close();
}

task<void> between_threads(TensorArray first, TensorArray second, Executor* other, std::int64_t* sum) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(produce(first, 2000), "producer");
  scope.spawn_on(*other, pass_on(first, second), "pass on");
  scope.spawn(add_up(second, sum), "sum");
  co_await scope.join();
}

TEST_CASE("windows and open arrays carry items between tasks of several threads") {
  ThreadExecutor several(3);
  ThreadExecutor one(1);
  for (int i = 0; i < 5; ++i) {
    std::int64_t sum = 0;
    sync_wait(several, between_threads(TensorArray::window(3), TensorArray::growable(), &one, &sum));
    CHECK(sum == 2000 * 1999 / 2);
    sum = 0;
    sync_wait(several, between_threads(TensorArray::growable(), TensorArray::window(1), &one, &sum));
    CHECK(sum == 2000 * 1999 / 2);
  }
}

task<void> iteration(TensorArray array, std::int64_t t) {
  const LoDTensor boot(Tensor::scalar<std::int64_t>(0));
  CpuDevice cpu;
  SlotValue last = co_await array.read(t - 1, boot, cpu.stream(0));
  array.write(t, Tensor::scalar(last.tensor().item_int() + t));
}

task<std::int64_t> iterations(std::int64_t count) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray array(count);
  for (std::int64_t t = count - 1; t >= 0; --t) scope.spawn(iteration(array, t), "iteration");
  SlotValue last = co_await array.read(count - 1);
  co_await scope.join();
  co_return last.tensor().item_int();
}

TEST_CASE("iterations that run on several threads are put in order by their slots") {
  ThreadExecutor several(3);
  for (int i = 0; i < 20; ++i) CHECK(sync_wait(several, iterations(200)) == 200 * 199 / 2);
}

task<void> circle(TensorArray mine, TensorArray other) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = mine.writer(me, mine.name());
  SlotValue value = co_await other.read(0);
  writer.write(0, value);
}

task<void> circles() {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  TensorArray arrays[4];
  for (int i = 0; i < 4; ++i) arrays[i] = TensorArray(1).named(std::to_string(i));
  for (int i = 0; i < 4; ++i) scope.spawn(circle(arrays[i], arrays[(i + 1) % 4]), arrays[i].name());
  co_await scope.join();
}

TEST_CASE("a circle of waits is found on several threads") {
  ThreadExecutor several(3);
  for (int i = 0; i < 50; ++i) CHECK_THROWS_AS(sync_wait(several, circles()), DeadlockError);
}

task<void> cancelled_by_other(TensorArray window) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  std::int64_t sum = 0;
  scope.spawn(produce(window, 1'000'000'000), "producer");
  scope.spawn(add_up(window, &sum), "sum");
  co_await scope.join();
}

TEST_CASE("a run over a window is cancelled from another thread") {
  ThreadExecutor several(2);
  for (int i = 0; i < 20; ++i) {
    Running<void> running = start_run(several, cancelled_by_other(TensorArray::window(2)));
    running.cancel();
    CHECK_THROWS_AS(running.get(), CancelledError);
  }
}

}  // namespace
}  // namespace millrace
