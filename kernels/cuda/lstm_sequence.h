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
/// Whether the cell has sigmoids and hyperbolic tangents, four gates, no peepholes and no clipping. Most kernels are compiled for such cells.
inline bool has_usual_functions(const LstmDesc& desc) {
  return desc.gate.kind == Unary::sigmoid && desc.candidate.kind == Unary::tanh && desc.output.kind == Unary::tanh &&
         !desc.couple_input_forget && !desc.peepholes && !(desc.clip > 0);
}
/// Bytes of a piece of weights (8 units, 4 gates), and of one of h (8 rows).
inline constexpr std::int64_t lstm_weight_bytes = 1024, lstm_state_bytes = 256;

constexpr std::int64_t lstm_pieces(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }
/// Shared memory of a block for `tiles` times 8 rows: resident weights, staged h, and the sums of a product that several warps share; where warps
/// hold weights, the parts below.
std::int64_t lstm_shared_bytes(const LstmSchedule& schedule, DType dtype, bool tf32, std::int64_t hidden, std::int64_t tiles);

/// Warps of a block that compute when warps hold weights.
inline constexpr int held_warps = 8;
/// Where the parts of shared memory begin when warps hold weights in registers (`LstmSchedule::held`).
struct HeldParts {
  std::int64_t units, pairs;                                     ///< unit blocks of the largest block, an even number; their chains
  std::int64_t to_next_row;                                      ///< floats between rows of the addends
  std::int64_t states, to_next_tile;                             ///< two of h, one for each parity of a step
  std::int64_t sums, addends, cells, bias, masks, words, bytes;  ///< weights that no register holds lie at 0
};
constexpr HeldParts held_parts(std::int64_t hidden, std::int64_t blocks, std::int64_t tiles, std::int64_t staged, std::int64_t registers) {
  HeldParts made{};
  const std::int64_t chunks = lstm_pieces(hidden, 16), chains = lstm_pieces(chunks, 8);
  made.units = 2 * lstm_pieces(chunks, blocks);
  made.pairs = made.units * chains;
  made.to_next_row = 32 * made.units + 4;
  made.to_next_tile = 8 * chains * lstm_state_bytes;
  made.states = (made.pairs > registers ? made.pairs - registers : 0) * 8 * lstm_weight_bytes;
  made.sums = made.states + 2 * tiles * made.to_next_tile;
  made.addends = made.sums + made.pairs * staged * 1024;
  made.cells = made.addends + 3 * tiles * 8 * made.to_next_row * 4;
  made.bias = made.cells + 2 * made.units * tiles * 256;
  made.masks = made.bias + made.units * 128;
  made.words = made.masks + lstm_pieces(24 * tiles, 16) * 16;
  made.bytes = made.words + 112;
  return made;
}

LstmLimits lstm_limits(int device, DType dtype);
/// R [H, 4H] row-major in the dtype of the cell.
void pack_lstm_sequence(const LstmDesc& desc, bool tf32, const Tensor& r, const Tensor& packed, KernelContext& context);
/// Steps [first, last) of `rows`, from `h`, `c` to `h_out`, `c_out`.
void lstm_sequence(const LstmDesc& desc, bool tf32, const LstmSchedule& schedule, const PackedLstmSequence& weights,
                   const LstmSequenceRows& rows, std::int64_t first, std::int64_t last, KernelContext& context);

}  // namespace millrace::cuda
