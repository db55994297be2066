// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/decoding.h>

#include <doctest/doctest.h>

#include <cmath>

#include "support/built.h"
#include "support/straight_line.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

namespace b = millrace::build;
using Ints = std::vector<std::int64_t>;

const VarType emissions(DType::f32, DDim{DDim::unknown, 2}, 1);

/// Tag 0 starts for nothing, 1 for 1, ends cost 0 and 5; from 0: 10 and 20, from 1: 100 and 0.
b::Var transition() { return b::parameter("crfw", Tensor::from(std::vector<float>{0, 1, 0, 5, 10, 20, 100, 0}, DDim{4, 2})); }

}  // namespace

TEST_CASE("a program finds the best tags of ragged rows, and how likely given ones are") {
  const LoDTensor x(Tensor::from(std::vector<float>{0, 0, 0, 0, 3, 0}, DDim{3, 2}), LoD::from_lengths({{2, 1}, {2, 0, 1}}));
  Program program;
  {
    const b::Guard guard(program);
    const b::Var e = b::input("e", VarType(DType::f32, DDim{DDim::unknown, 2}, 2));
    const b::Var w = transition();
    const b::CrfDecoded best = b::crf_decoding(e, w);
    b::output("path", best.path);
    b::output("score", best.score);
    b::output("likelihood", b::linear_chain_crf(e, w, best.path));
  }
  const RunResult result = run_fifo(run(program, {{"e", x}}));
  CHECK(result["path"].tensor().to_vector<std::int64_t>() == Ints{1, 0, 1});
  CHECK(result["path"].lod() == x.lod());
  CHECK(result["score"].tensor().to_vector<float>() == std::vector<float>{101, 0, 6});
  CHECK(result["score"].lod() == LoD::from_lengths({{2, 1}}));
  const std::vector<float> likely = result["likelihood"].tensor().to_vector<float>();
  CHECK(likely[0] == 0.0f);  // the others are e^−70 as likely
  CHECK(likely[1] == 0.0f);
  CHECK(std::abs(likely[2] - static_cast<float>(6 - std::log(std::exp(3) + std::exp(6)))) < 1e-6f);
}

TEST_CASE("a CRF without LoD, or of other tags than its emissions, is refused when the program is built") {
  CHECK(says(build_refusal([] { b::crf_decoding(b::input("e", VarType(DType::f32, DDim{DDim::unknown, 2})), transition()); }),
             {"crf_decoding", "expected sequences (a LoD)", "'e'"}));
  CHECK(says(build_refusal([] { b::crf_decoding(b::input("e", VarType(DType::f32, DDim{DDim::unknown, 3}, 1)), transition()); }),
             {"crf_decoding", "tags of emission and transition"}));
  CHECK(says(build_refusal([] {
               b::linear_chain_crf(b::input("e", emissions), transition(), b::input("l", VarType(DType::f32, DDim{DDim::unknown}, 1)));
             }),
             {"linear_chain_crf", "'l'"}));
}

TEST_CASE("labels of other sequences than the emissions are an error that names both") {
  const LoDTensor e(Tensor::from(std::vector<float>(6, 0), DDim{3, 2}), LoD::from_lengths({{2, 1}}));
  const LoDTensor label(Tensor::from(Ints{0, 0, 0}, DDim{3}), LoD::from_lengths({{1, 2}}));
  const auto run_it = [&] {
    return b::linear_chain_crf(b::input("e", emissions), transition(), b::input("l", VarType(DType::i64, DDim{DDim::unknown}, 1)));
  };
  CHECK(says(run_failure<LoDError>(run_it, {{"e", e}, {"l", label}}), {"[[2,1]]", "[[1,2]]", "linear_chain_crf"}));
}

TEST_CASE("labels of ragged frames are ragged too, greedily and by beam, and their errors are counted") {
  const std::vector<float> values{-0.1f, -3, -3, -0.1f, -3, -0.1f, -0.1f, -3, -3, -0.1f};
  const LoDTensor x(Tensor::from(values, DDim{5, 2}), LoD::from_lengths({{2, 1}, {3, 0, 2}}));
  const LoDTensor wanted(Tensor::from(Ints{1, 1, 1}, DDim{3}), LoD::from_lengths({{2, 1}, {2, 0, 1}}));
  for (const bool beam : {false, true}) {
    Program program;
    {
      const b::Guard guard(program);
      const b::Var frames = b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2}, 2));
      const b::CtcDecoded found = beam ? b::ctc_beam_search_decode(frames, 0, 8) : b::ctc_greedy_decode(frames, 0);
      b::output("labels", found.labels);
      b::output("score", found.score);
      b::output("errors", b::edit_distance(found.labels, b::input("wanted", VarType(DType::i64, DDim{DDim::unknown}, 2)), true));
    }
    const RunResult result = run_fifo(run(program, {{"x", x}, {"wanted", wanted}}));
    CHECK(result["labels"].tensor().to_vector<std::int64_t>() == Ints{1, 1});
    CHECK(result["labels"].lod() == LoD::from_lengths({{2, 1}, {1, 0, 1}}));
    CHECK(result["score"].lod() == LoD::from_lengths({{2, 1}}));
    CHECK(result["score"].dims() == DDim{3, 1});
    CHECK(result["errors"].tensor().to_vector<float>() == std::vector<float>{0.5f, 0, 0});
    CHECK(result["errors"].lod() == LoD::from_lengths({{2, 1}}));
  }
}

TEST_CASE("sequences are trimmed to what their lengths say, and to no more than they are") {
  const LoDTensor x(Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, DDim{3, 2}), LoD::from_lengths({{1, 0, 2}}));
  const auto trim = [] {
    return b::sequence_trim(b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2}, 1)),
                            b::input("n", VarType(DType::i64, DDim{DDim::unknown})));
  };
  const LoDTensor y = built(trim, {{"x", x}, {"n", Tensor::from<std::int64_t>({0, 0, 1})}});
  CHECK(y.tensor().to_vector<float>() == std::vector<float>{3, 4});
  CHECK(y.lod() == LoD::from_lengths({{0, 0, 1}}));
  CHECK(says(run_failure<LoDError>(trim, {{"x", x}, {"n", Tensor::from<std::int64_t>({0, 1, 1})}}),
             {"expected at most 0 rows of sequence 1, found 1", "sequence_trim"}));
  CHECK(says(run_failure<LoDError>(trim, {{"x", x}, {"n", Tensor::from<std::int64_t>({-1, 0, 1})}}), {"sequence 0, found -1"}));
  CHECK(says(run_failure<LoDError>(trim, {{"x", x}, {"n", Tensor::from<std::int64_t>({1, 0})}}),
             {"a length for each of 3 sequences, found 2"}));
}

TEST_CASE("CTC without LoD, or with a blank that is no class, is refused when the program is built") {
  CHECK(says(build_refusal([] { b::ctc_greedy_decode(b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2})), 0); }),
             {"ctc_greedy", "expected sequences (a LoD)"}));
  CHECK(says(build_refusal([] { b::ctc_greedy_decode(b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2}, 1)), 2); }),
             {"ctc_greedy", "expected a blank of 2 classes, found 2"}));
  CHECK(says(build_refusal([] { b::ctc_beam_search_decode(b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2}, 1)), 0, 0); }),
             {"ctc_beam_search", "expected a width of 1 or more"}));
}
