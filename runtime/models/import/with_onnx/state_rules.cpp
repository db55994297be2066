// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/causal_conv.h>
#include <millrace/runtime/layers/linear_attention.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// The recurrences of language models with explicit states: layers of runtime/layers/.
namespace millrace::importing {
namespace {

build::Var var(VarId id) { return id == no_var ? build::Var() : build::Var::of(id); }

/// Appends a layer to the innermost block, and gives its outputs.
template <class F>
layers::Unrolled layer(Importer& to, F&& append) {
  build::Guard guard(to.program());
  const build::BlockGuard at(guard, to.block());
  return append();
}

VarId turned(Importer& to, VarId x, const Ints& perm) { return to.emit1("transpose", {x}, {{"perm", perm}}); }

layers::StateUpdate update_of(const Node& node) {
  const std::string word = node.word("update_rule", "gated_delta", {"linear", "gated", "delta", "gated_delta"});
  if (word == "linear") return layers::StateUpdate::linear;
  if (word == "gated") return layers::StateUpdate::gated;
  return word == "delta" ? layers::StateUpdate::delta : layers::StateUpdate::gated_delta;
}

std::int64_t heads(const Node& node, const char* name) {
  const std::int64_t count = node.integer(name, 0);
  if (count < 1 || count > 1 << 16)
    throw ProgramError(std::string("attribute ") + name + ": expected the number of heads, found " + std::to_string(count));
  return count;
}

/// ProgramError where a state is known to have other extents.
void expect_state(const VarType& found, const DDim& wanted) {
  bool fits = !found.shape || found.rank() == wanted.rank();
  for (int axis = 0; fits && found.shape && axis < wanted.rank(); ++axis)
    fits = wanted[axis] < 0 || (*found.shape)[axis] < 0 || wanted[axis] == (*found.shape)[axis];
  if (!fits) throw ProgramError("expected a past_state " + wanted.to_string() + ", found " + found.to_string());
}

/// Rows [T, B, heads·D] with each head repeated, so that there are `wanted`, a multiple.
VarId repeated_heads(Importer& to, const Formula& f, VarId x, std::int64_t heads, std::int64_t wanted) {
  Ints index;
  for (std::int64_t head = 0; head < heads; ++head) index.insert(index.end(), static_cast<std::size_t>(wanted / heads), head);
  const VarId apart = with_heads(to, x, heads, {0, 1, 2, 3});
  const VarId made = to.emit1("gather", {apart, to.literal(index)}, {{"axis", std::int64_t{2}}});
  return f.reshaped(made, {0, 0, wanted * (*to.type(made).shape)[3]});
}

/// query, key, value, decay and rate [B, T, …], past_state [B, H, D, E]; sums are in f32 at least, as the reference has it. ONNX Runtime lets heads of states
/// share a head of the query or of the key.
void linear_attention(Importer& to, const Node& node, const char*) {
  const DType dtype = to.type(to.in(node, 0)).dtype;
  const Formula f(to, dtype == DType::f64 ? DType::f64 : DType::f32);
  const auto steps = [&](std::size_t input) { return node.has(input) ? turned(to, f.taken(to.in(node, input)), {1, 0, 2}) : no_var; };
  VarId q = steps(0), k = steps(1);
  const layers::StateUpdate update = update_of(node);
  // ONNX Runtime takes inputs that the update has no use for.
  const VarId v = steps(2), decay = layers::reads_decay(update) ? steps(4) : no_var, rate = layers::reads_rate(update) ? steps(5) : no_var;
  node.pass_over("chunk_size");
  node.expect_integer("state_window", 0);
  layers::LinearAttentionOptions options;
  options.query_heads = heads(node, "q_num_heads");
  options.heads = heads(node, "kv_num_heads");
  options.update = update;
  const auto width = [&](VarId x) { return to.type(x).rank() == 3 ? (*to.type(x).shape)[2] : DDim::unknown; };
  const auto shares = [&](std::int64_t heads) { return heads > 0 && heads < options.heads && options.heads % heads == 0; };
  if (width(q) > 0 && width(q) % options.query_heads == 0) {
    const std::int64_t keys = width(q) / options.query_heads;
    if (width(k) % keys == 0 && shares(width(k) / keys)) k = repeated_heads(to, f, k, width(k) / keys, options.heads);
    if (shares(options.query_heads)) {
      q = repeated_heads(to, f, q, options.query_heads, options.heads);
      options.query_heads = options.heads;
    }
  }
  if (const double scale = node.real("scale", 0); scale != 0) options.scale = scale;
  VarId past = no_var;
  if (node.has(3)) {
    const auto part = [&](VarId x) { return width(x) > 0 ? width(x) / options.heads : DDim::unknown; };
    expect_state(to.type(to.in(node, 3)), {DDim::unknown, options.heads, part(k), part(v)});
    past = f.reshaped(f.taken(to.in(node, 3)), {0, -1});
  }
  const layers::Unrolled made =
      layer(to, [&] { return layers::linear_attention({var(q), var(k), var(v), var(decay), var(rate)}, options, var(past)); });
  to.bind(node, 0, f.cast(turned(to, made.output.id(), {1, 0, 2}), dtype));
  if (!node.wants(1)) return;
  const VarId last = f.reshaped(made.last[0].id(), {0, options.heads, width(k) / options.heads, width(v) / options.heads});
  to.bind(node, 1, f.cast(last, node.has(3) ? to.type(to.in(node, 3)).dtype : dtype));
}

/// Where the elements of a channel stand in the rows and in the states of a causal convolution.
struct ConvLayout {
  std::int64_t channels = 0;
  Ints behind;          ///< the last axes of rows whose channels come last; empty: channels come before places
  bool states = false;  ///< whether channels come last in the states, too
};

ConvLayout conv_layout(const Node& node, const VarType& given, const VarType& weight) {
  const bool last = node.flag("channels_last", false);
  const std::int64_t states = node.integer("state_channels_last", -1), chosen = node.integer("input_channels", 0);
  if (weight.rank() != 3 || (*weight.shape)[0] < 1 || (*weight.shape)[1] != 1 || (*weight.shape)[2] < 1 ||
      (last ? given.rank() < 3 : given.rank() != 3))
    throw UnsupportedError("expected input [B, " + std::string(last ? "L, …]" : "C, L]") +
                           " and weight [C, 1, K] of known extents, found " + given.to_string() + " and " + weight.to_string());
  ConvLayout made{(*weight.shape)[0], {}, states < 0 ? last : states != 0};
  if (last) made.behind.assign((*given.shape).begin() + 2, (*given.shape).end());
  if (states < -1 || states > 1) throw ProgramError("attribute state_channels_last: expected -1, 0 or 1, found " + std::to_string(states));
  // One open extent follows from the channels and the others.
  std::int64_t elements = 1;
  const auto open = std::find(made.behind.begin(), made.behind.end(), DDim::unknown);
  for (const std::int64_t extent : made.behind)
    if (extent >= 0) elements = std::min(elements * std::min(extent, made.channels + 1), made.channels + 1);
  if (open != made.behind.end() && elements > 0 && made.channels % elements == 0) {
    *open = made.channels / elements;
    elements = std::count(made.behind.begin(), made.behind.end(), DDim::unknown) == 0 ? made.channels : 0;
  }
  if (last && elements != made.channels)
    throw UnsupportedError("expected channels last whose known extents make " + std::to_string(made.channels) + ", found " +
                           given.to_string());
  if (chosen != 0 && chosen != made.channels)
    throw UnsupportedError("attribute input_channels: expected all " + std::to_string(made.channels) + ", found " + std::to_string(chosen));
  return made;
}

/// input [B, C, L] or, with channels last, [B, L, …]; weight [C, 1, K], bias [C], past_state [B, C, (K − 1)·dilation] or with its channels last.
void causal_conv(Importer& to, const Node& node, const char*) {
  node.expect_integer("ndim", 1);
  for (const char* of_windows : {"state_window", "state_update_capacity", "input_channel_offset"}) node.expect_integer(of_windows, 0);
  const VarId given = to.in(node, 0), weight = to.in(node, 1);
  const ConvLayout layout = conv_layout(node, to.type(given), to.type(weight));
  const std::int64_t channels = layout.channels, taps = (*to.type(weight).shape)[2], dilation = node.integer("dilation", 1);
  if (dilation < 1 || dilation > 65536) throw ProgramError("attribute dilation: expected 1 to 65536, found " + std::to_string(dilation));
  const std::int64_t before = (taps - 1) * dilation, length = node.integer("state_length", 0);
  if (length != 0 && length != before)
    throw UnsupportedError("attribute state_length: expected the " + std::to_string(before) + " rows that the taps reach back, found " +
                           std::to_string(length));
  const bool last = !layout.behind.empty();
  const DType dtype = to.type(given).dtype;
  const Formula f(to, dtype);
  const VarId rows = layout.behind.size() > 1 ? f.reshaped(given, {0, 0, channels}) : given;
  const VarId x = turned(to, rows, last ? Ints{1, 0, 2} : Ints{2, 0, 1});
  const VarId kernel = f.reshaped(weight, {channels, taps});
  const VarId bias = to.in_or_none(node, 2);
  VarId past = no_var;
  if (node.has(3)) {
    DDim state{DDim::unknown, layout.states ? before : channels};
    if (!layout.states) state = state.inserted(2, before);
    for (const std::int64_t extent : layout.states ? (last ? layout.behind : Ints{channels}) : Ints{})
      state = state.inserted(state.rank(), extent);
    expect_state(to.type(to.in(node, 3)), state);
  }
  if (node.has(3) && before > 0) {
    past = to.in(node, 3);
    if (layout.states) past = turned(to, to.rank(past) > 3 ? f.reshaped(past, {0, 0, channels}) : past, {0, 2, 1});
    past = f.reshaped(past, {0, channels * before});
  }
  const layers::Unrolled made = layer(to, [&] { return layers::causal_conv({var(x)}, var(kernel), var(bias), var(past), dilation); });
  VarId y = turned(to, made.output.id(), last ? Ints{1, 0, 2} : Ints{1, 2, 0});
  if (node.word("activation", "none", {"none", "silu", "swish"}) != "none") {
    const Formula wide(to, dtype == DType::f64 ? DType::f64 : DType::f32);
    const VarId raw = wide.taken(y);
    y = wide.cast(wide.times(raw, wide.op("sigmoid", raw)), dtype);
  }
  const auto with_behind = [&](VarId rows_of_channels) {
    if (layout.behind.size() < 2) return rows_of_channels;
    Ints shape{0, 0};
    shape.insert(shape.end(), layout.behind.begin(), layout.behind.end());
    return f.reshaped(rows_of_channels, shape);
  };
  to.bind(node, 0, with_behind(y));
  if (!node.wants(1)) return;
  const auto nothing = [&] {
    return to.emit1("slice", {last ? turned(to, rows, {0, 2, 1}) : rows}, {{"starts", Ints{0}}, {"ends", Ints{0}}, {"axes", Ints{2}}});
  };
  VarId state = before > 0 ? f.reshaped(made.last[0].id(), {0, channels, before}) : nothing();
  if (layout.states) state = turned(to, state, {0, 2, 1});
  to.bind(node, 1, layout.states ? with_behind(state) : state);
}

constexpr Rule state_table[] = {
    {"LinearAttention", linear_attention},
    {"CausalConvWithState", causal_conv},
    {"com.microsoft.LinearAttention", linear_attention},
    {"com.microsoft.CausalConvWithState", causal_conv},
};

}  // namespace

std::span<const Rule> state_rules() { return state_table; }

}  // namespace millrace::importing
