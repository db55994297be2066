// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include <millrace/runtime/models/import/with_onnx/axes.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Attention and rotary positions, written out.
namespace millrace::importing {
namespace {

// ---- Attention: Q [N, heads, S, D], K [N, kv_heads, T, D], V [N, kv_heads, T, E], or three axes with the heads side by side

/// `perm`: of the axes batch, row, head, feature.
VarId heads_apart(Importer& to, const Node& node, VarId x, const char* heads, const Ints& perm = {0, 2, 1, 3}) {
  if (to.rank(x) == 4) return x;
  if (to.rank(x) != 3) throw ProgramError("expected Q, K and V of 3 or 4 axes, found " + to.type(x).to_string());
  const std::int64_t count = node.integer(heads, 0);
  if (count < 1 || count > most_heads)
    throw ProgramError(std::string("attribute ") + heads + ": expected the number of heads, found " + std::to_string(count));
  return with_heads(to, x, count, perm);
}

/// The head of K and V that each head of Q reads, or `no_var` where each has its own. The run computes numbers of heads that are open, and fails
/// where that of Q is no multiple of that of K: the last head of Q names a head that K does not have, or the division is one by 0.
VarId sharing(Importer& to, VarId q, VarId k) {
  const std::int64_t heads = (*to.type(q).shape)[1], shared = (*to.type(k).shape)[1];
  if (heads >= 0 && heads == shared) return no_var;
  if (heads < 0 || shared < 0) {
    const VarId count = extent_of(to, q, 1);
    const VarId times = to.emit1("div", {count, extent_of(to, k, 1)});
    return to.emit1("div", {to.emit1("range", {number(to, 0), count, number(to, 1)}), times});
  }
  if (heads < 1 || shared < 1 || heads % shared != 0 || heads > most_heads)
    throw UnsupportedError("expected a number of heads of Q that is a multiple of that of K, found " + to.type(q).to_string() + " and " +
                           to.type(k).to_string());
  Ints index;
  for (std::int64_t head = 0; head < shared; ++head) index.insert(index.end(), static_cast<std::size_t>(heads / shared), head);
  return to.literal(index);
}

/// Each head as often as heads of Q share it.
VarId repeated(Importer& to, VarId x, VarId index) {
  return index == no_var ? x : to.emit1("gather", {x, index}, {{"axis", std::int64_t{1}}});
}

/// The scale of the scores; `root`: its root, by which both Q and K are multiplied.
VarId scale_of(Importer& to, const Node& node, VarId q, const Formula& f, bool root) {
  if (node.has_attribute("scale")) return f.number(root ? std::sqrt(node.real("scale", 1)) : node.real("scale", 1));
  const std::int64_t size = (*to.type(q).shape)[3];
  if (size > 0) return f.number(std::pow(static_cast<double>(size), root ? -0.25 : -0.5));
  const VarId length = f.op("sqrt", f.taken(extent_of(to, q, 3)));
  return f.op("reciprocal", root ? f.op("sqrt", length) : length);
}

/// The term added to the scores: 0 where a query looks, −∞ where it does not.
class Bias {
 public:
  Bias(Importer& to, const Formula& f, VarId q, VarId k)
      : to_(to), f_(f), queries_(extent_of(to, q, 2)), keys_(extent_of(to, k, 2)), known_keys_((*to.type(k).shape)[2]) {}

  VarId total() const { return total_; }
  /// Whether a query may see nothing.
  bool may_be_blind() const { return may_be_blind_; }

  void mask(VarId given) {
    const std::int64_t found = to_.rank(given) > 0 ? (*to_.type(given).shape)[to_.rank(given) - 1] : DDim::unknown;
    const bool look = to_.type(given).dtype == DType::boolean;
    VarId bias = look ? chosen(given) : f_.taken(given);
    may_be_blind_ = true;
    if (found >= 0 && known_keys_ > found && found != 1) {
      Ints pads(2 * static_cast<std::size_t>(to_.rank(given)), 0);
      pads.back() = known_keys_ - found;
      bias = to_.emit1("pad", {bias}, {{"pads", pads}, {"mode", std::string("constant")}, {"value", nothing}});
    }
    add(bias);
  }
  /// Query i sees keys up to i + `offset`, the first one at least where `offset` is not negative; from i + `offset` on.
  void up_to(VarId offset, bool negative) {
    add(chosen(f_.op("less_equal", count(keys_), query(offset))));
    may_be_blind_ |= negative;
  }
  void from(VarId offset) {
    add(chosen(f_.op("greater_equal", count(keys_), query(offset))));
    may_be_blind_ = true;
  }
  /// The first `lengths` [N] keys.
  void lengths(VarId lengths) {
    add(chosen(f_.op("less", count(keys_), column(lengths))));
    may_be_blind_ = true;
  }
  /// The number of keys in front of the queries where `lengths` [N] of them are there.
  VarId in_front(VarId lengths) const { return to_.emit1("sub", {column(lengths), queries_}); }

 private:
  static constexpr double nothing = -std::numeric_limits<double>::infinity();

  VarId count(VarId n) const { return to_.emit1("range", {number(to_, 0), n, number(to_, 1)}); }
  VarId query(VarId offset) const { return to_.emit1("add", {to_.emit1("unsqueeze", {count(queries_)}, {{"axes", Ints{1}}}), offset}); }
  VarId column(VarId lengths) const { return f_.reshaped(whole_numbers(to_, lengths), {-1, 1, 1, 1}); }
  VarId chosen(VarId look) const { return f_.where(look, f_.number(0), f_.number(nothing)); }
  void add(VarId more) { total_ = total_ == no_var ? more : f_.plus(total_, more); }

  Importer& to_;
  const Formula& f_;
  VarId queries_, keys_;
  std::int64_t known_keys_;
  VarId total_ = no_var;
  bool may_be_blind_ = false;
};

Bias bias_of(Importer& to, const Node& node, const Formula& f, VarId q, VarId k, VarId past) {
  Bias bias(to, f, q, k);
  const VarId lengths = to.in_or_none(node, 6);
  if (node.has(3)) bias.mask(to.in(node, 3));
  const bool causal = node.flag("is_causal", false);
  const std::int64_t left = node.integer("left_window_size", -1), right = node.integer("right_window_size", -1);
  if (left < -1 || right < -1) throw ProgramError("attributes left_window_size and right_window_size: expected -1 or more, found less");
  VarId offset = no_var;
  if (causal || left >= 0 || right >= 0)
    offset = past != no_var ? extent_of(to, past, 2) : lengths != no_var ? bias.in_front(lengths) : number(to, 0);
  const bool behind = past == no_var && lengths != no_var;  // there may be fewer keys than queries
  if (causal) bias.up_to(offset, behind);
  if (right >= 0) bias.up_to(to.emit1("add", {offset, number(to, right)}), behind);
  if (left >= 0) bias.from(to.emit1("sub", {offset, number(to, left)}));
  if (lengths != no_var) bias.lengths(lengths);
  return bias;
}

/// Softmax, 0 for a query that sees nothing.
VarId weights_of(Importer& to, const Node& node, const Formula& f, VarId scores, const Bias& bias) {
  const DType precision = node.has_attribute("softmax_precision") ? dtype_attribute(node, "softmax_precision") : f.dtype();
  const VarId made = f.taken(to.emit1("softmax", {f.cast(scores, precision)}, {{"axis", std::int64_t{-1}}}));
  if (!bias.may_be_blind()) return made;
  const VarId blind = f.op("equal", f.reduced("max", bias.total(), {-1}, true), -std::numeric_limits<double>::infinity());
  return f.where(blind, f.number(0), made);
}

void attention(Importer& to, const Node& node, const char*) {
  const VarId given = to.in(node, 0);
  const Formula f(to, to.type(given).dtype);
  const VarId q = heads_apart(to, node, given, "q_num_heads");
  VarId k = heads_apart(to, node, to.in(node, 1), "kv_num_heads");
  VarId v = heads_apart(to, node, to.in(node, 2), "kv_num_heads");
  const VarId past = to.in_or_none(node, 4);
  if (past != no_var) {
    // Nothing may be known of the past's shape.
    k = with_rank(to, to.emit1("concat", {past, k}, {{"axis", std::int64_t{2}}}), 4);
    v = with_rank(to, to.emit1("concat", {to.in(node, 5), v}, {{"axis", std::int64_t{2}}}), 4);
  }
  to.bind(node, 1, k);
  to.bind(node, 2, v);
  const VarId shared = sharing(to, q, k);
  // The products of roots stay in the range of 16 bits, where Q times the scale may leave it.
  const bool narrow = f.dtype() == DType::f16 || f.dtype() == DType::bf16;
  const VarId scale = scale_of(to, node, q, f, narrow);
  const auto turned_keys = [&] {
    // One step turns keys that nobody needs in another order.
    if (past == no_var && shared == no_var && !narrow && to.rank(to.in(node, 1)) == 3)
      return heads_apart(to, node, to.in(node, 1), "kv_num_heads", {0, 2, 3, 1});
    const VarId keys = repeated(to, k, shared);
    return to.emit1("transpose", {narrow ? f.times(keys, scale) : keys}, {{"perm", Ints{0, 1, 3, 2}}});
  };
  const VarId turned = turned_keys();
  const VarId raw = f.op("matmul", f.times(q, scale), turned);
  const double cap = node.real("softcap", 0);
  const VarId capped = cap > 0 ? f.times(f.op("tanh", f.over(raw, cap)), cap) : raw;
  const Bias bias = bias_of(to, node, f, q, k, past);
  const VarId scores = bias.total() == no_var ? capped : f.plus(capped, bias.total());
  const VarId weights = weights_of(to, node, f, scores, bias);
  const VarId stages[] = {raw, capped, scores, weights};
  const std::int64_t mode = node.integer("qk_matmul_output_mode", 0);
  if (mode < 0 || mode > 3) throw ProgramError("attribute qk_matmul_output_mode: expected 0 to 3, found " + std::to_string(mode));
  to.bind(node, 3, stages[mode]);
  const VarId y = f.op("matmul", weights, repeated(to, v, shared));
  if (to.rank(given) == 4) return to.give(node, "identity", {y});
  to.give(node, "reshape", {to.emit1("transpose", {y}, {{"perm", Ints{0, 2, 1, 3}}})}, {{"shape", Ints{0, 0, -1}}});
}

// ---- RotaryEmbedding

VarId cut(Importer& to, VarId x, std::int64_t begin, std::int64_t end, std::int64_t step = 1) {
  return to.emit1("slice", {x}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{-1}}, {"steps", Ints{step}}});
}

/// The extent of the last axis, -1 where only the run knows it.
std::int64_t last_extent(Importer& to, VarId x) {
  const std::optional<DDim>& shape = to.type(x).shape;
  return shape && shape->rank() > 0 ? (*shape)[shape->rank() - 1] : -1;
}

/// Pairs of numbers turned by angles whose cosines and sines are given for each position. `x` is [N, S, heads, D].
VarId rotated(Importer& to, const Node& node, VarId x, VarId cosine, VarId sine) {
  constexpr std::int64_t to_the_end = std::numeric_limits<std::int64_t>::max();
  const std::int64_t known = (*to.type(x).shape)[3], size = known < 0 ? to_the_end : known;
  const std::int64_t said = node.integer("rotary_embedding_dim", 0), turned = said == 0 ? known : said;
  const bool open = known < 0;
  if ((!open || said != 0) && (turned < 2 || turned > size || turned % 2 != 0))
    throw ProgramError("attribute rotary_embedding_dim: expected an even number up to " +
                       (open ? "the size of a head" : std::to_string(size)) + ", found " + std::to_string(turned));
  const bool pairs = node.flag("interleaved", false);
  const Formula f(to, to.type(x).dtype);
  for (const VarId cache : {cosine, sine}) {
    const std::int64_t columns = last_extent(to, cache);
    if (turned >= 0 && columns >= 0 && columns != turned / 2)
      throw ProgramError("expected cosines and sines of " + std::to_string(turned / 2) + " pairs, found " + to.type(cache).to_string());
  }
  // The reshape refuses a head of a run that is odd, or another than the attribute or the cosines say: slices would be cut short, and broadcast.
  const auto two_parts = [&] {
    const VarId all = said == 0 ? x : cut(to, x, 0, said);
    const std::int64_t half = said == 0 ? std::max(last_extent(to, cosine), last_extent(to, sine)) : said / 2;
    return f.reshaped(all, pairs ? Ints{0, 0, 0, half, 2} : Ints{0, 0, 0, 2, half});
  };
  const VarId parts = open ? two_parts() : no_var;
  const auto part = [&](std::int64_t i) {
    if (!open) return pairs ? cut(to, x, i, turned, 2) : cut(to, x, i * (turned / 2), (i + 1) * (turned / 2));
    const Ints axis{pairs ? 4 : 3};
    const VarId one = to.emit1("slice", {parts}, {{"starts", Ints{i}}, {"ends", Ints{i + 1}}, {"axes", axis}, {"steps", Ints{1}}});
    return to.emit1("squeeze", {one}, {{"axes", axis}});
  };
  const VarId a = part(0), b = part(1);
  const VarId real = f.minus(f.times(a, cosine), f.times(b, sine));
  const VarId imaginary = f.plus(f.times(a, sine), f.times(b, cosine));
  const Attributes last{{"axis", std::int64_t{-1}}};
  VarId made = no_var;
  if (pairs)
    made = f.reshaped(to.emit1("concat", {f.unsqueezed(real, {-1}), f.unsqueezed(imaginary, {-1})}, last), {0, 0, 0, turned});
  else
    made = to.emit1("concat", {real, imaginary}, last);
  if (!pairs && turned >= 0 && last_extent(to, made) != turned) made = f.reshaped(made, {0, 0, 0, turned});
  return turned == known ? made : to.emit1("concat", {made, cut(to, x, turned, size)}, last);
}

void rotary(Importer& to, const Node& node, const char*) {
  const VarId given = to.in(node, 0);
  const bool apart = to.rank(given) == 4;
  const std::int64_t heads = node.integer("num_heads", 0);
  if (!apart && heads < 1)
    throw ProgramError("attribute num_heads: expected the number of heads of x of 3 axes, found " + std::to_string(heads));
  const Ints swap{0, 2, 1, 3};
  const std::int64_t width = apart ? DDim::unknown : (*to.type(given).shape)[2];
  const VarId x = apart ? to.emit1("transpose", {given}, {{"perm", swap}})
                        : to.emit1("reshape", {given}, {{"shape", Ints{0, 0, heads, width > 0 ? width / heads : -1}}});
  const auto cache = [&](std::size_t input) {
    VarId all = to.in(node, input);
    if (node.has(3)) all = to.emit1("gather", {all, to.in(node, 3)}, {{"axis", std::int64_t{0}}});
    return to.emit1("unsqueeze", {all}, {{"axes", Ints{2}}});
  };
  const VarId made = rotated(to, node, x, cache(1), cache(2));
  if (apart) return to.give(node, "transpose", {made}, {{"perm", swap}});
  to.give(node, "reshape", {made}, {{"shape", Ints{0, 0, -1}}});
}

constexpr Rule attention_table[] = {
    {"Attention", attention},
    {"RotaryEmbedding", rotary},
};

}  // namespace

std::span<const Rule> attention_rules() { return attention_table; }

}  // namespace millrace::importing
