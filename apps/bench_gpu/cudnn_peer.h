// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include <bench/library/measure.h>
#include <bench_gpu/gpu_lstm.h>
#include <bench_gpu/gpu_machine.h>

namespace millrace::bench {

/// cuDNN's LSTM in this process, through its C interface, which is loaded when it is first wanted: a machine without it has no such peer.
struct CudnnLstm {
  std::string name;                   ///< with version and the algorithm that was the fastest
  Timer timer;                        ///< of that one; empty where there is none
  std::function<Tensor()> last_step;  ///< h behind the last step, [N, H], on the host, in the problem's dtype
  std::string note;                   ///< the time of a step by algorithm, or why it does not run; or why there is none
};

/// "cuDNN 9.19.0", or "cuDNN" where it cannot be loaded.
std::string cudnn_name();
/// Each of the four algorithms is timed for a moment, and the fastest is the peer.
CudnnLstm make_cudnn_lstm(GpuMachine& machine, const GpuLstm& problem, const Effort& effort);

}  // namespace millrace::bench
