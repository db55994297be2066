// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/cudnn_peer.h>
#include <bench_gpu/device_costs.h>
#include <millrace/tensor/error.h>

namespace millrace::bench {
namespace {

[[noreturn]] void absent() { throw UnsupportedError("bench gpu: this build has no CUDA"); }

}  // namespace

std::optional<double> measure_matrix_rate(GpuMachine&, DType) { absent(); }
std::optional<double> measure_barrier(GpuMachine&, Barrier) { absent(); }
std::vector<DriverCost> measure_driver_costs(GpuMachine&) { absent(); }
HostWord::HostWord() { absent(); }
std::int64_t HostWord::get() const noexcept { return 0; }
void HostWord::set(std::int64_t) noexcept {}
void HostWord::written_after(std::int64_t, std::int64_t, StreamRef) { absent(); }
void HostWord::nothing(StreamRef) { absent(); }
std::string cudnn_name() { return "cuDNN"; }
CudnnLstm make_cudnn_lstm(GpuMachine&, const GpuLstm&, const Effort&) { absent(); }

}  // namespace millrace::bench
