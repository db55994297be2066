// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/lstm_sequence.h>
#include <millrace/tensor/kernel_context.h>

/// The kernel of kernels/lstm_sequence.h. `tf32`: of f32, multiplied as tf32 (with_cuda/mma.cuh).
namespace millrace::cuda {

/// k of one piece of packed weights or of staged h.
constexpr std::int64_t lstm_chunk(DType dtype) { return dtype == DType::f32 ? 8 : 16; }
/// k from one restart of a sum to the next.
constexpr std::int64_t lstm_chain(DType dtype, bool tf32) { return dtype == DType::f32 && !tf32 ? 512 : 128; }
/// Whether sigmoids and hyperbolic tangents of an LSTM cell of this dtype are `pointwise.approx` (recurrent/approximate.cuh). Every kernel of a
/// device that computes such cells asks here, so that backends have the same bits.
constexpr bool lstm_approximates(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
/// Bytes of a piece of weights (8 units, 4 gates), and of one of h (8 rows).
inline constexpr std::int64_t lstm_weight_bytes = 1024, lstm_state_bytes = 256;

constexpr std::int64_t lstm_pieces(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }
/// Shared memory of a block: resident weights, staged h, and the sums of a product that several warps share.
std::int64_t lstm_shared_bytes(const LstmSchedule& schedule, DType dtype, bool tf32, std::int64_t hidden);

LstmLimits lstm_limits(int device, DType dtype);
/// R [H, 4H] row-major in the dtype of the cell.
void pack_lstm_sequence(const LstmDesc& desc, bool tf32, const Tensor& r, const Tensor& packed, KernelContext& context);
/// Steps [first, last) of `rows`, from `h`, `c` to `h_out`, `c_out`.
void lstm_sequence(const LstmDesc& desc, bool tf32, const LstmSchedule& schedule, const PackedLstmSequence& weights,
                   const LstmSequenceRows& rows, std::int64_t first, std::int64_t last, KernelContext& context);

}  // namespace millrace::cuda
