// SPDX-License-Identifier: Apache-2.0
#include <bench/library/our_lstm.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/narrow.h>
#include <millrace/runtime/task/sync_wait.h>

namespace millrace::bench {
namespace {

std::shared_ptr<Runtime> make_runtime(int threads, std::shared_ptr<Device> device = nullptr) {
  RuntimeOptions options;
  if (device) options.devices.push_back(std::move(device));
  options.threads = 1;
  options.kernel_threads = static_cast<std::size_t>(threads);
  return std::make_shared<Runtime>(std::move(options));
}

task<double> runs_for(Executable executable, Feeds feeds, Backend backend, double seconds) {
  RunOptions options;
  options.backend = backend;
  co_await run(executable, feeds, options);  // the first run is not measured, as in `timer_of`
  const double start = timer_seconds();
  std::int64_t runs = 0;
  double passed = 0;
  while (passed < seconds) {
    RunResult result = co_await run(executable, feeds, options);
    ++runs;
    passed = timer_seconds() - start;
  }
  co_return passed / static_cast<double>(runs);
}

void build_step(Program& program, const LstmProblem& problem) {
  build::Guard guard(program);
  const VarType rows(DType::f32, {DDim::unknown, problem.hidden});
  const build::Var x = build::input("x", rows), h = build::input("h", rows), c = build::input("c", rows);
  const build::LstmState next = build::lstm_cell(x, {h, c}, build::parameter("w", problem.w), build::parameter("r", problem.r),
                                                 build::parameter("bias", problem.bias));
  build::output("h_out", next.h);
  build::output("c_out", next.c);
}

Program step_program(const LstmProblem& problem, std::optional<DType> weights) {
  Program program;
  build_step(program, problem);
  if (weights) layers::narrow_weights(program, *weights);
  return program;
}

}  // namespace

OurProgram::OurProgram(Program program, Feeds feeds, int threads, Backend backend)
    : runtime_(make_runtime(threads)), executable_(runtime_->compile(std::move(program))), feeds_(std::move(feeds)), backend_(backend) {}

OurProgram::OurProgram(Program program, Feeds feeds, std::shared_ptr<Device> device, Backend backend)
    : runtime_(make_runtime(1, device)),
      executable_(runtime_->compile(std::move(program), device->place())),
      feeds_(std::move(feeds)),
      backend_(backend) {}

Timer OurProgram::timer() const {
  return [runtime = runtime_, executable = executable_, feeds = feeds_, backend = backend_](double seconds) {
    return sync_wait(runtime->executor(), runs_for(executable, feeds, backend, seconds), "bench");
  };
}

RunResult OurProgram::run_once() const {
  RunOptions options;
  options.backend = backend_;
  return sync_wait(runtime_->executor(), run(executable_, feeds_, options), "bench");
}

LoDTensor OurProgram::output(const std::string& name) const { return run_once()[name]; }

std::string backend_of(const RunResult& result) {
  if (result.captured_loops > 0) return "backend captured";
  if (result.fused_loops > 0) return "backend fused";
  return result.iterations > 0 ? "backend interpreted" : "no loop";
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

OurStep::OurStep(const LstmProblem& problem, int threads, std::optional<DType> weights)
    : runner_(std::make_shared<StepRunner>(step_program(problem, weights), make_cpu_device(threads))),
      inputs_{problem.x, problem.h, problem.c},
      rows_(problem.sequences()) {
  for (int output = 0; output < 2; ++output) {
    outputs_.emplace_back(DType::f32, DDim{rows_, problem.hidden});
    outputs_.back().storage()->mark_written();
  }
  for (const Tensor& input : inputs_) in_.push_back({const_cast<void*>(input.raw()), problem.hidden});
  for (const Tensor& output : outputs_) out_.push_back({output.raw_mutable(), problem.hidden});
}

Timer OurStep::timer() const {
  return timer_of(
      [runner = runner_, in = in_, out = out_, inputs = inputs_, outputs = outputs_, rows = rows_] { runner->run(in, out, rows); });
}

Tensor OurStep::h() const {
  runner_->run(in_, out_, rows_);
  return outputs_[0];
}

}  // namespace millrace::bench
