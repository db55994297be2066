// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/narrow.h>
#include <millrace/runtime/layers/recurrent.h>
#include <millrace/tensor/tensor.h>

/// Helpers of the recurrent layers and of the import of recurrent networks.
namespace millrace::layers::internal {

/// A parameter of the program; undefined for none.
Var parameter(const std::string& name, const std::optional<Tensor>& value);
/// A number of `dtype`.
Var number(double value, DType dtype);
/// x within [−limit, limit]; x itself when `limit` is 0.
Var clipped(const Var& x, double limit);
/// 1 − x.
Var complement(const Var& x);
/// `x` as `parts` equal pieces of its last axis.
std::vector<Var> pieces(const Var& x, std::int64_t parts, std::int64_t units);
/// h·R (+ bias), then + x·W: the order of lstm_cell.
Var preactivation(const Var& x, const Matrix& w, const Var& h, const Matrix& r, const Var& bias);

/// The parts of one step of an LSTM without a projection.
struct LstmParts {
  Var i, f, g, o;  ///< the gates
  Var c;           ///< the next c
  Var shown;       ///< h(c'), which o lets through
  Var h;           ///< the next h
};
/// The step of an LSTM as lstm.h has it, with the bits of `lstm_cell`. `sums` are (h·R + bias) + x·W of [N, 4H]; c is [N, H]; `peepholes` are [3H] or undefined.
LstmParts lstm_parts(const Var& sums, const Var& c, const Var& peepholes, std::int64_t hidden, const LstmOptions& options);

/// Weights of one direction of a GRU as its step reads them, gates r z n; biases may be undefined.
struct GruParameters {
  Matrix input;  ///< W [C, 3H]
  Var bias;      ///< [3H]
  Matrix gates;  ///< R of r z: [H, 2H]
  Var gates_bias;
  Matrix candidate;  ///< R of n: [H, H]
  Var candidate_bias;
};
/// The next state, as gru.h has it; of `options` reset, keeps, gate, candidate and clip.
Var gru_step(const Var& x, const Var& h, const GruParameters& p, std::int64_t hidden, const GruOptions& options);

/// The initial value `k` of `given`, undefined when there are none. ProgramError unless there are `count`, or none.
Var initial(const std::vector<Var>& given, std::size_t k, std::size_t count, const std::string& what);
/// The number of layers of which there are `weights` weights. ProgramError when they are none, or do not share out among the directions.
std::size_t layers_of(const std::string& what, std::size_t weights, Direction direction);
/// ShapeError, naming layer and field, unless `tensor` has `dims`.
void expect_dims(const std::string& layer, const char* field, const Tensor& tensor, const DDim& dims);
/// ShapeError, with what to do, when `recurrent` is [gates·H, H], as PyTorch and ONNX have it, and not [H, gates·H].
void refuse_turned(const std::string& layer, const Tensor& recurrent, std::int64_t gates);
/// The numbers of `w` that belong to direction `direction` of ONNX's weights.
Tensor direction_of(const Tensor& w, std::int64_t direction);

}  // namespace millrace::layers::internal
