// SPDX-License-Identifier: Apache-2.0
#include <bench/families.h>
#include <bench/library/our_lstm.h>

#include <fmt/format.h>

#include <millrace/kernels/elementwise.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/device.h>

namespace millrace::bench {
namespace {

constexpr std::int64_t iterations = 2000;
constexpr std::int64_t chain = 16;
constexpr std::int64_t width = 64;

/// A loop of `iterations` iterations that counts, and adds to a carried f32[1, 64] `ops` times an iteration.
OurProgram counting_loop(std::int64_t ops) {
  Program program;
  build::Guard guard(program);
  build::Var n = build::input("n", VarType(DType::i64, {}));
  build::Var x = build::input("x", VarType(DType::f32, {1, width}));
  const build::Var delta = build::parameter("delta", random_tensor(DDim{1, width}, 1, 1e-3f));
  build::Var step = build::constant(0);
  {
    build::WhileLoop loop = build::while_loop({step, x});
    const auto frame = loop.frame();
    loop.break_if(equal(step, n));
    build::Var sum = x;
    for (std::int64_t i = 0; i < ops; ++i) sum = sum + delta;
    if (ops > 0) x.update(sum);
    step.update(step + 1);
  }
  build::output("x_out", x);
  build::output("iterations", step);
  return OurProgram(std::move(program), {{"n", Value(Tensor::scalar(iterations))}, {"x", Value(random_tensor(DDim{1, width}, 2))}}, 1,
                    Backend::interpreted);
}

/// The addition of such an iteration, called by itself.
Timer bare_addition() {
  const auto device = std::make_shared<CpuDevice>(1);
  const Tensor a = random_tensor(DDim{1, width}, 1), b = random_tensor(DDim{1, width}, 2);
  Tensor out(DType::f32, DDim{1, width});
  return timer_of([=]() mutable {
    for (int i = 0; i < 1000; ++i) add(a, b, out, device->stream(0));
  });
}

task<void> nothing() { co_return; }

task<void> spawn_many(std::int64_t count) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  for (std::int64_t i = 0; i < count; ++i) scope.spawn(nothing(), {});
  co_await scope.join();
}

task<double> spawns_for(double seconds) {
  constexpr std::int64_t count = 256;
  const double start = timer_seconds();
  std::int64_t tasks = 0;
  double passed = 0;
  while (passed < seconds) {
    task<void> work = spawn_many(count);
    co_await std::move(work);
    tasks += count;
    passed = timer_seconds() - start;
  }
  co_return passed / static_cast<double>(tasks);
}

/// `ours` may come from a difference of two timings: where noise was larger than what it is to show, the row says so.
void limit_row(Context& context, const std::string& shape, double limit, double ours) {
  Row row;
  row.id = "C8";
  row.shape = shape;
  row.peer_name = "goal";
  row.goal = 1;
  row.peer = limit;
  row.ours = ours;
  if (ours <= 0) row.note = fmt::format("not measured: lost in noise ({:.0f} ns)", ours * 1e9);
  context.emit(std::move(row));
}

}  // namespace

void measure_interpreted(Context& context) {
  const OurProgram empty = counting_loop(0), full = counting_loop(chain);
  // Differences: so both come from one set of iterations.
  const auto [empty_time, full_time] = by_iterations(empty.timer(), full.timer(), context.effort);
  const double addition = by_iterations(bare_addition(), nullptr, context.effort).first / 1000;
  const double op = (full_time - empty_time) / static_cast<double>(iterations * chain) - addition;
  limit_row(context, "an op of a loop's body, without its arithmetic", 300e-9, op);
  limit_row(context, "an empty iteration: counts, and asks whether to go on", 1e-6, empty_time / static_cast<double>(iterations));
  ThreadExecutor executor(1);
  const Timer spawns = [&executor](double seconds) { return sync_wait(executor, spawns_for(seconds), "spawns"); };
  limit_row(context, "spawn and join of a task", 50e-9, by_iterations(spawns, nullptr, context.effort).first);
}

}  // namespace millrace::bench
