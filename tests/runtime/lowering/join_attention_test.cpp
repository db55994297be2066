// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_attention.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/straight_program.h>

#include "support/built.h"
#include "support/random.h"
#include "support/random_tensor.h"
#include "support/same_bits.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Ints = std::vector<std::int64_t>;
constexpr std::int64_t heads = 2, depth = 8;

Var turned(Var x, const Ints& perm) { return call1("transpose", {x}, {{"perm", perm}}); }
Var softmaxed(Var x) { return call1("softmax", {x}, {{"axis", std::int64_t{-1}}}); }

/// A program over q, k and v, each [1, ?, heads, depth].
template <class F>
Program program_of(F body) {
  Program program;
  const Guard guard(program);
  const VarType type(DType::f32, {1, DDim::unknown, heads, depth});
  const Var q = input("q", type), k = input("k", type), v = input("v", type);
  output("y", body(q, k, v));
  return program;
}

/// The attentions of the program behind the rewriting, which must keep the bits.
std::vector<Op> joined(const Program& program) {
  Program made = program;
  join_attention(made);
  Random random(3);
  for (const std::int64_t rows : {1, 5, 130}) {
    std::vector<LoDTensor> feeds;
    for (int i = 0; i < 3; ++i) feeds.emplace_back(random_tensor(random, {1, rows, heads, depth}));
    const Tensor wanted = StraightProgram(program).run({feeds[0], feeds[1], feeds[2]})[0].tensor().tensor().copy_to(CpuPlace{});
    const Tensor found = StraightProgram(made).run({feeds[0], feeds[1], feeds[2]})[0].tensor().tensor().copy_to(CpuPlace{});
    REQUIRE(found.dims() == wanted.dims());
    CHECK(std::memcmp(found.raw(), wanted.raw(), wanted.bytes()) == 0);
  }
  std::vector<Op> found;
  for (const Op& op : made.block(0).ops)
    if (op.type == "attention") found.push_back(op);
  return found;
}

const Ints apart{0, 2, 1, 3}, keys{0, 2, 3, 1};

Var rows_of(Var x) {
  return call1("reshape", {call1("shape", {x}, {{"start", std::int64_t{1}}, {"end", std::int64_t{2}}})}, {{"shape", Ints{}}});
}
/// The mask [queries, keys] of keys up to each query.
Var causal(Var queries, Var keys) {
  const auto count = [](Var n) { return call1("range", {constant(std::int64_t{0}), n, constant(std::int64_t{1})}); };
  const Var last = call1("unsqueeze", {count(queries)}, {{"axes", Ints{1}}}) + constant(std::int64_t{0});
  return call1("where", {call1("less_equal", {count(keys), last}), constant(0.0f), constant(-std::numeric_limits<float>::infinity())});
}
Var causal(Var x) { return causal(rows_of(x), rows_of(x)); }

}  // namespace

TEST_CASE("heads of keys that are repeated for more queries than there are stretch the result") {
  const std::vector<Op> made = joined(program_of([](Var q, Var k, Var v) {
    const Var first = call1("slice", {turned(q, apart)}, {{"starts", Ints{0}}, {"ends", Ints{1}}, {"axes", Ints{1}}});
    const Var index = parameter("index", Tensor::from<std::int64_t>({0, 0, 1, 1}));
    const auto repeated = [&](Var x) { return call1("gather", {turned(x, apart), index}, {{"axis", std::int64_t{1}}}); };
    return call1("matmul", {softmaxed(call1("matmul", {first, turned(repeated(k), {0, 1, 3, 2})})), repeated(v)});
  }));
  REQUIRE(made.size() == 1);
  CHECK(!made[0].attributes.get_or("shares_heads", false));
}

TEST_CASE("a softmax between two products becomes one op with the transposes and the scale around it") {
  const auto found = joined(program_of([](Var q, Var k, Var v) {
    const Var scores = matmul(turned(q, apart) * 0.5f, turned(k, keys));
    return turned(matmul(softmaxed(scores), turned(v, apart)), apart);
  }));
  REQUIRE(found.size() == 1);
  CHECK(found[0].attributes.get<double>("scale") == 0.5);
  CHECK(found[0].attributes.get<Ints>("q_axes") == apart);
  CHECK(found[0].attributes.get<Ints>("k_axes") == apart);
  CHECK(found[0].attributes.get<Ints>("v_axes") == apart);
  CHECK(found[0].attributes.get<Ints>("out_axes") == apart);
}

TEST_CASE("steps and masks of scores join, whichever side they stand on") {
  const auto found = joined(program_of([](Var q, Var k, Var v) {
    const Var raw = matmul(turned(q, apart), turned(k, keys));
    const Var positions = matmul(turned(q, apart), turned(k, keys)) * 2.0f;
    const Var scores = constant(1.0f) - (raw + positions) / 3.0f;
    const Var hides = call1("greater", {positions, constant(0.5f)});
    const Var masked = call1("where", {hides, constant(-10000.0f), scores});
    return matmul(call1("where", {hides, constant(0.0f), softmaxed(masked)}), turned(v, apart));
  }));
  REQUIRE(found.size() == 1);
  CHECK(found[0].attributes.get<std::string>("steps") == "add div from");
  CHECK(found[0].attributes.get<double>("mask_value") == -10000);
  CHECK(found[0].inputs[7] != no_var);
}

TEST_CASE("a causal bias of one query or one key stretches over the scores as it did") {
  const auto attending = [](const std::function<Var(Var)>& bias, bool shown) {
    return program_of([&](Var q, Var k, Var v) {
      const Var weights = softmaxed(matmul(turned(q, apart), turned(k, keys)) + bias(rows_of(q)));
      if (shown) output("weights", weights);  // weights that are read stay in parts
      return matmul(weights, turned(v, apart));
    });
  };
  const std::function<Var(Var)> biases[] = {[](Var rows) { return causal(rows, constant(std::int64_t{1}) + constant(std::int64_t{0})); },
                                            [](Var rows) { return causal(constant(std::int64_t{1}) + constant(std::int64_t{0}), rows); }};
  for (const auto& bias : biases) {
    Random random(6);
    const Tensor q = random_tensor(random, {1, 5, heads, depth}), k = random_tensor(random, {1, 5, heads, depth});
    const Feeds feeds{{"q", q}, {"k", k}, {"v", random_tensor(random, {1, 5, heads, depth})}};
    const Tensor wanted = run_fifo(run(attending(bias, true), feeds))["y"].tensor();
    CHECK(same_bits(run_fifo(run(attending(bias, false), feeds))["y"].tensor(), wanted));
    Program program = attending(bias, false);
    join_attention(program);
    CHECK(program.block(0).ops.back().type == "attention");
    CHECK(same_bits(run_fifo(run(program, feeds))["y"].tensor(), wanted));
  }
}

TEST_CASE("a causal bias is no operand, and another one is") {
  const auto attending = [](bool twice, bool shown) {
    return program_of([&](Var q, Var k, Var v) {
      const Var scores = matmul(turned(q, apart), turned(k, keys)) + causal(q);
      const Var weights = softmaxed(twice ? scores + 2.0f : scores);
      if (shown) output("weights", weights);
      return matmul(weights, turned(v, apart));
    });
  };
  for (const bool twice : {false, true}) {
    Program program = attending(twice, false);
    Random random(5);
    for (const std::int64_t rows : {1, 5, 130}) {
      const Feeds feeds{{"q", random_tensor(random, {1, rows, heads, depth})},
                        {"k", random_tensor(random, {1, rows, heads, depth})},
                        {"v", random_tensor(random, {1, rows, heads, depth})}};
      const Tensor wanted = run_fifo(run(attending(twice, true), feeds))["y"].tensor();  // weights that are read stay in parts
      CHECK(same_bits(run_fifo(run(program, feeds))["y"].tensor(), wanted));
    }
    join_attention(program);
    const auto found =
        std::find_if(program.block(0).ops.begin(), program.block(0).ops.end(), [](const Op& op) { return op.type == "attention"; });
    REQUIRE(found != program.block(0).ops.end());
    CHECK((found->inputs[3] == no_var) == twice);
    CHECK(found->inputs.size() == (twice ? 10 : 8));
    CHECK(found->attributes.get_or("steps", std::string()) == (twice ? "add add" : ""));
  }
}

TEST_CASE("attention over a cache that grows in a loop joins with the bits of its parts") {
  const auto growing = [](bool shown) {
    return program_of([&](Var q, Var k, Var v) {
      Var step = 0, cache = varying(turned(k, apart), {2}), values = varying(turned(v, apart), {2}), total = 0.0f;
      {
        WhileLoop loop = while_loop({step, cache, values, total});
        const auto frame = loop.frame();
        loop.break_if(equal(step, Var(3)));
        const Var weights = softmaxed(matmul(turned(q, apart) * 0.5f, turned(cache, {0, 1, 3, 2})));
        const Var made = matmul(weights, values);
        total.update(total + call1("reduce", {shown ? weights : made}, {{"kind", std::string("sum")}, {"keepdims", false}}));
        cache.update(concat({cache, made}, 2));
        values.update(concat({values, made * 0.5f}, 2));
        step.update(step + 1);
      }
      return values;
    });
  };
  Random random(6);
  for (const std::int64_t rows : {1, 40}) {
    const Feeds feeds{{"q", random_tensor(random, {1, rows, heads, depth})},
                      {"k", random_tensor(random, {1, rows, heads, depth})},
                      {"v", random_tensor(random, {1, rows, heads, depth})}};
    CHECK(same_bits(run_fifo(run(growing(false), feeds))["y"].tensor(), run_fifo(run(growing(true), feeds))["y"].tensor()));
  }
  Program program = growing(false);
  join_attention(program);
  const auto count = [&](const char* type) {
    return std::count_if(program.block(1).ops.begin(), program.block(1).ops.end(), [&](const Op& op) { return op.type == type; });
  };
  CHECK(count("attention") == 1);
  CHECK(count("matmul") == 0);
  CHECK(count("softmax") == 0);
  CHECK(count("transpose") == 0);
}

TEST_CASE("heads that are repeated for heads of queries are shared") {
  const auto found = joined(program_of([](Var q, Var k, Var v) {
    const Var index = parameter("index", Tensor::from<std::int64_t>({0, 0, 1, 1}));
    const auto repeated = [&](Var x) { return call1("gather", {turned(x, apart), index}, {{"axis", std::int64_t{1}}}); };
    const Var wide = call1("concat", {turned(q, apart), turned(q, apart)}, {{"axis", std::int64_t{1}}});
    return matmul(softmaxed(matmul(wide, turned(repeated(k), {0, 1, 3, 2}))), repeated(v));
  }));
  REQUIRE(found.size() == 1);
  CHECK(found[0].attributes.get<bool>("shares_heads"));
}

TEST_CASE("attention over three axes joins, too") {
  const auto found = joined(program_of([](Var q, Var k, Var v) {
    const auto flat = [](Var x) { return call1("reshape", {turned(x, apart)}, {{"shape", Ints{heads, -1, depth}}}); };
    return turned(matmul(softmaxed(matmul(flat(q), turned(flat(k), {0, 2, 1}))), flat(v)), {1, 0, 2});
  }));
  REQUIRE(found.size() == 1);
  CHECK(found[0].attributes.get<Ints>("out_axes") == Ints{1, 0, 2});
}

TEST_CASE("weights or scores that something else reads, and a softmax along another axis, stay") {
  CHECK(joined(program_of([](Var q, Var k, Var v) {
          const Var weights = softmaxed(matmul(turned(q, apart), turned(k, keys)));
          return matmul(weights, turned(v, apart)) + call1("reduce", {weights}, {{"kind", std::string("sum")}});
        })).empty());
  CHECK(joined(program_of([](Var q, Var k, Var v) {
          const Var scores = matmul(turned(q, apart), turned(k, keys));
          return matmul(softmaxed(scores), turned(v, apart)) + call1("reduce", {scores}, {{"kind", std::string("sum")}});
        })).empty());
  CHECK(joined(program_of([](Var q, Var k, Var v) {
          const Var scores = matmul(turned(q, apart), turned(k, keys));
          return matmul(call1("softmax", {scores}, {{"axis", std::int64_t{2}}}), turned(v, apart));
        })).empty());
}
