// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/gpu_machine.h>

#include <fmt/format.h>

#include <bench_gpu/device_costs.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace::bench {
namespace {

constexpr double bytes_of_multiprocessor = 483 * 1024;  // registers and shared memory together, of Hopper
constexpr double blocks_of_cluster = 16;

CudaOptions options_of(int index) {
  CudaOptions options;
  options.index = index;
  return options;
}

}  // namespace

GpuMachine::GpuMachine(int index) : index_(index), device_(make_cuda_device(options_of(index))) {}

std::string GpuMachine::name() const {
  for (const CudaDeviceInfo& one : cuda_devices())
    if (one.index == index_)
      return fmt::format("{}, compute capability {}.{}, {} multiprocessors, CUDA {}", one.name, one.major, one.minor, one.multiprocessors,
                         cuda_status());
  return "cuda:" + std::to_string(index_);
}

std::optional<double> GpuMachine::matrix_rate(DType dtype) {
  const auto known = rates_.find(dtype);
  if (known != rates_.end()) return known->second;
  return rates_[dtype] = measure_matrix_rate(*this, dtype);
}

std::optional<double> GpuMachine::cluster_barrier() {
  if (!cluster_) cluster_ = measure_barrier(*this, Barrier::cluster);
  return *cluster_;
}

std::optional<double> GpuMachine::counter_barrier() {
  if (!counter_) counter_ = measure_barrier(*this, Barrier::counter);
  return *counter_;
}

std::optional<double> GpuMachine::lstm_floor(std::int64_t steps, std::int64_t rows, std::int64_t features, std::int64_t hidden,
                                             DType dtype) {
  const std::optional<double> rate = matrix_rate(dtype);
  if (!rate) return std::nullopt;
  const double weights = 4.0 * static_cast<double>(hidden) * static_cast<double>(hidden + features);
  const double recurrent_bytes = 4.0 * static_cast<double>(hidden * hidden) * static_cast<double>(size_of(dtype));
  std::optional<double> exchange = 0.0;
  if (recurrent_bytes > bytes_of_multiprocessor * blocks_of_cluster)
    exchange = counter_barrier();
  else if (recurrent_bytes > bytes_of_multiprocessor)
    exchange = cluster_barrier() ? cluster_barrier() : counter_barrier();
  if (!exchange) return std::nullopt;
  return static_cast<double>(steps) * (2.0 * weights * static_cast<double>(rows) / *rate + *exchange);
}

Tensor on_device(const Tensor& value, Device& device) {
  Tensor there(value.dtype(), value.dims(), device.memory());
  copy(value, there, device.stream(0));
  there.ready().wait();
  return there;
}

}  // namespace millrace::bench
