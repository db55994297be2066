// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include <bench/library/lstm_problem.h>
#include <bench_gpu/device_costs.h>
#include <bench_gpu/with_cuda/shared_library.h>
#include <millrace/kernels/cast.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/with_cuda/check.h>

namespace millrace::bench {
namespace {

/// The few of cuBLAS's functions and numbers that one product takes.
struct Cublas {
  using Handle = struct CublasHandle*;
  static constexpr int as_it_is = 0, in_f32 = 68, default_algorithm = -1;

  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;
  int (*multiply)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int, int,
                  int, int) = nullptr;
  bool found = false;

  Cublas() {
    const SharedLibrary library({"libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13", "libcublas.so.12", "libcublas.so"});
    found = library.find("cublasCreate_v2", create) && library.find("cublasDestroy_v2", destroy) &&
            library.find("cublasSetStream_v2", set_stream) && library.find("cublasGemmEx", multiply);
  }
};

int data_type(DType dtype) { return dtype == DType::f16 ? 2 : dtype == DType::bf16 ? 14 : 0; }

Tensor random_matrix(GpuMachine& machine, std::int64_t size, DType dtype, std::uint64_t seed) {
  constexpr std::int64_t drawn = 4096;  // rows of a matrix that repeats them
  CpuDevice host;
  const Tensor few = cast(random_tensor(DDim{drawn, size}, seed), dtype, host.stream(0));
  Tensor made(dtype, DDim{size, size}, machine.device()->memory());
  for (std::int64_t row = 0; row < size; row += drawn) {
    Tensor part = made.rows(row, std::min(row + drawn, size));
    copy(few.rows(0, part.dim(0)), part, machine.device()->stream(0));
  }
  made.ready().wait();
  return made;
}

}  // namespace

std::optional<double> measure_matrix_rate(GpuMachine& machine, DType dtype) {
  static const Cublas cublas;  // a library of the process, not an object of ours
  if (!cublas.found) return std::nullopt;
  constexpr std::int64_t size = 8192;
  constexpr int times = 10, n = static_cast<int>(size);
  const cuda::OnDevice here(machine.index());
  const Tensor a = random_matrix(machine, size, dtype, 1), b = random_matrix(machine, size, dtype, 2),
               c(dtype, a.dims(), machine.device()->memory());
  Cublas::Handle handle = nullptr;
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", machine.index());
  bool worked = cublas.create(&handle) == 0 && cublas.set_stream(handle, stream) == 0;
  const float one = 1, zero = 0;
  const auto multiply = [&] {
    const int type = data_type(dtype);
    worked = worked && cublas.multiply(handle, Cublas::as_it_is, Cublas::as_it_is, n, n, n, &one, a.raw(), type, n, b.raw(), type, n, &zero,
                                       c.raw_mutable(), type, n, Cublas::in_f32, Cublas::default_algorithm) == 0;
  };
  std::vector<double> seconds;
  for (int iteration = 0; iteration < 7; ++iteration) {  // the first warms up
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", machine.index());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) multiply();
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", machine.index());
    if (iteration > 0) seconds.push_back(seconds_since(start) / times);
  }
  if (handle != nullptr) cublas.destroy(handle);
  static_cast<void>(cudaStreamDestroy(stream));
  if (!worked) return std::nullopt;
  return 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) / median(std::move(seconds));
}

}  // namespace millrace::bench
