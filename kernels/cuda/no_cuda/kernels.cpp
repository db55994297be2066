// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/kernels.h>

#include <string>

#include <millrace/kernels/cuda/lstm_sequence.h>
#include <millrace/tensor/error.h>

namespace millrace::cuda {
namespace {

[[noreturn]] void absent(const char* op) {
  throw UnsupportedError(std::string(op) + ": this build has no CUDA kernels: build with MILLRACE_CUDA=ON and the CUDA Toolkit");
}

}  // namespace

void cast(const Tensor&, const Tensor&, KernelContext&) { absent("cast"); }
void fill(const Tensor&, const Tensor&, KernelContext&) { absent("fill"); }
void arange(double, double, const Tensor&, KernelContext&) { absent("arange"); }
void unary(Unary, const UnaryParams&, const Tensor&, const Tensor&, KernelContext&) { absent("unary"); }
void binary(Binary, const Tensor&, const Tensor&, const Tensor&, KernelContext&) { absent("binary"); }
void where(const Tensor&, const Tensor&, const Tensor&, const Tensor&, KernelContext&) { absent("where"); }
void reduce(Reduction, const Tensor&, int, const Tensor&, KernelContext&) { absent("reduce"); }
void arg_extreme(const Tensor&, bool, bool, const Tensor&, KernelContext&) { absent("arg_extreme"); }
void softmax(const Tensor&, bool, const Tensor&, KernelContext&) { absent("softmax"); }
void layer_norm(const Tensor&, const Tensor&, const Tensor*, int, double, const Tensor&, KernelContext&) { absent("layer_norm"); }
void layer_norm_gradient(const NormGradientCall&, std::int64_t, KernelContext&) { absent("layer_norm_gradient"); }
void cumsum(const Tensor&, int, bool, bool, const Tensor&, KernelContext&) { absent("cumsum"); }
void gather(const Tensor&, const Tensor&, int, const Tensor&, KernelContext&) { absent("gather"); }
void gather_elements(const Tensor&, const Tensor&, int, const Tensor&, KernelContext&) { absent("gather_elements"); }
void gather_rows(const Tensor&, const Indices&, const Tensor&, KernelContext&) { absent("gather_rows"); }
void gather_rows(const Tensor&, const Tensor&, const Tensor&, KernelContext&) { absent("gather_rows"); }
void gather_rows_or(const Tensor&, const Indices&, const Tensor&, const Tensor&, KernelContext&) { absent("gather_rows_or"); }
void scatter_rows(const Tensor&, const Indices&, const Tensor&, KernelContext&) { absent("scatter_rows"); }
void scatter_rows(const Tensor&, const Tensor&, const Tensor&, KernelContext&) { absent("scatter_rows"); }
void gather_nd(const Tensor&, const Tensor&, int, const Tensor&, KernelContext&) { absent("gather_nd"); }
void scatter_nd(const Tensor&, const Tensor&, ScatterReduction, const Tensor&, KernelContext&) { absent("scatter_nd"); }
void scatter_elements(const Tensor&, const Tensor&, int, ScatterReduction, const Tensor&, KernelContext&) { absent("scatter_elements"); }
void mapped_copy(const Tensor&, const std::vector<Indices>&, const Tensor*, const Tensor&, KernelContext&) { absent("mapped_copy"); }
void one_hot(const Tensor&, int, const Tensor&, const Tensor&, KernelContext&) { absent("one_hot"); }
void reverse_sequence(const Tensor&, const Tensor&, int, const Tensor&, KernelContext&) { absent("reverse_sequence"); }
void row_conv(const Tensor&, const Tensor&, const Indices&, const Tensor&, KernelContext&) { absent("row_conv"); }
void sequence_softmax(const Tensor&, const Indices&, const Tensor&, KernelContext&) { absent("sequence_softmax"); }
void sequence_pool(SequencePool, const Tensor&, const Indices&, const Tensor&, KernelContext&) { absent("sequence_pool"); }
void sequence_top_k(const Tensor&, const Indices&, bool, const Tensor&, const Tensor&, const Indices&, KernelContext&) {
  absent("sequence_top_k");
}
void sequence_scatter(const Tensor&, const Tensor&, const Tensor&, const Indices&, const Tensor&, KernelContext&) {
  absent("sequence_scatter");
}
void gemm(double, const Tensor&, const Tensor&, double, const Tensor&, KernelContext&) { absent("gemm"); }
void linear(const Tensor&, const Tensor&, const Tensor*, const Tensor&, KernelContext&, bool) { absent("linear"); }
void quantize_rows(const Tensor&, const Tensor&, const Tensor&, KernelContext&) { absent("quantize_rows"); }
void matmul_int8(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, KernelContext&) { absent("matmul_int8"); }
void conv1d(const Conv1dDesc&, const Tensor&, const Tensor&, const Tensor*, const Tensor&, KernelContext&) { absent("conv1d"); }
void lstm_gates(const LstmDesc&, const PackedLstm&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                KernelContext&) {
  absent("lstm_gates");
}
LstmLimits lstm_limits(int, DType) { absent("lstm sequence"); }
void pack_lstm_sequence(const LstmDesc&, bool, const Tensor&, const Tensor&, KernelContext&) { absent("lstm sequence"); }
void lstm_sequence(const LstmDesc&, bool, const LstmSchedule&, const PackedLstmSequence&, const LstmSequenceRows&, std::int64_t,
                   std::int64_t, KernelContext&) {
  absent("lstm sequence");
}

}  // namespace millrace::cuda
