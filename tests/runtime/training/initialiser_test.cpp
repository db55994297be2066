// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include <millrace/runtime/training/initialiser.h>

using namespace millrace;
using namespace millrace::training;
using Kind = Initialiser::Kind;

namespace {

struct Moments {
  double mean = 0, deviation = 0, most = 0;
};

Moments moments(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector<double>();
  Moments made;
  for (const double value : values) made.mean += value / static_cast<double>(values.size());
  for (const double value : values) made.deviation += (value - made.mean) * (value - made.mean) / static_cast<double>(values.size());
  for (const double value : values) made.most = std::max(made.most, std::abs(value));
  made.deviation = std::sqrt(made.deviation);
  return made;
}

Tensor of(Kind kind, double scale, const DDim& dims, std::int64_t gates = 1) {
  return initialise({kind, scale}, DType::f64, dims, 7, "w", gates);
}

}  // namespace

TEST_CASE("each initialiser has the spread of its formula") {
  const DDim dims{200, 300};
  const double uniform = 1 / std::sqrt(3.0);  // the deviation of U(−1, 1)
  CHECK(moments(of(Kind::constant, 3, dims)).mean == doctest::Approx(3));
  CHECK(moments(of(Kind::uniform, 0.5, dims)).most == doctest::Approx(0.5).epsilon(0.01));
  CHECK(moments(of(Kind::uniform, 0.5, dims)).deviation == doctest::Approx(0.5 * uniform).epsilon(0.02));
  CHECK(moments(of(Kind::normal, 0.5, dims)).deviation == doctest::Approx(0.5).epsilon(0.02));
  CHECK(std::abs(moments(of(Kind::normal, 0.5, dims)).mean) < 0.01);
  CHECK(moments(of(Kind::xavier_uniform, 2, dims)).most == doctest::Approx(2 * std::sqrt(6.0 / 500)).epsilon(0.01));
  CHECK(moments(of(Kind::xavier_normal, 1, dims)).deviation == doctest::Approx(std::sqrt(2.0 / 500)).epsilon(0.02));
  CHECK(moments(of(Kind::he_uniform, 1, dims)).most == doctest::Approx(std::sqrt(3.0 / 200)).epsilon(0.01));
  CHECK(moments(of(Kind::he_normal, std::sqrt(2), dims)).deviation == doctest::Approx(std::sqrt(2.0 / 200)).epsilon(0.02));
  CHECK(moments(of(Kind::xavier_uniform, 1, dims, 3)).most == doctest::Approx(std::sqrt(6.0 / 300)).epsilon(0.01));  // out of one gate
}

TEST_CASE("orthogonal matrices have orthonormal rows or columns, gate by gate") {
  for (const auto& [in, out, gates] : {std::tuple{8, 5, 1}, {5, 8, 1}, {6, 6, 4}}) {
    INFO("in ", in, " out ", out, " gates ", gates);
    const Tensor w = of(Kind::orthogonal, 1, {in, out * gates}, gates);
    const auto at = [&](int i, int o, int gate) { return w[DDim{i, gate * out + o}]; };
    for (int gate = 0; gate < gates; ++gate)
      for (int a = 0; a < std::min(in, out); ++a)
        for (int b = 0; b < std::min(in, out); ++b) {
          double dot = 0;
          for (int k = 0; k < std::max(in, out); ++k) dot += in >= out ? at(k, a, gate) * at(k, b, gate) : at(a, k, gate) * at(b, k, gate);
          CHECK(dot == doctest::Approx(a == b ? 1 : 0).epsilon(1e-12).scale(1));
        }
  }
}

TEST_CASE("an element is a function of seed, name and place alone") {
  const Tensor w = initialise({Kind::normal, 1}, DType::f32, {4, 3}, 5, "w");
  const Tensor longer = initialise({Kind::normal, 1}, DType::f32, {9, 3}, 5, "w");
  CHECK(longer.rows(0, 4).to_vector<float>() == w.to_vector<float>());
  CHECK(initialise({Kind::normal, 1}, DType::f32, {4, 3}, 6, "w").to_vector<float>() != w.to_vector<float>());
  CHECK(initialise({Kind::normal, 1}, DType::f32, {4, 3}, 5, "v").to_vector<float>() != w.to_vector<float>());
}

TEST_CASE("layers begin as PyTorch's, or as was chosen") {
  LayerInit init(3);
  const layers::LstmWeights lstm = init.lstm("lstm1", 12, 100);
  CHECK(lstm.input.dims() == DDim{12, 400});
  CHECK(lstm.recurrent.dims() == DDim{100, 400});
  for (const float value : lstm.bias->to_vector<float>()) CHECK(std::abs(value) <= 0.1f);
  CHECK(init.lstm("lstm1", 12, 100, 1).input.to_vector<float>() != lstm.input.to_vector<float>());
  CHECK(init.gru("g", 4, 5).recurrent_bias->dims() == DDim{15});
  CHECK(init.linear("l", 4, 5).weight.dims() == DDim{4, 5});
  init.choice.input = Initialiser{Kind::xavier_uniform, 1};
  const std::vector<float> bias = init.lstm("lstm1", 12, 2).bias->to_vector<float>();
  CHECK(bias == std::vector<float>{0, 0, 1, 1, 0, 0, 0, 0});
}

TEST_CASE("extents, scales and dtypes that make no sense are refused, and empty weights are weights") {
  CHECK_THROWS_AS(of(Kind::xavier_uniform, 1, {4}), ShapeError);
  CHECK_THROWS_AS(of(Kind::uniform, 1, {4, 5}, 2), ShapeError);
  CHECK_THROWS_AS(of(Kind::uniform, -1, {4}), ArgumentError);
  CHECK_THROWS_AS(initialise({Kind::uniform, 1}, DType::i64, {4}, 1, "w"), DTypeError);
  CHECK(of(Kind::orthogonal, 1, {0, 5}).elements() == 0);
  CHECK(of(Kind::normal, 1, {3, 0}).elements() == 0);
}
