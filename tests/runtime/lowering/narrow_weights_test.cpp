// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/narrow.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>
#include <millrace/runtime/loops/step_runner.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/errors.h>
#include <millrace/tensor/device.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/random_lod.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;
using layers::Direction;

namespace {

constexpr std::int64_t c = 6, h = 20;

layers::LstmWeights lstm_weights(Random& random, bool peepholes, std::int64_t projected) {
  layers::LstmWeights made{
      random_tensor(random, {c, 4 * h}), random_tensor(random, {projected, 4 * h}), random_tensor(random, {4 * h}), {}, {}};
  if (peepholes) made.peepholes = random_tensor(random, {3 * h});
  if (projected != h) made.projection = random_tensor(random, {h, projected});
  return made;
}

/// One layer over ragged rows, with weights of `dtype`.
using Layer = std::function<Var(const Var& x, std::optional<DType> dtype)>;

struct LayerCase {
  std::string name;
  std::int64_t loops;
  Layer layer;
};

std::vector<LayerCase> layer_cases() {
  const auto lstm = [](bool peepholes, std::int64_t projected, Direction direction) -> Layer {
    return [=](const Var& x, std::optional<DType> dtype) {
      Random random(5);
      layers::LstmOptions options;
      options.direction = direction;
      options.weights = dtype;
      std::vector<layers::LstmWeights> weights;
      for (std::size_t k = 0; k < layers::directions(direction); ++k) weights.push_back(lstm_weights(random, peepholes, projected));
      return layers::lstm({x}, weights, options).y;
    };
  };
  const auto gru = [](layers::GruReset reset) -> Layer {
    return [=](const Var& x, std::optional<DType> dtype) {
      Random random(6);
      layers::GruOptions options;
      options.reset = reset;
      options.weights = dtype;
      const layers::GruWeights weights{random_tensor(random, {c, 3 * h}), random_tensor(random, {h, 3 * h}), random_tensor(random, {3 * h}),
                                       random_tensor(random, {3 * h})};
      return layers::gru({x}, {weights}, options).y;
    };
  };
  const Layer rnn = [](const Var& x, std::optional<DType> dtype) {
    Random random(7);
    layers::RnnOptions options;
    options.weights = dtype;
    return layers::rnn({x}, {{random_tensor(random, {c, h}), random_tensor(random, {h, h}), random_tensor(random, {h})}}, options).y;
  };
  return {{"lstm", 1, lstm(false, h, Direction::forward)},
          {"lstm, peepholes, both directions", 2, lstm(true, h, Direction::bidirectional)},
          {"lstm, projected", 1, lstm(false, 9, Direction::forward)},
          {"gru, reset after", 1, gru(layers::GruReset::after)},
          {"gru, reset before", 1, gru(layers::GruReset::before)},
          {"rnn", 1, rnn}};
}

Program program_of(const Layer& layer, std::optional<DType> dtype) {
  Program program;
  const Guard guard(program);
  output("y", layer(input("x", VarType(DType::f32, {DDim::unknown, c}, 1)), dtype));
  return program;
}

double apart(const LoDTensor& a, const LoDTensor& b) {
  double most = 0;
  for (std::int64_t i = 0; i < a.tensor().elements(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a.tensor().data<float>()[i]) - b.tensor().data<float>()[i]));
  return most;
}

std::string passes_of(const Program& program) {
  for (const Op& op : program.block(0).ops)
    if (op.type == "while") return FusedLoop(program, 0, op).to_string();
  return "";
}

}  // namespace

TEST_CASE(
    "layers with weights of bf16 and i8 run in one piece and give the bits of their iterations one by one, and are near those of f32") {
  for (const LayerCase& each : layer_cases())
    for (const DType dtype : {DType::bf16, DType::i8}) {
      INFO(each.name, ", ", name_of(dtype));
      Random random(17);
      const LoD lod = random_lod(random, 1, 9);
      const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), c}), lod)}};
      const Program program = program_of(each.layer, dtype);
      CHECK(compare(program, feeds) == each.loops);
      const RunResult found = on_cpu(program, feeds);
      const RunResult whole = on_cpu(program_of(each.layer, {}), feeds);
      CHECK(apart(found["y"], whole["y"]) < 0.06);
      CHECK(apart(found["y"], whole["y"]) > 0);
    }
}

TEST_CASE("weights of bf16 give the bits of f32 weights that are rounded so, and narrow_weights the bits of a layer that was asked") {
  for (const LayerCase& each : layer_cases()) {
    INFO(each.name);
    Random random(18);
    const LoD lod = LoD::from_lengths({{3, 0, 7, 1}});
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {11, c}), lod)}};
    const std::string wanted = bits(on_cpu(program_of(each.layer, DType::bf16), feeds));
    Program program = program_of(each.layer, {});
    CHECK(layers::narrow_weights(program, DType::bf16) > 0);
    CHECK(bits(on_cpu(program, feeds)) == wanted);
    Program again = program_of(each.layer, {});
    CHECK(layers::narrow_weights(again, DType::i8) > 0);
    CHECK(layers::narrow_weights(again, DType::i8) == 0);
    CHECK(compare(again, feeds) == each.loops);
    CHECK(bits(on_cpu(again, feeds)) == bits(on_cpu(program_of(each.layer, DType::i8), feeds)));
  }
  const auto product = [](bool narrow) {
    Random random(3);
    Program program;
    {
      const Guard guard(program);
      const Tensor w = random_tensor(random, {c, 9});
      const layers::NarrowMatrix held = layers::narrowed(w, DType::bf16);
      CpuDevice device;
      const Tensor wide = cast(held.values, DType::f32, device.stream(0)).copy_to(CpuPlace{});
      output("y", matmul(input("x", VarType(DType::f32, {DDim::unknown, c})), parameter("w", narrow ? held.values : wide)));
    }
    return on_cpu(program, {{"x", random_tensor(random, {5, c})}});
  };
  CHECK(bits(product(true)) == bits(product(false)));
}

TEST_CASE("what inspect prints says which products have narrow weights") {
  const std::vector<LayerCase> cases = layer_cases();
  CHECK(passes_of(program_of(cases[0].layer, DType::bf16)).find("weights in bf16") != std::string::npos);
  const std::string int8 = passes_of(program_of(cases[0].layer, DType::i8));
  CHECK(int8.find("before them: 2 ops over rows, 1 of them products (1 with weights in int8)") != std::string::npos);
  CHECK(int8.find("matmul_int8") != std::string::npos);
  CHECK(passes_of(program_of(cases[0].layer, {})).find("weights in") == std::string::npos);
}

TEST_CASE("an iteration that narrows what it multiplies stays in one piece, as does what passes through bf16 on the way") {
  const CellCase each{"casts", c, {h}, [](const Var& x, const std::vector<Var>& s) {
                        Random random(4);
                        const auto w = [&](const DDim& dims) {
                          return parameter("w", layers::narrowed(random_tensor(random, dims), DType::bf16).values);
                        };
                        const Var both = concat({cast(s[0], DType::bf16), cast(x, DType::bf16)}, -1);
                        const Var sum = matmul(both, w({h + c, 2 * h}), DType::f32);
                        const std::vector<Var> a = split(sum, -1, {h, h});
                        const Var next = cast(cast(tanh(a[0] + s[0] * sigmoid(a[1])), DType::bf16), DType::f32);
                        return CellStep{next, {next}};
                      }};
  Random random(19);
  const LoD lod = random_lod(random, 1, 7);
  CHECK(compare(over_rows(each, true, false), feeds_for(random, each, lod, true)) == 1);
}

TEST_CASE("one step of rows of narrow weights is one kernel with the bits of its ops one by one") {
  for (const DType dtype : {DType::bf16, DType::i8}) {
    INFO(name_of(dtype));
    Random random(21);
    Program program;
    {
      const Guard guard(program);
      const VarType rows(DType::f32, {DDim::unknown, h});
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3, c})), s = input("s", rows), cell = input("c", rows);
      const LstmState next = lstm_cell(reshape(slice(x, 1, 0, 1), {-1, c}), {s, cell}, parameter("w", random_tensor(random, {c, 4 * h})),
                                       parameter("r", random_tensor(random, {h, 4 * h})), parameter("b", random_tensor(random, {4 * h})));
      output("h", next.h);
      output("c", next.c);
      output("y", matmul(x, parameter("v", random_tensor(random, {c, 7}))));
    }
    CHECK(layers::narrow_weights(program, dtype) == 2);
    const StraightProgram apart(program);
    for (const int threads : {1, 2}) {
      StepRunner runner(program, make_cpu_device(threads));
      INFO("reason: ", runner.reason());
      REQUIRE(runner.fused());
      for (const std::int64_t n : {1, 7, 70}) {
        const std::vector<Tensor> inputs{random_tensor(random, {n, 3, c}), random_tensor(random, {n, h}), random_tensor(random, {n, h})};
        const std::vector<Value> values(inputs.begin(), inputs.end());
        const std::vector<Value> wanted = apart.run(values);
        const std::vector<Tensor> found = runner.run(inputs);
        for (std::size_t i = 0; i < found.size(); ++i) {
          const Tensor expected = wanted[i].tensor().tensor().copy_to(CpuPlace{});
          REQUIRE(found[i].dims() == expected.dims());
          CHECK(std::memcmp(found[i].raw(), expected.raw(), expected.bytes()) == 0);
        }
      }
    }
  }
}

TEST_CASE("a weight that only narrow products read is removed, and one that something else reads stays") {
  for (const DType dtype : {DType::bf16, DType::i8}) {
    Random random(7);
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, c}));
      const Var shared = parameter("shared", random_tensor(random, {c, c}));
      const Var literal = constant(random_tensor(random, {c, c}));
      output("y", matmul(matmul(matmul(x, parameter("alone", random_tensor(random, {c, c}))), shared), literal));
      output("table", gather(shared, input("rows", VarType(DType::i64, {DDim::unknown}))));
    }
    CHECK(layers::narrow_weights(program, dtype) == 3);
    millrace::check(program);
    std::set<std::string> names;
    for (const auto& [var, value] : program.parameters()) names.insert(program.var(var).name);
    CHECK(names.contains("shared"));
    CHECK(names.contains(dtype == DType::bf16 ? "alone_bf16" : "alone_int8"));
    CHECK_FALSE(names.contains("alone"));
    for (const Op& op : program.block(0).ops) CHECK(op.type != "constant");
    CHECK(layers::narrow_weights(program, dtype) == 0);
    const Feeds feeds{{"x", random_tensor(random, {3, c})}, {"rows", Tensor::from<std::int64_t>({1, 0})}};
    CHECK(on_cpu(program, feeds)["table"].tensor().dims() == DDim({2, c}));
  }
}

TEST_CASE("narrow weights where they do not belong are errors that say what was expected") {
  Random random(2);
  CHECK_THROWS_AS(layers::narrowed(random_tensor(random, {3}), DType::bf16), ShapeError);
  CHECK_THROWS_WITH_AS(layers::narrowed(random_tensor(random, {3, 2}), DType::f16), doctest::Contains("expected f32 to become bf16 or i8"),
                       DTypeError);
  Program program;
  const Guard guard(program);
  CHECK_THROWS_AS(layers::narrow_weights(program, DType::f16), DTypeError);
  const Var narrow = parameter("w", layers::narrowed(random_tensor(random, {3, 2}), DType::bf16).values);
  const Var wide = input("x", VarType(DType::f64, {DDim::unknown, 3}));
  CHECK_THROWS_AS(matmul(wide, narrow), ProgramError);
  CHECK_THROWS_WITH_AS(matmul(narrow, input("z", VarType(DType::f32, {2, 2}))), doctest::Contains("f32"), ProgramError);
  CHECK_THROWS_WITH_AS(matmul(cast(wide, DType::f32), narrow, DType::f64), doctest::Contains("attribute 'to'"), ProgramError);
  const Quantized rows = quantize_rows(cast(wide, DType::f32));
  const Var values = parameter("i", layers::narrowed(random_tensor(random, {3, 2}), DType::i8).values);
  CHECK_THROWS_AS(matmul_int8(rows, values, parameter("s", random_tensor(random, {3}))), ProgramError);
  CHECK_THROWS_AS(matmul_int8(rows, narrow, parameter("t", random_tensor(random, {2}))), ProgramError);
}
