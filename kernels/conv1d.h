// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/gemm.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// A convolution over one axis, ONNX Conv with weights [out_channels, in_channels / groups, kernel]:
///   y[n, o, l] = Σ_{c, t} w[o, c, t] · x[n, g·in/groups + c, l·stride + t·dilation − pad_before] (+ bias[o]), g the
///   group of o.
/// The convolution is unfold + the dot product of gemm.h: k runs over c, then t; an element of the padding is a zero that takes part
/// like any other.
struct Conv1dDesc {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  std::int64_t pad_before = 0;
  std::int64_t pad_after = 0;
  DType dtype = DType::f32;  ///< f64, f32, f16, bf16; the result has it too

  /// (length + pads − dilation·(kernel − 1) − 1) / stride + 1, or 0 when the input is shorter than the kernel.
  std::int64_t out_length(std::int64_t length) const;
};

/// Immutable, cheap to copy, shareable. ArgumentError names the field that does not fit; PlaceError for a place without
/// kernels.
class Conv1dPlan {
 public:
  const Conv1dDesc& desc() const noexcept { return desc_; }
  const GemmPlan& gemm() const noexcept { return gemm_; }

 private:
  friend Conv1dPlan make_conv1d(const Conv1dDesc& desc, const Place& place);
  Conv1dDesc desc_;
  GemmPlan gemm_;  ///< of one group
};
Conv1dPlan make_conv1d(const Conv1dDesc& desc, const Place& place = CpuPlace{});

/// Weights of all groups in the order in which the kernels read them.
PackedMatrix pack(const Conv1dPlan& plan, const Tensor& weights, StreamRef stream);

/// x [N, in_channels, L], bias [out_channels] or null, out [N, out_channels, out_length(L)] contiguous. ShapeError
/// names both. The bits of a row never depend on N.
void run(const Conv1dPlan& plan, const PackedMatrix& weights, const Tensor& x, const Tensor* bias, Tensor& out, StreamRef stream);

/// Plan, pack and run in one.
Tensor conv1d(const Conv1dDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, StreamRef stream);

}  // namespace millrace
