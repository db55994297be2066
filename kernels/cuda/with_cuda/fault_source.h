// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/with_cuda/device_context.h>

namespace millrace::cuda {

/// The kernels that look at values and may find something wrong in them.
enum class FaultyOp : FaultSource {
  none,
  gather,
  gather_elements,
  gather_nd,
  gather_rows,
  scatter_rows,
  scatter_nd,
  scatter_elements,
  reverse_sequence,
  sequence_scatter,
  binary,
  crf_score,
  crf_log_likelihood,
  ctc_loss,
  gather_tree,
};

/// The name of a kernel in errors.
inline const char* name_of_source(FaultSource source) {
  static constexpr const char* names[] = {"a kernel",     "gather",     "gather_elements",    "gather_nd",        "gather_rows",
                                          "scatter_rows", "scatter_nd", "scatter_elements",   "reverse_sequence", "sequence_scatter",
                                          "binary",       "crf_score",  "crf_log_likelihood", "ctc_loss",         "gather_tree"};
  constexpr std::size_t count = sizeof names / sizeof *names;
  static_assert(count == static_cast<std::size_t>(FaultyOp::gather_tree) + 1);
  return names[source < count ? source : 0];
}

/// Where the kernels of `op` on the queue's stream say that something is wrong.
inline FaultSink fault_sink(const Queue& queue, FaultyOp op) {
  if (queue.context != nullptr) queue.context->fault_name.store(&name_of_source, std::memory_order_relaxed);
  return {queue.fault, static_cast<FaultSource>(op)};
}

}  // namespace millrace::cuda
