// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/conv1d.h>
#include <millrace/kernels/cpu/layer_norm_gradient.h>
#include <millrace/kernels/lstm_cell.h>
#include <millrace/kernels/reduce.h>
#include <millrace/kernels/scatter.h>
#include <millrace/kernels/sequence_pool.h>
#include <millrace/kernels/unary.h>
#include <millrace/tensor/cuda/copy.h>
#include <millrace/tensor/kernel_context.h>
#include <millrace/tensor/tensor.h>

/// The arithmetic on a CUDA device: what stands in cpu/ under the same names does the same, in the same order of arithmetic. `context` is that
/// of a stream of the device; each call starts kernels there. An error that only values show fails the stream.
namespace millrace::cuda {

void cast(const Tensor& x, const Tensor& out, KernelContext& context);
/// `value` lies on the host.
void fill(const Tensor& value, const Tensor& out, KernelContext& context);
void arange(double start, double step, const Tensor& out, KernelContext& context);
void unary(Unary kind, const UnaryParams& params, const Tensor& x, const Tensor& out, KernelContext& context);
void binary(Binary kind, const Tensor& a, const Tensor& b, const Tensor& out, KernelContext& context);
void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out, KernelContext& context);

void reduce(Reduction kind, const Tensor& x, int axes, const Tensor& out, KernelContext& context);
void arg_extreme(const Tensor& x, bool greatest, bool select_last, const Tensor& out, KernelContext& context);
void softmax(const Tensor& x, bool logarithm, const Tensor& out, KernelContext& context);
/// `scale` and `bias` are row-major in the dtype of the arithmetic.
void layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axes, double epsilon, const Tensor& out,
                KernelContext& context);
void layer_norm_gradient(const NormGradientCall& call, std::int64_t n, KernelContext& context);
void cumsum(const Tensor& x, int axis, bool exclusive, bool reverse, const Tensor& out, KernelContext& context);

using Indices = std::vector<std::int64_t>;
void gather(const Tensor& x, const Tensor& index, int axis, const Tensor& out, KernelContext& context);
void gather_elements(const Tensor& x, const Tensor& index, int axis, const Tensor& out, KernelContext& context);
void gather_rows(const Tensor& x, const Indices& index, const Tensor& out, KernelContext& context);
/// `index` lies on the device; −1 gives a row of zeros.
void gather_rows(const Tensor& x, const Tensor& index, const Tensor& out, KernelContext& context);
void gather_rows_or(const Tensor& x, const Indices& index, const Tensor& otherwise, const Tensor& out, KernelContext& context);
void scatter_rows(const Tensor& x, const Indices& index, const Tensor& out, KernelContext& context);
void scatter_rows(const Tensor& x, const Tensor& index, const Tensor& out, KernelContext& context);
void gather_nd(const Tensor& x, const Tensor& index, int batch_axes, const Tensor& out, KernelContext& context);
void scatter_nd(const Tensor& updates, const Tensor& index, ScatterReduction reduction, const Tensor& out, KernelContext& context);
void scatter_elements(const Tensor& updates, const Tensor& index, int axis, ScatterReduction reduction, const Tensor& out,
                      KernelContext& context);
void mapped_copy(const Tensor& x, const std::vector<Indices>& maps, const Tensor* otherwise, const Tensor& out, KernelContext& context);
/// `values` lie on the host.
void one_hot(const Tensor& index, int axis, const Tensor& values, const Tensor& out, KernelContext& context);
void reverse_sequence(const Tensor& x, const Tensor& lengths, int time_axis, const Tensor& out, KernelContext& context);

void row_conv(const Tensor& x, const Tensor& w, const Indices& offsets, const Tensor& out, KernelContext& context);
/// Softmax along the last axis within each part of it.
void sequence_softmax(const Tensor& x, const Indices& offsets, const Tensor& out, KernelContext& context);
void sequence_pool(SequencePool kind, const Tensor& x, const Indices& offsets, const Tensor& out, KernelContext& context);
void sequence_top_k(const Tensor& x, const Indices& offsets, bool largest, const Tensor& values, const Tensor& places, const Indices& made,
                    KernelContext& context);
void sequence_scatter(const Tensor& x, const Tensor& ids, const Tensor& updates, const Indices& offsets, const Tensor& out,
                      KernelContext& context);

/// c = alpha·a·b + beta·c in the order of gemm.h, with any strides; narrow floats are widened as they are read. With leading axes, one
/// product for each element of them (strides of 0 where an operand is stretched).
void gemm(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c, KernelContext& context);
/// out [rows, n] = x [rows, k] · weights [k, n] (+ bias). `recurrent`: h·R of an LSTM cell, whose sums restart (recurrent/arithmetic.cuh).
void linear(const Tensor& x, const Tensor& weights, const Tensor* bias, const Tensor& out, KernelContext& context, bool recurrent = false);
/// All contiguous: x f32 [..., k], values i8, scales f32 [..., 1].
void quantize_rows(const Tensor& x, const Tensor& values, const Tensor& scales, KernelContext& context);
/// All contiguous: x i8 [..., k], row_scales [..., 1], weights i8 [k, n], column_scales [n], out f32 [..., n].
void matmul_int8(const Tensor& x, const Tensor& row_scales, const Tensor& weights, const Tensor& column_scales, const Tensor& out,
                 KernelContext& context);
/// `weights` as the user gave them, row-major.
void conv1d(const Conv1dDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, const Tensor& out, KernelContext& context);
/// Gates and states behind the products: `input` and `recurrent` are x·W and h·R, [N, 4H] with contiguous rows, in the dtype of the cell or its wide one.
void lstm_gates(const LstmDesc& desc, const PackedLstm& weights, const Tensor& input, const Tensor& recurrent, const Tensor& c,
                const Tensor& h_out, const Tensor& c_out, KernelContext& context);

}  // namespace millrace::cuda
