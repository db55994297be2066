// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <millrace/runtime/models/export/with_onnx/rules.h>

/// Decoding of the one sequence that rows with LoD are in ONNX, in the order of arithmetic of kernels/crf.h and kernels/ctc.h.
namespace millrace::exporting {
namespace {

constexpr std::int64_t rows = 0;

VarType index_type() { return VarType(DType::i64, DDim{}); }

void expect_one_level(const Exporter& to, const Op& op) {
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (Exporter::has(op, i) && to.type(op, i).lod_depth > 1)
      throw UnsupportedError("expected one level of LoD, found " + to.type(op, i).to_string());
}

Settings along(std::int64_t axis) { return {{"axis", axis}, {"keepdims", std::int64_t{0}}}; }
std::string reduced(Exporter& to, const char* onnx, const std::string& x, std::int64_t axis) {
  return to.node(onnx, {x, to.ints({axis})}, {{"keepdims", std::int64_t{0}}});
}

/// With one row of zeros behind the last, so that there is a row to begin with.
std::string with_room(Exporter& to, const std::string& x, std::int64_t axes) {
  Ints pads(static_cast<std::size_t>(2 * axes), 0);
  pads[static_cast<std::size_t>(axes)] = 1;
  return to.node("Pad", {x, to.ints(pads)});
}

/// The inputs of both uses of a conditional random field.
struct Crf {
  Crf(Exporter& exporter, const Op& op) : to(exporter), dtype(exporter.type(op, 0).dtype) {
    wide = dtype == DType::f64 ? dtype : DType::f32;
    const auto widened = [&](std::size_t input) { return dtype == wide ? to.in(op, input) : to.cast(to.in(op, input), wide); };
    const std::string weights = widened(1);
    n = to.length_of(to.in(op, 0));
    emission = with_room(to, widened(0), 2);
    start = to.gathered(weights, to.whole(0));
    end = to.gathered(weights, to.whole(1));
    between = to.node("Slice", {weights, to.ints({2}), to.ints({std::numeric_limits<std::int64_t>::max()}), to.ints({0})});
    first = to.node("Add", {start, to.gathered(emission, to.whole(0))});
    iterations = to.node("Max", {to.node("Sub", {n, to.whole(1)}), to.whole(0)});
    tags = VarType(wide, DDim{to.type(op, 0).rank() == 2 ? (*to.type(op, 0).shape)[1] : DDim::unknown});
  }
  std::string plus(const std::string& a, const std::string& b) const { return to.node("Add", {a, b}); }
  std::string next(const std::string& iteration) const { return plus(iteration, to.whole(1)); }
  /// The scores of all ways from a tag (axis 0) to a tag: [K, K].
  std::string ways(const std::string& scores) const { return plus(to.node("Unsqueeze", {scores, to.ints({1})}), between); }
  /// One number for the sequence: 0 where it has no rows.
  void give(VarId var, const std::string& score) const {
    const std::string some = to.node("Where", {to.node("Equal", {n, to.whole(0)}), to.number(wide, 0), score});
    const std::string one = to.reshaped(some, {1, 1});
    to.bind(var, dtype == wide ? one : to.cast(one, dtype));
  }

  Exporter& to;
  DType dtype, wide = DType::f32;
  VarType tags;
  std::string n, emission, start, end, between, first, iterations;
};

void viterbi(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  if (Exporter::has(op, 2)) throw UnsupportedError("compares the best tags with given ones");
  const Crf crf(to, op);
  VarType from = crf.tags;
  from.dtype = DType::i64;
  const Names forth =
      to.repeat(crf.iterations, {crf.first}, {crf.tags}, {from}, [&](const std::string& iteration, const Names& before) -> Names {
        const std::string ways = crf.ways(before[0]);
        const std::string best = reduced(to, "ReduceMax", ways, 0);
        return {crf.plus(best, to.gathered(crf.emission, crf.next(iteration))), to.node("ArgMax", {ways}, along(0))};
      });
  const std::string ends = crf.plus(forth[0], crf.end);
  const std::string last = to.node("ArgMax", {ends}, along(0));
  const Names back =
      to.repeat(crf.iterations, {last}, {index_type()}, {index_type()}, [&](const std::string& iteration, const Names& tag) -> Names {
        const std::string at = to.node("Sub", {to.node("Sub", {crf.iterations, to.whole(1)}), iteration});
        const std::string before = to.gathered(to.gathered(forth[1], at), tag[0]);
        return {before, before};
      });
  const std::string path = to.joined({to.flipped(back[1], rows), to.reshaped(last, {1})});
  const std::string cut = to.node("Slice", {path, to.ints({0}), to.reshaped(crf.n, {1}), to.ints({rows})});
  to.bind(op.outputs[0], to.node("Unsqueeze", {cut, to.ints({1})}));
  crf.give(op.outputs[1], reduced(to, "ReduceMax", ends, 0));
}

void log_likelihood(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  const Crf crf(to, op);
  const std::string labels = with_room(to, to.reshaped(to.cast(to.in(op, 2), DType::i64), {-1}), 1);
  const auto label = [&](const std::string& at) { return to.gathered(labels, at); };
  const std::string begin = label(to.whole(0));
  const VarType score(crf.wide, DDim{});
  const Names last = to.repeat(crf.iterations, {crf.first, to.gathered(crf.first, begin), begin}, {crf.tags, score, index_type()}, {},
                               [&](const std::string& iteration, const Names& before) -> Names {
                                 const std::string at = crf.next(iteration), here = label(at), emission = to.gathered(crf.emission, at);
                                 const std::string all = crf.plus(reduced(to, "ReduceLogSumExp", crf.ways(before[0]), 0), emission);
                                 const std::string step = to.gathered(to.gathered(crf.between, before[2]), here);
                                 return {all, crf.plus(crf.plus(before[1], step), to.gathered(emission, here)), here};
                               });
  const std::string found = crf.plus(last[1], to.gathered(crf.end, last[2]));
  crf.give(op.outputs[0], to.node("Sub", {found, reduced(to, "ReduceLogSumExp", crf.plus(last[0], crf.end), 0)}));
}

/// Behind the labels −1 up to as many as there are frames.
void ctc_greedy(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  const std::string x = to.in(op, 0);
  const std::string blank = to.whole(op.attributes.get_or("blank", std::int64_t{0}));
  const std::string best = to.node("ArgMax", {x}, along(1));
  const std::string shifted = to.node("Slice", {to.joined({to.reshaped(blank, {1}), best}), to.ints({0}), to.ints({-1}), to.ints({rows})});
  const auto differs = [&](const std::string& from) { return to.node("Not", {to.node("Equal", {best, from})}); };
  const bool merges = op.attributes.get_or("merge_repeated", true);
  const std::string kept = merges ? to.node("And", {differs(blank), differs(shifted)}) : differs(blank);
  const std::string labels = to.node("Compress", {best, kept}, {{"axis", rows}});
  const std::string count = to.node("Shape", {labels});
  const std::string rest = to.node("Expand", {to.whole(-1), to.node("Sub", {to.node("Shape", {best}), count})});
  to.bind(op.outputs[0], to.node("Unsqueeze", {to.joined({labels, rest}), to.ints({1})}));
  to.bind(op.outputs[1], to.reshaped(count, {1, 1}));
  const std::string most = reduced(to, "ReduceMax", with_room(to, x, 2), 1);
  to.bind(op.outputs[2], to.reshaped(reduced(to, "ReduceSum", most, 0), {1, 1}));
}

/// A row of the table per token of the hypothesis. The term from the left, min over k ≤ j of candidate[k] + (j − k), is one reduction.
void edit_distance(Exporter& to, const Op& op, const char*) {
  expect_one_level(to, op);
  const Ints ignored = op.attributes.get_or("ignored_tokens", Ints{});
  const auto tokens = [&](std::size_t input) {
    const std::string kept = without(to, to.in(op, input), to.type(op, input).dtype, ignored);
    return to.reshaped(to.cast(kept, DType::i64), {-1});
  };
  const std::string a = tokens(0), b = tokens(1);
  const std::string one = to.whole(1);
  const auto plus = [&](const std::string& left, const std::string& right) { return to.node("Add", {left, right}); };
  const std::string width = to.length_of(b);
  const std::string places = to.node("Range", {to.whole(0), plus(width, one), one});
  const std::string behind = to.node("Sub", {to.node("Unsqueeze", {places, to.ints({1})}), places});  // [j, k]: j − k
  const std::string reachable = to.node("GreaterOrEqual", {behind, to.whole(0)});
  const VarType row(DType::i64, DDim{DDim::unknown});
  const Names last = to.repeat(to.length_of(a), {places}, {row}, {}, [&](const std::string& iteration, const Names& before) -> Names {
    const std::string same = to.cast(to.node("Equal", {b, to.gathered(a, iteration)}), DType::i64);
    const std::string kept = to.node("Slice", {before[0], to.ints({0}), to.ints({-1}), to.ints({0})});
    const std::string changed = plus(kept, to.node("Sub", {one, same}));
    const std::string dropped = plus(before[0], one);
    const std::string least = to.node("Min", {dropped, to.joined({to.reshaped(plus(iteration, one), {1}), changed})});
    const std::string most = to.whole(std::numeric_limits<std::int64_t>::max());
    return {reduced(to, "ReduceMin", to.node("Where", {reachable, plus(least, behind), most}), 1)};
  });
  std::string distance = to.cast(to.gathered(last[0], width), DType::f32);
  if (op.attributes.get_or("normalized", false)) {
    const std::string none = to.node("Equal", {distance, to.number(DType::f32, 0)});
    distance = to.node("Where", {none, distance, to.node("Div", {distance, to.cast(width, DType::f32)})});
  }
  to.bind(op.outputs[0], to.reshaped(distance, {1, 1}));
  to.bind(op.outputs[1], to.whole(1));
}

/// `onnx` is the reason.
void refuse(Exporter&, const Op&, const char* reason) { throw UnsupportedError(reason); }

constexpr Rule decoding_table[] = {
    {"crf_decoding", viterbi},
    {"linear_chain_crf", log_likelihood},
    {"ctc_greedy", ctc_greedy},
    {"edit_distance", edit_distance},
    {"ctc_beam_search", refuse, "keeps prefixes in a tree and compares them by their labels, for which ONNX has no ops"},
    {"sample_tokens", refuse, "draws numbers that ONNX's own random ops do not give"},
    {"random", refuse, "draws numbers that ONNX's own random ops do not give"},
};

}  // namespace

std::span<const Rule> decoding_rules() { return decoding_table; }

}  // namespace millrace::exporting
