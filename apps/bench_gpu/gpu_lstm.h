// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <bench/library/our_lstm.h>
#include <bench/library/registry.h>
#include <bench_gpu/gpu_machine.h>
#include <millrace/runtime/layers/lstm.h>

namespace millrace::bench {

/// Layers of H units over N equal sequences of T steps of H features, dense, from states of zeros, in one dtype. Normally distributed, none of
/// it zero.
struct GpuLstm {
  std::int64_t steps = 0, rows = 0, hidden = 0;
  std::size_t layers = 1;
  DType dtype = DType::f16;
  std::vector<layers::LstmWeights> weights;  ///< on the host, in the dtype
  Tensor x;                                  ///< [T, N, H], on the device
};
GpuLstm make_gpu_lstm(GpuMachine& machine, std::int64_t steps, std::int64_t rows, std::int64_t hidden, DType dtype, std::size_t layers = 1);

/// The built-in layer, input x to output y, through the public interface. `dense`: over [T, N, H]; else over rows with lengths.
Program lstm_program(const GpuLstm& problem, bool dense = true);
Feeds feeds_of(const GpuLstm& problem);

/// Whether `--shapes` names it, or nothing.
bool is_wanted(const Context& context, std::int64_t hidden, std::int64_t rows);

/// One step among the equal ones of `whole`; no timer without one.
Timer a_step(Timer whole, std::int64_t steps);

/// The last of [T, N, H], [N, H] on the host.
Tensor last_step(const Tensor& y);
/// The greatest difference of two tensors of one dtype, as f32.
double difference_of(const Tensor& a, const Tensor& b);

}  // namespace millrace::bench
