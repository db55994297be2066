// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/builder/var.h>

/// The functions that append ops. Names and semantics are those of the ops (docs/ops.md); ProgramError when an op refuses its inputs.
namespace millrace::build {

Var input(const std::string& name, const VarType& type);
void output(const std::string& name, const Var& var);
Var parameter(const std::string& name, const Tensor& value);
Var constant(const Tensor& value);
Var constant(std::int64_t value);
Var constant(int value);
Var constant(double value);
Var constant(bool value);

/// Any registered op by name, those from outside the tree too.
std::vector<Var> call(const std::string& op, const std::vector<Var>& inputs, const Attributes& attributes = {},
                      const std::vector<std::string>& names = {});
/// Calls an op with one output, and gives that.
Var call1(const std::string& op, const std::vector<Var>& inputs, const Attributes& attributes = {}, const std::string& name = {});

Var add(const Var& a, const Var& b);
Var sub(const Var& a, const Var& b);
Var mul(const Var& a, const Var& b);
Var div(const Var& a, const Var& b);
Var neg(const Var& x);
inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
inline Var operator-(const Var& a, const Var& b) { return sub(a, b); }
inline Var operator*(const Var& a, const Var& b) { return mul(a, b); }
inline Var operator/(const Var& a, const Var& b) { return div(a, b); }
inline Var operator-(const Var& x) { return neg(x); }
Var minimum(const Var& a, const Var& b);
Var maximum(const Var& a, const Var& b);
Var pow(const Var& a, const Var& b);

Var equal(const Var& a, const Var& b);
Var not_equal(const Var& a, const Var& b);
Var less(const Var& a, const Var& b);
Var less_equal(const Var& a, const Var& b);
Var greater(const Var& a, const Var& b);
Var greater_equal(const Var& a, const Var& b);
Var logical_and(const Var& a, const Var& b);
Var logical_or(const Var& a, const Var& b);
Var logical_not(const Var& x);
Var where(const Var& condition, const Var& a, const Var& b);

Var sigmoid(const Var& x);
Var tanh(const Var& x);
Var relu(const Var& x);
Var exp(const Var& x);
Var log(const Var& x);
Var sqrt(const Var& x);
Var abs(const Var& x);
Var softmax(const Var& x, int axis = -1);
Var log_softmax(const Var& x, int axis = -1);
/// The place of the greatest, the first of equal ones: i64.
Var argmax(const Var& x, int axis = -1, bool keepdims = false);
Var layer_norm(const Var& x, const Var& scale, const Var& bias, int axis = -1, double epsilon = 1e-5);

Var matmul(const Var& a, const Var& b);
/// Sums of bf16 or f16 as f32, not narrowed again.
Var matmul(const Var& a, const Var& b, DType to);
/// Rows of f32 as i8 with a scale each (kernels/int8.h).
struct Quantized {
  Var values;
  Var scales;
};
Quantized quantize_rows(const Var& x);
/// Quantized rows times W i8 [k, n] with a scale for each column: f32.
Var matmul_int8(const Quantized& x, const Var& w, const Var& w_scales);
Var reduce(const Var& x, const std::string& kind, const std::vector<std::int64_t>& axes = {}, bool keepdims = false);
inline Var sum(const Var& x, const std::vector<std::int64_t>& axes = {}, bool keepdims = false) { return reduce(x, "sum", axes, keepdims); }
inline Var mean(const Var& x, const std::vector<std::int64_t>& axes = {}, bool keepdims = false) {
  return reduce(x, "mean", axes, keepdims);
}
Var cast(const Var& x, DType to);
Var identity(const Var& x);
/// x itself, of whose extents along `axes` (none: all) nothing counts as known: what a loop carries may then have others in the next iteration.
///
///     Var tokens = varying(constant(Tensor::from<std::int64_t>({})));   // i64[?]
Var varying(const Var& x, const std::vector<std::int64_t>& axes = {});
Var reshape(const Var& x, const std::vector<std::int64_t>& shape);
Var squeeze(const Var& x, const std::vector<std::int64_t>& axes);
Var unsqueeze(const Var& x, const std::vector<std::int64_t>& axes);
Var transpose(const Var& x, const std::vector<std::int64_t>& perm);
Var concat(const std::vector<Var>& xs, int axis);
std::vector<Var> split(const Var& x, int axis, const std::vector<std::int64_t>& sizes);
Var slice(const Var& x, int axis, std::int64_t begin, std::int64_t end);
Var gather(const Var& x, const Var& index, int axis = 0);
Var embedding(const Var& table, const Var& index);
/// x [N, C, L], w [M, C/group, K]; `bias` may be undefined. Pads {left, right}: {K − 1, 0} makes it causal.
Var conv1d(const Var& x, const Var& w, const Var& bias, std::int64_t stride = 1, std::int64_t dilation = 1,
           const std::vector<std::int64_t>& pads = {0, 0}, std::int64_t group = 1);

struct LstmState {
  Var h;
  Var c;
};
/// One step: x [B, C], h and c [B, H], w [C, 4H], r [H, 4H], bias [4H]; gate order i f g o.
LstmState lstm_cell(const Var& x, const LstmState& state, const Var& w, const Var& r, const Var& bias);

/// Takes the LoD away, on purpose.
Var drop_lod(const Var& x);
/// The rows of `state` whose sequences still live at the step that `step_input` was read at.
Var shrink(const Var& state, const Var& step_input);

}  // namespace millrace::build
