// SPDX-License-Identifier: Apache-2.0
// The measurements of `millrace bench gpu` that a runtime without a device cannot take, and no cuDNN: a rehearsal has the other rows.
#include <bench_gpu/cudnn_peer.h>
#include <bench_gpu/device_costs.h>

namespace millrace::bench {

std::optional<double> measure_matrix_rate(GpuMachine&, DType) { return std::nullopt; }
std::optional<double> measure_barrier(GpuMachine&, Barrier) { return std::nullopt; }
std::vector<DriverCost> measure_driver_costs(GpuMachine&) { return {}; }
std::string cudnn_name() { return "cuDNN"; }
CudnnLstm make_cudnn_lstm(GpuMachine&, const GpuLstm&, const Effort&) { return {"cuDNN", {}, {}, "not measured: the device is emulated"}; }

}  // namespace millrace::bench
