// SPDX-License-Identifier: Apache-2.0
// Waiting for a watermark, with and without a driver that has streams wait for words.
#include <cuda.h>

#include <doctest/doctest.h>

#include <chrono>

#include <gpu/spin.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/runtime/array/slab.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/recurrent.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace::testing {

TEST_CASE(
    "a stream waits for a word in the driver, and where the driver has no such thing the host starts its work when the word is there") {
  for (const bool knows : {true, false}) {
    emulated::answer_waits(knows ? cudaSuccess : cudaErrorNotSupported);
    const auto device = make_cuda_device({.streams = 2});
    const auto watermark = device->stream(0).watermark(8);
    SteppedWork work;
    work.nanoseconds = 20'000'000;
    const Tensor stamps = stepped(work, watermark, device->stream(0));
    const std::size_t before = emulated::waits_enqueued();
    const Tensor second = part_of(stamps.rows(1, 2), Point(watermark, 2));
    const Tensor sum = add(second, second, device->stream(1));
    CHECK((emulated::waits_enqueued() > before) == knows);
    sum.ready().wait();
    const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    const auto made = stamps.copy_to(CpuPlace{}).to_vector<std::int64_t>();
    CHECK(now < made[15]);  // the kernel went on
    CHECK(sum.copy_to(CpuPlace{}).to_vector<std::int64_t>() == std::vector<std::int64_t>{2 * made[2], 2 * made[3]});
  }
  emulated::answer_waits(cudaSuccess);
}

TEST_CASE("a kernel that never raises its word keeps no stream of another device waiting, and who waits there is told") {
  const auto device = make_cuda_device({});
  const auto other = make_cuda_device({.index = 1});
  const auto watermark = device->stream(0).watermark(4);
  SteppedWork work;
  work.steps = work.a_launch = 4;
  work.nanoseconds = 10'000'000;
  work.raises = 2;
  const Tensor stamps = stepped(work, watermark, device->stream(0));
  other->stream(0).wait(Point(watermark, 2));
  const Tensor good = ones(DDim{3}, DType::f32, other->stream(0));
  good.ready().wait();
  other->stream(1).wait(Point(watermark, 3));
  const Tensor lost = ones(DDim{3}, DType::f32, other->stream(1));
  CHECK_THROWS_WITH_AS(lost.ready().wait(), doctest::Contains("behind step 2 of 4"), Error);
  CHECK_THROWS_WITH_AS(Point(watermark, 4).wait(), doctest::Contains("behind step 2 of 4"), Error);
  CHECK(good.copy_to(CpuPlace{}).to_vector<float>() == std::vector<float>(3, 1));
  stamps.ready().wait();
}

TEST_CASE("a loop iteration by iteration on another stream than the fused one whose slots it reads waits for words in the driver") {
  using namespace build;
  Program program;
  {
    const Guard guard(program);
    const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 2}, 1));
    const auto filled = [](std::int64_t rows, std::int64_t columns) {
      return Tensor::from(std::vector<float>(static_cast<std::size_t>(rows * columns), 0.25f), DDim{rows, columns});
    };
    const Var y = layers::lstm({x}, {{filled(2, 12), filled(3, 12), {}, {}, {}}}, {}).y;
    const layers::Cell powers = [](const Var& row, const std::vector<Var>& state) {
      const Var next = pow(sigmoid(add(row, state[0])), sigmoid(row));  // no generated kernel has powers
      return layers::CellStep{next, {next}};
    };
    build::output("powers", layers::unroll(powers, {y}, {{3, Var()}}).output);
  }
  ThreadExecutor executor(2);
  RunOptions options;
  options.backend = Backend::fused;
  constexpr std::int64_t iterations = 2000;
  Feeds feeds;
  feeds.insert_or_assign(
      "x", LoDTensor(Tensor::from(std::vector<float>(2 * iterations, 0.5f), DDim{iterations, 2}), LoD::from_lengths({{iterations}})));
  const std::size_t before = emulated::waits_enqueued();
  // A kernel that is through before its reader comes has nobody wait: the threads that stand for streams share the cores with whatever else runs.
  for (int runs = 0; runs < 20 && emulated::waits_enqueued() == before; ++runs) {
    const RunResult result = sync_wait(executor, run(Executable(program, make_cuda_device({})), feeds, options));
    CHECK(result.fused_loops == 1);
  }
  CHECK(emulated::waits_enqueued() > before);
}

TEST_CASE("points come by their events where the driver writes no words") {
  emulated::answer_writes(cudaErrorNotSupported);
  {
    const auto device = make_cuda_device({.streams = 2});
    const Tensor one = ones(DDim{3}, DType::f32, device->stream(0));
    const Tensor two = add(one, one, device->stream(1));
    two.ready().wait();
    CHECK(add(two, one, device->stream(0)).copy_to(CpuPlace{}).to_vector<float>() == std::vector<float>(3, 3));
  }
  emulated::answer_writes(cudaSuccess);
}

TEST_CASE("memory that is not pinned outlives a copy into it that nobody waits for") {
  const auto device = make_cuda_device({.streams = 1});
  const StreamRef stream = device->stream(0);
  const Tensor there = ones(DDim{1000}, DType::f32, stream);
  there.ready().wait();
  emulated::slow_down(20'000);
  copy(there, Tensor(DType::f32, DDim{1000}), stream);
  emulated::slow_down(0);
  const Tensor here(DType::f32, DDim{1000});
  copy(there, here, stream);
  here.ready().wait();
  CHECK(here.to_vector<float>() == std::vector<float>(1000, 1));
}

}  // namespace millrace::testing
