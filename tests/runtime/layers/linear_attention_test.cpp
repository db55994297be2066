// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/linear_attention.h>

#include <cmath>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/recurrence.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/built.h"
#include "support/central_difference.h"
#include "support/random_lod.h"
#include "support/with_gradients.h"

using namespace millrace;
using namespace millrace::testing;
using layers::LinearAttentionInputs, layers::LinearAttentionOptions, layers::StateUpdate;

namespace {

constexpr std::int64_t query_heads = 4, heads = 2, keys = 3, values = 2;

struct Form {
  StateUpdate update;
  std::int64_t decays;  ///< numbers of g, 0: none
  std::int64_t rates;   ///< numbers of β
};
const std::vector<Form> forms{{StateUpdate::linear, 0, 0},          {StateUpdate::gated, heads* keys, 0},
                              {StateUpdate::gated, heads, 0},       {StateUpdate::delta, 0, heads},
                              {StateUpdate::gated_delta, heads, 1}, {StateUpdate::gated_delta, heads* keys, heads}};

std::vector<std::pair<std::string, std::int64_t>> widths(const Form& form) {
  std::vector<std::pair<std::string, std::int64_t>> all{{"q", query_heads * keys}, {"k", heads * keys}, {"v", heads * values}};
  if (form.decays > 0) all.emplace_back("g", form.decays);
  if (form.rates > 0) all.emplace_back("b", form.rates);
  return all;
}

/// Outputs y and last; `boots`: with an input "s".
void append(const Form& form, bool boots, DType dtype) {
  std::map<std::string, build::Var> in;
  for (const auto& [name, width] : widths(form)) in[name] = build::input(name, VarType(dtype, {DDim::unknown, width}, 1));
  build::Var initial;
  if (boots) initial = build::input("s", VarType(dtype, {DDim::unknown, heads * keys * values}));
  LinearAttentionOptions options;
  options.query_heads = query_heads;
  options.heads = heads;
  options.update = form.update;
  const layers::Unrolled made = layers::linear_attention({in["q"], in["k"], in["v"], in["g"], in["b"]}, options, initial);
  build::output("y", made.output);
  build::output("last", made.last[0]);
}

Feeds feeds_of(Random& random, const Form& form, const LoD& lod, bool boots, DType dtype) {
  Feeds feeds;
  for (const auto& [name, width] : widths(form)) feeds[name] = LoDTensor(random_tensor(random, {lod.rows(), width}, .7, dtype), lod);
  if (boots) feeds["s"] = random_tensor(random, {lod.sequences(0), heads * keys * values}, 1, dtype);
  return feeds;
}

std::vector<double> numbers(const Feeds& feeds, const std::string& name) {
  return feeds.count(name) > 0 ? feeds.at(name).tensor().tensor().to_vector<double>() : std::vector<double>{};
}

/// The formulas of the header, in f64, one sequence after the other.
struct Reference {
  std::vector<double> y, last;
  Reference(const Form& form, const Feeds& feeds, const std::vector<std::int64_t>& lengths) {
    const auto q = numbers(feeds, "q"), k = numbers(feeds, "k"), v = numbers(feeds, "v"), g = numbers(feeds, "g"), b = numbers(feeds, "b"),
               boot = numbers(feeds, "s");
    const auto at = [](const std::vector<double>& list, std::int64_t i) { return list.at(static_cast<std::size_t>(i)); };
    std::int64_t row = 0;
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      std::vector<double> s(static_cast<std::size_t>(heads * keys * values), 0.0);
      for (std::size_t i = 0; !boot.empty() && i < s.size(); ++i) s[i] = boot[n * s.size() + i];
      const auto state = [&](std::int64_t h, std::int64_t e, std::int64_t d) -> double& {
        return s[static_cast<std::size_t>((h * keys + d) * values + e)];
      };
      for (std::int64_t t = 0; t < lengths[n]; ++t, ++row) {
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t d = 0; d < keys && form.decays > 0; ++d)
            for (std::int64_t e = 0; e < values; ++e)
              state(h, e, d) *= std::exp(form.decays == heads ? at(g, row * heads + h) : at(g, (row * heads + h) * keys + d));
          for (std::int64_t e = 0; e < values; ++e) {
            double written = at(v, (row * heads + h) * values + e);
            if (form.rates > 0) {
              for (std::int64_t d = 0; d < keys; ++d) written -= state(h, e, d) * at(k, (row * heads + h) * keys + d);
              written *= form.rates == 1 ? at(b, row) : at(b, row * heads + h);
            }
            for (std::int64_t d = 0; d < keys; ++d) state(h, e, d) += written * at(k, (row * heads + h) * keys + d);
          }
        }
        for (std::int64_t j = 0; j < query_heads; ++j)
          for (std::int64_t e = 0; e < values; ++e) {
            double read = 0;
            for (std::int64_t d = 0; d < keys; ++d)
              read += state(j / (query_heads / heads), e, d) * at(q, (row * query_heads + j) * keys + d);
            y.push_back(read / std::sqrt(static_cast<double>(keys)));
          }
      }
      last.insert(last.end(), s.begin(), s.end());
    }
  }
};

void check_equal(const Tensor& found, const std::vector<double>& wanted) {
  const std::vector<double> all = found.to_vector<double>();
  REQUIRE(all.size() == wanted.size());
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == doctest::Approx(wanted[i]).epsilon(1e-12));
}

}  // namespace

TEST_CASE("linear attention updates and reads its states as the formulas say, over ragged sequences with and without states given") {
  Random random(1);
  const std::vector<std::int64_t> lengths{3, 0, 5, 1};
  for (const Form& form : forms)
    for (const bool boots : {false, true}) {
      INFO("update ", static_cast<int>(form.update), ", numbers of g ", form.decays, ", boots ", boots);
      const Feeds feeds = feeds_of(random, form, LoD::from_lengths({lengths}), boots, DType::f64);
      const RunResult found = on_cpu(built_program([&] { append(form, boots, DType::f64); }), feeds);
      const Reference wanted(form, feeds, lengths);
      check_equal(found["y"].tensor(), wanted.y);
      check_equal(found["last"].tensor(), wanted.last);
    }
}

TEST_CASE("linear attention is one fused loop with the bits of its iterations, and a recurrence of one state") {
  for (const std::uint64_t seed : seeds(4)) {
    INFO("seed ", seed);
    Random random(seed);
    for (const Form& form : forms) {
      const Program program = built_program([&] { append(form, false, DType::f32); });
      const LoD lod = random_lod(random, 1, 9);
      CHECK(compare(program, feeds_of(random, form, lod, false, DType::f32)) == (lod.rows() > 0 ? 1 : 0));
    }
  }
  const Program live = built_program([&] {
    std::map<std::string, build::Var> in;
    for (const auto& [name, width] : widths(forms.back())) in[name] = build::input(name, VarType(DType::f32, {DDim::unknown, width}, 1));
    LinearAttentionOptions options{query_heads, heads};
    build::output("y", layers::linear_attention({in["q"], in["k"], in["v"], in["g"], in["b"]}, options).output);
  });
  CHECK(make_recurrence(live).states.size() == 1);
}

TEST_CASE("gradients of linear attention equal central differences") {
  std::uint64_t seed = 10;
  for (const Form& form : forms) {
    INFO("update ", static_cast<int>(form.update), ", numbers of g ", form.decays, ", seed ", ++seed);
    Random random(seed);
    Program program;
    BackwardOptions options;
    VarId loss = no_var;
    {
      const build::Guard guard(program);
      std::map<std::string, build::Var> in;
      for (const auto& [name, width] : widths(form)) {
        in[name] = build::input(name, VarType(DType::f64, {DDim::unknown, width}, 1));
        options.with_respect_to.push_back(in[name].id());
      }
      LinearAttentionOptions how{query_heads, heads, form.update};
      const layers::Unrolled made = layers::linear_attention({in["q"], in["k"], in["v"], in["g"], in["b"]}, how);
      const build::Var y = build::drop_lod(made.output);
      const build::Var total = build::sum(y * y) + build::sum(made.last[0] * made.last[0]);
      build::output("loss", total);
      loss = total.id();
    }
    const std::vector<std::string> names = with_gradients(program, loss, options);
    DifferenceOptions tried;
    tried.seed = seed;
    tried.at_most = 4;
    expect_gradients(program, feeds_of(random, form, LoD::from_lengths({{2, 0, 3}}), false, DType::f64), names, tried);
  }
}

TEST_CASE("linear attention names what does not fit") {
  const auto refusal = [](std::int64_t queries, StateUpdate update, bool decay) {
    return build_refusal([&] {
      const auto rows = [](const char* name, std::int64_t width) {
        return build::input(name, VarType(DType::f32, {DDim::unknown, width}, 1));
      };
      LinearAttentionInputs in{rows("q", 12), rows("k", 6), rows("v", 4), {}, {}};
      if (decay) in.decay = rows("g", 2);
      layers::linear_attention(in, {queries, 2, update});
    });
  };
  CHECK(says(refusal(3, StateUpdate::linear, false), {"2 equal heads", "3"}));
  CHECK(says(refusal(2, StateUpdate::linear, false), {"equal widths"}));
  CHECK(says(refusal(4, StateUpdate::linear, true), {"no decay", "found one"}));
  CHECK(says(refusal(4, StateUpdate::delta, false), {"a rate", "found none"}));
}
