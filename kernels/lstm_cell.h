// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <millrace/kernels/unary.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

namespace cpu {
struct LstmKernels;
}

/// A function with its numbers, as a recurrent cell applies it.
struct Activation {
  Unary kind = Unary::sigmoid;
  UnaryParams params = {};
};

/// One step of an LSTM. Gates stand in the order **i f g o** in every [.., 4·H].
/// Source: ONNX LSTM, whose order is i o f c.
///
///   a = (h·R + bias) + x·W        dot products in the order of gemm.h, then one rounded addition each
///   a_i += p_i·c; a_f += p_f·c    with peepholes
///   i = f(a_i); f = f(a_f); g = g(a_g)
///   c' = f·c + i·g                two rounded products, then their sum
///   a_o += p_o·c'                 with peepholes: o reads the new c
///   o = f(a_o); h' = o·h(c')
///
/// Where asked, each a is clipped to [−clip, clip] before its activation, and f = 1 − i (coupled; the third of f is
/// then not used). Without a bias, a = h·R + x·W.
struct LstmDesc {
  std::int64_t input = 0;                ///< C
  std::int64_t hidden = 0;               ///< H
  DType dtype = DType::f32;              ///< f32, f64; f16 and bf16 hold x, h, c and weights in that type and compute in f32
  Activation gate = {Unary::sigmoid};    ///< f: of i, f, o
  Activation candidate = {Unary::tanh};  ///< g
  Activation output = {Unary::tanh};     ///< h
  bool bias = true;
  bool peepholes = false;
  bool couple_input_forget = false;
  double clip = 0;                              ///< 0 = none
  std::optional<DType> weights = std::nullopt;  ///< of W and R where it is another: bf16 under f32, widened exactly

  DType weights_dtype() const { return weights.value_or(dtype); }
};

class LstmPlan {
 public:
  const LstmDesc& desc() const noexcept { return desc_; }
  const Place& place() const noexcept { return place_; }
  const cpu::LstmKernels& kernels() const noexcept { return *kernels_; }

 private:
  friend LstmPlan make_lstm_cell(const LstmDesc& desc, const Place& place);
  LstmDesc desc_;
  Place place_;
  const cpu::LstmKernels* kernels_ = nullptr;
};
/// ArgumentError, DTypeError, PlaceError.
LstmPlan make_lstm_cell(const LstmDesc& desc, const Place& place = CpuPlace{});

/// Weights as [block of units][k][gates][lanes], of bf16 as [block of units][pair of k][gates][lanes][2]. Cheap to copy, shareable.
struct PackedLstm {
  Tensor input;      ///< W
  Tensor recurrent;  ///< R
  Tensor bias;       ///< empty without bias
  Tensor peepholes;  ///< empty without peepholes
};
/// W [C, 4H], R [H, 4H], bias [4H] or null, peepholes [3H] (i f o) or null, of any strides. ShapeError names what the
/// description asks for.
PackedLstm pack(const LstmPlan& plan, const Tensor& w, const Tensor& r, const Tensor* bias, const Tensor* peepholes, StreamRef stream);

/// x [N, C]; h, c, h_out, c_out [N, H]: rows contiguous, row strides free. h_out and c_out may not be h or c of the
/// same call (every unit reads all of h), except that c_out may be c. A row's bits do not depend on N. ShapeError,
/// DTypeError.
void run(const LstmPlan& plan, const PackedLstm& weights, const Tensor& x, const Tensor& h, const Tensor& c, Tensor& h_out, Tensor& c_out,
         StreamRef stream);

/// Runs the cell with x·W computed before, as [N, 4H] (matmul(x, W), same bits), so that a run of steps needs one GEMM.
void run_projected(const LstmPlan& plan, const PackedLstm& weights, const Tensor& projection, const Tensor& h, const Tensor& c,
                   Tensor& h_out, Tensor& c_out, StreamRef stream);

/// Runs the cell with both products computed before, x·W and h·R as [N, 4H]. This is the part between them and the next state.
void run_gates(const LstmPlan& plan, const PackedLstm& weights, const Tensor& projection, const Tensor& recurrent, const Tensor& c,
               Tensor& h_out, Tensor& c_out, StreamRef stream);
/// Weights for `run_gates` alone: bias [4H] and peepholes [3H] as the description says. ShapeError, DTypeError.
PackedLstm pack_gates(const LstmPlan& plan, const Tensor* bias, const Tensor* peepholes, StreamRef stream);

}  // namespace millrace
