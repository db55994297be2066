// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstdint>
#include <string>

#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Nodes that draw numbers. A number is a function of the seed, the iteration and the place of the element, so that every run draws the same ones.
namespace millrace::importing {
namespace {

/// The number of the iteration, of all loops around the node; `no_var` outside of loops.
VarId iteration(Importer& to) {
  VarId all = no_var;
  for (const VarId counter : to.counters())
    all = all == no_var ? counter : to.emit1("add", {to.emit1("mul", {all, number(to, 1'000'003)}), counter});
  return all;
}

/// Numbers of a distribution with the extents of a list. Nodes without a seed draw from sources of their own.
VarId drawn(Importer& to, const Node& node, const char* distribution, VarId extents, DType dtype) {
  Attributes attributes{{"distribution", std::string(distribution)}, {"dtype", dtype == DType::f64 ? DType::f64 : DType::f32}};
  if (node.has_attribute("seed"))
    attributes.set("seed", static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(static_cast<float>(node.real("seed", 0)))));
  else
    attributes.set("number", to.next_draw());
  return with_extents(to, to.emit1("random", {extents, iteration(to)}, attributes), extents);
}

/// `dtype` that the node names, or `otherwise`.
DType asked_dtype(const Node& node, DType otherwise) { return node.has_attribute("dtype") ? dtype_attribute(node, "dtype") : otherwise; }

DType floating(DType dtype) {
  if (!is_floating(dtype)) throw UnsupportedError("expected floats to draw, found " + std::string(name_of(dtype)));
  return dtype;
}

void give_scaled(Importer& to, const Node& node, VarId x, double scale, double shift, DType dtype) {
  const Formula f(to, dtype == DType::f64 ? DType::f64 : DType::f32);
  if (scale != 1) x = f.times(x, scale);
  if (shift != 0) x = f.plus(x, shift);
  to.give(node, "identity", {f.cast(x, dtype)});
}

void give_normal(Importer& to, const Node& node, VarId extents, DType dtype) {
  const double scale = node.real("scale", 1);
  if (!(scale >= 0)) throw ProgramError("attribute scale: expected 0 or more, found " + std::to_string(scale));
  const VarId x = drawn(to, node, "normal", extents, floating(dtype));
  give_scaled(to, node, x, scale, node.real("mean", 0), dtype);
}

void give_uniform(Importer& to, const Node& node, VarId extents, DType dtype) {
  const VarId x = drawn(to, node, "uniform", extents, floating(dtype));
  const double low = node.real("low", 0);
  give_scaled(to, node, x, node.real("high", 1) - low, low, dtype);
}

using Give = void (*)(Importer&, const Node&, VarId, DType);

template <Give give>
void of_shape(Importer& to, const Node& node, const char*) {
  const std::optional<Ints> shape = node.integers("shape");
  if (!shape) throw ParseError("attribute shape: expected one, found none");
  for (const std::int64_t extent : *shape)
    if (extent < 0) throw ParseError("attribute shape: expected extents, found " + std::to_string(extent));
  give(to, node, to.literal(*shape), asked_dtype(node, DType::f32));
}

template <Give give>
void like(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  give(to, node, to.emit1("shape", {x}), asked_dtype(node, to.type(x).dtype));
}

/// 1 with the probability that x says, else 0.
void bernoulli(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const DType wide = to.type(x).dtype == DType::f64 ? DType::f64 : DType::f32;
  const Formula f(to, wide);
  const VarId u = drawn(to, node, "uniform", to.emit1("shape", {x}), wide);
  to.give(node, "cast", {f.op("less", u, f.taken(x))}, {{"to", asked_dtype(node, to.type(x).dtype)}});
}

/// Classes of rows of logarithms of probabilities that need not sum to 1: the number of classes whose running sum u is not below.
void multinomial(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const std::int64_t samples = node.integer("sample_size", 1);
  if (samples < 1 || samples > std::int64_t{1} << 30)
    throw ProgramError("attribute sample_size: expected 1 to 1073741824, found " + std::to_string(samples));
  if (to.rank(x) != 2) throw ProgramError("expected [batch, classes], found " + to.type(x).to_string());
  const DType dtype = asked_dtype(node, DType::i32);
  if (dtype != DType::i32 && dtype != DType::i64)
    throw ProgramError("attribute dtype: expected i32 or i64, found " + std::string(name_of(dtype)));
  const Formula f(to, DType::f64);
  const VarId sums = to.emit1("cumsum", {to.emit1("softmax", {f.taken(x)}, {{"axis", std::int64_t{1}}})}, {{"axis", std::int64_t{1}}});
  const VarId total = f.reduced("max", sums, {1}, true);
  const VarId extents = list_of(to, {element_at(to, x, 0), {samples, no_var, -1}});
  const VarId u = f.times(drawn(to, node, "uniform", extents, DType::f64), total);
  const VarId beyond = f.op("less_equal", f.unsqueezed(sums, {1}), f.unsqueezed(u, {2}));
  const VarId found = f.reduced("sum", f.cast(beyond, DType::i64), {2}, false);
  const VarId last = to.emit1("sub", {extent_of(to, x, 1), number(to, 1)});
  to.give(node, "identity", {f.cast(to.emit1("minimum", {found, last}), dtype)});
}

constexpr Rule random_table[] = {
    {"RandomNormal", of_shape<give_normal>},
    {"RandomNormalLike", like<give_normal>},
    {"RandomUniform", of_shape<give_uniform>},
    {"RandomUniformLike", like<give_uniform>},
    {"Bernoulli", bernoulli},
    {"Multinomial", multinomial},
};

}  // namespace

std::span<const Rule> random_rules() { return random_table; }

}  // namespace millrace::importing
