// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace {

/// Multiprocessors of CUDA device `device` that kernels of others need while ours run, such as those of a communicator. A kernel whose blocks wait
/// for one another leaves them free: were it to own the whole device, the other kernel could not start before it ends. Thread-safe.
class MultiprocessorReserve {
 public:
  MultiprocessorReserve(int device, int count);
  ~MultiprocessorReserve();
  MultiprocessorReserve(const MultiprocessorReserve&) = delete;
  MultiprocessorReserve& operator=(const MultiprocessorReserve&) = delete;

 private:
  int device_, count_;
};

/// The sum of the reserves that live.
int reserved_multiprocessors(int device);

}  // namespace millrace
