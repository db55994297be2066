// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>
#include <millrace/runtime/program/ops/internal/lstm_form.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

/// Gradients of cells and convolutions: by the chain rule over the plain ops that they stand for, so that the loop of a gradient is fused as any
/// cell is. Narrow values are computed in f32.
namespace millrace::ops {
namespace {

/// Function `which` of a cell's `activations`.
Term activated(const GradientContext& c, const Term& x, std::size_t which) {
  const Attributes form = c.op().attributes;
  const auto names = form.get_or("activations", std::vector<std::string>{"sigmoid", "tanh", "tanh"});
  const UnaryName* named = find_activation(names.at(which));
  const auto alphas = form.get_or("alphas", std::vector<double>{}), betas = form.get_or("betas", std::vector<double>{});
  Attributes numbers;
  if (!alphas.empty() && named->alpha != nullptr) numbers.set(named->alpha, alphas[which]);
  if (!betas.empty() && named->beta != nullptr) numbers.set(named->beta, betas[which]);
  return call(named->name, {x}, std::move(numbers));
}

Term clipped(const Term& x, double limit) {
  if (limit == 0) return x;
  return call("clip", {x, number(x.at(), -limit, x.dtype()), number(x.at(), limit, x.dtype())});
}

std::vector<Term> pieces(const Term& x, std::size_t count, std::int64_t units) {
  return call_all("split", {x}, {{"axis", std::int64_t{-1}}, {"sizes", Ints(count, units)}});
}

struct State {
  Term h, c;
};

/// The part of kernels/lstm_cell.h behind the sums of all gates. `cell`: where the attributes are.
State lstm_state(const GradientContext& cell, const Term& sums, const Term& before, const Term& peepholes, std::int64_t units) {
  const LstmDesc form = lstm_form(cell.op(), 0);
  const bool coupled = cell.op().attributes.get_or("input_forget", false);
  const double clip = form.clip;
  std::vector<Term> a = pieces(sums, 4, units);
  std::vector<Term> p;
  if (peepholes.defined()) p = pieces(peepholes, 3, units);
  const auto gate = [&](std::size_t which, const Term& looks_at, std::size_t peephole) {
    const Term sum = p.empty() ? a[which] : a[which] + p[peephole] * looks_at;
    return activated(cell, clipped(sum, clip), 0);
  };
  const Term i = gate(0, before, 0);
  const Term f = coupled ? 1.0 - i : gate(1, before, 1);
  const Term g = activated(cell, clipped(a[2], clip), 1);
  const Term next = f * before + i * g;
  return {gate(3, next, 2) * activated(cell, next, 2), next};
}

/// A cell with `products` of its two products still to be made.
void lstm_rule(GradientContext& c, std::size_t products) {
  const std::size_t at_c = 2, at_w = 3, at_bias = 3 + products, count = c.op().inputs.size();
  const std::optional<DDim>& shape = c.input_type(at_c).shape;
  if (!shape || (*shape)[1] == DDim::unknown) throw UnsupportedError("op " + c.op().type + ": the gradient of a cell of unknown size");
  const DType dtype = summing(c.input_type(0).dtype);
  Tape tape(c);
  std::vector<Term> leaves(std::max<std::size_t>(count, at_bias + 2)), in(leaves.size());
  for (std::size_t input = 0; input < count; ++input) {
    if (!c.has(input)) continue;
    leaves[input] = tape.leaf(value(c, input));
    const bool weights = input >= at_w && input < at_bias;
    in[input] = weights ? leaves[input] : cast_to(leaves[input], dtype);
  }
  const auto product = [&](const Term& x, const Term& w) {
    return call("matmul",
                {x, w.dtype() == DType::f16 || (w.dtype() == DType::bf16 && x.dtype() != DType::f32) ? cast_to(w, x.dtype()) : w});
  };
  const Term projected = products == 2 ? product(in[0], in[at_w]) : in[0];
  const Term recurrent = products >= 1 ? product(in[1], in[at_bias - 1]) : in[1];
  const Term sums = (in[at_bias].defined() ? recurrent + in[at_bias] : recurrent) + projected;
  const State next = lstm_state(c, sums, in[at_c], in[at_bias + 1], (*shape)[1]);
  const Term gh = gradient(c, 0), gc = gradient(c, 1);
  if (gh.defined()) tape.seed(next.h, cast_to(gh, dtype));
  if (gc.defined()) tape.seed(next.c, cast_to(gc, dtype));
  std::vector<Term> wanted;
  for (std::size_t input = 0; input < count; ++input)
    if (c.has(input) && c.wants(input)) wanted.push_back(leaves[input]);
  tape.run(wanted);
  for (std::size_t input = 0; input < count; ++input) {
    if (!c.has(input) || !c.wants(input)) continue;
    if (const Term made = tape.gradient_of(leaves[input]); made.defined()) set(c, input, made);
  }
}

// ---- conv1d ----

/// The part of X that each output reads, [N, group, C/group·K, L]: one slice for each place of the kernel.
Term windows_of(const Term& x, const Attributes& form, std::int64_t kernel, std::int64_t group, std::int64_t channels) {
  const Ints pads = form.get_or("pads", Ints{0, 0});
  const std::int64_t stride = form.get_or("stride", std::int64_t{1}), dilation = form.get_or("dilation", std::int64_t{1});
  const Term padded = pads[0] == 0 && pads[1] == 0 ? x : call("pad", {x}, {{"pads", Ints{0, 0, pads[0], 0, 0, pads[1]}}});
  std::vector<Term> seen;
  for (std::int64_t t = 0; t < kernel; ++t) {
    const std::int64_t behind = dilation * (kernel - 1 - t);
    const std::int64_t end = behind == 0 ? std::int64_t{1} << 31 : -behind;
    seen.push_back(unsqueezed(
        call("slice", {padded}, {{"starts", Ints{t * dilation}}, {"ends", Ints{end}}, {"axes", Ints{2}}, {"steps", Ints{stride}}}), {2}));
  }
  const Term all = seen.size() == 1 ? seen[0] : call("concat", seen, {{"axis", std::int64_t{2}}});
  return reshaped_to(all, {0, group, channels * kernel, -1});
}

void conv1d_rule(GradientContext& c) {
  const std::optional<DDim>& weights = c.input_type(1).shape;
  if (!weights || product_of(*weights, 0, 3) < 1) throw UnsupportedError("op conv1d: the gradient of weights of unknown extents");
  const std::int64_t units = (*weights)[0], channels = (*weights)[1], kernel = (*weights)[2];
  const std::int64_t group = c.op().attributes.get_or("group", std::int64_t{1});
  const DType given = c.input_type(0).dtype, dtype = summing(given);
  const Term g = cast_to(gradient(c), dtype);
  if (c.has(2) && c.wants(2)) set(c, 2, cast_to(reduced("sum", g, {0, 2}, false), given));
  if (!c.wants(0) && !c.wants(1)) return;
  const Term parts = reshaped_to(g, {0, group, units / group, -1});
  Tape tape(c);
  const Term x = tape.leaf(value(c, 0));
  const Term windows = windows_of(cast_to(x, dtype), c.op().attributes, kernel, group, channels);
  if (c.wants(1)) {
    // Over all sequences and places in one product: [group, .., N·L].
    const auto in_line = [&](const Term& of, std::int64_t rows) { return reshaped_to(permuted(of, {1, 2, 0, 3}), {group, rows, -1}); };
    const Term seen = in_line(Term(c, windows.var()), channels * kernel);
    const Term made = call("matmul", {in_line(parts, units / group), permuted(seen, {0, 2, 1})});
    set(c, 1, cast_to(reshaped_to(made, {units, channels, kernel}), given));
  }
  if (!c.wants(0)) return;
  const Term turned = permuted(reshaped_to(cast_to(value(c, 1), dtype), {group, units / group, channels * kernel}), {0, 2, 1});
  tape.seed(windows, call("matmul", {turned, parts}));
  tape.run({x});
  set(c, 0, tape.gradient_of(x));
}

}  // namespace

void add_cell_gradients(OpRegistry& registry) {
  registry.set_gradient("lstm_cell", [](GradientContext& c) { lstm_rule(c, 2); });
  registry.set_gradient("lstm_cell_projected", [](GradientContext& c) { lstm_rule(c, 1); });
  registry.set_gradient("lstm_gates", [](GradientContext& c) { lstm_rule(c, 0); });
  registry.set_gradient("conv1d", conv1d_rule);
}

}  // namespace millrace::ops
