// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <millrace/tensor/device.h>
#include <millrace/tensor/dtype.h>
#include <millrace/tensor/tensor.h>

namespace millrace::bench {

/// One GPU: our device on it, and what it cannot do faster, measured when first asked for.
class GpuMachine {
 public:
  /// PlaceError, UnsupportedError.
  explicit GpuMachine(int index);

  int index() const noexcept { return index_; }
  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  std::string name() const;

  /// Operations a second of matrix products of f16, bf16 or f32 (without tf32) by cuBLAS, 8192 each way. None without cuBLAS.
  std::optional<double> matrix_rate(DType dtype);
  /// Seconds of one barrier between the 16 blocks of a cluster, and between all multiprocessors by a counter. None where the device cannot.
  std::optional<double> cluster_barrier();
  std::optional<double> counter_barrier();

  /// The least seconds of T steps of an LSTM of H units over N rows of C features: both products at the matrix rate, and between two steps the
  /// exchange of h: nothing where the weights fit one multiprocessor, the cluster's barrier where they fit sixteen, else that of all.
  std::optional<double> lstm_floor(std::int64_t steps, std::int64_t rows, std::int64_t features, std::int64_t hidden, DType dtype);

 private:
  int index_;
  std::shared_ptr<Device> device_;
  std::map<DType, std::optional<double>> rates_;
  std::optional<std::optional<double>> cluster_, counter_;
};

/// A copy in the memory of a device, which is there.
Tensor on_device(const Tensor& value, Device& device);

}  // namespace millrace::bench
