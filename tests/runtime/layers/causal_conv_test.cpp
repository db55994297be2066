// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/causal_conv.h>

#include <string>
#include <utility>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/recurrence.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/built.h"
#include "support/central_difference.h"
#include "support/random_lod.h"
#include "support/with_gradients.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t channels = 3;

build::Var rows() { return build::input("x", VarType(DType::f64, {DDim::unknown, channels}, 1)); }

}  // namespace

TEST_CASE("a causal convolution sums the rows before with its kernel, and gives them back behind the last step") {
  Random random(1);
  const std::vector<std::int64_t> lengths{3, 0, 5, 1};
  for (const auto& [kernel, dilation] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {2, 1}, {4, 1}, {1, 3}, {2, 3}, {3, 2}})
    for (const bool boots : {false, true}) {
      INFO("kernel ", kernel, ", dilation ", dilation, ", boots ", boots);
      const Tensor w = random_tensor(random, {channels, kernel}, 1, DType::f64), b = random_tensor(random, {channels}, 1, DType::f64);
      const std::int64_t before = (kernel - 1) * dilation;
      const bool given = boots && before > 0;
      const Program program = built_program([&] {
        build::Var initial;
        if (given) initial = build::input("s", VarType(DType::f64, {DDim::unknown, channels * before}));
        const layers::Unrolled made = layers::causal_conv({rows()}, build::parameter("w", w), build::parameter("b", b), initial, dilation);
        build::output("y", made.output);
        if (before > 0) build::output("last", made.last.at(0));
      });
      const LoD lod = LoD::from_lengths({lengths});
      const Tensor x = random_tensor(random, {lod.rows(), channels}, 1, DType::f64),
                   s = random_tensor(random, {4, channels * before}, 1, DType::f64);
      Feeds feeds{{"x", LoDTensor(x, lod)}};
      if (given) feeds["s"] = s;
      const RunResult found = on_cpu(program, feeds);
      std::int64_t row = 0;
      for (std::int64_t n = 0; n < 4; ++n) {
        const std::int64_t length = lengths[static_cast<std::size_t>(n)];
        const auto earlier = [&](std::int64_t t, std::int64_t c) {
          if (t >= 0) return x[make_ddim({row + t, c})];
          return given ? s[make_ddim({n, c * before + before + t})] : 0.0;
        };
        for (std::int64_t c = 0; c < channels; ++c) {
          for (std::int64_t t = 0; t < length; ++t) {
            double sum = b[make_ddim({c})];
            for (std::int64_t j = 0; j < kernel; ++j) sum += w[make_ddim({c, j})] * earlier(t - before + j * dilation, c);
            CHECK(found["y"].tensor()[make_ddim({row + t, c})] == doctest::Approx(sum).epsilon(1e-12));
          }
          for (std::int64_t j = 0; j < before; ++j)
            CHECK(found["last"].tensor()[make_ddim({n, c * before + j})] == earlier(length - before + j, c));
        }
        row += length;
      }
    }
}

TEST_CASE("a causal convolution is one fused loop with the bits of its iterations, and a recurrence of one state") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const Tensor w = random_tensor(random, {channels, random.between(2, 5)});
    const Program program = built_program([&] {
      const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, channels}, 1));
      build::output("y", layers::causal_conv({x}, build::parameter("w", w)).output);
    });
    const LoD lod = random_lod(random, 1, 9);
    CHECK(compare(program, {{"x", LoDTensor(random_tensor(random, {lod.rows(), channels}), lod)}}) == (lod.rows() > 0 ? 1 : 0));
    CHECK(make_recurrence(program).states.size() == 1);
  }
}

TEST_CASE("gradients of a causal convolution equal central differences") {
  for (const std::int64_t kernel : {1, 2, 4}) {
    const auto seed = static_cast<std::uint64_t>(kernel);
    INFO("kernel ", kernel, ", seed ", seed);
    Random random(seed);
    const std::int64_t before = kernel - 1;
    Program program;
    BackwardOptions options;
    VarId loss = no_var;
    {
      const build::Guard guard(program);
      const build::Var x = rows();
      const build::Var w = build::parameter("w", random_tensor(random, {channels, kernel}, 1, DType::f64));
      const build::Var b = build::parameter("b", random_tensor(random, {channels}, 1, DType::f64));
      options.with_respect_to = {x.id(), w.id(), b.id()};
      build::Var initial;
      if (before > 0) {
        initial = build::input("s", VarType(DType::f64, {DDim::unknown, channels * before}));
        options.with_respect_to.push_back(initial.id());
      }
      const layers::Unrolled made = layers::causal_conv({x}, w, b, initial);
      const build::Var y = build::drop_lod(made.output);
      build::Var total = build::sum(y * y * y);
      if (before > 0) total = total + build::sum(made.last[0] * made.last[0]);
      build::output("loss", total);
      loss = total.id();
    }
    const std::vector<std::string> names = with_gradients(program, loss, options);
    const LoD lod = LoD::from_lengths({{2, 0, 5, 1}});  // shorter than the kernel, empty, longer
    Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), channels}, 1, DType::f64), lod)}};
    if (before > 0) feeds["s"] = random_tensor(random, {4, channels * before}, 1, DType::f64);
    expect_gradients(program, feeds, names, {.seed = seed});
  }
}

TEST_CASE("a causal convolution names a kernel that does not fit the rows") {
  const std::string text =
      build_refusal([] { layers::causal_conv({rows()}, build::parameter("w", Tensor::from<double>({1, 2, 3, 4}).reshape({2, 2}))); });
  CHECK(says(text, {"[C, K]", "f64[2, 2]", "f64[?, 3]"}));
  for (const std::int64_t dilation : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{70000}, std::int64_t{1} << 62})
    CHECK(says(build_refusal([&] {
                 layers::causal_conv({rows()}, build::parameter("w", Tensor::from<double>({1, 2, 3, 4, 5, 6}).reshape({channels, 2})), {},
                                     {}, dilation);
               }),
               {"dilation of at least 1", "65536 rows", std::to_string(dilation)}));
}
