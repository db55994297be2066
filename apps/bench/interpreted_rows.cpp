// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <optional>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <bench/library/python_peer.h>

#include <millrace/kernels/elementwise.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/error.h>

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

boost::asio::awaitable<void> nothing_of_asio() { co_return; }

/// A coroutine of Asio's for each task, and its completion.
Timer spawns_of_asio() {
  constexpr int count = 256;
  const auto context = std::make_shared<boost::asio::io_context>(1);
  const Timer all = timer_of([context] {
    int done = 0;
    for (int i = 0; i < count; ++i)
      boost::asio::co_spawn(*context, nothing_of_asio(), [&done](const std::exception_ptr& error) { done += error == nullptr ? 1 : 0; });
    context->restart();
    context->run();
    if (done != count) throw IoError("co_spawn lost a task");
  });
  return [all](double seconds) { return all(seconds) / count; };
}

/// `ours` and the peer's may come from differences of two timings: where noise was larger than what they are to show, the row says so.
void times_row(Context& context, const std::string& shape, double ours, const std::string& peer, double goal, std::optional<double> theirs,
               const std::string& note) {
  Row row;
  row.id = "C8";
  row.shape = shape;
  row.peer_name = peer;
  row.goal = goal;
  row.peer = theirs;
  row.ours = ours;
  row.note = note;
  if (ours <= 0 || (theirs && *theirs <= 0)) row.note = fmt::format("not measured: lost in noise ({:.0f} ns)", ours * 1e9);
  context.emit(std::move(row));
}

std::optional<double> seconds_of(const Context& context, const PythonPeer& peer, double calls) {
  if (!peer.timer) return std::nullopt;
  return by_iterations(peer.timer, nullptr, context.effort).first / calls;
}

}  // namespace

void measure_interpreted(Context& context) {
  const OurProgram empty = counting_loop(0), full = counting_loop(chain);
  // Differences: so both come from one set of iterations.
  const auto [empty_time, full_time] = by_iterations(empty.timer(), full.timer(), context.effort);
  const double addition = by_iterations(bare_addition(), nullptr, context.effort).first / 1000;
  const double op = (full_time - empty_time) / static_cast<double>(iterations * chain) - addition;
  const PythonPeer torch = make_python_peer(context.python, "eager PyTorch", {"torch_op", "1000"});
  times_row(context, "an op of a loop's body, without its arithmetic", op, torch.name + ", an op on one element", 4,
            seconds_of(context, torch, 1000), torch.note);
  const PythonPeer loop = make_python_peer(context.python, "ONNX Runtime", {"onnx_loop", std::to_string(iterations)});
  times_row(context, "an empty iteration: counts, and asks whether to go on", empty_time / static_cast<double>(iterations),
            loop.name + ", an iteration of Loop", 5, seconds_of(context, loop, static_cast<double>(iterations)), loop.note);
  ThreadExecutor executor(1);
  const Timer spawns = [&executor](double seconds) { return sync_wait(executor, spawns_for(seconds), "spawns"); };
  const auto [ours, asio] = by_iterations(spawns, spawns_of_asio(), context.effort);
  times_row(context, "spawn and join of a task", ours, "asio::co_spawn and its completion", 5, asio, "");
}

}  // namespace millrace::bench
