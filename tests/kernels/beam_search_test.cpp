// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/beam_search.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr float never = -std::numeric_limits<float>::infinity();

LoDTensor column(DeviceUnderTest& on, const Ints& values, const LoD& lod) {
  return {on.up(Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()), 1})), lod};
}
LoDTensor column(DeviceUnderTest& on, const Floats& values, const LoD& lod) {
  return {on.up(Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()), 1})), lod};
}

Prefixes prefixes(DeviceUnderTest& on, const Ints& ids, const Floats& scores, const Ints& lengths, const LoD& lod) {
  return {column(on, ids, lod), column(on, scores, lod), column(on, lengths, lod)};
}

Ints ints(DeviceUnderTest& on, const Tensor& x) { return on.down(x).to_vector<std::int64_t>(); }
Floats reals(DeviceUnderTest& on, const Tensor& x) { return on.down(x).to_vector<float>(); }

BeamOptions options(std::int64_t width, std::int64_t end, double penalty = 0) { return {width, end, penalty, false}; }

}  // namespace

TEST_CASE("a source keeps the best candidates of all its prefixes, on every device") {
  each_backend([](DeviceUnderTest& on) {
    // Two sources of two and one prefixes, tokens 0 … 3, end token 0.
    const Prefixes before = prefixes(on, {1, 2, 3}, {-1, -2, -3}, {1, 1, 1}, LoD::from_lengths({{2, 1}}));
    const Tensor said = on.up(Tensor::from(Floats{-9, -1, -5, -7,        //
                                                  -8, -9, -0.5f, -1.5f,  //
                                                  -1, -2, -1, -4},
                                           DDim{3, 4}));
    const BeamStep step = beam_search_step(before, said, nullptr, options(3, 0), on.stream());
    CHECK(ints(on, step.kept.ids.tensor()) == Ints{1, 2, 3, 0, 2, 1});
    CHECK(reals(on, step.kept.scores.tensor()) == Floats{-2, -2.5f, -3.5f, -4, -4, -5});
    CHECK(ints(on, step.parents) == Ints{0, 1, 1, 2, 2, 2});
    CHECK(ints(on, step.kept.lengths.tensor()) == Ints(6, 2));
    CHECK(step.kept.ids.lod() == LoD::from_lengths({{2, 1}, {1, 2, 3}}));
    CHECK(step.live);
  });
}

TEST_CASE("given tokens stand for the columns, and accumulated scores for the whole") {
  DeviceUnderTest on = cpu_backend(1);
  const Prefixes before = prefixes(on, {1}, {-1}, {1}, LoD::from_lengths({{1}}));
  const Tensor said = Tensor::from(Floats{-3, -2}, DDim{1, 2}), tokens = Tensor::from(Ints{70, 50}, DDim{1, 2});
  const BeamStep step = beam_search_step(before, said, &tokens, {2, 50, 0, true}, on.stream());
  CHECK(ints(on, step.kept.ids.tensor()) == Ints{50, 70});
  CHECK(reals(on, step.kept.scores.tensor()) == Floats{-2, -3});
}

TEST_CASE("a finished prefix stays as it is, and a source of finished ones is pruned") {
  each_backend([](DeviceUnderTest& on) {
    const Prefixes before = prefixes(on, {0, 2, 0, 0}, {-1, -3, -1, -2}, {2, 3, 1, 3}, LoD::from_lengths({{2, 2}, {1, 1, 2, 0}}));
    const Tensor said = on.up(Tensor::from(Floats{0, 0, -1, -1, 0, 0, 0, 0}, DDim{4, 2}));
    const BeamStep step = beam_search_step(before, said, nullptr, options(2, 0), on.stream());
    CHECK(ints(on, step.kept.ids.tensor()) == Ints{0, 0});
    CHECK(reals(on, step.kept.scores.tensor()) == Floats{-1, -4});
    CHECK(ints(on, step.kept.lengths.tensor()) == Ints{2, 4});
    CHECK(ints(on, step.parents) == Ints{0, 1});
    CHECK(step.kept.ids.lod() == LoD::from_lengths({{2, 2}, {1, 1, 0, 0}}));
    CHECK_FALSE(step.live);
  });
}

TEST_CASE("a start token is no end, even if it is the end token") {
  each_backend([](DeviceUnderTest& on) {
    const Prefixes first = beam_search_start(on.up(Tensor::from<std::int32_t>({0, 0})), DType::f32, on.stream());
    on.finish();
    CHECK(first.ids.lod() == LoD::from_lengths({{1, 1}, {1, 1}}));
    const Tensor said = on.up(Tensor::from(Floats{-2, -1, -1, -2}, DDim{2, 2}));
    const BeamStep step = beam_search_step(first, said, nullptr, options(1, 0), on.stream());
    CHECK(ints(on, step.kept.ids.tensor()) == Ints{1, 0});
    CHECK(ints(on, step.kept.lengths.tensor()) == Ints{1, 1});
    CHECK(step.live);
  });
}

TEST_CASE("candidates as good are kept by prefix, then by column") {
  DeviceUnderTest on = cpu_backend(1);
  const Prefixes before = prefixes(on, {1, 1}, {0, 0}, {1, 1}, LoD::from_lengths({{2}}));
  const BeamStep step = beam_search_step(before, Tensor::from(Floats(6, -1), DDim{2, 3}), nullptr, options(4, 9), on.stream());
  CHECK(ints(on, step.kept.ids.tensor()) == Ints{0, 1, 2, 0});
  CHECK(ints(on, step.parents) == Ints{0, 0, 0, 1});
}

TEST_CASE("impossible candidates are none, and a source without any has no rows from there on") {
  DeviceUnderTest on = cpu_backend(1);
  const Prefixes before = prefixes(on, {1, 1}, {0, 0}, {1, 1}, LoD::from_lengths({{1, 1}}));
  const Tensor said = Tensor::from(Floats{never, -1, never, std::numeric_limits<float>::quiet_NaN()}, DDim{2, 2});
  const BeamStep step = beam_search_step(before, said, nullptr, options(4, 9), on.stream());
  CHECK(ints(on, step.kept.ids.tensor()) == Ints{1});
  CHECK(step.kept.ids.lod() == LoD::from_lengths({{1, 1}, {1, 0}}));
}

TEST_CASE("a length penalty lets the longer of two win that sum up alike") {
  DeviceUnderTest on = cpu_backend(1);
  // A finished prefix of 1 token at −2, a live one of 3 that becomes 4 tokens at −4.
  const Prefixes before = prefixes(on, {0, 5}, {-2, -3}, {1, 3}, LoD::from_lengths({{2}}));
  const Tensor said = Tensor::from(Floats{0, 0, -9, -1}, DDim{2, 2});
  CHECK(ints(on, beam_search_step(before, said, nullptr, options(1, 0), on.stream()).parents) == Ints{0});
  CHECK(ints(on, beam_search_step(before, said, nullptr, options(1, 0, 1), on.stream()).parents) == Ints{1});
}

TEST_CASE("rows are followed back to their hypotheses, the best first, with one end token each") {
  each_backend([](DeviceUnderTest& on) {
    // One source, end 0: step 0 keeps 5 and 6; step 1 goes 5→7, 6→0; step 2 goes 7→0 and keeps 0. A second source ends at once.
    const LoD lod = LoD::from_lengths({{1, 1, 2, 1, 2, 0}, {2, 1, 1, 1, 0, 1, 1}});
    const LoDTensor ids = column(on, Ints{5, 6, 0, 7, 0, 0, 0}, lod);
    const LoDTensor scores = column(on, Floats{-1, -2, -9, -3, -2.5f, -4, -2.5f}, lod);
    const Hypotheses found = beam_search_decode(ids, scores, 3, options(2, 0), on.stream());
    CHECK(ints(on, found.tokens.tensor()) == Ints{6, 0, 5, 7, 0, 0});
    CHECK(reals(on, found.scores.tensor()) == Floats{-2, -2.5f, -1, -3, -4, -9});
    CHECK(found.tokens.lod() == LoD::from_lengths({{2, 1}, {2, 3, 1}}));
    CHECK(found.scores.lod() == found.tokens.lod());
    CHECK(reals(on, found.totals.tensor()) == Floats{-2.5f, -4, -9});
    CHECK(found.totals.lod() == LoD::from_lengths({{2, 1}}));
    const Hypotheses longer = beam_search_decode(ids, scores, 3, options(2, 0, 2), on.stream());
    CHECK(reals(on, longer.totals.tensor()) == Floats{-4, -2.5f, -9});
  });
}

TEST_CASE("no sources at all are a step and a trace without rows") {
  each_backend([](DeviceUnderTest& on) {
    const LoD nobody = LoD::from_lengths({LoD::Level{}, LoD::Level{}});
    const Prefixes first = beam_search_start(on.up(Tensor(DType::i64, DDim{0})), DType::f32, on.stream());
    on.finish();
    const BeamStep step = beam_search_step(first, on.room(DType::f32, DDim{0, 5}), nullptr, options(2, 0), on.stream());
    on.finish();
    CHECK(step.kept.ids.lod() == nobody);
    CHECK_FALSE(step.live);
    const Hypotheses found = beam_search_decode(step.kept.ids, step.kept.scores, 1, options(2, 0), on.stream());
    CHECK(found.tokens.dims() == DDim{0, 1});
    CHECK(found.tokens.lod() == nobody);
  });
}

TEST_CASE("what a beam cannot take is an error that names it") {
  DeviceUnderTest on = cpu_backend(1);
  const LoD one = LoD::from_lengths({{2}});
  const Prefixes before = prefixes(on, {1, 1}, {0, 0}, {1, 1}, one);
  const Tensor said = Tensor::from(Floats(4, 0), DDim{2, 2});
  CHECK_THROWS_WITH_AS(beam_search_step(before, said, nullptr, options(0, 0), on.stream()),
                       "beam_search_step: expected a width of 1 or more, found 0", ArgumentError);
  CHECK_THROWS_WITH_AS(beam_search_step(before, said.rows(0, 1), nullptr, options(1, 0), on.stream()),
                       "beam_search_step: expected candidates of [2, K], found f32[1, 2] on cpu", ShapeError);
  CHECK_THROWS_AS(beam_search_step(before, said, &said, options(1, 0), on.stream()), DTypeError);
  CHECK_THROWS_AS(beam_search_step({before.ids.tensor(), before.scores, before.lengths}, said, nullptr, options(1, 0), on.stream()),
                  LoDError);
  const LoDTensor ids = column(on, Ints{1, 2}, LoD::from_lengths({{1, 2}, {1, 1, 0}}));
  const LoDTensor scores = column(on, Floats{0, 0}, ids.lod());
  CHECK_THROWS_WITH_AS(beam_search_decode(ids, scores, 2, options(1, 0), on.stream()),
                       "beam_search_decode: expected 1 prefixes of source 0 in step 1, found 2", LoDError);
  CHECK_THROWS_AS(beam_search_decode(ids, scores, 3, options(1, 0), on.stream()), LoDError);
  CHECK_THROWS_AS(beam_search_decode(ids, scores, 0, options(1, 0), on.stream()), LoDError);
}

}  // namespace millrace::testing
