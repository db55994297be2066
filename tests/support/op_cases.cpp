// SPDX-License-Identifier: Apache-2.0
#include "support/op_cases.h"

#include <millrace/kernels/cast.h>
#include <millrace/tensor/device.h>

namespace millrace::testing {
namespace {

using Ints = std::vector<std::int64_t>;
using Fill = OpCase::Fill;
using Input = OpCase::Input;

Input fed(const DDim& dims, Fill fill = Fill::real, DType dtype = DType::f32) { return {Input::Role::fed, dims, dtype, fill, 0, {}}; }
Input index(const DDim& dims, std::int64_t bound) { return {Input::Role::fed, dims, DType::i64, Fill::index, bound, {}}; }
Input fixed(Tensor value) { return {Input::Role::fixed, value.dims(), value.dtype(), Fill::real, 0, value}; }
Input list(const Ints& values) { return fixed(Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())})); }
Input none() { return {}; }

Tensor reals(Random& random, const DDim& dims, double scale = 1) {
  Tensor made(DType::f32, dims);
  float* to = made.mutable_data<float>();
  for (std::int64_t i = 0; i < made.elements(); ++i) to[i] = static_cast<float>(random.real() * scale);
  return made;
}

/// The cases, added family by family. Extents a … d are 1 to 4.
class Cases {
 public:
  explicit Cases(Random& random) : random_(random) {}
  std::vector<OpCase> all;

  void add(std::string type, std::vector<Input> inputs, Attributes attributes = {}) {
    all.push_back({std::move(type), std::move(attributes), std::move(inputs)});
  }
  std::int64_t extent() { return random_.between(1, 4); }
  Input weight(const DDim& dims) { return fixed(reals(random_, dims)); }
  Input whole(const DDim& dims) {
    CpuDevice device;
    return fixed(cast(reals(random_, dims, 100), DType::i32, device.stream(0)).copy_to(CpuPlace{}));
  }
  Input narrow_weight(const DDim& dims) {
    CpuDevice device;
    return fixed(cast(reals(random_, dims), DType::bf16, device.stream(0)).copy_to(CpuPlace{}));
  }

  void elementwise() {
    const auto [a, b, c] = extents();
    for (const char* name :
         {"add", "sub", "mul", "minimum", "maximum", "equal", "less", "less_equal", "greater", "greater_equal", "not_equal"}) {
      add(name, {fed({b, c}), fed({c})});
      add(name, {fed({}), fed({a, 1, c})});
      add(name, {fed({a, b, c}), weight({b, 1})});
    }
    add("div", {fed({b, c}), fed({b, c}, Fill::positive)});
    add("pow", {fed({b, c}, Fill::positive), fed({c})});
    add("pow", {fed({b, c}), fixed(Tensor::scalar(2.0f))});
    add("mod", {fed({b, c}), fed({c}, Fill::positive)}, {{"fmod", random_.coin()}});
    for (const char* name : {"logical_and", "logical_or", "logical_xor"})
      add(name, {fed({b, c}, Fill::boolean, DType::boolean), fed({c}, Fill::boolean, DType::boolean)});
    add("add", {index({b, c}, 100), index({c}, 100)});
    add("where", {fed({a, 1, c}, Fill::boolean, DType::boolean), fed({b, c}), fed({})});
    add("clip", {fed({a, b}), fixed(Tensor::scalar(-0.5f)), fixed(Tensor::scalar(0.25f))});
    add("clip", {fed({a, b}), fed({}), none()});
    add("clip", {fed({a}), fed({1}), fixed(Tensor::from({0.25f}))});
    add("prelu", {fed({a, b}), weight({b})});
    add("prelu", {fed({a, b}), fed({b})});
    for (const char* name : {"sigmoid_gradient", "tanh_gradient"}) {
      add(name, {fed({a, b}), fed({a, b})});
      add(name, {fed({a, b}), fed({b})});
    }
  }

  void unary() {
    const auto [a, b, c] = extents();
    for (const char* name : {"neg",          "abs",
                             "sign",         "exp",
                             "erf",          "floor",
                             "ceil",         "round",
                             "sin",          "cos",
                             "atan",         "is_nan",
                             "is_inf",       "sigmoid",
                             "tanh",         "relu",
                             "leaky_relu",   "elu",
                             "selu",         "celu",
                             "hard_sigmoid", "hard_swish",
                             "mish",         "softplus",
                             "softsign",     "thresholded_relu",
                             "gelu",         "identity"})
      add(name, {fed({a, b, c})});
    for (const char* name : {"affine", "scaled_tanh"}) add(name, {fed({a, b})}, {{"alpha", 0.5}, {"beta", 0.25}});
    for (const char* name : {"sqrt", "reciprocal", "log"}) add(name, {fed({a, b}, Fill::positive)});
    add("logical_not", {fed({a}, Fill::boolean, DType::boolean)});
    add("gelu", {fed({})}, {{"approximate", std::string("tanh")}});
    add("cast", {fed({a, b})}, {{"to", DType::i32}});
    add("drop_lod", {fed({a, b})});
  }

  void products() {
    const auto [a, b, c] = extents();
    const std::int64_t m = extent(), k = random_.between(1, 9), n = extent();
    add("matmul", {fed({m, k}), weight({k, n})});
    add("matmul", {fed({k}), weight({k, n})});
    add("matmul", {fed({a, m, k}), weight({k, n})});
    add("matmul", {fed({m, k}), weight({k})});
    add("matmul", {weight({m, k}), fed({k, n})});
    add("matmul", {weight({m, k}), fed({k})});
    add("matmul", {fed({m, k}), fed({k, n})});
    add("matmul", {fed({k}), fed({k})});
    add("matmul", {fed({k}), fed({a, k, n})});
    add("matmul", {fed({b, 1, m, k}), fed({a, k, n})});
    add("matmul", {fed({a, m, k}), fed({k})});
    add("gemm", {fed({m, k}), weight({k, n}), weight({n})});
    add("gemm", {fed({m, k}), weight({n, k}), none()}, {{"trans_b", true}});
    add("gemm", {fed({m, k}), weight({n, k}), weight({m, n})}, {{"trans_b", true}, {"alpha", 0.5}, {"beta", 0.25}});
    add("gemm", {fed({k, m}), fed({k, n}), fed({n})}, {{"trans_a", true}, {"beta", 2.0}});
    add("gemm", {weight({m, k}), weight({k, n}), fed({m, 1})});
    add("gemm", {weight({m, k}), weight({k, n}), fed({m, 1})}, {{"beta", 0.0}});
    add("gemm", {fed({m, k}), weight({k, n}), fed({})});
    add("matmul", {fed({a, m, k}), narrow_weight({k, n})});
    add("matmul", {fed({m, k}), narrow_weight({k})});
    add("gemm", {fed({m, k}), narrow_weight({n, k}), weight({n})}, {{"trans_b", true}});
    add("quantize_rows", {fed({a, m, k})});
    add("quantize_rows", {fed({k})});
    add("round_to_bytes", {fed({a, m, k})});
    for (const std::int64_t axis : {0, 1, 2, 3}) add("round_to_bytes", {fed({a, m, k})}, {{"axis", axis}});
    const auto bytes = [&](const DDim& dims) { return fixed(Input{Input::Role::fed, dims, DType::i8, Fill::real, 0, {}}.make(random_)); };
    add("matmul_int8", {fed({m, k}, Fill::real, DType::i8), fed({m, 1}), bytes({k, n}), weight({n})});
    for (const std::int64_t axis : {0, 1, 2}) add("matmul_bytes", {fed({a, m, k}), bytes({k, n}), weight({n})}, {{"axis", axis}});
    for (const std::int64_t axis : {0, 1, 3}) add("quantize_bytes", {fed({a, m, k})}, {{"axis", axis}});
    for (const DDim& zeros : {DDim{}, DDim{a}, DDim{a, m}})
      add("matmul_integer", {fed({a, m, k}, Fill::real, DType::i8), fed(zeros, Fill::real, DType::i8), bytes({k, n})});
    add("matmul_integer", {fed({a, m, k}, Fill::real, DType::i8), fed({}, Fill::real, DType::i8), bytes({k, n}), whole({n}), whole({n})});
    add("matmul_int8", {fed({a, m, k}, Fill::real, DType::i8), fed({a, m, 1}), bytes({k, n}), weight({n})});
  }

  void reductions() {
    const auto [a, b, c] = extents();
    for (const char* kind : {"sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp"}) {
      add("reduce", {fed({a, b, c})}, {{"kind", std::string(kind)}, {"axes", Ints{-1}}, {"keepdims", random_.coin()}});
      add("reduce", {fed({a, b})}, {{"kind", std::string(kind)}, {"axes", Ints{}}, {"keepdims", random_.coin()}});
    }
    add("reduce", {fed({})}, {{"kind", std::string("l1")}});
    add("reduce", {fed({a, b, c})}, {{"kind", std::string("sum")}, {"axes", Ints{0, 2}}, {"keepdims", false}});
    add("argmax", {fed({a, b, c})}, {{"axis", std::int64_t{1}}, {"keepdims", false}, {"select_last", random_.coin()}});
    add("argmin", {fed({a, b})}, {{"axis", std::int64_t{-1}}});
    add("softmax", {fed({a, b, c})}, {{"axis", std::int64_t{1}}});
    add("softmax", {fed({a, b})});
    add("log_softmax", {fed({a, b, c})}, {{"axis", std::int64_t{-1}}});
    add("layer_norm", {fed({a, b, c}), weight({c}), weight({c})}, {{"axis", std::int64_t{-1}}});
    add("layer_norm", {fed({a, b, c}), weight({b, c}), none()}, {{"axis", std::int64_t{1}}, {"epsilon", 1e-3}});
    add("layer_norm_gradient", {fed({a, b, c}), weight({c}), fed({a, b, c})}, {{"axis", std::int64_t{-1}}});
    add("layer_norm_gradient", {fed({a, b, c}), weight({b, c}), fed({a, b, c})}, {{"axis", std::int64_t{1}}, {"epsilon", 1e-3}});
    add("cumsum", {fed({a, b})}, {{"axis", std::int64_t{1}}, {"exclusive", random_.coin()}, {"reverse", random_.coin()}});
  }

  void shapes() {
    const auto [a, b, c] = extents();
    add("shape", {fed({a, b, c})});
    add("shape", {fed({a, b, c})}, {{"start", std::int64_t{1}}});
    add("size", {fed({a, b})});
    add("transpose", {fed({a, b, c})}, {{"perm", Ints{2, 0, 1}}});
    add("transpose", {fed({a, b})});
    add("transpose_by", {fed({a, b, c}), list({2, -3, 1})});
    add("bit_cast", {fed({a, b})}, {{"to", DType::i32}});
    add("squeeze", {fed({a, 1, b, 1})}, {{"axes", Ints{1, -1}}});
    add("unsqueeze", {fed({a, b})}, {{"axes", Ints{-1, 0}}});
    add("reshape", {fed({a, b, c})}, {{"shape", Ints{0, -1}}});
    add("reshape", {fed({a, b, c})}, {{"shape", Ints{a, c, b}}});
    add("reshape", {fed({a, 1, c})}, {{"shape", Ints{-1, c}}});
    add("reshape", {fed({a, 1, b})}, {{"shape", Ints{0, 1, 0, 1}}});
    add("reshape", {fed({1, 1})}, {{"shape", Ints{}}});
    add("reshape_to", {fed({a, b, c}), list({-1, c})});
    add("reshape_to", {fed({0, b}), list({b, 0})}, {{"allowzero", true}});
    for (const std::int64_t axis : {0, 1, 2, -1, 3}) add("flatten", {fed({a, b, c})}, {{"axis", axis}});
  }

  void pieces() {
    const auto [a, b, c] = extents();
    add("concat", {fed({a, b}), fed({a, c})}, {{"axis", std::int64_t{1}}});
    add("concat", {fed({a, b}), weight({c, b}), fed({1, b})}, {{"axis", std::int64_t{-2}}});
    add("split", {fed({b, a + c})}, {{"axis", std::int64_t{-1}}, {"sizes", Ints{a, c}}});
    add("slice", {fed({a, b, c + 2})}, {{"starts", Ints{1, -1}}, {"ends", Ints{100, -100}}, {"axes", Ints{-1, 0}}, {"steps", Ints{2, -1}}});
    add("slice", {fed({a, b})}, {{"starts", Ints{0}}, {"ends", Ints{1}}});
    add("slice_by", {fed({a, b, c}), list({0, 0}), list({1, 2}), list({1, 2}), none()});
    add("slice_by", {fed({a, b}), list({-1}), list({100})});
    add("reverse", {fed({a, b, c})}, {{"axis", std::int64_t{1}}});
    add("pad", {fed({a, b})}, {{"pads", Ints{0, 2, 1, 0}}, {"value", 0.5}});
    add("pad", {fed({a, b + 2})}, {{"pads", Ints{0, 1, 0, 2}}, {"mode", std::string("reflect")}});
    add("pad", {fed({b, a})}, {{"pads", Ints{0, 1, 0, 2}}, {"mode", std::string("edge")}});
    add("pad_by", {fed({a, b}), list({0, 1, 0, 2}), fixed(Tensor::scalar(0.25f))});
    add("expand", {fed({a, 1}), list({b, 1, c})});
    add("expand", {fed({a, b, 1}), list({c})});
    add("tile", {fed({a, b}), list({1, 3})});
  }

  void picks() {
    const auto [a, b, c] = extents();
    add("gather", {weight({a, b}), index({c}, a)});
    add("gather", {weight({a, b, c}), index({}, b)}, {{"axis", std::int64_t{1}}});
    add("gather", {weight({a, b, c}), index({2, a}, c)}, {{"axis", std::int64_t{-1}}});
    add("gather", {fed({a, b, c}), list({0, -1})}, {{"axis", std::int64_t{2}}});
    add("gather", {fed({a, b, c}), index({2, a}, b)}, {{"axis", std::int64_t{1}}});
    add("gather", {fed({a, b}), index({}, a)});
    add("gather_elements", {fed({a, b}), index({a, c}, b)}, {{"axis", std::int64_t{1}}});
    add("gather_elements", {weight({a, b}), index({c, b}, a)}, {{"axis", std::int64_t{0}}});
    add("embedding", {weight({a, b}), index({c, 2}, a)});
    add("top_k", {fed({a, b, c}), fixed(Tensor::scalar(b))}, {{"axis", std::int64_t{1}}, {"largest", random_.coin()}});
    add("top_k", {fed({a, c}), fixed(Tensor::scalar(std::int64_t{1}))});
    add("gather_nd", {fed({a, a, c}), index({b, 2}, a)});
    add("gather_nd", {weight({a, b, c}), index({2, b, 1}, a)});
    add("gather_nd", {fed({a, b, c}), index({a, 2, 1}, b)}, {{"batch_dims", std::int64_t{1}}});
    const std::string reduction = random_.coin() ? "add" : "none";
    add("scatter_nd", {fed({a, b, c}), index({2, 1}, a), fed({2, b, c})}, {{"reduction", reduction}});
    add("scatter_elements", {fed({a, b}), index({a, c}, b), fed({a, c})}, {{"axis", std::int64_t{1}}, {"reduction", reduction}});
    add("put_slice", {fed({a, b, c + 2}), fed({a, b, c})},
        {{"starts", Ints{1}}, {"ends", Ints{c + 1}}, {"axes", Ints{-1}}, {"steps", Ints{1}}});
    add("sum_to", {fed({a, b, c}), fed({b, 1})});
    add("sum_to", {fed({a, b}), fed({a, b})});
    add("one_hot", {index({a, b}, c), fixed(Tensor::scalar(c)), fixed(Tensor::from({0.0f, 1.0f}))});
    add("one_hot", {index({a}, c), fixed(Tensor::scalar(c)), fixed(Tensor::from({-1.0f, 1.0f}))}, {{"axis", std::int64_t{0}}});
  }

  void cells() {
    const std::int64_t n = extent(), in = random_.between(1, 5), hidden = random_.between(1, 5), groups = random_.between(1, 2);
    const std::int64_t length = random_.between(4, 9), units = groups * extent();
    add("conv1d", {fed({n, in * groups, length}), weight({units, in, 3}), weight({units})},
        {{"group", groups},
         {"stride", random_.between(1, 2)},
         {"dilation", random_.between(1, 2)},
         {"pads", Ints{2, random_.between(0, 1)}}});
    add("conv1d", {fed({1, in, length}), weight({units, in, 1})});
    const auto cell = [&](Attributes attributes, Input bias, Input peephole) {
      add("lstm_cell",
          {fed({n, in}), fed({n, hidden}), fed({n, hidden}), weight({in, 4 * hidden}), weight({hidden, 4 * hidden}), std::move(bias),
           std::move(peephole)},
          std::move(attributes));
    };
    cell({}, weight({4 * hidden}), none());
    add("lstm_gates", {fed({n, 4 * hidden}), fed({n, 4 * hidden}), fed({n, hidden}), weight({4 * hidden}), none()});
    add("lstm_gates", {fed({n, 4 * hidden}), fed({n, 4 * hidden}), fed({n, hidden}), none(), weight({3 * hidden})}, {{"clip", 0.5}});
    cell({{"clip", 0.5}, {"input_forget", true}}, none(), weight({3 * hidden}));
    cell({{"activations", std::vector<std::string>{"hard_sigmoid", "affine", "relu"}},
          {"alphas", std::vector<double>{0.2, 0.5, 0}},
          {"betas", std::vector<double>{0.5, 0.1, 0}}},
         weight({4 * hidden}), none());
  }

 private:
  struct Three {
    std::int64_t a, b, c;
  };
  Three extents() { return {extent(), extent(), extent()}; }
  Random& random_;
};

}  // namespace

Tensor OpCase::Input::make(Random& random) const {
  if (role != Role::fed) return value;
  Tensor made(dtype, dims);
  for (std::int64_t i = 0; i < made.elements(); ++i) {
    if (fill == Fill::boolean)
      made.mutable_data<bool>()[i] = random.coin();
    else if (dtype == DType::i8)
      made.mutable_data<std::int8_t>()[i] = static_cast<std::int8_t>(random.between(-127, 127));
    else if (fill == Fill::index)
      made.mutable_data<std::int64_t>()[i] = random.between(-bound, bound - 1);
    else
      made.mutable_data<float>()[i] = fill == Fill::positive ? random.real() + 1.5f : random.real();
  }
  if (made.elements() == 0) made.storage()->mark_written();
  return made;
}

std::string OpCase::to_string() const {
  std::string text = type + "(";
  for (const Input& input : inputs)
    text += (input.role == Input::Role::absent ? "none" : std::string(name_of(input.dtype)) + input.dims.to_string()) +
            (input.role == Input::Role::fixed ? " fixed, " : ", ");
  return text + ")";
}

std::vector<OpCase> op_cases(Random& random) {
  Cases cases(random);
  cases.elementwise();
  cases.unary();
  cases.products();
  cases.reductions();
  cases.shapes();
  cases.pieces();
  cases.picks();
  cases.cells();
  return std::move(cases.all);
}

}  // namespace millrace::testing
