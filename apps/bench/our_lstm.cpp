// SPDX-License-Identifier: Apache-2.0
#include <bench/our_lstm.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/task/sync_wait.h>

namespace millrace::bench {
namespace {

std::shared_ptr<Runtime> make_runtime(int threads) {
  RuntimeOptions options;
  options.threads = 1;
  options.kernel_threads = static_cast<std::size_t>(threads);
  return std::make_shared<Runtime>(std::move(options));
}

task<double> runs_for(Executable executable, Feeds feeds, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  std::int64_t runs = 0;
  double passed = 0;
  while (passed < seconds) {
    RunResult result = co_await run(executable, feeds);
    ++runs;
    passed = seconds_since(start);
  }
  co_return passed / static_cast<double>(runs);
}

Program step_program(const LstmProblem& problem) {
  Program program;
  build::Guard guard(program);
  const VarType rows(DType::f32, {problem.sequences(), problem.hidden});
  const build::Var x = build::input("x", rows), h = build::input("h", rows), c = build::input("c", rows);
  const build::LstmState next = build::lstm_cell(x, {h, c}, build::parameter("w", problem.w), build::parameter("r", problem.r),
                                                 build::parameter("bias", problem.bias));
  build::output("h_out", next.h);
  build::output("c_out", next.c);
  return program;
}

}  // namespace

OurProgram::OurProgram(Program program, Feeds feeds, int threads)
    : runtime_(make_runtime(threads)), executable_(runtime_->compile(std::move(program))), feeds_(std::move(feeds)) {}

Timer OurProgram::timer() const {
  return [runtime = runtime_, executable = executable_, feeds = feeds_](double seconds) {
    return sync_wait(runtime->executor(), runs_for(executable, feeds, seconds), "bench");
  };
}

LoDTensor OurProgram::output(const std::string& name) const {
  return sync_wait(runtime_->executor(), run(executable_, feeds_), "bench")[name];
}

Program lstm_program(const LstmProblem& problem) {
  Program program;
  build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, problem.hidden}, 1));
  layers::LstmWeights weights;
  weights.input = problem.w;
  weights.recurrent = problem.r;
  weights.bias = problem.bias;
  build::output("y", layers::lstm({x}, {weights}).y);
  return program;
}

Feeds feeds_of(const LstmProblem& problem) { return {{"x", Value(LoDTensor(problem.x, LoD::from_lengths({problem.lengths})))}}; }

OurStep::OurStep(const LstmProblem& problem, int threads)
    : runtime_(make_runtime(threads)),
      executable_(runtime_->compile(step_program(problem))),
      inputs_{Value(problem.x), Value(problem.h), Value(problem.c)} {}

Timer OurStep::timer() const {
  return timer_of([runtime = runtime_, executable = executable_, inputs = inputs_] { run_straight(executable, inputs); });
}

Tensor OurStep::h() const { return run_straight(executable_, inputs_).at(0).tensor().tensor(); }

}  // namespace millrace::bench
