// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <millrace/tensor/tensor.h>

namespace millrace::layers {

/// Where the gates of other frameworks' weights stand, as the names of ours in their order. Ours: LSTM i f g o, GRU r z n.
namespace gate_order {
inline constexpr const char* lstm = "ifgo";             ///< ours, PyTorch, Keras (which writes c for g)
inline constexpr const char* onnx_lstm = "iofg";        ///< ONNX writes c for g
inline constexpr const char* onnx_peephole = "iof";     ///< ours: i f o
inline constexpr const char* fluid_lstm = "gifo";       ///< Fluid writes c for g
inline constexpr const char* tensorflow_lstm = "igfo";  ///< TensorFlow's cells write j for g
inline constexpr const char* gru = "rzn";               ///< ours, PyTorch
inline constexpr const char* onnx_gru = "zrn";          ///< ONNX and Keras write h for n
inline constexpr const char* fluid_gru = "zrn";         ///< Fluid writes u for z and c for n
}  // namespace gate_order

/// `w`, whose axis `axis` holds one block for each letter of `from`, with the blocks in the order of the letters of `to`. A copy, of the
/// same dtype. ShapeError when the blocks are not equal, ArgumentError when the letters differ.
Tensor reorder_gates(const Tensor& w, int axis, const std::string& from, const std::string& to);

/// A matrix turned, as a copy.
Tensor transposed(const Tensor& w);
/// Parts one behind the other along `axis`, as a copy.
Tensor joined(const std::vector<Tensor>& parts, int axis);
/// Two biases as one.
std::optional<Tensor> summed(const std::optional<Tensor>& a, const std::optional<Tensor>& b);

}  // namespace millrace::layers
