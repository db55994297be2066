// SPDX-License-Identifier: Apache-2.0 Ops over whole sequences: known answers, among them those of PaddlePaddle Fluid's tests and manual,
// LoD at every level, and what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <millrace/runtime/builder/sequence_ops.h>

#include "support/built.h"
#include "support/program_runs.h"
#include "support/random_lod.h"
#include "support/random_tensor.h"
#include "support/straight_line.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;
constexpr std::int64_t any = DDim::unknown;

LoDTensor rows(const Floats& values, const DDim& dims, const char* lod) { return {Tensor::from(values, dims), LoD::parse(lod)}; }
LoDTensor rows(const Floats& values, const char* lod) { return rows(values, DDim{static_cast<std::int64_t>(values.size())}, lod); }
LoDTensor ids(const Ints& values, const char* lod) {
  return {Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()), 1}), LoD::parse(lod)};
}
Floats counted(std::int64_t count) {
  Floats values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i));
  return values;
}

/// Runs what `make` builds of the inputs; rows and the extents of inputs with LoD are unknown when the program is built.
LoDTensor run_on(const std::vector<LoDTensor>& inputs, const std::function<build::Var(const std::vector<build::Var>&)>& make) {
  Feeds feeds;
  for (std::size_t i = 0; i < inputs.size(); ++i) feeds["in" + std::to_string(i)] = inputs[i];
  return built(
      [&] {
        std::vector<build::Var> vars;
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          DDim dims = inputs[i].dims();
          if (dims.rank() > 0) dims[0] = any;
          vars.push_back(build::input("in" + std::to_string(i), VarType(inputs[i].dtype(), dims, inputs[i].lod().depth())));
        }
        return make(vars);
      },
      feeds);
}
/// The same for one op.
LoDTensor op_on(const char* type, const std::vector<LoDTensor>& inputs, const Attributes& attributes = {}, std::size_t output = 0) {
  return run_on(inputs, [&](const std::vector<build::Var>& vars) { return build::call(type, vars, attributes).at(output); });
}
template <class E>
std::string failure(const char* type, const std::vector<LoDTensor>& inputs, const Attributes& attributes = {}) {
  try {
    op_on(type, inputs, attributes);
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

template <class T = float>
void check(const LoDTensor& found, const std::vector<T>& values, const char* lod) {
  CHECK(found.tensor().to_vector<T>() == values);
  CHECK(found.lod().to_string() == lod);
}

}  // namespace

TEST_CASE("case 8: pooling as an op, and the levels above are kept") {
  const LoDTensor x = rows({1, 3, 2, 4, 6, 5, 1}, "[[2,3,2,0]]");
  check(op_on("sequence_pool", {x}, {{"kind", std::string("average")}}), {2, 4, 3, 0}, "[]");
  check(op_on("sequence_pool", {x}, {{"kind", std::string("sum")}}), {4, 12, 6, 0}, "[]");
  check(op_on("sequence_pool", {x}, {{"kind", std::string("max")}}), {3, 6, 5, 0}, "[]");
  check(op_on("sequence_pool", {x}, {{"kind", std::string("last")}, {"empty", -1.0}}), {3, 6, 1, -1}, "[]");
  check(op_on("sequence_pool", {x}, {{"kind", std::string("first")}}), {1, 2, 5, 0}, "[]");
  const Floats scaled = op_on("sequence_pool", {x}, {{"kind", std::string("sqrt")}}).tensor().to_vector<float>();
  const Floats wanted{2.828427f, 6.928203f, 4.242641f, 0};
  for (std::size_t i = 0; i < 4; ++i) CHECK(scaled[i] == doctest::Approx(wanted[i]));
  const LoDTensor deep = rows({1, 2, 3, 4}, "[[2,0,1],[1,0,3]]");
  check(op_on("sequence_pool", {deep}, {{"kind", std::string("sum")}}), {1, 0, 9}, "[[2,0,1]]");
  check(op_on("sequence_pool", {deep}, {{"kind", std::string("sum")}, {"level", std::int64_t{0}}}), {1, 0, 9}, "[]");
  check(run_on({x}, [](const auto& in) { return build::sequence_first_step(in[0], 7); }), {1, 2, 5, 7}, "[]");
  check(run_on({x}, [](const auto& in) { return build::sequence_last_step(in[0]); }), {3, 6, 1, 0}, "[]");
}

TEST_CASE("a softmax runs along each sequence, at its level") {
  const LoDTensor x = rows({0, 0, 5, 1, 1, 1, 1}, "[[2,1],[2,1,4]]");
  check(op_on("sequence_softmax", {x}), {0.5f, 0.5f, 1, 0.25f, 0.25f, 0.25f, 0.25f}, "[[2,1],[2,1,4]]");
  const Floats outer = op_on("sequence_softmax", {x}, {{"level", std::int64_t{0}}}).tensor().to_vector<float>();
  CHECK(outer[0] + outer[1] + outer[2] == doctest::Approx(1));
  CHECK(outer[2] > 0.98f);
}

TEST_CASE("reverse iterations rows, and above the innermost level whole sub-sequences") {
  check(op_on("sequence_reverse", {rows({1, 2, 3, 4, 5}, "[[3,0,2]]")}), {3, 2, 1, 5, 4}, "[[3,0,2]]");
  check(op_on("sequence_reverse", {rows({0, 1, 2, 3, 4, 5}, "[[2,1],[3,1,2]]")}, {{"level", std::int64_t{0}}}), {3, 0, 1, 2, 4, 5},
        "[[2,1],[1,3,2]]");
}

TEST_CASE("slice takes offset and length per sequence") {
  const LoDTensor x = rows({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, DDim{5, 2}, "[[3,2]]");
  const LoDTensor out = op_on("sequence_slice", {x, Tensor::from<std::int64_t>({0, 1}), Tensor::from<std::int64_t>({2, 1})});
  check(out, {1, 2, 3, 4, 9, 10}, "[[2,1]]");
  const LoDTensor column = op_on("sequence_slice", {x, Tensor::from(Ints{1, 2}, DDim{2, 1}), Tensor::from(Ints{0, 0}, DDim{2, 1})});
  check(column, {}, "[[0,0]]");
  CHECK(column.dims() == DDim{0, 2});
  CHECK(says(failure<ArgumentError>("sequence_slice", {x, Tensor::from<std::int64_t>({0, 1}), Tensor::from<std::int64_t>({2, 2})}),
             {"sequence 1 of 2 items", "offset 1 and length 2", "op sequence_slice"}));
  CHECK(says(failure<ArgumentError>("sequence_slice", {x, Tensor::from<std::int64_t>({0}), Tensor::from<std::int64_t>({2})}),
             {"each of 2 sequences"}));
}

TEST_CASE("concat joins sequence by sequence") {
  const LoDTensor out = op_on("sequence_concat", {rows({0, 1, 2}, "[[2,0,1]]"), rows({10, 11, 12}, "[[1,2,0]]"), rows({}, "[[0,0,0]]")});
  check(out, {0, 1, 10, 11, 12, 2}, "[[3,2,1]]");
  CHECK(says(failure<LoDError>("sequence_concat", {rows({0}, "[[1]]"), rows({0}, "[[1,0]]")}), {"[[1]]", "[[1,0]]"}));
}

TEST_CASE("Fluid's expand: sequences by the lengths of a level, and rows of plain tensors") {
  // The two cases of its manual.
  const LoDTensor y = rows(counted(8), "[[2,2],[3,3,1,1]]");
  const Attributes level{{"ref_level", std::int64_t{0}}};
  check(op_on("sequence_expand", {rows({1, 2, 3, 4}, "[[2,2]]"), y}, level), {1, 2, 1, 2, 3, 4, 3, 4}, "[[2,2,2,2]]");
  check(op_on("sequence_expand", {LoDTensor(Tensor::from<float>({1, 2, 3})), rows(counted(5), "[[2,0,3]]")}), {1, 1, 3, 3, 3}, "[[2,0,3]]");
  // The cases of its tests.
  check(op_on("sequence_expand", {LoDTensor(Tensor::from<float>({1, 2, 3})), rows(counted(8), "[[1,3,4]]")}), {1, 2, 2, 2, 3, 3, 3, 3},
        "[[1,3,4]]");
  check(op_on("sequence_expand", {LoDTensor(Tensor::from<float>({1, 2})), rows(counted(9), "[[2,1],[2,1,6]]")}, level), {1, 1, 2},
        "[[2,1]]");
  check(op_on("sequence_expand", {rows({1}, "[[1]]"), rows(counted(2), "[[2],[1,1]]")}, level), {1, 1}, "[[1,1]]");
  check(op_on("sequence_expand", {rows({1, 2, 3}, "[[1,2]]"), rows({0, 0}, "[[0,2]]")}), {2, 3, 2, 3}, "[[2,2]]");
  CHECK(says(failure<LoDError>("sequence_expand", {rows({1, 2}, "[[1,1]]"), rows({0}, "[[1]]")}), {"2 sequences", "1 numbers"}));
}

TEST_CASE("Fluid's expand_as: a row for each row of a sequence") {
  const LoDTensor x(Tensor::from<float>({1, 2, 3, 4}));
  check(op_on("sequence_expand_as", {x, rows(counted(8), "[[3,3,1,1]]")}), {1, 1, 1, 2, 2, 2, 3, 4}, "[[3,3,1,1]]");
  check(op_on("sequence_expand_as", {rows({1, 2}, "[[2,0]]"), rows(counted(3), "[[2,0],[0,3]]")}), {2, 2, 2}, "[[2,0],[0,3]]");
  check(op_on("sequence_expand_as", {LoDTensor(Tensor::from<float>({1, 2})), rows(counted(3), "[[2,0],[1,2]]")},
              {{"level", std::int64_t{0}}}),
        {1, 1, 1}, "[[2,0],[1,2]]");
  // test_sequence_expand_as.py: sequences of X itself say nothing about those of Y.
  check(op_on("sequence_expand_as", {rows({1, 2, 3, 4, 5}, "[[2,3]]"), rows(counted(10), "[[2,2,0,3,3]]")}), {1, 1, 2, 2, 4, 4, 4, 5, 5, 5},
        "[[2,2,0,3,3]]");
  CHECK(says(failure<LoDError>("sequence_expand_as", {x, rows({1}, "[[1]]")}), {"each of the 1 sequences", "f32[4]"}));
  CHECK(says(failure<LoDError>("sequence_expand_as", {rows({1, 2}, "[[1,1]]"), rows(counted(3), "[[2,0],[0,3]]")}),
             {"[[2,0],[0,3]]", "[[1,1]]"}));
}

TEST_CASE("Fluid's enumerate, erase, mask and reshape give the numbers of its manual") {
  const LoDTensor x = ids({1, 2, 3, 4, 5}, "[[3,2]]");
  const LoDTensor windows = op_on("sequence_enumerate", {x}, {{"win_size", std::int64_t{2}}, {"pad_value", std::int64_t{0}}});
  check<std::int64_t>(windows, {1, 2, 2, 3, 3, 0, 4, 5, 5, 0}, "[[3,2]]");
  CHECK(windows.dims() == DDim{5, 2});
  check<std::int64_t>(op_on("sequence_erase", {ids({2, 2, 6, 1, 3, 9, 6, 1, 0, 1}, "[[3,3,4]]")}, {{"tokens", Ints{2, 3, 5}}}),
                      {6, 1, 9, 6, 1, 0, 1}, "[[1,2,4]]");
  check<std::int64_t>(op_on("sequence_mask", {LoDTensor(Tensor::from<std::int64_t>({3, 1, 0}))}), {1, 1, 1, 1, 0, 0, 0, 0, 0}, "[]");
  const LoDTensor wide =
      op_on("sequence_mask", {LoDTensor(Tensor::from<std::int32_t>({3, 1}))}, {{"maxlen", std::int64_t{2}}, {"to", DType::f32}});
  check(wide, {1, 1, 1, 0}, "[]");
  const LoDTensor lengths(Tensor::from<std::int64_t>({1, 3}));
  check<std::int64_t>(op_on("sequence_mask", {lengths, Tensor::from<std::int32_t>({2})}), {1, 0, 1, 1}, "[]");
  check<std::int64_t>(op_on("sequence_mask", {lengths, Tensor::scalar(std::int64_t{-1})}), {1, 0, 0, 1, 1, 1}, "[]");
  CHECK(says(failure<ArgumentError>("sequence_mask", {lengths, Tensor::from<std::int32_t>({-2})}), {"MaxLen of 0 or more", "found -2"}));
  CHECK(says(refusal("sequence_mask", {VarType(DType::i64, {2}), VarType(DType::i64, {})}, {{"maxlen", std::int64_t{2}}}), {"found both"}));
  const LoDTensor reshaped = op_on("sequence_reshape", {rows(counted(12), DDim{6, 2}, "[[2,0,4]]")}, {{"new_dim", std::int64_t{4}}});
  check(reshaped, counted(12), "[[1,0,2]]");
  CHECK(reshaped.dims() == DDim{3, 4});
}

TEST_CASE("hostile lengths and widths are errors that name the number") {
  CHECK(says(failure<ArgumentError>("sequence_mask", {LoDTensor(Tensor::from<std::int64_t>({3, -1}))}), {"0 or more, found -1"}));
  CHECK(op_on("sequence_mask", {LoDTensor(Tensor(DType::i64, DDim{0}))}).dims() == DDim{0, 0});
  CHECK(says(failure<ShapeError>("sequence_reshape", {rows(counted(6), DDim{3, 2}, "[[1,2]]")}, {{"new_dim", std::int64_t{4}}}),
             {"whole rows of 4", "1 rows"}));
  const LoDTensor padded(Tensor::from(counted(6), DDim{2, 3}));
  CHECK(says(failure<ArgumentError>("sequence_unpad", {padded, Tensor::from<std::int64_t>({1, 4})}), {"0 to 3", "sequence 1", "found 4"}));
  CHECK(says(failure<ArgumentError>("sequence_unpad", {padded, Tensor::from<std::int64_t>({-1, 4})}), {"sequence 0", "found -1"}));
  CHECK(says(failure<ShapeError>("sequence_unpad", {padded, Tensor::from<std::int64_t>({1})}), {"f32[2, 3]", "1 lengths"}));
  CHECK(
      says(failure<ArgumentError>("sequence_pad", {rows({1, 2, 3}, "[[3]]")}, {{"padded_length", std::int64_t{2}}}), {"3 rows, found 2"}));
  for (const int bits : {44, 45, 62}) {
    INFO("2^", bits);
    const std::int64_t huge = std::int64_t{1} << bits;
    CHECK_THROWS_AS(op_on("sequence_pad", {rows({1, 2, 3}, "[[2,1]]")}, {{"padded_length", huge}}), Error);
    CHECK_THROWS_AS(op_on("sequence_mask", {LoDTensor(Tensor::from<std::int64_t>({huge, huge}))}), Error);
    CHECK_THROWS_AS(op_on("sequence_enumerate", {ids({1, 2}, "[[2]]")}, {{"win_size", huge}}), Error);
    CHECK(op_on("sequence_pad", {rows({}, DDim{1, 0}, "[[1]]")}, {{"padded_length", huge}}).dims() == DDim{1, huge, 0});
  }
}

TEST_CASE("pad and unpad, with one element or a row to pad with") {
  const LoDTensor x = rows({1, 2, 3, 4, 5}, "[[2,3]]");
  check(op_on("sequence_pad", {x}), {1, 2, 0, 3, 4, 5}, "[]");
  const LoDTensor out = op_on("sequence_pad", {x, LoDTensor(Tensor::from<float>({9}))}, {{"padded_length", std::int64_t{4}}});
  check(out, {1, 2, 9, 9, 3, 4, 5, 9}, "[]");
  CHECK(out.dims() == DDim{2, 4});
  check<std::int64_t>(op_on("sequence_pad", {x}, {}, 1), {2, 3}, "[]");
  const LoDTensor wide = rows({1, 2, 3, 4, 5, 6}, DDim{3, 2}, "[[1,1],[2,1]]");
  check(op_on("sequence_pad", {wide, LoDTensor(Tensor::from<float>({8, 9}))}), {1, 2, 3, 4, 5, 6, 8, 9}, "[[1,1]]");
}

TEST_CASE("padded and unpadded is the same, at every depth") {
  for (const std::uint64_t seed : seeds(60)) {
    Random random(seed);
    const LoD lod = random_lod(random, static_cast<int>(random.between(1, 3)));
    INFO("seed ", seed, ", lod ", lod.to_string());
    const LoDTensor x(Tensor::from(counted(lod.rows() * 2), DDim{lod.rows(), 2}), lod);
    const LoDTensor back = run_on({x, LoDTensor(Tensor::from<float>({-1, -2}))}, [](const auto& in) {
      const build::PaddedSequences padded = build::sequence_pad(in[0], in[1]);
      return build::sequence_unpad(padded.rows, padded.length);
    });
    CHECK(back.lod() == lod);
    CHECK(same_bits(back.tensor(), x.tensor()));
  }
}

TEST_CASE("split by a mask and merged is the same, at every level and for rows") {
  for (const std::uint64_t seed : seeds(60)) {
    Random random(seed);
    const LoD lod = random_lod(random, static_cast<int>(random.between(1, 3)));
    const int level = static_cast<int>(random.between(0, lod.depth()));
    INFO("seed ", seed, ", lod ", lod.to_string(), ", level ", level);
    std::vector<bool> flags;
    const std::int64_t units = level == lod.depth() ? lod.rows() : lod.sequences(level);
    for (std::int64_t i = 0; i < units; ++i) flags.push_back(random.coin());
    const LoDTensor x(Tensor::from(counted(lod.rows() * 2), DDim{lod.rows(), 2}), lod);
    const LoDTensor back = run_on({x, LoDTensor(Tensor::from(flags, DDim{units, 1}))}, [&](const auto& in) {
      const build::MaskHalves halves = build::split_by_mask(in[0], in[1], level);
      return build::merge_by_mask(halves.set, halves.unset, in[1], level);
    });
    CHECK(back.lod() == lod);
    CHECK(same_bits(back.tensor(), x.tensor()));
  }
}

TEST_CASE("Fluid's split and merge of a tensor by a mask, with and without LoD") {
  const LoDTensor x = rows(counted(10), "[[3,6,1]]");
  const LoDTensor mask(Tensor::from(std::vector<bool>{false, true, false}, DDim{3, 1}));
  check(op_on("split_by_mask", {x, mask}), {3, 4, 5, 6, 7, 8}, "[[6]]");
  check(op_on("split_by_mask", {x, mask}, {}, 1), {0, 1, 2, 9}, "[[3,1]]");
  const LoDTensor plain(Tensor::from<float>({0, 1, 2}));
  check(op_on("split_by_mask", {plain, mask}), {1}, "[]");
  check(op_on("split_by_mask", {plain, mask}, {}, 1), {0, 2}, "[]");
  CHECK(says(failure<LoDError>("split_by_mask", {x, LoDTensor(Tensor::from({true}))}), {"mask of 3 sequences", "found 1"}));
  CHECK(says(failure<LoDError>("merge_by_mask", {plain, plain, LoDTensor(Tensor::from({true}))}), {"1 sequences set and 0 not"}));
}

TEST_CASE("a context window sees zeros outside its own sequence") {
  const LoDTensor x = rows({1, 2, 3, 4}, DDim{4, 1}, "[[3,1]]");
  const auto conv = [&](std::int64_t start, const Floats& filter) {
    return op_on("sequence_conv", {x, LoDTensor(Tensor::from(filter, DDim{static_cast<std::int64_t>(filter.size()), 1}))},
                 {{"context_start", start}, {"context_length", static_cast<std::int64_t>(filter.size())}});
  };
  check(conv(-1, {1, 10, 100}), {210, 321, 32, 40}, "[[3,1]]");
  check(conv(-1, {1, 10}), {10, 21, 32, 40}, "[[3,1]]");
  check(conv(1, {1}), {2, 3, 0, 0}, "[[3,1]]");
}

TEST_CASE("rows outside a sequence can be padding, those before it and those behind") {
  // PaddlePaddle, test_sequence_conv.py with paddingTrainable: rows −1 and −2 stand before, 100 and 200 behind each sequence.
  const LoDTensor x = rows({1, 2, 3, 4}, DDim{4, 1}, "[[3,0,1]]");
  const auto conv = [&](std::int64_t start, const Floats& filter, const Floats& padding) {
    const auto column = [](const Floats& values) {
      return LoDTensor(Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()), 1}));
    };
    return op_on("sequence_conv", {x, column(filter), column(padding)},
                 {{"context_start", start}, {"context_length", static_cast<std::int64_t>(filter.size())}});
  };
  check(conv(-1, {1, 10, 100}, {-1, 100}), {-1 + 10 + 200, 1 + 20 + 300, 2 + 30 + 10000, -1 + 40 + 10000}, "[[3,0,1]]");
  check(conv(-2, {1, 10}, {-2, -1}), {-2 - 10, -1 + 10, 1 + 20, -2 - 10}, "[[3,0,1]]");
  check(conv(2, {1, 10}, {5, 6, 7}), {3 + 50, 5 + 60, 6 + 70, 6 + 70}, "[[3,0,1]]");
  CHECK(says(refusal("sequence_conv", {VarType(DType::f32, {any, 1}, 1), VarType(DType::f32, {3, 1}), VarType(DType::f32, {1, 1})},
                     {{"context_start", std::int64_t{-1}}, {"context_length", std::int64_t{3}}}),
             {"2", "'in2' of f32[1, 1]"}));
}

TEST_CASE("Fluid's top-k average pooling: for each row the greatest of its columns, channel by channel") {
  // PaddlePaddle, test_sequence_topk_avg_pooling.py: fewer columns than k are divided by k all the same.
  const LoDTensor x = rows({1, 5, 3, 2, 8, 4, 7, 9, 0, 6, 1, 1, 2, 3}, "[[12,0,2]]");
  const LoDTensor row = rows(counted(5), "[[2,2,1]]"), column = rows(counted(4), "[[3,0,1]]");
  const Attributes two{{"topks", Ints{1, 2}}, {"channel_num", std::int64_t{2}}};
  const LoDTensor found = op_on("sequence_topk_avg_pooling", {x, row, column}, two);
  check(found, {5, 4, 9, 8, 8, 6, 6, 3.5f, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 3, 1.5f}, "[[2,2,1]]");
  CHECK(found.dims() == DDim{5, 4});
  CHECK(says(failure<LoDError>("sequence_topk_avg_pooling", {x, row, rows(counted(4), "[[2,1,1]]")}, two),
             {"sequence 0", "2 by 2", "found 12"}));
  CHECK(says(
      refusal("sequence_topk_avg_pooling", {VarType(DType::f32, {any}, 1), VarType(DType::f32, {any}, 1), VarType(DType::f32, {any}, 1)},
              {{"topks", Ints{0}}, {"channel_num", std::int64_t{1}}}),
      {"topks", "found 0"}));
}

TEST_CASE("look-ahead, scatter and top-k as ops") {
  const LoDTensor x = rows({1, 2, 3, 4}, DDim{4, 1}, "[[3,1]]");
  check(op_on("row_conv", {x, LoDTensor(Tensor::from(Floats{1, 10}, DDim{2, 1}))}), {21, 32, 3, 4}, "[[3,1]]");
  const LoDTensor best = op_on("sequence_top_k", {x}, {{"k", std::int64_t{2}}});
  check(best, {3, 2, 4}, "[[2,1]]");
  check<std::int64_t>(op_on("sequence_top_k", {x}, {{"k", std::int64_t{2}}}, 1), {2, 1, 0}, "[[2,1]]");
  // The shape of Fluid's example: three rows, sequences of 3, 5 and 4 updates.
  const LoDTensor ones(Tensor::from(Floats(18, 1), DDim{3, 6}));
  const LoDTensor where = ids({0, 1, 2, 5, 4, 3, 0, 1, 2, 5, 4, 3}, "[[3,5,4]]");
  const Floats updates{0.3f, 0.3f, 0.4f, 0.1f, 0.2f, 0.3f, 0.4f, 0.0f, 0.2f, 0.3f, 0.1f, 0.4f};
  const LoDTensor scattered = op_on("sequence_scatter", {ones, where, LoDTensor(Tensor::from(updates, DDim{12, 1}), where.lod())});
  const Floats wanted{1.3f, 1.3f, 1.4f, 1.0f, 1.0f, 1.0f, 1.4f, 1.0f, 1.0f, 1.3f, 1.2f, 1.1f, 1.0f, 1.0f, 1.2f, 1.4f, 1.1f, 1.3f};
  const Floats found = scattered.tensor().to_vector<float>();
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(found[i] == doctest::Approx(wanted[i]));
  CHECK(says(failure<IndexError>("sequence_scatter", {ones, ids({6}, "[[1,0,0]]"), LoDTensor(Tensor::from<float>({1}))}), {"found 6"}));
  CHECK(
      says(failure<LoDError>("sequence_scatter", {ones, ids({1, 1}, "[[1,1,0]]"), rows({1, 1}, "[[2,0,0]]")}), {"[[1,1,0]]", "[[2,0,0]]"}));
}

TEST_CASE("LoD is reset from lengths or from another input, and appended inside") {
  const LoDTensor x = rows({1, 2, 3, 4, 5, 6}, "[[2,3,1]]");
  check(run_on({x}, [](const auto& in) { return build::lod_reset(in[0], Ints{4, 2}); }), {1, 2, 3, 4, 5, 6}, "[[4,2]]");
  check(run_on({x, Tensor::from<std::int64_t>({1, 0, 5})}, [](const auto& in) { return build::lod_reset(in[0], in[1]); }),
        {1, 2, 3, 4, 5, 6}, "[[1,0,5]]");
  check(run_on({x, rows(counted(6), "[[2,0],[2,4]]")}, [](const auto& in) { return build::lod_reset_like(in[0], in[1]); }),
        {1, 2, 3, 4, 5, 6}, "[[2,0],[2,4]]");
  check(run_on({x}, [](const auto& in) { return build::lod_append(in[0], Ints{1, 1, 1, 1, 1, 1}); }), {1, 2, 3, 4, 5, 6},
        "[[2,3,1],[1,1,1,1,1,1]]");
  check(run_on({LoDTensor(Tensor::from<float>({1, 2})), Tensor::from<std::int64_t>({0, 2})},
               [](const auto& in) { return build::lod_append(in[0], in[1]); }),
        {1, 2}, "[[0,2]]");
  CHECK(says(failure<LoDError>("lod_reset", {x}, {{"lengths", Ints{4, 1}}}), {"5 rows", "6"}));
  CHECK(says(failure<LoDError>("lod_reset", {x}, {{"lengths", Ints{7, -1}}}), {"-1"}));
  CHECK(says(failure<LoDError>("lod_append", {x}, {{"lengths", Ints{6}}}), {"6 lengths", "found 1"}));
}

TEST_CASE("inference knows the dtype, the shape and the depth of what comes out") {
  const VarType x(DType::f32, {any, 4}, 2);
  const VarType column(DType::i64, {any, 1}, 1);
  const auto kind = std::string("sum");
  CHECK(infer_op("sequence_pool", {x}, {{"kind", kind}})[0] == VarType(DType::f32, {any, 4}, 1));
  CHECK(infer_op("sequence_pool", {x}, {{"kind", kind}, {"level", std::int64_t{0}}})[0] == VarType(DType::f32, {any, 4}, 0));
  CHECK(infer_op("sequence_pad", {x}, {{"padded_length", std::int64_t{7}}})[0] == VarType(DType::f32, {any, 7, 4}, 1));
  CHECK(infer_op("sequence_pad", {x})[1] == VarType(DType::i64, {any}, 1));
  CHECK(infer_op("sequence_unpad", {VarType(DType::f32, {3, 7, 4}), VarType(DType::i64, {3})})[0] == VarType(DType::f32, {any, 4}, 1));
  CHECK(infer_op("sequence_conv", {x, VarType(DType::f32, {12, 5})}, {{"context_length", std::int64_t{3}}})[0] ==
        VarType(DType::f32, {any, 5}, 2));
  CHECK(infer_op("sequence_enumerate", {column}, {{"win_size", std::int64_t{3}}})[0] == VarType(DType::i64, {any, 3}, 1));
  CHECK(infer_op("sequence_expand", {VarType(DType::f32, {3, 4}), x})[0] == VarType(DType::f32, {any, 4}, 2));
  CHECK(infer_op("sequence_expand_as", {VarType(DType::f32, {any, 9}), x}, {{"level", std::int64_t{0}}})[0] ==
        VarType(DType::f32, {any, 9}, 2));
  CHECK(infer_op("sequence_mask", {VarType(DType::i32, {5})}, {{"maxlen", std::int64_t{3}}, {"to", DType::boolean}})[0] ==
        VarType(DType::boolean, {5, 3}));
  CHECK(infer_op("sequence_top_k", {x}, {{"k", std::int64_t{3}}})[1] == VarType(DType::i64, {any, 4}, 2));
  CHECK(infer_op("sequence_concat", {x, VarType(DType::f32, {7, 4}, 2)})[0] == VarType(DType::f32, {any, 4}, 2));
  CHECK(infer_op("lod_append", {x}, {{"lengths", Ints{1}}})[0] == VarType(DType::f32, {any, 4}, 3));
}

TEST_CASE("what cannot fit is refused when the program is built, and both sides are named") {
  const VarType x(DType::f32, {any, 4}, 1);
  const VarType deep(DType::f32, {any, 4}, 2);
  const VarType plain(DType::f32, {any, 4});
  const VarType index(DType::i64, {any});
  for (const char* type : {"sequence_softmax", "sequence_reverse", "sequence_pad", "sequence_concat"}) {
    CAPTURE(type);
    CHECK(says(refusal(type, {plain}), {"expected sequences", "'in0' of f32[?, 4]"}));
  }
  CHECK(says(refusal("sequence_pool", {x}, {{"kind", std::string("median")}}), {"average, sum, sqrt, max, first, last", "median"}));
  CHECK(
      says(refusal("sequence_pool", {deep}, {{"kind", std::string("sum")}, {"level", std::int64_t{2}}}), {"-2 to 1", "found 2", "lod=2"}));
  CHECK(says(refusal("sequence_reverse", {x}, {{"level", std::numeric_limits<std::int64_t>::min()}}), {"-1 to 0"}));
  CHECK(says(refusal("sequence_concat", {x, deep}), {"levels of LoD", "'in0'", "'in1'"}));
  CHECK(says(refusal("sequence_concat", {x, VarType(DType::f32, {any, 5}, 1)}), {"equal rows", "f32[?, 4]", "f32[?, 5]"}));
  CHECK(says(refusal("sequence_slice", {x, plain, index}), {"i64 or i32", "'in1'"}));
  CHECK(says(refusal("sequence_slice", {x, VarType(DType::i64, {3, 2}), index}), {"[N] or [N, 1]", "'in1' of i64[3, 2]"}));
  CHECK(says(refusal("sequence_conv", {x, VarType(DType::f32, {8, 5})}, {{"context_length", std::int64_t{3}}}),
             {"12", "'in1' of f32[8, 5]"}));
  CHECK(says(refusal("sequence_conv", {x, plain}, {{"context_length", std::int64_t{0}}}), {"context_length", "found 0"}));
  CHECK(says(refusal("sequence_conv", {x, plain},
                     {{"context_length", std::int64_t{1}}, {"context_start", std::numeric_limits<std::int64_t>::min()}}),
             {"context_start"}));
  CHECK(says(refusal("row_conv", {x, VarType(DType::f32, {3, 5})}), {"4 and 5"}));
  CHECK(says(refusal("sequence_expand_as", {deep, deep}), {"level 1", "'in0'", "'in1'"}));
  CHECK(says(refusal("sequence_pad", {x, VarType(DType::f32, {3})}), {"'in0' of f32[?, 4]", "'in1' of f32[3]"}));
  CHECK(says(refusal("split_by_mask", {x, VarType(DType::f32, {3})}), {"expected bool", "'in1'"}));
  CHECK(says(refusal("split_by_mask", {x, VarType(DType::boolean, {3})}, {{"level", std::int64_t{2}}}), {"0 to 1", "found 2"}));
  CHECK(says(refusal("merge_by_mask", {x, deep, VarType(DType::boolean, {3})}), {"levels of LoD"}));
  CHECK(says(refusal("lod_reset", {x}), {"one source", "found 0"}));
  CHECK(says(refusal("lod_reset", {x, index}, {{"lengths", Ints{1}}}), {"one source", "found 2"}));
  CHECK(says(refusal("sequence_erase", {x}, {{"tokens", Ints{1}}}), {"i64 or i32"}));
  CHECK(says(
      refusal("sequence_enumerate", {VarType(DType::i32, {any}, 1)}, {{"win_size", std::int64_t{1}}, {"pad_value", std::int64_t{1} << 40}}),
      {"pad_value"}));
}

TEST_CASE("a sequence has the same bits alone and among others, in each op that computes") {
  Random random(1);
  const auto tensor = [&](const DDim& dims) {
    Tensor made(DType::f32, dims);
    for (std::int64_t i = 0; i < made.elements(); ++i) made.mutable_data<float>()[i] = random.real();
    if (made.elements() == 0) made.storage()->mark_written();
    return made;
  };
  LoD::Level lengths;
  for (int n = 0; n < 64; ++n) lengths.push_back(random.between(0, 3) == 0 ? 0 : random.between(1, 40));
  const LoD lod = LoD::from_lengths({lengths});
  const LoDTensor x(tensor({lod.rows(), 5}), lod);
  const LoDTensor filter(tensor({15, 7})), taps(tensor({4, 5}));
  const auto each = [&](const char* type, const std::vector<LoDTensor>& more, const Attributes& attributes) {
    INFO(type);
    std::vector<LoDTensor> inputs{x};
    inputs.insert(inputs.end(), more.begin(), more.end());
    const LoDTensor whole = op_on(type, inputs, attributes);
    for (std::int64_t n = 0; n < 64; n += 5) {
      inputs[0] = x.slice(0, n, n + 1);
      const LoDTensor alone = op_on(type, inputs, attributes);
      const bool pooled = whole.lod().empty();
      CHECK(same_bits(alone.tensor(), pooled ? whole.tensor().rows(n, n + 1) : whole.slice(0, n, n + 1).tensor()));
    }
  };
  for (const char* kind : {"average", "sum", "sqrt", "max", "first", "last"}) each("sequence_pool", {}, {{"kind", std::string(kind)}});
  each("sequence_softmax", {}, {});
  each("sequence_conv", {filter}, {{"context_start", std::int64_t{-1}}, {"context_length", std::int64_t{3}}});
  each("row_conv", {taps}, {});
  each("sequence_top_k", {}, {{"k", std::int64_t{3}}});
}

TEST_CASE("ops on sequences give the same bits on a device that completes in any order") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {any, 3}, 2));
    const build::Var words = build::input("ids", VarType(DType::i64, {any, 1}, 1));
    const build::Var mask = build::input("mask", VarType(DType::boolean, {any}));
    const build::PaddedSequences padded = build::sequence_pad(x);
    build::output("length", padded.length);
    const build::Var same = build::sequence_unpad(padded.rows, padded.length);
    const build::MaskHalves halves = build::split_by_mask(build::sequence_softmax(same), mask, 1);
    const build::Var merged = build::merge_by_mask(build::sequence_reverse(halves.set), halves.unset, mask, 1);
    build::output("merged", merged);
    build::output("pooled", build::sequence_expand_as(build::sequence_pool(merged, "average", 0.5), merged));
    build::output("best", build::sequence_top_k(merged, 2).values);
    build::output("windows", build::sequence_enumerate(build::sequence_erase(words, {2, 5}), 2, -1));
    build::output("inside", build::sequence_mask(padded.length));
    build::output("joined", build::sequence_concat({x, merged}));
  }
  const LoDTensor x(Tensor::from(counted(18), DDim{6, 3}), LoD::parse("[[2,0,2],[3,0,1,2]]"));
  const Feeds feeds{{"x", x}, {"ids", ids({1, 2, 3, 5, 2, 4}, "[[4,0,2]]")}, {"mask", LoDTensor(Tensor::from({true, true, false, true}))}};
  const RunResult result = everywhere(program, feeds, 60);
  check<std::int64_t>(result["windows"], {1, 3, 3, -1, 4, -1}, "[[2,0,1]]");
  CHECK(result["merged"].lod() == x.lod());
  CHECK(result["joined"].lod().to_string() == "[[2,0,2],[6,0,2,4]]");
  check<std::int64_t>(result["length"], {3, 0, 1, 2}, "[[2,0,2]]");
}

TEST_CASE("runs of iterations end with their sequences, longest sequences first") {
  const LoDTensor x = rows(counted(8), "[[3,0,5]]");
  const auto run = [&](std::int64_t every, std::int64_t index, bool reverse) {
    return run_on({x}, [&](const auto& in) {
      const build::Var order = build::call1("sequence_order", {in[0]}, {{"reverse", reverse}});
      return build::call1("sequence_run", {in[0], order, build::constant(index)}, {{"every", every}});
    });
  };
  check(run(2, 0, false), {6, 7, 1, 2}, "[[2,2,0]]");
  check(run(2, 1, false), {4, 5, 0}, "[[2,1,0]]");
  check(run(2, 2, false), {3}, "[[1,0,0]]");
  check(run(2, 3, false), {}, "[[0,0,0]]");
  check(run(2, 0, true), {3, 4, 0, 1}, "[[2,2,0]]");
  check(run(2, 2, true), {7}, "[[1,0,0]]");
  check(run(0, 0, false), {5, 6, 7, 0, 1, 2}, "[[3,3,0]]");  // ⌈√5⌉ of them
  const auto back = [&](std::int64_t index, bool reverse) {
    return run_on(
               {x},
               [&](const auto& in) {
                 const build::Var order = build::call1("sequence_order", {in[0]}, {{"reverse", reverse}});
                 const build::Var part = build::call1("sequence_run", {in[0], order, build::constant(index)}, {{"every", std::int64_t{2}}});
                 return build::call1("sequence_run_gradient", {part, in[0], order, build::constant(index)}, {{"every", std::int64_t{2}}});
               })
        .tensor()
        .to_vector<float>();
  };
  CHECK(back(1, false) == Floats{0, 0, 0, 0, 4, 5, 0, 0});
  CHECK(back(0, true) == Floats{0, 1, 0, 3, 4, 0, 0, 0});
  const auto count = [](const LoDTensor& of, std::int64_t every) {
    return run_on({of},
                  [&](const auto& in) { return build::call1("run_count", {build::call1("sequence_order", {in[0]})}, {{"every", every}}); })
        .tensor()
        .item_int();
  };
  CHECK(count(x, 2) == 3);
  CHECK(count(x, 5) == 1);
  CHECK(count(x, 0) == 2);
  CHECK(count(rows({}, "[[0,0]]"), 0) == 1);
}

TEST_CASE("a product over the rows of several pieces has the bits of the product of all rows") {
  Random random(4);
  const Tensor a = random_tensor(random, {1300, 3}), b = random_tensor(random, {1300, 5});
  const auto pieces = [&](const Tensor& x, const Ints& ends, bool blocks) {
    return run_on({LoDTensor(x)}, [&](const auto& in) {
      build::Var left = build::call1("slice", {in[0]}, {{"starts", Ints{0}}, {"ends", Ints{0}}, {"axes", Ints{0}}, {"steps", Ints{1}}});
      std::vector<build::Var> whole;
      std::int64_t begin = 0;
      for (const std::int64_t end : ends) {
        const build::Var rows = build::slice(in[0], 0, begin, end);
        const std::vector<build::Var> made = build::call("whole_blocks", {left, rows}, {}, {"blocks", "rest"});
        whole.push_back(made[0]);
        left = made[1];
        begin = end;
      }
      whole.push_back(left);
      return blocks ? build::concat(whole, 0) : build::call1("shape", {whole[2]});
    });
  };
  const Ints ends{100, 700, 1250, 1300};
  CHECK(pieces(a, ends, true).tensor().to_vector<float>() == a.to_vector<float>());
  CHECK(pieces(a, ends, false).tensor().to_vector<std::int64_t>() == Ints{512, 3});
  const auto product = [&](const Tensor& from, const Tensor& to) {
    return run_on({LoDTensor(from), LoDTensor(to)},
                  [](const auto& in) {
                    const build::Var sum = build::constant(Tensor::from(Floats(15, -0.0f), DDim{3, 5}));
                    return build::call1("add_row_products", {sum, in[1], in[0]});
                  })
        .tensor()
        .to_vector<float>();
  };
  const Floats all =
      run_on({LoDTensor(a), LoDTensor(b)}, [](const auto& in) { return build::call1("gemm", {in[0], in[1]}, {{"trans_a", true}}); })
          .tensor()
          .to_vector<float>();
  CHECK(product(a, b) == all);
  const Floats sums = run_on({LoDTensor(b)},
                             [](const auto& in) {
                               const build::Var sum = build::constant(Tensor::from(Floats(5, -0.0f), DDim{5}));
                               return build::call1("add_row_products", {sum, in[0]});
                             })
                          .tensor()
                          .to_vector<float>();
  const Floats reduced =
      run_on({LoDTensor(b)},
             [](const auto& in) {
               return build::call1("reduce", {in[0]}, {{"kind", std::string("sum")}, {"axes", Ints{0}}, {"keepdims", false}});
             })
          .tensor()
          .to_vector<float>();
  CHECK(sums == reduced);
}
