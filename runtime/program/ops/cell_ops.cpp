// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/fill.h>
#include <millrace/kernels/lstm_cell.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/lstm_form.h>
#include <millrace/runtime/program/ops/internal/packing.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

namespace millrace::ops {
namespace {

/// The function named by place `which` of `activations`, with its numbers from `alphas` and `betas`.
Activation activation_of(const Attributes& attributes, std::size_t which) {
  const std::vector<std::string> names = attributes.get_or("activations", std::vector<std::string>{"sigmoid", "tanh", "tanh"});
  if (names.size() != 3)
    throw ProgramError("attribute 'activations': expected 3 names, of f, g and h, found " + std::to_string(names.size()));
  const UnaryName* named = find_activation(names[which]);
  if (named == nullptr) throw ProgramError("attribute 'activations': expected the names of activations, found '" + names[which] + "'");
  Activation activation{named->kind, default_params(named->kind)};
  const auto alphas = attributes.get_or("alphas", std::vector<double>{});
  const auto betas = attributes.get_or("betas", std::vector<double>{});
  for (const auto* numbers : {&alphas, &betas})
    if (!numbers->empty() && numbers->size() != 3)
      throw ProgramError("attributes 'alphas' and 'betas': expected 3 numbers, of f, g and h, found " + std::to_string(numbers->size()));
  if (!alphas.empty() && named->alpha != nullptr) activation.params.alpha = alphas[which];
  if (!betas.empty() && named->beta != nullptr) activation.params.beta = betas[which];
  return activation;
}

bool has_input(const Op& op, std::size_t input) { return input < op.inputs.size() && op.inputs[input] != no_var; }

}  // namespace

LstmDesc lstm_form(const Op& op, std::size_t products) {
  const std::size_t bias = in_w + products;
  LstmDesc desc;
  desc.gate = activation_of(op.attributes, 0);
  desc.candidate = activation_of(op.attributes, 1);
  desc.output = activation_of(op.attributes, 2);
  desc.bias = has_input(op, bias);
  desc.peepholes = has_input(op, bias + 1);
  desc.couple_input_forget = op.attributes.get_or("input_forget", false);
  desc.clip = op.attributes.get_or("clip", 0.0);
  if (!(desc.clip >= 0)) throw ProgramError("attribute 'clip': expected 0 (none) or more, found " + std::to_string(desc.clip));
  return desc;
}

namespace {

LstmDesc desc_of(const Op& op) { return lstm_form(op, 2); }

LstmDesc with_weights(LstmDesc desc, DType dtype, const Tensor& w, const Tensor& r) {
  desc.input = w.dim(0);
  desc.hidden = r.dim(0);
  desc.dtype = dtype;
  desc.weights = w.dtype();
  return desc;
}

/// Inputs of one dtype, but for matrices [w, r], which may be bf16 under f32.
void expect_cell_dtypes(const InferContext& context, std::size_t w, std::size_t r) {
  const DType dtype = context.tensor(0).dtype;
  for (std::size_t input = 1; input < context.inputs(); ++input) {
    if (!context.has(input)) continue;
    const bool narrow = input >= w && input <= r && dtype == DType::f32 && context.tensor(input).dtype == DType::bf16;
    if (!narrow) expect_same_dtype(context, 0, input);
  }
  if (w != r) expect_same_dtype(context, w, r);
}

/// The form with W (two products) and the one whose X is X·W already, and which has no W.
void infer_cell(InferContext& context, std::size_t products) {
  lstm_form(context.op(), products);
  const std::size_t r = in_w + products - 1, bias = r + 1, peephole = r + 2;
  const std::string x = products == 2 ? "X" : "XW";
  expect_float(context, in_x);
  expect_cell_dtypes(context, in_w, r);
  for (std::size_t input = in_x; input <= r; ++input) expect_rank(context, input, 2);
  for (const std::size_t input : {bias, peephole})
    if (context.has(input)) expect_rank(context, input, 1);
  const std::int64_t batch = same_extent(same_extent(extent(context, in_x, 0), extent(context, in_h, 0), "rows of " + x + " and H"),
                                         extent(context, in_c, 0), "rows of " + x + " and C");
  std::int64_t hidden = same_extent(extent(context, in_h, 1), extent(context, in_c, 1), "units of H and C");
  hidden = same_extent(hidden, extent(context, r, 0), "units of H and rows of R");
  if (products == 2) expect_extent(context, in_w, 0, extent(context, in_x, 1));
  if (hidden != DDim::unknown) {
    expect_extent(context, products == 2 ? in_w : in_x, 1, 4 * hidden);
    expect_extent(context, r, 1, 4 * hidden);
    if (context.has(bias)) expect_extent(context, bias, 0, 4 * hidden);
    if (context.has(peephole)) expect_extent(context, peephole, 0, 3 * hidden);
  }
  for (int output = 0; output < 2; ++output) context.result(VarType(context.tensor(in_x).dtype, DDim{batch, hidden}));
}

/// The outputs of any form of the cell: so many rows of the next h and c, which `fill(h, c)` computes.
template <class Fill>
void set_state(const LstmPlan& plan, std::int64_t rows, OpContext& context, const Fill& fill) {
  const DDim dims{rows, plan.desc().hidden};
  Tensor h(plan.desc().dtype, dims, context.stream().memory());
  Tensor c(plan.desc().dtype, dims, context.stream().memory());
  fill(h, c);
  context.set(0, std::move(h));
  context.set(1, std::move(c));
}

void run_cell(const LstmPlan& plan, const PackedLstm& packed, OpContext& context) {
  const Tensor& x = context.tensor(in_x);
  set_state(plan, x.dim(0), context,
            [&](Tensor& h, Tensor& c) { run(plan, packed, x, context.tensor(in_h), context.tensor(in_c), h, c, context.stream()); });
}

/// Weights that are computed are packed each time.
OpKernel run_computed(const LstmDesc& form) {
  return [form](OpContext& context) {
    const LstmPlan plan = make_lstm_cell(with_weights(form, context.tensor(in_x).dtype(), context.tensor(in_w), context.tensor(in_r)),
                                         context.stream().place());
    const Tensor* bias = context.has(in_bias) ? &context.tensor(in_bias) : nullptr;
    const Tensor* peephole = context.has(in_peephole) ? &context.tensor(in_peephole) : nullptr;
    run_cell(plan, pack(plan, context.tensor(in_w), context.tensor(in_r), bias, peephole, context.stream()), context);
  };
}

std::optional<Tensor> copy_of(const Tensor* held) { return held == nullptr ? std::nullopt : std::optional(*held); }

void place_cell(PackedLstm& packed, const PrepareContext& context) {
  for (Tensor* part : {&packed.input, &packed.recurrent, &packed.bias, &packed.peepholes}) *part = context.placed(*part);
}

OpKernel prepare_lstm_cell(const PrepareContext& context) {
  const LstmDesc form = desc_of(context.op());
  const Tensor* held[7] = {};
  for (std::size_t input = in_w; input <= in_peephole; ++input) {
    if (!has_input(context.op(), input)) continue;
    held[input] = context.constant(input);
    if (held[input] == nullptr) return run_computed(form);
  }
  const LstmPlan plan = make_lstm_cell(with_weights(form, context.type(in_x).dtype, *held[in_w], *held[in_r]), context.place());
  const auto pack_all = [plan, w = *held[in_w], r = *held[in_r], bias = copy_of(held[in_bias]), peephole = copy_of(held[in_peephole])] {
    PackingStream stream;
    return pack(plan, w, r, bias ? &*bias : nullptr, peephole ? &*peephole : nullptr, stream);
  };
  const PackedOnce<PackedLstm> packed(context, pack_all, place_cell);
  return [plan, packed](OpContext& run) { run_cell(plan, packed.get(), run); };
}

/// Both forms: X or XW, H and C have rows, then come the weights.
std::vector<int> follow_lstm_cell(const InferContext& context, const std::vector<int>& axes) {
  bool any = false;
  std::int64_t count = DDim::unknown;
  for (std::size_t input = 0; input < axes.size(); ++input) {
    if (axes[input] < 0) continue;
    if (input > in_c) refuse_rows("rows in its weights");
    if (axes[input] != 0) refuse_rows("sums over the rows");
    any = true;
    count = extent(context, input, 0);
  }
  if (!any) return {-1, -1};
  for (const std::size_t input : {in_x, in_h, in_c}) {
    if (axes[input] >= 0) continue;
    const std::int64_t found = extent(context, input, 0);
    if (found != count && found != DDim::unknown) refuse_rows(context.describe(input) + " lies along the rows but is not fed with them");
  }
  return {0, 0};
}

/// The rows of all sequences, one behind the other.
void vectorize_lstm_cell(Vectorizer& v, const Op& op) {
  for (std::size_t input = in_w; input < op.inputs.size(); ++input) expect_shared(v, op, input, "weights");
  const VarId like = any_batched_var(v, op);
  std::vector<VarId> inputs;
  for (const std::size_t input : {in_x, in_h, in_c})
    inputs.push_back(merge_leading(v, batched_var(v, op.inputs[input], like), op.inputs[input]));
  for (std::size_t input = in_w; input < op.inputs.size(); ++input) inputs.push_back(v.get(op.inputs[input]));
  const std::vector<VarId> made = v.emit(op.type, inputs, op.attributes);
  for (std::size_t output = 0; output < 2; ++output) v.bind(op.outputs[output], split_leading(v, made[output], like), true);
}

// ---- With the input projected before ----

/// Places of the inputs of `lstm_cell_projected`.
enum : std::size_t { at_projection, at_h, at_c, at_r, at_bias, at_peephole };

/// The plan of a cell that knows no W, and its weights.
std::pair<LstmPlan, PackedLstm> pack_projected(LstmDesc desc, DType dtype, const Tensor& r, const Tensor* bias, const Tensor* peephole,
                                               const Place& place, StreamRef stream) {
  desc.hidden = r.dim(0);
  desc.dtype = dtype;
  desc.weights = r.dtype();
  const LstmPlan plan = make_lstm_cell(desc, place);
  return {plan, pack(plan, zeros(DDim{0, 4 * desc.hidden}, r.dtype(), stream), r, bias, peephole, stream)};
}

void run_projected_cell(const LstmPlan& plan, const PackedLstm& packed, OpContext& context) {
  const Tensor& projection = context.tensor(at_projection);
  set_state(plan, projection.dim(0), context, [&](Tensor& h, Tensor& c) {
    run_projected(plan, packed, projection, context.tensor(at_h), context.tensor(at_c), h, c, context.stream());
  });
}

OpKernel prepare_projected(const PrepareContext& context) {
  const LstmDesc form = lstm_form(context.op(), 1);
  const auto held = [&](std::size_t input) { return has_input(context.op(), input) ? context.constant(input) : nullptr; };
  const bool known = held(at_r) != nullptr && (!form.bias || held(at_bias) != nullptr) && (!form.peepholes || held(at_peephole) != nullptr);
  if (!known) {
    return [form](OpContext& run) {
      const auto part = [&](std::size_t input) { return run.has(input) ? &run.tensor(input) : nullptr; };
      const auto [plan, packed] = pack_projected(form, run.tensor(at_projection).dtype(), run.tensor(at_r), part(at_bias),
                                                 part(at_peephole), run.stream().place(), run.stream());
      run_projected_cell(plan, packed, run);
    };
  }
  PackingStream stream;
  auto [plan, packed] =
      pack_projected(form, context.type(at_projection).dtype, *held(at_r), held(at_bias), held(at_peephole), context.place(), stream);
  for (Tensor* part : {&packed.recurrent, &packed.bias, &packed.peepholes}) *part = context.placed(*part);
  return [cell = plan, weights = packed](OpContext& run) { run_projected_cell(cell, weights, run); };
}

// ---- With both products made before ----

/// Places of the inputs of `lstm_gates`.
enum : std::size_t { of_projection, of_recurrent, of_c, of_bias, of_peephole };

void infer_gates(InferContext& context) {
  lstm_form(context.op(), 0);
  expect_float(context, of_projection);
  for (std::size_t input = of_recurrent; input <= of_peephole; ++input)
    if (context.has(input)) expect_same_dtype(context, of_projection, input);
  for (std::size_t input = of_projection; input <= of_c; ++input) expect_rank(context, input, 2);
  for (const std::size_t input : {of_bias, of_peephole})
    if (context.has(input)) expect_rank(context, input, 1);
  const std::int64_t batch =
      same_extent(same_extent(extent(context, of_projection, 0), extent(context, of_recurrent, 0), "rows of XW and HR"),
                  extent(context, of_c, 0), "rows of XW and C");
  const std::int64_t hidden = extent(context, of_c, 1);
  if (hidden != DDim::unknown) {
    for (const std::size_t input : {of_projection, of_recurrent}) expect_extent(context, input, 1, 4 * hidden);
    if (context.has(of_bias)) expect_extent(context, of_bias, 0, 4 * hidden);
    if (context.has(of_peephole)) expect_extent(context, of_peephole, 0, 3 * hidden);
  }
  for (int output = 0; output < 2; ++output) context.result(VarType(context.tensor(of_projection).dtype, DDim{batch, hidden}));
}

void run_known_gates(const LstmPlan& plan, const PackedLstm& packed, OpContext& context) {
  const Tensor& before = context.tensor(of_c);
  set_state(plan, before.dim(0), context, [&](Tensor& h, Tensor& c) {
    run_gates(plan, packed, context.tensor(of_projection), context.tensor(of_recurrent), before, h, c, context.stream());
  });
}

OpKernel prepare_gates(const PrepareContext& context) {
  LstmDesc form = lstm_form(context.op(), 0);
  form.dtype = context.type(of_c).dtype;
  const auto held = [&](std::size_t input) { return has_input(context.op(), input) ? context.constant(input) : nullptr; };
  const VarType& type = context.type(of_c);
  const bool sized = type.shape && (*type.shape)[1] != DDim::unknown;
  if (sized && (!form.bias || held(of_bias) != nullptr) && (!form.peepholes || held(of_peephole) != nullptr)) {
    form.hidden = (*type.shape)[1];
    const LstmPlan plan = make_lstm_cell(form, context.place());
    PackingStream stream;
    PackedLstm packed = pack_gates(plan, held(of_bias), held(of_peephole), stream);
    for (Tensor* part : {&packed.input, &packed.recurrent, &packed.bias, &packed.peepholes}) *part = context.placed(*part);
    return [plan, packed](OpContext& run) { run_known_gates(plan, packed, run); };
  }
  return [form](OpContext& run) {
    LstmDesc desc = form;
    desc.hidden = run.tensor(of_c).dim(1);
    const LstmPlan plan = make_lstm_cell(desc, run.stream().place());
    const auto part = [&](std::size_t input) { return run.has(input) ? &run.tensor(input) : nullptr; };
    run_known_gates(plan, pack_gates(plan, part(of_bias), part(of_peephole), run.stream()), run);
  };
}

/// The attributes of all ops of this file.
std::vector<std::string> form_attributes() { return {"activations", "alphas", "betas", "clip", "input_forget"}; }

OpDef gates_op() {
  OpDef def = define("lstm_gates", {"XW", "HR", "C", "Bias?", "Peephole?"}, {"Hn", "Cn"}, form_attributes());
  def.infer = infer_gates;
  def.prepare = prepare_gates;
  def.follow_rows = follow_lstm_cell;
  def.vectorize = vectorize_lstm_cell;
  return def;
}

OpDef projected_op() {
  OpDef def = define("lstm_cell_projected", {"XW", "H", "C", "R", "Bias?", "Peephole?"}, {"Hn", "Cn"}, form_attributes());
  def.infer = [](InferContext& context) { infer_cell(context, 1); };
  def.prepare = prepare_projected;
  def.follow_rows = follow_lstm_cell;
  def.vectorize = vectorize_lstm_cell;
  return def;
}

}  // namespace

void add_cell_ops(OpRegistry& registry) {
  registry.add(projected_op());
  registry.add(gates_op());
  OpDef def = define("lstm_cell", {"X", "H", "C", "W", "R", "Bias?", "Peephole?"}, {"Hn", "Cn"}, form_attributes());
  def.infer = [](InferContext& context) { infer_cell(context, 2); };
  def.prepare = prepare_lstm_cell;
  def.follow_rows = follow_lstm_cell;
  def.vectorize = vectorize_lstm_cell;
  registry.add(std::move(def));
}

}  // namespace millrace::ops
