// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <bench/library/python_peer.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/program/straight_program.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/when_all.h>
#include <millrace/streaming/live/live_model.h>
#include <support/scratch_folder.h>

namespace millrace::bench {
namespace {

constexpr std::int64_t units = 64, lstm_units = 128;

/// tanh(x W + h W), one row.
Program one_step() {
  Program program;
  build::Guard guard(program);
  const VarType row(DType::f32, {1, units});
  const build::Var w = build::parameter("w", random_tensor(DDim{units, units}, 1, 0.1f));
  build::output("y", build::tanh(build::matmul(build::input("x", row), w) + build::matmul(build::input("h", row), w)));
  return program;
}

task<void> turns(const LiveModel& model, std::vector<float> row, std::int64_t steps) {
  const LiveSession session = co_await model.open();
  for (std::int64_t i = 0; i < steps; ++i) {
    co_await session.push<float>(row);
    co_await session.next();
  }
}

task<void> all_turns(const LiveModel& model, std::int64_t sessions, std::int64_t steps) {
  std::vector<task<void>> each;
  for (std::int64_t i = 0; i < sessions; ++i) each.push_back(turns(model, std::vector<float>(lstm_units, 0.5f), steps));
  co_await when_all(std::move(each));
}

/// This library in the interpreter of --python: the package of the build folder, else an installed one. `peer` is the same in C++, to which `allowance` seconds are added.
void emit_binding(Context& context, Row row, const std::vector<std::string>& set_up, const Timer& peer, double allowance = 0) {
  const PythonPeer ours = make_python_peer(context.python, "this library in Python", set_up);
  if (!ours.timer) {
    row.note = ours.note;
    context.emit(std::move(row));
    return;
  }
  row.note = ours.name;
  emit_pair(context, std::move(row), ours.timer, [&](double seconds) { return peer(seconds) + allowance; }, "");
}

void call_rows(Context& context, const app::ScratchFolder& folder, const std::string& package) {
  const Program program = one_step();
  save_program(program, folder / "one_step.mr");
  const StraightProgram straight(program);
  const std::vector<Value> inputs(2, Value(LoDTensor(random_tensor(DDim{1, units}, 2, 1))));
  const Timer peer = timer_of([&] { straight.run(inputs); });
  for (const char* const kind : {"Tensors", "NumPy arrays"}) {
    Row row;
    row.id = "Python";
    row.shape = fmt::format("a call of one step of {} units with {}", units, kind);
    row.peer_name = "our C++, and 3 us";
    row.goal = 1;
    emit_binding(context, row, {"millrace_call", package, folder / "one_step.mr", std::to_string(units), kind}, peer, 3e-6);
  }
}

void live_rows(Context& context, const app::ScratchFolder& folder, const std::string& package) {
  const Program program = lstm_program(make_problem(lstm_units, {1}));
  save_program(program, folder / "lstm.mr");
  const std::int64_t sessions = 64, steps = context.quick ? 5 : 50;
  RuntimeOptions options;
  options.threads = 1;  // as many as asyncio has
  Runtime runtime(options);
  const LiveModel model(runtime, program);
  const Timer peer = timer_of([&] { sync_wait(runtime.executor(), all_turns(model, sessions, steps)); });
  for (const auto& [set_up, what] :
       {std::pair("millrace_turns", "push and next by turns"), std::pair("millrace_iteration", "push, and async for"),
        std::pair("millrace_feed", "feed beside async for")}) {
    Row row;
    row.id = "Python";
    row.shape = fmt::format("{} live sessions, LSTM of {} units, {} rows each: {}", sessions, lstm_units, steps, what);
    row.peer_name = "our C++ by turns";
    row.goal = 0.7;
    emit_binding(context, row,
                 {set_up, package, folder / "lstm.mr", std::to_string(lstm_units), std::to_string(sessions), std::to_string(steps)}, peer);
  }
}

}  // namespace

void measure_python(Context& context) {
  const app::ScratchFolder folder("millrace-bench");
  const std::string package = context.programs + "/../python";
  call_rows(context, folder, package);
  live_rows(context, folder, package);
}

}  // namespace millrace::bench
