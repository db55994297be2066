// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/decoding.h>

#include <doctest/doctest.h>

#include <cmath>

#include <millrace/runtime/builder/sequence_ops.h>

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

TEST_CASE("classes are aligned as Fluid's ctc_align does it, ragged and padded") {
  // PaddlePaddle, python/paddle/fluid/tests/unittests/test_ctc_align.py
  const auto ragged = [](const Ints& values, const LoD::Level& lengths, bool merge) {
    return built([&] { return b::ctc_align(b::input("x", VarType(DType::i64, DDim{DDim::unknown, 1}, 1)), 0, merge); },
                 {{"x", LoDTensor(Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()), 1}), LoD::from_lengths({lengths}))}});
  };
  const LoDTensor all = ragged({0, 1, 2, 2, 0, 4, 0, 4, 5, 0, 6, 6, 0, 0, 7, 7, 7, 0}, {11, 7}, false);
  CHECK(all.tensor().to_vector<std::int64_t>() == Ints{1, 2, 2, 4, 4, 5, 6, 6, 7, 7, 7});
  CHECK(all.lod() == LoD::from_lengths({{7, 4}}));
  const LoDTensor merged = ragged({0, 1, 2, 2, 0, 4, 0, 4, 5, 0, 6, 6, 0, 0, 7, 7, 7, 0, 0}, {11, 8}, true);
  CHECK(merged.tensor().to_vector<std::int64_t>() == Ints{1, 2, 4, 4, 5, 6, 6, 7});
  CHECK(merged.lod() == LoD::from_lengths({{6, 2}}));
  CHECK(ragged({0, 0, 0, 0}, {4}, true).lod() == LoD::from_lengths({{0}}));
  const auto padded = [] {
    const b::Var rows = b::sequence_unpad(b::input("x", VarType(DType::i64, DDim{DDim::unknown, 11})),
                                          b::input("n", VarType(DType::i64, DDim{DDim::unknown, 1})));
    return b::sequence_pad(b::ctc_align(rows, 0), b::Var(std::int64_t{0}), 11).rows;
  };
  const LoDTensor wide =
      built(padded, {{"x", Tensor::from(Ints{0, 2, 4, 4, 0, 6, 3, 6, 6, 0, 0, 1, 1, 3, 0, 0, 4, 5, 6, 0, 0, 0}, DDim{2, 11})},
                     {"n", Tensor::from(Ints{9, 8}, DDim{2, 1})}});
  CHECK(wide.tensor().to_vector<std::int64_t>() == Ints{2, 4, 6, 3, 6, 0, 0, 0, 0, 0, 0, 1, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("the best labellings are ragged lists, one for each rank, and the loss of the labels is theirs") {
  const std::vector<float> values{-0.1f, -3, -3, -0.1f, -3, -0.1f, -0.1f, -3, -3, -0.1f};
  const LoDTensor x(Tensor::from(values, DDim{5, 2}), LoD::from_lengths({{2, 1}, {3, 0, 2}}));
  Program program;
  {
    const b::Guard guard(program);
    const b::Var frames = b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2}, 2));
    const std::vector<b::CtcDecoded> best = b::ctc_beam_search_paths(frames, 0, 8, 2);
    for (const std::size_t rank : {0U, 1U}) {
      b::output("labels" + std::to_string(rank), best[rank].labels);
      b::output("score" + std::to_string(rank), best[rank].score);
    }
    b::output("loss", b::ctc_loss(frames, best[0].labels, 0));
  }
  const RunResult result = run_fifo(run(program, {{"x", x}}));
  CHECK(result["labels0"].lod() == LoD::from_lengths({{2, 1}, {1, 0, 1}}));
  CHECK(result["labels1"].lod() == LoD::from_lengths({{2, 1}, {0, 0, 0}}));
  const std::vector<float> score = result["score0"].tensor().to_vector<float>(), loss = result["loss"].tensor().to_vector<float>();
  for (const std::size_t n : {0U, 1U, 2U}) CHECK(loss[n] == doctest::Approx(-score[n]));
  CHECK(result["loss"].lod() == LoD::from_lengths({{2, 1}}));
  CHECK(std::isinf(result["score1"].tensor().to_vector<float>()[1]));
}

TEST_CASE("given the right tags, the best path says where it is right") {
  // PaddlePaddle, test_crf_decoding_op.py: each row and each transition favours the last tag.
  std::vector<double> weights, emission;
  for (int row = 0; row < 7; ++row)
    for (int tag = 0; tag < 5; ++tag) weights.push_back(tag);
  for (int row = 0; row < 5; ++row)
    for (int tag = 0; tag < 5; ++tag) emission.push_back(tag);
  const LoD lod = LoD::from_lengths({{0, 2, 3, 0}});
  const auto decode = [&] {
    return b::crf_decoding(b::input("e", VarType(DType::f64, DDim{DDim::unknown, 5}, 1)),
                           b::parameter("w", Tensor::from(weights, DDim{7, 5})),
                           b::input("l", VarType(DType::i32, DDim{DDim::unknown, 1}, 1)))
        .path;
  };
  const auto right = [&](const std::vector<std::int32_t>& label) {
    return Feeds{{"e", LoDTensor(Tensor::from(emission, DDim{5, 5}), lod)},
                 {"l", LoDTensor(Tensor::from(label, DDim{5, 1}), LoD::from_lengths({{0, 2, 3, 0}}))}};
  };
  const LoDTensor found = built(decode, right({4, 0, 3, 4, 4}));
  CHECK(found.tensor().to_vector<std::int64_t>() == Ints{1, 0, 0, 1, 1});
  CHECK(found.lod() == lod);
  Feeds other = right({4, 0, 3, 4, 4});
  other["l"] = LoDTensor(Tensor::from(std::vector<std::int32_t>(5, 4), DDim{5, 1}), LoD::from_lengths({{1, 2, 2}}));
  CHECK(says(run_failure<LoDError>(decode, other), {"[[0,2,3,0]]", "[[1,2,2]]", "crf_decoding"}));
}

TEST_CASE("CTC without LoD, or with a blank that is no class, is refused when the program is built") {
  CHECK(says(build_refusal([] { b::ctc_greedy_decode(b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2})), 0); }),
             {"ctc_greedy", "expected sequences (a LoD)"}));
  CHECK(says(build_refusal([] { b::ctc_greedy_decode(b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2}, 1)), 2); }),
             {"ctc_greedy", "expected a blank of 2 classes, found 2"}));
  CHECK(says(build_refusal([] { b::ctc_beam_search_decode(b::input("x", VarType(DType::f32, DDim{DDim::unknown, 2}, 1)), 0, 0); }),
             {"ctc_beam_search", "expected a width of 1 or more"}));
}
