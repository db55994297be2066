// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/lstm.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gates.h>
#include <millrace/runtime/layers/internal/cells.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace::layers {
namespace {

using namespace internal;

struct Extents {
  std::int64_t hidden = 0;
  std::int64_t projected = 0;
};

/// The extents of the weights, checked.
Extents extents_of(const std::string& layer, const LstmWeights& weights) {
  for (const Tensor* matrix : {&weights.input, &weights.recurrent})
    if (matrix->rank() != 2) throw ShapeError(layer + ": expected matrices W [C, 4H] and R [P, 4H], found " + matrix->to_string());
  refuse_turned(layer, weights.recurrent, 4);
  const std::int64_t gates = weights.recurrent.dim(1);
  if (gates % 4 != 0) throw ShapeError(layer + ", recurrent: expected [P, 4H], found " + weights.recurrent.to_string());
  const std::int64_t hidden = gates / 4;
  const std::int64_t projected = weights.projection ? weights.recurrent.dim(0) : hidden;
  expect_dims(layer, "input", weights.input, {weights.input.dim(0), gates});
  expect_dims(layer, "recurrent", weights.recurrent, {projected, gates});
  if (weights.bias) expect_dims(layer, "bias", *weights.bias, {gates});
  if (weights.peepholes) expect_dims(layer, "peepholes", *weights.peepholes, {3 * hidden});
  if (weights.projection) expect_dims(layer, "projection", *weights.projection, {hidden, projected});
  return {hidden, projected};
}

struct Parameters {
  Matrix input, recurrent;
  Var bias, peepholes;
  Matrix projection;
};

/// The bias, with `forget_bias` on f. Without a bias that is a constant: a weight would be trained.
Var bias_of(const std::string& name, const LstmWeights& weights, std::int64_t hidden, double forget_bias) {
  if (forget_bias == 0) return parameter(name, weights.bias);
  Tensor added(DType::f64, DDim{4 * hidden});
  double* to = added.mutable_data<double>();
  for (std::int64_t i = 0; i < 4 * hidden; ++i) to[i] = i / hidden == 1 ? forget_bias : 0;
  Tensor same(weights.input.dtype(), added.dims());
  same.storage()->mark_written();
  for (std::int64_t i = 0; i < 4 * hidden; ++i) same[DDim{i}] = to[i];
  return weights.bias ? parameter(name, summed(weights.bias, same)) : build::constant(same);
}

Parameters parameters_of(const std::string& name, const LstmWeights& weights, std::int64_t hidden, const LstmOptions& options) {
  return {matrix(name + "_input", weights.input, options.weights), matrix(name + "_recurrent", weights.recurrent, options.weights),
          bias_of(name + "_bias", weights, hidden, options.forget_bias), parameter(name + "_peepholes", weights.peepholes),
          weights.projection ? matrix(name + "_projection", *weights.projection, options.weights) : Matrix()};
}

/// The attributes of lstm_cell.
Attributes attributes_of(const LstmOptions& options) {
  const Activation* all[] = {&options.gate, &options.candidate, &options.output};
  std::vector<std::string> names;
  std::vector<double> alphas;
  std::vector<double> betas;
  bool numbers = false;
  for (const Activation* each : all) {
    const ops::UnaryName* known = ops::find_activation(each->name);
    if (known == nullptr) throw ProgramError("lstm: expected the names of activations, found '" + each->name + "'");
    const UnaryParams usual = default_params(known->kind);
    names.push_back(each->name);
    alphas.push_back(each->alpha.value_or(usual.alpha));
    betas.push_back(each->beta.value_or(usual.beta));
    numbers = numbers || each->alpha || each->beta;
  }
  Attributes attributes{{"activations", names}};
  if (numbers) {
    attributes.set("alphas", alphas);
    attributes.set("betas", betas);
  }
  if (options.gate_clip != 0) attributes.set("clip", options.gate_clip);
  if (options.couple_input_forget) attributes.set("input_forget", true);
  return attributes;
}

CellStep plain_step(const Var& x, const std::vector<Var>& state, const Parameters& p, const Attributes& attributes) {
  if (p.input.scales.defined()) {
    const Var projection = product(x, p.input);
    const std::vector<Var> made =
        build::call("lstm_gates", {projection, product(state[0], p.recurrent), state[1], p.bias, p.peepholes}, attributes, {"h", "c"});
    return {made[0], made};
  }
  const std::vector<Var> next =
      build::call("lstm_cell", {x, state[0], state[1], p.input.values, p.recurrent.values, p.bias, p.peepholes}, attributes, {"h", "c"});
  return {next[0], next};
}

Var projected(const Var& h, const LstmOptions& options) {
  return clipped(options.projected.name == "identity" ? h : apply(options.projected, h), options.projection_clip);
}

/// The step spelled out in ops, with a projection or a clip of the cell.
CellStep spelled_step(const Var& x, const std::vector<Var>& state, const Parameters& p, std::int64_t hidden, const LstmOptions& options) {
  const Var sums = preactivation(x, p.input, state[0], p.recurrent, p.bias);
  const LstmParts parts = lstm_parts(sums, state[1], p.peepholes, hidden, options);
  const Var h = p.projection.values.defined() ? projected(product(parts.h, p.projection), options) : parts.h;
  return {h, {h, parts.c}};
}

/// The step of `weights`, whose parameters it appends here.
Cell cell_of(const std::string& name, const LstmWeights& weights, std::int64_t hidden, const LstmOptions& options) {
  const Parameters p = parameters_of(name, weights, hidden, options);
  const bool plain = !p.projection.values.defined() && options.cell_clip == 0;
  return [p, plain, hidden, options, attributes = attributes_of(options)](const Var& x, const std::vector<Var>& state) {
    if (state.size() != 2) throw ProgramError(options.name + ": expected the states h and c, found " + std::to_string(state.size()));
    return plain ? plain_step(x, state, p, attributes) : spelled_step(x, state, p, hidden, options);
  };
}

}  // namespace

LstmParts internal::lstm_parts(const Var& sums, const Var& c, const Var& peepholes, std::int64_t hidden, const LstmOptions& options) {
  std::vector<Var> a = pieces(sums, 4, hidden);
  const std::vector<Var> looks = peepholes.defined() ? pieces(peepholes, 3, hidden) : std::vector<Var>{};
  const auto gate = [&](const Var& sum) { return apply(options.gate, clipped(sum, options.gate_clip)); };
  const auto peeped = [&](std::size_t at, std::size_t place, const Var& cell) {
    return looks.empty() ? a[at] : a[at] + looks[place] * cell;
  };
  LstmParts made;
  made.i = gate(peeped(0, 0, c));
  made.f = options.couple_input_forget ? complement(made.i) : gate(peeped(1, 1, c));
  made.g = apply(options.candidate, clipped(a[2], options.gate_clip));
  made.c = clipped(made.f * c + made.i * made.g, options.cell_clip);
  made.o = gate(peeped(3, 2, made.c));
  made.shown = apply(options.output, made.c);
  made.h = made.o * made.shown;
  return made;
}

Cell lstm_cell(const LstmWeights& weights, const LstmOptions& options) {
  return cell_of(options.name, weights, extents_of(options.name, weights).hidden, options);
}

LstmResult lstm(const Sequences& sequences, const std::vector<LstmWeights>& weights, const LstmOptions& options, const std::vector<Var>& h,
                const std::vector<Var>& c) {
  const auto run = [&](std::size_t k, const Sequences& over, bool reverse) {
    const std::string name = options.name + "_" + std::to_string(k);
    const Extents extents = extents_of(name, weights[k]);
    return unroll(
        cell_of(name, weights[k], extents.hidden, options), over,
        {{extents.projected, initial(h, k, weights.size(), options.name)}, {extents.hidden, initial(c, k, weights.size(), options.name)}},
        reverse);
  };
  const Stacked made = stack(layers_of(options.name, weights.size(), options.direction), options.direction, sequences, run);
  LstmResult result{made.output, {}, {}};
  for (const std::vector<Var>& last : made.last) {
    result.h.push_back(last[0]);
    result.c.push_back(last[1]);
  }
  return result;
}

LstmWeights lstm_from_pytorch(const Tensor& weight_ih, const Tensor& weight_hh, const std::optional<Tensor>& bias_ih,
                              const std::optional<Tensor>& bias_hh, const std::optional<Tensor>& weight_hr) {
  return {transposed(weight_ih), transposed(weight_hh), summed(bias_ih, bias_hh), std::nullopt,
          weight_hr ? std::optional(transposed(*weight_hr)) : std::nullopt};
}

LstmWeights lstm_from_onnx(const Tensor& w, const Tensor& r, const std::optional<Tensor>& b, const std::optional<Tensor>& p,
                           std::int64_t direction) {
  const auto ours = [&](const Tensor& rows) {
    return reorder_gates(transposed(direction_of(rows, direction)), 1, gate_order::onnx_lstm, gate_order::lstm);
  };
  LstmWeights made{ours(w), ours(r), std::nullopt, std::nullopt, std::nullopt};
  if (b) {
    const Tensor both = direction_of(*b, direction);
    const std::int64_t half = both.dim(0) / 2;
    const auto bias = [&](std::int64_t begin) {
      return std::optional(reorder_gates(both.rows(begin, begin + half), 0, gate_order::onnx_lstm, gate_order::lstm));
    };
    made.bias = summed(bias(0), bias(half));
  }
  if (p) made.peepholes = reorder_gates(direction_of(*p, direction), 0, gate_order::onnx_peephole, "ifo");
  return made;
}

LstmWeights lstm_from_tensorflow(const Tensor& kernel, const std::optional<Tensor>& bias, const std::vector<Tensor>& peepholes,
                                 const std::optional<Tensor>& projection) {
  if (kernel.rank() != 2 || kernel.dim(1) % 4 != 0)
    throw ShapeError("lstm_from_tensorflow, kernel: expected [C + P, 4H], found " + kernel.to_string());
  if (projection && projection->rank() != 2)
    throw ShapeError("lstm_from_tensorflow, projection: expected [H, P], found " + projection->to_string());
  const std::int64_t carried = projection ? projection->dim(1) : kernel.dim(1) / 4;
  const std::int64_t features = kernel.dim(0) - carried;
  if (features < 0)
    throw ShapeError("lstm_from_tensorflow, kernel: expected more than " + std::to_string(carried) + " rows, found " + kernel.to_string());
  if (!peepholes.empty() && peepholes.size() != 3)
    throw ShapeError("lstm_from_tensorflow: expected peepholes of i, f and o, found " + std::to_string(peepholes.size()));
  const auto ours = [](const Tensor& from, int axis) { return reorder_gates(from, axis, gate_order::tensorflow_lstm, gate_order::lstm); };
  LstmWeights made{ours(kernel.rows(0, features), 1), ours(kernel.rows(features, kernel.dim(0)), 1), std::nullopt, std::nullopt,
                   projection};
  if (bias) made.bias = ours(*bias, 0);
  if (!peepholes.empty()) made.peepholes = joined(peepholes, 0);
  return made;
}

LstmWeights lstm_from_fluid(const Tensor& projection, const Tensor& weight, const std::optional<Tensor>& bias,
                            const std::optional<Tensor>& projected) {
  const auto ours = [](const Tensor& from, int axis) { return reorder_gates(from, axis, gate_order::fluid_lstm, gate_order::lstm); };
  if (weight.rank() != 2 || weight.dim(1) % 4 != 0)
    throw ShapeError("lstm_from_fluid, weight: expected [P, 4H], found " + weight.to_string());
  const std::int64_t hidden = weight.dim(1) / 4;
  LstmWeights made{ours(projection, 1), ours(weight, 1), std::nullopt, std::nullopt, projected};
  if (!bias) return made;
  if (bias->elements() != 4 * hidden && bias->elements() != 7 * hidden)
    throw ShapeError("lstm_from_fluid, bias: expected " + std::to_string(4 * hidden) + " elements, or with peepholes " +
                     std::to_string(7 * hidden) + ", found " + bias->to_string());
  const Tensor flat = bias->copy_to(CpuPlace{}).reshape({bias->elements()});
  made.bias = ours(flat.rows(0, 4 * hidden), 0);
  if (flat.elements() > 4 * hidden) made.peepholes = flat.rows(4 * hidden, 7 * hidden);
  return made;
}

LstmWeights lstm_from_keras(const Tensor& kernel, const Tensor& recurrent_kernel, const std::optional<Tensor>& bias) {
  return {kernel, recurrent_kernel, bias, std::nullopt, std::nullopt};
}

}  // namespace millrace::layers
