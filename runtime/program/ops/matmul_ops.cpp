// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/gemm.h>
#include <millrace/kernels/matmul.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/packing.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

// ---- matmul ----

/// One dtype, or weights of bf16 under f32.
void expect_factors(const InferContext& context) {
  if (context.tensor(0).dtype != DType::f32 || context.tensor(1).dtype != DType::bf16) expect_same_dtype(context, 0, 1);
}

/// The dtype that the attribute `to` names, or the dtype of the operands.
DType asked_dtype(const InferContext& context, DType dtype) {
  const Attribute* asked = context.attributes().find("to");
  if (asked == nullptr) return dtype;
  const DType to = context.attributes().get<DType>("to");
  const bool narrow = dtype == DType::f16 || dtype == DType::bf16;
  if (to != dtype && !(narrow && to == DType::f32))
    throw ProgramError("attribute 'to': expected " + std::string(name_of(dtype)) + (narrow ? " or f32" : "") + ", found " +
                       std::string(name_of(to)));
  return to;
}

DType product_dtype(const InferContext& context) {
  const DType dtype = context.tensor(0).dtype;
  if (dtype == DType::boolean)
    throw ProgramError("expected numbers as " + millrace::internal::input_name(context.program(), context.op(), 0) + ", found " +
                       context.describe(0));
  return dtype == DType::i8 || dtype == DType::u8 ? DType::i32 : dtype;
}

/// A weight that would fit the other way round, as PyTorch keeps it: [out, in].
bool fits_transposed(const InferContext& context) {
  const std::optional<DDim>& x = context.tensor(0).shape;
  const std::optional<DDim>& w = context.tensor(1).shape;
  return context.constant(1) != nullptr && x && w && x->rank() > 0 && w->rank() == 2 && (*x)[-1] == (*w)[1];
}

[[noreturn]] void refuse_product(const InferContext& context) {
  const std::string hint =
      fits_transposed(context) ? ": its rows are inputs here, [in, out]; PyTorch's are [out, in], see layers::transposed" : "";
  throw ProgramError("expected operands that multiply, found " + context.describe(0) + " and " + context.describe(1) + hint);
}

/// The batch axes of the product: those before the last two, aligned at the end.
DDim product_batch(const InferContext& context, const DDim& a, const DDim& b) {
  DDim batch;
  for (const DDim& each : {a, b}) {
    const int axes = std::max(each.rank() - 2, 0);
    while (batch.rank() < axes) batch = batch.inserted(0, 1);
    for (int axis = 0; axis < axes; ++axis) {
      std::int64_t& held = batch[batch.rank() - axes + axis];
      const std::int64_t found = each[axis];
      if (held == 1 || (held == DDim::unknown && found != 1))
        held = found;
      else if (found != held && found != 1 && found != DDim::unknown)
        refuse_product(context);
    }
  }
  return batch;
}

void infer_matmul(InferContext& context) {
  expect_factors(context);
  const DType dtype = asked_dtype(context, product_dtype(context));
  const std::optional<DDim>& a = context.tensor(0).shape;
  const std::optional<DDim>& b = context.tensor(1).shape;
  if ((a && a->rank() == 0) || (b && b->rank() == 0)) refuse_product(context);
  if (!a || !b) return context.result(VarType::unranked(dtype));
  const std::int64_t k = (*a)[-1];
  const std::int64_t depth = b->rank() == 1 ? (*b)[0] : (*b)[-2];
  if (k != depth && k != DDim::unknown && depth != DDim::unknown) refuse_product(context);
  DDim shape = product_batch(context, *a, *b);
  if (a->rank() > 1) shape = shape.inserted(shape.rank(), (*a)[-2]);
  if (b->rank() > 1) shape = shape.inserted(shape.rank(), (*b)[-1]);
  context.result(VarType(dtype, shape));
}

/// x · W for weights that never change, packed once.
OpKernel run_packed(GemmPlan plan, PackedOnce<PackedMatrix> packed) {
  return [plan, packed](OpContext& context) {
    const Tensor& x = context.tensor(0);
    DDim dims = x.dims();
    dims[-1] = plan.desc().n;
    Tensor out(plan.desc().out, dims, context.stream().memory());
    run(plan, packed.get(), x, out, context.stream());
    context.set(0, std::move(out));
  };
}

OpKernel prepare_matmul(const PrepareContext& context) {
  const Tensor* weights = context.constant(1);
  const DType dtype = context.type(0).dtype;
  const DType out = context.program().var(context.op().outputs[0]).type.dtype;
  if (weights != nullptr && weights->rank() == 2 && is_floating(weights->dtype())) {
    const GemmPlan plan = make_gemm_plan({weights->dim(0), weights->dim(1), dtype, out, weights->dtype()}, context.place());
    const auto packed = [plan, held = *weights] {
      PackingStream stream;
      return pack(plan, held, stream);
    };
    const auto place = [](PackedMatrix& made, const PrepareContext& where) { made.data = where.placed(made.data); };
    return run_packed(plan, PackedOnce<PackedMatrix>(context, packed, place));
  }
  return [out](OpContext& run) {
    Tensor made(out, matmul_dims(run.tensor(0).dims(), run.tensor(1).dims()), run.stream().memory());
    matmul(run.tensor(0), run.tensor(1), made, run.stream());
    run.set(0, std::move(made));
  };
}

/// Where the rows of operand `input` lie in the product, whose batch has `batch` axes.
int follow_operand(std::size_t input, int axis, int rank, int batch, int other_rank) {
  const int summed = input == 0 ? rank - 1 : std::max(rank - 2, 0);
  if (axis == summed) refuse_rows("sums over the rows");
  if (axis < rank - 2) return batch - (rank - 2) + axis;
  if (input == 0) return batch;
  return other_rank > 1 ? batch + 1 : batch;
}

std::vector<int> follow_matmul(const InferContext& context, const std::vector<int>& axes) {
  const int ranks[2] = {known_rank(context, 0), known_rank(context, 1)};
  const int batch = std::max({ranks[0] - 2, ranks[1] - 2, 0});
  int rows = -1;
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}}) {
    if (axes[input] < 0) continue;
    const int axis = follow_operand(input, axes[input], ranks[input], batch, ranks[1 - input]);
    if (rows >= 0 && axis != rows) refuse_rows("multiplies rows with rows");
    rows = axis;
  }
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}}) {
    if (rows < 0 || rows >= batch) break;
    if (axes[input] < 0) check_same_for_each_row(context, input, rows - batch + std::max(ranks[input] - 2, 0), DDim::unknown);
  }
  return {rows};
}

/// An operand of the vectorised product: at least a matrix, its batch axes as many as the product has.
VarId batched_operand(Vectorizer& v, VarId old, bool left, int batch) {
  const int rank = v.rank(old);
  VarId made = v.get(old);
  const Ints row_or_column{left ? -2 : -1};
  if (rank == 1) made = v.emit("unsqueeze", {made}, {{"axes", row_or_column}}).at(0);
  if (!v.batched(old)) return made;
  Ints ones;
  for (int axis = std::max(rank - 2, 0); axis < batch; ++axis) ones.push_back(static_cast<std::int64_t>(ones.size()) + 1);
  return ones.empty() ? made : v.emit("unsqueeze", {made}, {{"axes", ones}}).at(0);
}

void vectorize_matmul(Vectorizer& v, const Op& op) {
  const int left = v.rank(op.inputs[0]);
  const int right = v.rank(op.inputs[1]);
  // One weight for all: the sequences are more rows.
  if (!v.batched(op.inputs[1]) && right <= 2) return vectorize_with(v, op, op.attributes);
  const int batch = std::max({left - 2, right - 2, 0});
  const VarId a = batched_operand(v, op.inputs[0], true, batch);
  const VarId b = batched_operand(v, op.inputs[1], false, batch);
  VarId product = v.emit("matmul", {a, b}, op.attributes).at(0);
  Ints gone;
  if (left == 1) gone.push_back(-2);
  if (right == 1) gone.push_back(-1);
  if (!gone.empty()) product = v.emit("squeeze", {product}, {{"axes", gone}}).at(0);
  v.bind(op.outputs[0], product, true);
}

OpDef matmul_op() {
  OpDef def = define("matmul", {"A", "B"}, {"Out"}, {"to"});
  def.infer = infer_matmul;
  def.prepare = prepare_matmul;
  def.follow_rows = follow_matmul;
  def.vectorize = vectorize_matmul;
  return def;
}

// ---- matmul_bias: a product with known weights and a known bias behind it, made when a program is compiled (lowering/join_windows.h)

OpKernel prepare_matmul_bias(const PrepareContext& context) {
  const Tensor* weights = context.constant(1);
  const Tensor* bias = context.constant(2);
  if (weights == nullptr || bias == nullptr) throw ProgramError("expected weights and a bias that are known");
  const DType dtype = context.type(0).dtype;
  const GemmPlan plan = make_gemm_plan({weights->dim(0), weights->dim(1), dtype, dtype, weights->dtype()}, context.place());
  const auto packed_weights = [plan, held = *weights] {
    PackingStream stream;
    return pack(plan, held, stream);
  };
  const auto place = [](PackedMatrix& made, const PrepareContext& where) { made.data = where.placed(made.data); };
  return [plan, packed = PackedOnce<PackedMatrix>(context, packed_weights, place), added = context.placed(*bias)](OpContext& run_context) {
    const Tensor& x = run_context.tensor(0);
    DDim dims = x.dims();
    dims[-1] = plan.desc().n;
    Tensor out(plan.desc().out, dims, run_context.stream().memory());
    run(plan, packed.get(), x, added, out, run_context.stream());
    run_context.set(0, std::move(out));
  };
}

OpDef matmul_bias_op() {
  OpDef def = define("matmul_bias", {"A", "B", "C"}, {"Out"});
  def.infer = infer_matmul;
  def.prepare = prepare_matmul_bias;
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) {
    if (axes[1] >= 0 || axes[2] >= 0) refuse_rows("rows in its weights");
    return follow_matmul(context, axes);
  };
  def.vectorize = [](Vectorizer& v, const Op& op) { vectorize_with(v, op, op.attributes); };
  return def;
}

// ---- gemm ----

struct GemmForm {
  double alpha = 1;
  double beta = 1;
  bool trans_a = false;
  bool trans_b = false;
  explicit GemmForm(const Attributes& attributes)
      : alpha(attributes.get_or("alpha", 1.0)),
        beta(attributes.get_or("beta", 1.0)),
        trans_a(attributes.get_or("trans_a", false)),
        trans_b(attributes.get_or("trans_b", false)) {}
};

void infer_gemm(InferContext& context) {
  const GemmForm form(context.attributes());
  expect_factors(context);
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}}) expect_rank(context, input, 2);
  const std::int64_t m = extent(context, 0, form.trans_a ? 1 : 0);
  const std::int64_t n = extent(context, 1, form.trans_b ? 0 : 1);
  const std::int64_t k = extent(context, 0, form.trans_a ? 0 : 1);
  const std::int64_t depth = extent(context, 1, form.trans_b ? 1 : 0);
  if (k != depth && k != DDim::unknown && depth != DDim::unknown) refuse_product(context);
  const DType dtype = product_dtype(context);
  if (context.has(2)) {
    if (context.tensor(2).dtype != dtype)
      throw ProgramError("expected " + std::string(name_of(dtype)) + " as " +
                         millrace::internal::input_name(context.program(), context.op(), 2) + ", found " + context.describe(2));
    const std::optional<DDim>& c = context.tensor(2).shape;
    const std::int64_t last = c && c->rank() > 0 ? (*c)[-1] : 1;
    const std::int64_t first = c && c->rank() > 1 ? (*c)[-2] : 1;
    const bool wide = c && c->rank() > 2;
    const auto stretches = [](std::int64_t from, std::int64_t to) {
      return from == 1 || from == to || from == DDim::unknown || to == DDim::unknown;
    };
    if (wide || !stretches(last, n) || !stretches(first, m))
      throw ProgramError("expected input 2 to broadcast to " + DDim{m, n}.to_string() + ", found " + context.describe(2));
  }
  context.result(VarType(dtype, DDim{m, n}));
}

Tensor maybe_transposed(const Tensor& x, bool transposed) { return transposed ? x.permute({1, 0}) : x; }

void run_gemm(const GemmForm& form, OpContext& context) {
  const Tensor a = maybe_transposed(context.tensor(0), form.trans_a);
  const Tensor b = maybe_transposed(context.tensor(1), form.trans_b);
  const DDim dims{a.dim(0), b.dim(1)};
  const bool adds = context.has(2) && form.beta != 0;
  const DType dtype = a.dtype() == DType::i8 || a.dtype() == DType::u8 ? DType::i32 : a.dtype();
  Tensor out(dtype, dims, context.stream().memory());
  if (adds) copy(broadcast_view(context.tensor(2), dims), out, context.stream());
  gemm(form.alpha, a, b, adds ? form.beta : 0, out, context.stream());
  context.set(0, std::move(out));
}

/// A linear layer: weights and bias that never change, no factors.
OpKernel run_linear(bool trans_a, GemmPlan plan, PackedMatrix packed, std::optional<Tensor> bias) {
  return [trans_a, plan, packed, bias](OpContext& context) {
    const Tensor x = maybe_transposed(context.tensor(0), trans_a);
    Tensor out(plan.desc().out, DDim{x.dim(0), plan.desc().n}, context.stream().memory());
    if (bias)
      run(plan, packed, x, *bias, out, context.stream());
    else
      run(plan, packed, x, out, context.stream());
    context.set(0, std::move(out));
  };
}

OpKernel prepare_gemm(const PrepareContext& context) {
  const GemmForm form(context.attributes());
  const Tensor* weights = context.constant(1);
  const Tensor* bias = context.constant(2);
  const bool has_c = context.op().inputs.size() > 2 && context.op().inputs[2] != no_var;
  if (weights != nullptr && is_floating(weights->dtype()) && form.alpha == 1) {
    const Tensor w = maybe_transposed(*weights, form.trans_b);
    const bool per_unit =
        bias != nullptr && form.beta == 1 && bias->rank() > 0 && bias->elements() == w.dim(1) && bias->dim(-1) == w.dim(1);
    if (!has_c || per_unit) {
      const DType dtype = context.type(0).dtype;
      const GemmPlan plan = make_gemm_plan({w.dim(0), w.dim(1), dtype, dtype, w.dtype()}, context.place());
      PackingStream stream;
      std::optional<Tensor> added;
      if (per_unit) added = context.placed(bias->reshape({w.dim(1)}));
      return run_linear(form.trans_a, plan, {context.placed(pack(plan, w, stream).data)}, std::move(added));
    }
  }
  return [form](OpContext& run) { run_gemm(form, run); };
}

std::vector<int> follow_gemm(const InferContext& context, const std::vector<int>& axes) {
  const GemmForm form(context.attributes());
  if (axes[0] >= 0 && axes[1] >= 0) refuse_rows("multiplies rows with rows");
  if (axes.size() > 2 && axes[2] >= 0 && axes[0] < 0) refuse_rows("rows in its third input alone");
  if (axes[1] >= 0) refuse_rows("rows in its weights");
  if (axes[0] < 0) return {-1};
  if (axes[0] != (form.trans_a ? 1 : 0)) refuse_rows("sums over the rows");
  if (!context.has(2)) return {0};
  const int rank = known_rank(context, 2);
  if (axes[2] >= 0 && (rank != 2 || axes[2] != 0)) refuse_rows("the rows of its inputs lie on different axes");
  if (axes[2] < 0 && rank == 2) check_same_for_each_row(context, 2, 0, extent(context, 0, axes[0]));
  return {0};
}

VarId factor(Vectorizer& v, VarId x, double value, DType dtype) {
  if (value == 1) return x;
  Tensor held = visit_dtype(dtype, [&]<class T>(std::type_identity<T>) { return Tensor::scalar(convert_element<T>(value)); });
  const VarId by = v.emit("constant", {}, {{"value", std::move(held)}}).at(0);
  return v.emit("mul", {x, by}).at(0);
}

/// An operand as a matrix, or a batch of them, transposed where asked and widened to what the sums are made in.
VarId gemm_operand(Vectorizer& v, VarId old, bool transposed, DType computed) {
  VarId made = v.get(old);
  const Ints perm = v.batched(old) ? Ints{0, 2, 1} : Ints{1, 0};
  if (transposed) made = v.emit("transpose", {made}, {{"perm", perm}}).at(0);
  return v.from().var(old).type.dtype == computed ? made : v.emit("cast", {made}, {{"to", computed}}).at(0);
}

/// Term by term: the same roundings as gemm's own.
void vectorize_terms(Vectorizer& v, const Op& op, const GemmForm& form) {
  const DType dtype = v.from().var(op.inputs[0]).type.dtype;
  const DType computed = dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype;
  const VarId a = gemm_operand(v, op.inputs[0], form.trans_a, computed);
  const VarId b = gemm_operand(v, op.inputs[1], form.trans_b, computed);
  const DType summed = computed == DType::i8 || computed == DType::u8 ? DType::i32 : computed;
  VarId out = factor(v, v.emit("matmul", {a, b}).at(0), form.alpha, summed);
  const bool adds = op.inputs.size() > 2 && op.inputs[2] != no_var && form.beta != 0;
  if (adds) {
    VarId c = v.aligned(op.inputs[2], 2);
    if (computed != dtype && summed == DType::f32) c = v.emit("cast", {c}, {{"to", summed}}).at(0);
    out = v.emit("add", {out, factor(v, c, form.beta, summed)}).at(0);
  }
  if (computed != dtype) out = v.emit("cast", {out}, {{"to", dtype}}).at(0);
  // With beta = 0 nothing is read of a third input that alone depends on the sequence.
  v.bind(op.outputs[0], out, adds || v.batched(op.inputs[0]) || v.batched(op.inputs[1]));
}

void vectorize_gemm(Vectorizer& v, const Op& op) {
  const GemmForm form(op.attributes);
  const VarId c = op.inputs.size() > 2 ? op.inputs[2] : no_var;
  const bool same_weights = !v.batched(op.inputs[1]) && !v.batched(c) && !form.trans_a;
  const VarType* added = c == no_var ? nullptr : &v.from().var(c).type;
  const bool per_unit = added == nullptr || (added->shape && (added->rank() < 2 || (*added->shape)[0] == 1));
  if (!same_weights || !per_unit || v.rank(op.inputs[0]) != 2) return vectorize_terms(v, op, form);
  const VarId a = v.get(op.inputs[0]);
  const VarId product = v.emit("gemm", {merge_leading(v, a, op.inputs[0]), v.get(op.inputs[1]), v.get(c)}, op.attributes).at(0);
  v.bind(op.outputs[0], split_leading(v, product, a), true);
}

/// alpha·A·B + beta·C.
OpDef gemm_op() {
  OpDef def = define("gemm", {"A", "B", "C?"}, {"Out"}, {"alpha", "beta", "trans_a", "trans_b"});
  def.infer = infer_gemm;
  def.prepare = prepare_gemm;
  def.follow_rows = follow_gemm;
  def.vectorize = vectorize_gemm;
  return def;
}

}  // namespace

void add_matmul_ops(OpRegistry& registry) {
  registry.add(matmul_op());
  registry.add(matmul_bias_op());
  registry.add(gemm_op());
  add_matmul_gradients(registry);
}

}  // namespace millrace::ops
