// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <bench/library/measure.h>
#include <bench_gpu/gpu_lstm.h>

namespace millrace::bench {

/// One layer by kernels alone, without a program: x·W as one product, then all steps by `kernels/lstm_sequence.h`.
struct KernelLstm {
  Timer timer;
  Tensor last;           ///< h behind the last step, [N, H], on the host
  std::string schedule;  ///< how blocks share the work, and the time of a step that the schedule's model predicts
  std::string phases;    ///< in f16: the share of each phase of a step in the cycles of one warp
};
/// UnsupportedError and OutOfMemoryError where the kernel cannot run.
KernelLstm make_kernel_lstm(GpuMachine& machine, const GpuLstm& problem);

}  // namespace millrace::bench
