// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/gates.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("blocks move by the letters of their gates, along either axis") {
  const Tensor columns = Tensor::from<float>({1, 2, 3, 4, 5, 6, 7, 8}).reshape({1, 8});
  CHECK(layers::reorder_gates(columns, 1, layers::gate_order::onnx_lstm, layers::gate_order::lstm).to_vector<float>() ==
        std::vector<float>{1, 2, 5, 6, 7, 8, 3, 4});
  const Tensor rows = Tensor::from<float>({1, 2, 3});
  CHECK(layers::reorder_gates(rows, 0, layers::gate_order::onnx_gru, layers::gate_order::gru).to_vector<float>() ==
        std::vector<float>{2, 1, 3});
  CHECK(layers::reorder_gates(rows, 0, layers::gate_order::onnx_peephole, "ifo").to_vector<float>() == std::vector<float>{1, 3, 2});
}

TEST_CASE("there and back again is the same, of any dtype") {
  const Tensor w = Tensor::from<double>({1, 2, 3, 4, 5, 6});
  const Tensor turned = layers::reorder_gates(w, 0, "zrn", "rzn");
  CHECK(turned.dtype() == DType::f64);
  CHECK(layers::reorder_gates(turned, 0, "rzn", "zrn").to_vector<double>() == w.to_vector<double>());
}

TEST_CASE("other gates, or blocks that are not equal, are refused") {
  const Tensor w = Tensor::from<float>({1, 2, 3, 4});
  CHECK_THROWS_WITH_AS(layers::reorder_gates(w, 0, "ifgo", "rzn"), doctest::Contains("'ifgo'"), ArgumentError);
  CHECK_THROWS_WITH_AS(layers::reorder_gates(w, 0, "zrn", "rzn"), doctest::Contains("3 equal blocks"), ShapeError);
}

TEST_CASE("two biases are one sum, and one that is absent adds nothing") {
  const Tensor a = Tensor::from<float>({1, 2}), b = Tensor::from<float>({10, 20});
  CHECK(layers::summed(a, b)->to_vector<float>() == std::vector<float>{11, 22});
  CHECK(layers::summed(std::nullopt, b)->to_vector<float>() == std::vector<float>{10, 20});
  CHECK(layers::summed(a, std::nullopt)->to_vector<float>() == std::vector<float>{1, 2});
  CHECK_FALSE(layers::summed(std::nullopt, std::nullopt).has_value());
}
