// SPDX-License-Identifier: Apache-2.0
// Tests of the emulated runtime alone: how often graphs are made, and the end of those that do not start.
#include <cuda_runtime_api.h>

#include <cmath>

#include <doctest/doctest.h>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/unary.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/loops/cuda_graph/loop_graph.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/cuda_device.h>
#include <runtime/loops/cpu_fused/fused_cells.h>

namespace millrace::testing {
namespace {

RunResult run_captured(const Executable& executable, const Feeds& feeds) {
  RunOptions options;
  options.backend = Backend::captured;
  options.backend_required = true;
  ThreadExecutor executor(1);
  return sync_wait(executor, run(executable, feeds, options));
}

}  // namespace

TEST_CASE("a graph is made for the extents of a run, and serves runs of any lengths") {
  Random random(9);
  const CellCase each{"tanh", 3, {4}, [](const Var& x, const std::vector<Var>& s) {
                        Weights w(3);
                        const Var y = tanh(matmul(x, w({3, 4})) + s[0]);
                        return CellStep{y, {y}};
                      }};
  const Executable executable(over_rows(each, true, false), make_cuda_device({}));
  const auto made_by = [&](const LoD& lod) {
    const std::size_t before = emulated::instantiated();
    CHECK(run_captured(executable, feeds_for(random, each, lod, true)).captured_loops == 1);
    return emulated::instantiated() - before;
  };
  CHECK(made_by(LoD::from_lengths({{3, 1, 2}})) == 1);
  CHECK(made_by(LoD::from_lengths({{3, 1, 2}})) == 0);
  CHECK(made_by(LoD::from_lengths({{9, 0, 7, 1}})) == 0);
  CHECK(made_by(LoD::from_lengths({{2, 2, 2}})) == 1);  // of the same rows in all iterations
  CHECK(made_by(LoD::from_lengths({{5, 4}})) == 1);
  CHECK(made_by(LoD::from_lengths({{1, 30}})) == 0);
}

TEST_CASE("an iteration of few kernels stands in its graph several times, and one that looks at what is not there yet is refused") {
  const auto recorder = cuda::make_recording_device(make_cuda_device({}), 0);
  cuda::LoopIteration iteration;
  iteration.states = {{DType::f32, {2}}};
  iteration.next = {0};
  iteration.run = [&](const std::vector<Tensor>& values) {
    return std::vector<Tensor>{unary(Unary::tanh, UnaryParams(), values[0], recorder->stream(0))};
  };
  const auto graph = cuda::record_loop(recorder, iteration);
  CHECK(graph->nodes() >= 32);
  CHECK(graph->iterations_at_once() > 8);
  iteration.run = [&](const std::vector<Tensor>& values) { return std::vector<Tensor>{values[0].copy_to(CpuPlace{})}; };
  CHECK_THROWS_WITH_AS(cuda::record_loop(recorder, iteration), doctest::Contains("host"), UnsupportedError);
  // The recording was given up: the stream is there for the next one.
  iteration.run = [&](const std::vector<Tensor>& values) { return std::vector<Tensor>{values[0]}; };
  CHECK(cuda::record_loop(recorder, iteration)->nodes() >= 32);
  CHECK_THROWS_AS(cuda::make_recording_device(make_cpu_device(), 0), UnsupportedError);
}

TEST_CASE("a graph that nobody keeps goes on to its end") {
  const auto device = make_cuda_device({.streams = 1});
  const auto recorder = cuda::make_recording_device(device, 0);
  cuda::LoopIteration iteration;
  iteration.states = {{DType::f32, {2}}};
  iteration.next = {0};
  iteration.run = [&](const std::vector<Tensor>& values) {
    return std::vector<Tensor>{binary(Binary::add, values[0], values[0], recorder->stream(0))};
  };
  cuda::LoopSlots slots;
  slots.iterations = 100;
  slots.states = {ones(DDim{2}, DType::f32, device->stream(0))};
  slots.last = {Tensor(DType::f32, DDim{2}, device->stream(0).memory())};
  const Tensor last = slots.last[0];
  emulated::slow_down(20'000);
  cuda::record_loop(recorder, iteration)->run(std::move(slots));
  emulated::slow_down(0);
  CHECK(last.copy_to(CpuPlace{}).to_vector<float>() == std::vector<float>(2, std::ldexp(1.0f, 100)));
}

TEST_CASE("a graph that does not start is an error of its run") {
  Random random(10);
  const CellCase each{"sum", 2, {2}, [](const Var& x, const std::vector<Var>& s) {
                        const Var y = x + s[0];
                        return CellStep{y, {y}};
                      }};
  const LoD lod = LoD::from_lengths({{2, 1}});
  const Executable executable(over_rows(each, true, false), make_cuda_device({}));
  emulated::fail_launches(cudaErrorLaunchFailure);
  CHECK_THROWS_WITH_AS(run_captured(executable, feeds_for(random, each, lod, true)), doctest::Contains("cudaGraphLaunch"), CudaError);
  emulated::fail_launches(cudaSuccess);
}

TEST_CASE("a loop whose kernel the device does not start runs iteration by iteration, with the same bits, and says why") {
  Program program;
  {
    const build::Guard guard(program);
    Random random(11);
    const auto drawn = [&](const DDim& dims) { return random_tensor(random, dims, 1, DType::f32); };
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}, 1));
    build::output("y", layers::lstm({x}, {{drawn({2, 12}), drawn({3, 12}), {}, {}, {}}}, {}).y);
  }
  const Executable executable(program, make_cuda_device({}));
  Feeds feeds;
  feeds.insert_or_assign("x", LoDTensor(Tensor::from(std::vector<float>(12, 0.5f), DDim{6, 2}), LoD::from_lengths({{4, 2}})));
  const auto run_fused = [&] {
    RunOptions options;
    options.backend = Backend::fused;
    ThreadExecutor executor(1);
    return sync_wait(executor, run(executable, feeds, options));
  };
  const auto numbers = [](const RunResult& result) { return result.value("y").tensor().tensor().copy_to(CpuPlace{}).to_vector<float>(); };
  emulated::refuse_grids(cudaErrorNotSupported);
  const RunResult refused = run_fused();
  emulated::refuse_grids(cudaSuccess);
  CHECK(refused.fused_loops == 0);
  REQUIRE(refused.iteration_by_iteration.size() == 1);
  CHECK(refused.iteration_by_iteration.begin()->find("cudaLaunchKernelEx on cuda:0") != std::string::npos);
  const RunResult fused = run_fused();
  CHECK(fused.fused_loops == 1);
  CHECK(numbers(refused) == numbers(fused));
}

}  // namespace millrace::testing
