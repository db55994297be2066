// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Attention and embeddings as ONNX Runtime's optimiser joins them, written out.
namespace millrace::importing {
namespace {

std::int64_t heads_of(const Node& node) {
  const std::int64_t heads = node.integer("num_heads", 0);
  if (heads < 1 || heads > most_heads) throw ProgramError("attribute num_heads: expected 1 to 65536, found " + std::to_string(heads));
  return heads;
}

/// [N, S, heads·D] as [N, heads, S, D].
VarId heads_apart(Importer& to, VarId x, std::int64_t heads) {
  if (to.rank(x) != 3) throw UnsupportedError("expected [batch, rows, heads · size], found " + to.type(x).to_string());
  return with_heads(to, x, heads, {0, 2, 1, 3});
}

/// Q, K and V, [N, heads, rows, size].
struct Heads {
  VarId q, k, v;
  VarId past = no_var;  ///< the keys in front of those of the rows
};

/// 0 where `look`, else `hidden`.
VarId added(const Formula& f, VarId look, double hidden) { return f.where(look, f.number(0), f.number(hidden)); }

/// [N, 1, S, T] of a mask [N, 1, L, L] of the longest sequence, L ≥ T: the rows behind the past, and their keys.
VarId rows_of_longest(Importer& to, VarId mask, const Heads& heads) {
  const VarId begin = heads.past == no_var ? number(to, 0) : extent_of(to, heads.past, 2);
  const VarId end = to.emit1("add", {begin, extent_of(to, heads.q, 2)});
  const auto list = [&](VarId rows, VarId keys) {
    return to.emit1("concat", {as_list(to, rows), as_list(to, keys)}, {{"axis", std::int64_t{0}}});
  };
  const VarId keys = extent_of(to, heads.k, 2);
  const VarId made = to.emit1("slice_by", {mask, list(begin, number(to, 0)), list(end, keys), to.literal(Ints{2, 3})});
  // A mask that is shorter than the sequence has fewer elements, which a reshape refuses.
  return reshaped(to, made, {extent_at(to, mask, 0), {1, no_var}, extent_at(to, heads.q, 2), extent_at(to, heads.k, 2)});
}

/// The term of a mask of integers: lengths [N], or 1 and 0 for the keys, [N, T] or [N, S, T], or for the longest sequence, [N, 1, L, L].
VarId mask_term(Importer& to, const Formula& f, VarId mask, const Heads& heads, double hidden) {
  const int rank = to.rank(mask);
  if (rank == 1) {
    // Other forms of one axis say beginnings as well; they have more elements.
    const VarId lengths = reshaped(to, whole_numbers(to, mask), {extent_at(to, heads.q, 0), {1, no_var}, {1, no_var}, {1, no_var}});
    return added(f, f.op("less", count_to(to, extent_of(to, heads.k, 2)), lengths), hidden);
  }
  if (rank < 2 || rank > 4)
    throw UnsupportedError(
        "expected a mask of lengths [batch], or of keys [batch, keys], [batch, rows, keys] or [batch, 1, longest, longest], found " +
        to.type(mask).to_string());
  if (rank == 4) mask = rows_of_longest(to, mask, heads);
  const VarId look = to.emit1("greater", {whole_numbers(to, mask), number(to, 0)});
  return added(f, rank == 4 ? look : f.unsqueezed(look, rank == 2 ? Ints{1, 2} : Ints{1}), hidden);
}

/// `made` [N, S, heads, size], refused in a run where a mask or a bias of another batch has stretched it.
VarId of_queries(Importer& to, VarId made, VarId q) {
  const DDim dims = *to.type(made).shape;
  if ((*to.type(q).shape)[0] >= 0) return made;
  const auto list = [&](VarId x, std::int64_t begin, std::int64_t end) { return to.emit1("shape", {x}, {{"start", begin}, {"end", end}}); };
  const VarId shape = to.emit1("concat", {list(q, 0, 1), list(q, 2, 3), list(made, 2, 4)}, {{"axis", std::int64_t{0}}});
  const VarId same = to.emit1("reshape_to", {made, shape}, {{"allowzero", true}});
  Ints known;
  for (const std::int64_t extent : dims) known.push_back(std::max<std::int64_t>(extent, 0));  // 0 copies
  return to.emit1("reshape", {same}, {{"shape", known}});
}

/// [N, S, heads·size]: softmax(Q·Kᵀ·scale + mask + bias)·V.
VarId attended(Importer& to, const Node& node, const Heads& heads, VarId mask, VarId bias) {
  const Formula f(to, to.type(heads.q).dtype);
  const std::int64_t size = (*to.type(heads.q).shape)[3];
  const auto scale = [&] {
    if (node.has_attribute("scale") && node.real("scale", 0) != 0) return f.number(node.real("scale", 0));
    if (size > 0) return f.number(1 / std::sqrt(static_cast<double>(size)));
    return f.op("reciprocal", f.op("sqrt", f.taken(extent_of(to, heads.q, 3))));
  };
  const VarId turned = to.emit1("transpose", {heads.k}, {{"perm", Ints{0, 1, 3, 2}}});
  VarId scores = f.op("matmul", f.times(heads.q, scale()), turned);
  const double hidden = node.real("mask_filter_value", -10000);
  if (mask != no_var) scores = f.plus(scores, mask_term(to, f, mask, heads, hidden));
  if (node.flag("unidirectional", false)) {
    const VarId row = f.unsqueezed(count_to(to, extent_of(to, heads.q, 2)), {1});
    const VarId last = heads.past == no_var ? row : to.emit1("add", {row, extent_of(to, heads.past, 2)});
    const VarId look = to.emit1("less_equal", {count_to(to, extent_of(to, heads.k, 2)), last});
    scores = f.plus(scores, added(f, look, std::numeric_limits<float>::lowest()));
  }
  if (bias != no_var) scores = f.plus(scores, bias);
  const VarId weights = to.emit1("softmax", {scores}, {{"axis", std::int64_t{-1}}});
  VarId made = to.emit1("transpose", {f.op("matmul", weights, heads.v)}, {{"perm", Ints{0, 2, 1, 3}}});
  if (mask != no_var || bias != no_var) made = of_queries(to, made, heads.q);
  return f.reshaped(made, {0, 0, -1});
}

void refuse_input(const Node& node, std::size_t input, const char* what) {
  if (node.has(input)) throw UnsupportedError(std::string("expected no ") + what + ", found one");
}

VarId joined(Importer& to, VarId past, VarId now) {
  return past == no_var ? now : to.emit1("concat", {past, now}, {{"axis", std::int64_t{2}}});
}

/// `x` and its part [begin, end) of a bias for Q, K and V side by side.
VarId biased(Importer& to, VarId x, VarId bias, std::int64_t begin, std::int64_t end) {
  if (bias == no_var) return x;
  return to.emit1("add", {x, to.emit1("slice", {bias}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{0}}})});
}

std::int64_t width_of(Importer& to, VarId x) {
  const std::int64_t width = (*to.type(x).shape)[to.rank(x) - 1];
  if (width < 0) throw UnsupportedError("expected a last axis of known extent, found " + to.type(x).to_string());
  return width;
}

/// Q, K and V [N, rows, heads·size]; K and V may have the heads apart.
void multi_head(Importer& to, const Node& node, const char*) {
  const std::int64_t count = heads_of(node);
  for (const std::size_t input : {std::size_t{1}, std::size_t{2}})
    if (!node.has(input)) throw UnsupportedError("expected Q, K and V as three inputs, found packed ones");
  refuse_input(node, 8, "past_sequence_length");
  refuse_input(node, 9, "cache_indirection");
  if (node.wants(3)) throw UnsupportedError("expected no use of the scores, found one");
  const VarId bias = to.in_or_none(node, 3);
  VarId q = to.in(node, 0), k = to.in(node, 1), v = to.in(node, 2);
  const bool apart = to.rank(k) == 4;
  if (bias != no_var) {
    const std::int64_t width = width_of(to, q), all = width_of(to, bias);
    q = biased(to, q, bias, 0, width);
    if (!apart) {
      k = biased(to, k, bias, width, 2 * width);
      v = biased(to, v, bias, 2 * width, all);
    }
  }
  Heads heads{heads_apart(to, q, count), apart ? k : heads_apart(to, k, count), apart ? v : heads_apart(to, v, count)};
  if (node.has(6)) {
    heads.past = to.in(node, 6);
    heads.k = joined(to, heads.past, heads.k);
    heads.v = joined(to, to.in(node, 7), heads.v);
  }
  to.bind(node, 1, heads.k);
  to.bind(node, 2, heads.v);
  to.give(node, "identity", {attended(to, node, heads, to.in_or_none(node, 4), to.in_or_none(node, 5))});
}

/// X·W + bias holds Q, K and V side by side.
void attention(Importer& to, const Node& node, const char*) {
  const std::int64_t count = heads_of(node);
  refuse_input(node, 6, "past_sequence_length");
  node.expect_integer("do_rotary", 0);
  const VarId w = to.in(node, 1);
  const std::int64_t all = width_of(to, w);
  const Ints sizes = node.integers("qkv_hidden_sizes").value_or(Ints{all / 3, all / 3, all - 2 * (all / 3)});
  if (sizes.size() != 3 || sizes[0] < 1 || sizes[1] < 1 || sizes[2] < 1 || sizes[0] != sizes[1] || sizes[0] > all ||
      sizes[2] != all - 2 * sizes[0])
    throw ProgramError("attribute qkv_hidden_sizes: expected widths of Q, K and V that are " + std::to_string(all) + " together");
  VarId x = to.emit1("matmul", {to.in(node, 0), w});
  if (node.has(2)) x = to.emit1("add", {x, to.in(node, 2)});
  std::array<VarId, 3> parts;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const VarId part = to.emit1("slice", {x}, {{"starts", Ints{begin}}, {"ends", Ints{begin + sizes[i]}}, {"axes", Ints{-1}}});
    parts[i] = heads_apart(to, part, count);
    begin += sizes[i];
  }
  Heads heads{parts[0], parts[1], parts[2]};
  if (node.has(4)) {
    const auto half = [&](std::int64_t which) {
      return to.emit1("gather", {to.in(node, 4), number(to, which)}, {{"axis", std::int64_t{0}}});
    };
    heads.past = half(0);
    heads.k = joined(to, heads.past, heads.k);
    heads.v = joined(to, half(1), heads.v);
  }
  if (node.wants(1)) {
    const Formula f(to, to.type(x).dtype);
    to.bind(node, 1, to.emit1("concat", {f.unsqueezed(heads.k, {0}), f.unsqueezed(heads.v, {0})}, {{"axis", std::int64_t{0}}}));
  }
  to.give(node, "identity", {attended(to, node, heads, to.in_or_none(node, 3), to.in_or_none(node, 5))});
}

/// The norm of the sum of the embeddings of words, places and, where there are any, segments; the lengths by the mask; the sum.
void embeddings(Importer& to, const Node& node, const char*) {
  const Attributes first{{"axis", std::int64_t{0}}};
  const VarId ids = to.in(node, 0);
  if (to.rank(ids) != 2) throw ProgramError("expected ids [batch, rows], found " + to.type(ids).to_string());
  const VarId places = node.has(8) ? to.in(node, 8) : count_to(to, extent_of(to, ids, 1));
  VarId sum = to.emit1("add", {to.emit1("gather", {to.in(node, 2), ids}, first), to.emit1("gather", {to.in(node, 3), places}, first)});
  if (node.has(1) && node.has(4)) sum = to.emit1("add", {sum, to.emit1("gather", {to.in(node, 4), to.in(node, 1)}, first)});
  to.bind(node, 2, sum);
  if (node.wants(1)) {
    const VarId mask = node.has(7) ? to.in(node, 7) : to.emit1("mul", {ids, to.literal(scalar_of(to.type(ids).dtype, 0))});
    const Formula f(to, DType::i32);
    to.bind(node, 1, f.reduced("sum", f.taken(mask), {1}, false));
  }
  node.pass_over("mask_index_type");  // of lengths, which is the default, and of no mask
  to.give(node, "layer_norm", {sum, to.in(node, 5), to.in(node, 6)},
          {{"axis", std::int64_t{-1}}, {"epsilon", node.real("epsilon", 1e-12f)}});
}

constexpr Rule joined_attention_table[] = {
    {"com.microsoft.MultiHeadAttention", multi_head},
    {"com.microsoft.Attention", attention},
    {"com.microsoft.EmbedLayerNormalization", embeddings},
};

}  // namespace

std::span<const Rule> joined_attention_rules() { return joined_attention_table; }

}  // namespace millrace::importing
