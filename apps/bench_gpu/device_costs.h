// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <bench/library/measure.h>
#include <bench_gpu/gpu_machine.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

/// Measurements that call CUDA itself.
namespace millrace::bench {

std::optional<double> measure_matrix_rate(GpuMachine& machine, DType dtype);
enum class Barrier : std::uint8_t { cluster, counter };
/// Seconds of one, of thousands in one kernel.
std::optional<double> measure_barrier(GpuMachine& machine, Barrier kind);

/// The costs of driver calls; seconds each.
struct DriverCost {
  std::string what;
  std::optional<double> seconds;
  std::string note = {};
};
/// Launches back to back, an event recorded and waited for by another stream, graphs of 32 and 512 empty kernels, a blocked thread's waking.
std::vector<DriverCost> measure_driver_costs(GpuMachine& machine);

/// A word in host memory that the device writes.
class HostWord {
 public:
  HostWord();
  std::int64_t get() const noexcept;
  void set(std::int64_t value) noexcept;
  /// A kernel of one thread that takes `nanoseconds` and then writes `value` here.
  void written_after(std::int64_t nanoseconds, std::int64_t value, StreamRef stream);
  /// An empty kernel.
  static void nothing(StreamRef stream);

 private:
  Tensor word_;  // in pinned memory
};

}  // namespace millrace::bench
