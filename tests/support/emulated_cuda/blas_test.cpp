// SPDX-License-Identifier: Apache-2.0
// A device takes cuBLASLt's algorithms where they have the bits of our kernels, and nothing that it takes changes a result.
#include <millrace/kernels/library_products.h>

#include <doctest/doctest.h>

#include <cstdlib>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/gemm.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <support/program_runs.h>
#include <support/random_tensor.h>

#include "blas.h"

namespace millrace::testing {
namespace {

using namespace build;
using emulated::BlasAlgorithm;

std::shared_ptr<Device> device_with(bool library, std::size_t streams = 1) {
  CudaOptions options;
  options.streams = streams;
  options.library_products = library;
  return make_cuda_device(options);
}

struct Case {
  DType dtype = DType::f32, out = DType::f32;
  std::int64_t m = 1024, k = 32, n = 32;
  bool turned = false, bias = false;
  double alpha = 1, beta = 0;
};

/// The product of the same numbers each time, on a stream of the device, as bytes.
std::string product(Device& device, const Case& of, std::size_t stream = 0) {
  Random random(17);
  CpuDevice host;
  const StreamRef there = device.stream(stream), here = host.stream(0);
  const auto drawn = [&](const DDim& dims, DType dtype) {
    const Tensor made = cast(random_tensor(random, dims), dtype, here);
    Tensor placed(dtype, dims, there.memory());
    copy(made, placed, there);
    return placed;
  };
  const Tensor x = drawn({of.m, of.k}, of.dtype);
  const Tensor w = of.turned ? drawn({of.n, of.k}, of.dtype).permute({1, 0}) : drawn({of.k, of.n}, of.dtype);
  Tensor y = drawn({of.m, of.n}, of.out);
  if (of.bias) {
    const GemmPlan plan = make_gemm_plan({of.k, of.n, of.dtype, of.out}, device.place());
    run(plan, pack(plan, w, there), x, drawn({of.n}, of.dtype), y, there);
  } else {
    gemm(of.alpha, x, w, of.beta, y, there);
  }
  const Tensor back = y.copy_to(CpuPlace{});
  return {static_cast<const char*>(back.raw()), back.bytes()};
}

std::string only_line(Device& device) {
  const std::vector<std::string> all = library_products(device);
  REQUIRE(all.size() == 1);
  return all[0];
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("an algorithm with our bits at every row count is taken, and the others are refused with what told them") {
  emulated::offer_blas({BlasAlgorithm::refuses, BlasAlgorithm::lazy, BlasAlgorithm::pairwise, BlasAlgorithm::by_rows, BlasAlgorithm::ours});
  const auto ours = device_with(false), device = device_with(true);
  const Case of;
  CHECK(product(*device, of) == product(*ours, of));
  CHECK(library_products(*ours).empty());
  const std::string line = only_line(*device);
  CAPTURE(line);
  CHECK(has(line, "f32 [M, 32] x [32, 32]: cuBLASLt, algorithm 5 of 5: our bits at 16 row counts"));
  CHECK(has(line, "algorithm 1 of 5 failed with status 15 at 4096 rows"));
  CHECK(has(line, "algorithm 2 of 5 has other bits at 4096 rows"));
  CHECK(has(line, "algorithm 3 of 5 has other bits at 4096 rows"));
  CHECK(has(line, "algorithm 4 of 5 has other bits at 1 row"));
  SUBCASE("it serves every number of rows from then on without being probed again") {
    const emulated::BlasUse before = emulated::blas_use();
    for (const std::int64_t m : {1, 5, 33, 5000}) {
      Case other;
      other.m = m;
      CHECK(product(*device, other) == product(*ours, other));
    }
    const emulated::BlasUse after = emulated::blas_use();
    CHECK(after.products == before.products + 5);  // 5000 rows are two
    CHECK(after.proposals == before.proposals);
    CHECK(after.most_columns == 4096);
  }
  emulated::offer_blas({});
}

TEST_CASE("where no algorithm has our bits, or there is no library, or it is turned off, the kernels are ours") {
  const Case of;
  const auto wanted = product(*device_with(false), of);
  emulated::offer_blas({BlasAlgorithm::by_rows, BlasAlgorithm::refuses});
  {
    const auto device = device_with(true);
    CHECK(product(*device, of) == wanted);
    CHECK(has(only_line(*device), ": ours, algorithm 1 of 2 has other bits at 1 row; algorithm 2 of 2 failed"));
    const std::size_t before = emulated::blas_use().products;
    CHECK(product(*device, of) == wanted);
    CHECK(emulated::blas_use().products == before);
  }
  {
    ::setenv("MILLRACE_CUBLASLT", "off", 1);
    emulated::offer_blas({BlasAlgorithm::ours});
    const auto device = device_with(true);
    CHECK(product(*device, of) == wanted);
    CHECK(library_products(*device).empty());
    CHECK(has(library_products_status(), "turned off"));
    CHECK(emulated::blas_use().products == 0);
    ::unsetenv("MILLRACE_CUBLASLT");
    CHECK(library_products_status() == "cuBLASLt 13.0.2");
  }
  emulated::offer_blas({});
  const auto device = device_with(true);
  CHECK(product(*device, of) == wanted);
  CHECK(library_products(*device).empty());
  CHECK(has(library_products_status(), "no cuBLASLt"));
}

TEST_CASE("few rows have an algorithm of their own, which need not have our bits at more of them") {
  emulated::offer_blas({BlasAlgorithm::by_rows, BlasAlgorithm::few_rows, BlasAlgorithm::ours}, 4096);
  const auto ours = device_with(false), device = device_with(true);
  Case of;
  CHECK(product(*device, of) == product(*ours, of));
  const std::string line = only_line(*device);
  CAPTURE(line);
  CHECK(has(line, "cuBLASLt, algorithm 3 of 3: our bits at 16 row counts"));
  CHECK(has(line, "another up to 32 rows; another up to 256 rows"));
  for (const auto& [rows, which] : {std::pair{1, BlasAlgorithm::few_rows},
                                    {32, BlasAlgorithm::few_rows},
                                    {256, BlasAlgorithm::few_rows},
                                    {257, BlasAlgorithm::ours},
                                    {5000, BlasAlgorithm::ours}}) {
    CAPTURE(rows);
    of.m = rows;
    const auto wanted = product(*ours, of);
    const std::size_t before = emulated::blas_use().of[which];
    CHECK(product(*device, of) == wanted);
    CHECK(emulated::blas_use().of[which] > before);
  }
  emulated::offer_blas({});
}

TEST_CASE("what follows the sums, narrow floats and transposed weights have our bits too") {
  emulated::offer_blas({BlasAlgorithm::pairwise, BlasAlgorithm::ours}, 4096);
  const auto ours = device_with(false), device = device_with(true);
  Case odd;
  odd.k = 67;
  odd.n = 35;
  odd.m = 500;
  std::vector<Case> cases(8, odd);
  cases[0].bias = true;
  cases[1].turned = true;
  cases[2].alpha = 0.7;
  cases[2].beta = -1.3;
  cases[3].dtype = cases[3].out = DType::f64;
  cases[3].beta = 1;
  cases[4].dtype = cases[4].out = DType::bf16;
  cases[4].bias = true;
  cases[5].dtype = cases[5].out = DType::f16;
  cases[6].dtype = DType::f16;
  cases[7].dtype = cases[7].out = DType::f64;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    CHECK(product(*device, cases[i]) == product(*ours, cases[i]));
  }
  const std::vector<std::string> lines = library_products(*device);
  CHECK(lines.size() == 5);  // one for f32, its transposed weights, f64, bf16 and f16
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK(has(line, ": cuBLASLt, algorithm 2 of 2"));
  }
  emulated::offer_blas({});
}

TEST_CASE("an algorithm that fails later is given up for ours, with the reason") {
  emulated::offer_blas({BlasAlgorithm::up_to_256});
  const auto ours = device_with(false), device = device_with(true);
  Case of;
  CHECK(product(*device, of) == product(*ours, of));
  CHECK(has(only_line(*device), ": cuBLASLt"));
  of.m = 300;
  of.beta = 2;
  CHECK(product(*device, of) == product(*ours, of));
  CHECK(has(only_line(*device), ": ours, cuBLASLt gave status 15 at 300 rows"));
  emulated::offer_blas({});
}

TEST_CASE("recording a graph probes nothing, and takes what a probe before it found") {
  constexpr std::int64_t rows = 1024, width = 32;
  Random random(5);
  Program program;
  {
    const Guard guard(program);
    const Var weights = parameter("w", random_tensor(random, {width, width}, 0.2));
    const build::TensorArray in = build::TensorArray::unstack(input("x", VarType(DType::f32, {DDim::unknown, rows, width})));
    const Var n = in.size();
    const build::TensorArray out(n, "out");
    Var step = constant(0);
    Var state = input("boot", VarType(DType::f32, {rows, width}));
    auto loop = while_loop({step, state});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      const Var next = tanh(matmul(state, weights) + in.read(step));
      out.write(step, next);
      state.update(next);
      step.update(step + 1);
    }
    output("y", out.stack());
  }
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {3, rows, width}))}, {"boot", LoDTensor(random_tensor(random, {rows, width}))}};
  const auto run_in = [&](const Executable& executable, Backend backend) {
    RunOptions options;
    options.backend = backend;
    options.backend_required = backend == Backend::captured;
    ThreadExecutor executor(1);
    return sync_wait(executor, run(executable, feeds, options));
  };
  emulated::offer_blas({BlasAlgorithm::ours}, 1 << 12);
  const std::string wanted = bits(run_in(Executable(program, device_with(false)), Backend::interpreted));
  const auto device = device_with(true);
  CHECK(bits(run_in(Executable(program, device), Backend::captured)) == wanted);
  CHECK(emulated::blas_use().proposals == 0);
  CHECK(library_products(*device).empty());
  CHECK(bits(run_in(Executable(program, device), Backend::interpreted)) == wanted);
  const emulated::BlasUse before = emulated::blas_use();
  CHECK(before.proposals == 5);
  CHECK(has(only_line(*device), ": cuBLASLt"));
  const RunResult captured = run_in(Executable(program, device), Backend::captured);
  CHECK(captured.captured_loops == 1);
  CHECK(bits(captured) == wanted);
  CHECK(emulated::blas_use().proposals == before.proposals);
  CHECK(emulated::blas_use().products > before.products);
  emulated::offer_blas({});
}

TEST_CASE("two streams do not share a workspace") {
  emulated::offer_blas({BlasAlgorithm::ours}, 1 << 16);
  const auto ours = device_with(false), device = device_with(true, 2);
  const Case of;
  const auto wanted = product(*ours, of);
  CHECK(product(*device, of) == wanted);
  emulated::offer_blas({BlasAlgorithm::ours}, 1 << 16);  // forgets the probe's stream
  for (std::size_t iteration = 0; iteration < 4; ++iteration) CHECK(product(*device, of, iteration % 2) == wanted);
  const emulated::BlasUse use = emulated::blas_use();
  CHECK(use.products == 4);
  REQUIRE(use.workspaces.size() == 2);
  const std::set<void*>& one = use.workspaces.begin()->second;
  const std::set<void*>& other = use.workspaces.rbegin()->second;
  CHECK(one.size() == 1);
  CHECK(other.size() == 1);
  CHECK(one != other);
  emulated::offer_blas({});
}

}  // namespace millrace::testing
