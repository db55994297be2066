// SPDX-License-Identifier: Apache-2.0
#include <cmath>

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

/// query, key, value, decay and rate [B, T, …], past_state [B, H, D, E]; sums are in f32 at least, as the reference has it.
void linear_attention(Importer& to, const Node& node, const char*) {
  const DType dtype = to.type(to.in(node, 0)).dtype;
  const Formula f(to, dtype == DType::f64 ? DType::f64 : DType::f32);
  const auto steps = [&](std::size_t input) { return node.has(input) ? turned(to, f.taken(to.in(node, input)), {1, 0, 2}) : no_var; };
  const VarId q = steps(0), k = steps(1), v = steps(2), decay = steps(4), rate = steps(5);
  const VarId past = node.has(3) ? f.reshaped(f.taken(to.in(node, 3)), {0, -1}) : no_var;
  node.pass_over("chunk_size");
  layers::LinearAttentionOptions options;
  options.query_heads = heads(node, "q_num_heads");
  options.heads = heads(node, "kv_num_heads");
  options.update = update_of(node);
  if (const double scale = node.real("scale", 0); scale != 0) options.scale = scale;
  const layers::Unrolled made =
      layer(to, [&] { return layers::linear_attention({var(q), var(k), var(v), var(decay), var(rate)}, options, var(past)); });
  to.bind(node, 0, f.cast(turned(to, made.output.id(), {1, 0, 2}), dtype));
  if (!node.wants(1)) return;
  const auto width = [&](VarId x) { return (*to.type(x).shape)[2] / options.heads; };
  const VarId last = f.reshaped(made.last[0].id(), {0, options.heads, width(k), width(v)});
  to.bind(node, 1, f.cast(last, node.has(3) ? to.type(to.in(node, 3)).dtype : dtype));
}

/// input [B, C, L], weight [C, 1, K], bias [C], past_state [B, C, K − 1].
void causal_conv(Importer& to, const Node& node, const char*) {
  const VarId given = to.in(node, 0), weight = to.in(node, 1);
  const VarType& w = to.type(weight);
  if (to.rank(given) != 3 || w.rank() != 3 || (*w.shape)[0] < 1 || (*w.shape)[1] != 1 || (*w.shape)[2] < 1)
    throw UnsupportedError("expected input [B, C, L] and weight [C, 1, K] of known extents, found " + to.type(given).to_string() + " and " +
                           w.to_string());
  const std::int64_t channels = (*w.shape)[0], before = (*w.shape)[2] - 1;
  const DType dtype = to.type(given).dtype;
  const Formula f(to, dtype);
  const VarId x = turned(to, given, {2, 0, 1});
  const VarId kernel = f.reshaped(weight, {channels, before + 1});
  const VarId bias = to.in_or_none(node, 2);
  const VarId past = node.has(3) && before > 0 ? f.reshaped(to.in(node, 3), {0, channels * before}) : no_var;
  const layers::Unrolled made = layer(to, [&] { return layers::causal_conv({var(x)}, var(kernel), var(bias), var(past)); });
  VarId y = turned(to, made.output.id(), {1, 2, 0});
  if (node.word("activation", "none", {"none", "silu", "swish"}) != "none") {
    const Formula wide(to, dtype == DType::f64 ? DType::f64 : DType::f32);
    const VarId raw = wide.taken(y);
    y = wide.cast(wide.times(raw, wide.op("sigmoid", raw)), dtype);
  }
  to.bind(node, 0, y);
  if (!node.wants(1)) return;
  if (before > 0) return to.bind(node, 1, f.reshaped(made.last[0].id(), {0, channels, before}));
  to.bind(node, 1, to.emit1("slice", {given}, {{"starts", Ints{0}}, {"ends", Ints{0}}, {"axes", Ints{2}}}));
}

constexpr Rule state_table[] = {
    {"LinearAttention", linear_attention},
    {"CausalConvWithState", causal_conv},
};

}  // namespace

std::span<const Rule> state_rules() { return state_table; }

}  // namespace millrace::importing
