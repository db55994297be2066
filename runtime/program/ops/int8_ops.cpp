// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include <millrace/kernels/fill.h>
#include <millrace/kernels/int8.h>
#include <millrace/kernels/round_to_bytes.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arithmetic_names.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/packing.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

// ---- quantize_rows ----

void infer_quantize(InferContext& context) {
  expect_dtype(context, 0, DType::f32);
  const std::optional<DDim>& x = context.tensor(0).shape;
  if (x && x->rank() == 0)
    throw ProgramError("expected rows as " + millrace::internal::input_name(context.program(), context.op(), 0) + ", found " +
                       context.describe(0));
  context.result(tensor_type(DType::i8, x));
  std::optional<DDim> scales = x;
  if (scales) (*scales)[-1] = 1;
  context.result(tensor_type(DType::f32, scales));
}

/// Rows of the first input along `axis`, which the op neither sums over nor looks along.
void refuse_last(const InferContext& context, int axis, const char* reason) {
  if (axis == known_rank(context, 0) - 1) refuse_rows(reason);
}

OpDef quantize_op() {
  OpDef def = define("quantize_rows", {"X"}, {"Out", "Scale"});
  def.infer = infer_quantize;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      QuantizedRows made = quantize_rows(run.tensor(0), run.stream());
      run.set(0, std::move(made.values));
      run.set(1, std::move(made.scales));
    };
  };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[0] >= 0) refuse_last(context, axes[0], "takes the greatest of the rows");
    return {axes[0], axes[0]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) { vectorize_with(v, op, op.attributes); };
  return def;
}

// ---- matmul_int8 ----

enum : std::size_t { in_values, in_scales, in_weights, in_weight_scales };

/// Checks weights i8 [k, n] and their scales f32 [n]; gives n.
std::int64_t columns_of_bytes(const InferContext& context, std::size_t weights, std::size_t scales) {
  expect_dtype(context, weights, DType::i8);
  expect_dtype(context, scales, DType::f32);
  expect_rank(context, weights, 2);
  expect_rank(context, scales, 1);
  return same_extent(extent(context, weights, 1), extent(context, scales, 0), "columns of W and WScale");
}

void infer_matmul_int8(InferContext& context) {
  expect_dtype(context, in_values, DType::i8);
  expect_dtype(context, in_scales, DType::f32);
  const std::int64_t n = columns_of_bytes(context, in_weights, in_weight_scales);
  const std::optional<DDim>& x = context.tensor(in_values).shape;
  if (!x) return context.result(VarType::unranked(DType::f32));
  if (x->rank() == 0)
    throw ProgramError("expected rows as " + millrace::internal::input_name(context.program(), context.op(), 0) + ", found " +
                       context.describe(0));
  expect_extent(context, in_weights, 0, (*x)[-1]);
  DDim shape = *x;
  shape[-1] = 1;
  expect_rank(context, in_scales, shape.rank());
  for (int axis = 0; axis < shape.rank(); ++axis) expect_extent(context, in_scales, axis, shape[axis]);
  shape[-1] = n;
  context.result(VarType(DType::f32, shape));
}

Tensor contiguous_of(const Tensor& x, StreamRef stream) { return x.is_contiguous() ? x : clone(x, stream); }

void run_int8(const Int8Plan& plan, const PackedInt8& packed, OpContext& context) {
  const StreamRef stream = context.stream();
  const Tensor x = contiguous_of(context.tensor(in_values), stream);
  DDim dims = x.dims();
  dims[-1] = plan.desc().n;
  Tensor out(DType::f32, dims, stream.memory());
  run(plan, packed, x, contiguous_of(context.tensor(in_scales), stream), out, stream);
  context.set(0, std::move(out));
}

OpKernel prepare_int8(const PrepareContext& context) {
  const Tensor* weights = context.constant(in_weights);
  const Tensor* scales = context.constant(in_weight_scales);
  if (weights == nullptr || scales == nullptr) {
    return [](OpContext& run) {
      const Tensor& w = run.tensor(in_weights);
      const Int8Plan plan = make_int8_plan({w.dim(0), w.dim(1)}, run.stream().place());
      run_int8(plan, pack(plan, w, run.tensor(in_weight_scales), run.stream()), run);
    };
  }
  const Int8Plan plan = make_int8_plan({weights->dim(0), weights->dim(1)}, context.place());
  PackingStream stream;
  PackedInt8 packed = pack(plan, *weights, *scales, stream);
  for (Tensor* part : {&packed.data, &packed.offsets, &packed.scales}) *part = context.placed(*part);
  return [plan, packed](OpContext& run) { run_int8(plan, packed, run); };
}

std::vector<int> follow_int8(const InferContext& context, const std::vector<int>& axes) {
  if (axes[in_weights] >= 0 || axes[in_weight_scales] >= 0) refuse_rows("rows in its weights");
  if (axes[in_values] != axes[in_scales]) refuse_rows("values and scales have their rows on different axes");
  if (axes[in_values] >= 0) refuse_last(context, axes[in_values], "sums over the rows");
  return {axes[in_values]};
}

void vectorize_int8(Vectorizer& v, const Op& op) {
  expect_shared(v, op, in_weights, "weights");
  expect_shared(v, op, in_weight_scales, "the scales of weights");
  const VarId like = any_batched_var(v, op);
  const std::vector<VarId> made = v.emit(op.type, {batched_var(v, op.inputs[in_values], like), batched_var(v, op.inputs[in_scales], like),
                                                   v.get(op.inputs[in_weights]), v.get(op.inputs[in_weight_scales])});
  v.bind_all(op.outputs, made, true);
}

OpDef matmul_int8_op() {
  OpDef def = define("matmul_int8", {"X", "Scale", "W", "WScale"}, {"Out"});
  def.infer = infer_matmul_int8;
  def.prepare = prepare_int8;
  def.follow_rows = follow_int8;
  def.vectorize = vectorize_int8;
  return def;
}

// ---- round_to_bytes ----

std::int64_t first_axis(const Attributes& attributes) { return attributes.get_or("axis", std::int64_t{0}); }

/// X of f32, and the attribute `axis`, up to its rank.
int checked_first_axis(const InferContext& context) {
  expect_dtype(context, 0, DType::f32);
  const std::int64_t axis = first_axis(context.attributes());
  const VarType& x = context.tensor(0);
  if (axis < 0 || axis > max_rank || (x.shape && axis > x.rank()))
    throw ProgramError("attribute 'axis': expected 0 to the rank of " + context.describe(0) + ", found " + std::to_string(axis));
  return static_cast<int>(axis);
}

void infer_round(InferContext& context) {
  checked_first_axis(context);
  context.result(tensor_type(DType::f32, context.tensor(0).shape));
}

OpKernel prepare_round(const PrepareContext& context) {
  return [axis = static_cast<int>(first_axis(context.attributes()))](OpContext& run) {
    run.set(0, round_to_bytes(run.tensor(0), axis, run.stream()));
  };
}

RowFunction round_of_rows(const PrepareContext& context, const RowForm& form) {
  if (form.dtype != DType::f32 || form.inputs.size() != 1) throw UnsupportedError("rows of " + std::string(name_of(form.dtype)));
  const DDim& row = form.inputs[0];
  const auto axis = static_cast<int>(first_axis(context.attributes()));
  if (axis == 0)
    return [count = row.elements()](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
      round_to_bytes(inputs[0], rows, count, outputs[0]);
    };
  const std::int64_t count = row.slice(axis - 1, row.rank()).elements(), pieces = row.slice(0, axis - 1).elements();
  return [count, pieces](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t piece = 0; piece < pieces; ++piece)
        round_to_bytes({inputs[0].row<float>(i) + piece * count, count}, 1, count, {outputs[0].row<float>(i) + piece * count, count});
  };
}

OpDef round_op() {
  OpDef def = define("round_to_bytes", {"X"}, {"Out"}, {"axis"});
  def.infer = infer_round;
  def.prepare = prepare_round;
  def.prepare_rows = round_of_rows;
  def.couples_rows = [](const Op& op) { return first_axis(op.attributes) == 0; };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[0] >= first_axis(context.attributes())) refuse_rows("takes the range of all rows");
    return {axes[0]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) { vectorize_with(v, op, with(op.attributes, "axis", first_axis(op.attributes) + 1)); };
  return def;
}

// ---- matmul_bytes ----

enum : std::size_t { in_floats, in_bytes_weights, in_bytes_scales };

void infer_matmul_bytes(InferContext& context) {
  expect_dtype(context, in_floats, DType::f32);
  const std::int64_t n = columns_of_bytes(context, in_bytes_weights, in_bytes_scales);
  const std::optional<DDim>& x = context.tensor(in_floats).shape;
  const std::int64_t axis = first_axis(context.attributes());
  if (axis < 0 || (x && axis >= x->rank()))
    throw ProgramError("attribute 'axis': expected an axis of " + context.describe(in_floats) + ", found " + std::to_string(axis));
  if (const std::int64_t k = extent(context, in_bytes_weights, 0); k > most_bytes_k)
    throw ProgramError("expected at most " + std::to_string(most_bytes_k) + " rows of W, found " + std::to_string(k));
  if (!x) return context.result(VarType::unranked(DType::f32));
  expect_extent(context, in_bytes_weights, 0, (*x)[-1]);
  DDim shape = *x;
  shape[-1] = n;
  context.result(VarType(DType::f32, shape));
}

struct KnownBytes {
  Int8Plan plan;
  PackedInt8 packed;
};
std::optional<KnownBytes> known_bytes(const PrepareContext& context, const Place& place) {
  const Tensor* weights = context.constant(in_bytes_weights);
  const Tensor* scales = context.constant(in_bytes_scales);
  if (weights == nullptr || scales == nullptr) return std::nullopt;
  const Int8Plan plan = make_int8_plan({weights->dim(0), weights->dim(1)}, place);
  PackingStream stream;
  return KnownBytes{plan, pack(plan, *weights, *scales, stream)};
}

OpKernel prepare_matmul_bytes(const PrepareContext& context) {
  const auto axis = static_cast<int>(first_axis(context.attributes()));
  std::optional<KnownBytes> known = known_bytes(context, context.place());
  if (!known)
    return [axis](OpContext& run) {
      const Tensor& w = run.tensor(in_bytes_weights);
      const Int8Plan plan = make_int8_plan({w.dim(0), w.dim(1)}, run.stream().place());
      const PackedInt8 packed = pack(plan, w, run.tensor(in_bytes_scales), run.stream());
      run.set(0, matmul_bytes(plan, packed, run.tensor(in_floats), axis, run.stream()));
    };
  for (Tensor* part : {&known->packed.data, &known->packed.offsets, &known->packed.scales}) *part = context.placed(*part);
  return [axis, known = *known](OpContext& run) {
    run.set(0, matmul_bytes(known.plan, known.packed, run.tensor(in_floats), axis, run.stream()));
  };
}

/// Bytes of rows that lie on the stack: at least one row.
constexpr std::int64_t stack_bytes = 8192;

RowFunction matmul_bytes_of_rows(const PrepareContext& context, const RowForm& form) {
  std::optional<KnownBytes> known = known_bytes(context, CpuPlace{});
  if (!known) throw UnsupportedError("multiplies weights that a run computes");
  if (form.dtype != DType::f32 || form.inputs.size() != 1 || form.inputs[0].rank() != 1 || known->plan.desc().k > stack_bytes)
    throw UnsupportedError("rows of more axes or elements");
  const bool alone = first_axis(context.attributes()) > 0;
  return [known = *known, alone](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
    std::uint8_t bytes[stack_bytes];
    const std::int64_t together = alone ? 1 : rows;
    for (std::int64_t i = 0; i < rows; i += together)
      matmul_bytes(known.plan, known.packed, {inputs[0].row<float>(i), inputs[0].stride}, together, bytes,
                   {outputs[0].row<float>(i), outputs[0].stride});
  };
}

OpDef matmul_bytes_op() {
  OpDef def = define("matmul_bytes", {"X", "W", "WScale"}, {"Out"}, {"axis"});
  def.infer = infer_matmul_bytes;
  def.prepare = prepare_matmul_bytes;
  def.prepare_rows = matmul_bytes_of_rows;
  def.couples_rows = [](const Op& op) { return first_axis(op.attributes) == 0; };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[in_bytes_weights] >= 0 || axes[in_bytes_scales] >= 0) refuse_rows("rows in its weights");
    if (axes[in_floats] >= first_axis(context.attributes())) refuse_rows("takes the range of all rows");
    return {axes[in_floats]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) {
    expect_shared(v, op, in_bytes_weights, "weights");
    expect_shared(v, op, in_bytes_scales, "the scales of weights");
    vectorize_with(v, op, with(op.attributes, "axis", first_axis(op.attributes) + 1));
  };
  return def;
}

// ---- quantize_bytes ----

void infer_quantize_bytes(InferContext& context) {
  const int axis = checked_first_axis(context);
  const std::optional<DDim> shape = context.tensor(0).shape;
  context.result(tensor_type(DType::u8, shape));
  const std::optional<DDim> front = axis == 0 ? DDim{} : shape ? std::optional(shape->slice(0, axis)) : std::nullopt;
  context.result(tensor_type(DType::f32, front));
  context.result(tensor_type(DType::u8, front));
}

OpDef quantize_bytes_op() {
  OpDef def = define("quantize_bytes", {"X"}, {"Out", "Scale", "Zero"}, {"axis"});
  def.infer = infer_quantize_bytes;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    return [axis = static_cast<int>(first_axis(context.attributes()))](OpContext& run) {
      ByteTensor made = quantize_bytes(run.tensor(0), axis, run.stream());
      run.set(0, std::move(made.bytes));
      run.set(1, std::move(made.scale));
      run.set(2, std::move(made.zero));
    };
  };
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    if (axes[0] >= first_axis(context.attributes())) refuse_rows("takes the range of all rows");
    return {axes[0], axes[0], axes[0]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) { vectorize_with(v, op, with(op.attributes, "axis", first_axis(op.attributes) + 1)); };
  return def;
}

// ---- matmul_integer ----

enum : std::size_t { in_integers, in_zero, in_integer_weights, in_weight_zeros, in_added, in_first_operand };

/// The extents of the sums; none where they are not known.
std::optional<DDim> infer_sums(InferContext& context) {
  if (context.tensor(in_integers).dtype != DType::u8) expect_dtype(context, in_integers, DType::i8);
  expect_same_dtype(context, in_integers, in_zero);
  expect_dtype(context, in_integer_weights, DType::i8);
  expect_rank(context, in_integer_weights, 2);
  if (const std::int64_t k = extent(context, in_integer_weights, 0); k > most_bytes_k)
    throw ProgramError("expected at most " + std::to_string(most_bytes_k) + " rows of W, found " + std::to_string(k));
  for (const std::size_t of_columns : {in_weight_zeros, in_added}) {
    if (!context.has(of_columns)) continue;
    expect_dtype(context, of_columns, DType::i32);
    expect_rank(context, of_columns, 1);
    expect_extent(context, of_columns, 0, extent(context, in_integer_weights, 1));
  }
  const std::optional<DDim>& x = context.tensor(in_integers).shape;
  if (!x) return std::nullopt;
  const std::optional<DDim>& zero = context.tensor(in_zero).shape;
  if (x->rank() == 0 || (zero && zero->rank() >= x->rank()))
    throw ProgramError("expected rows, and zeros of fewer axes, found " + context.describe(in_integers) + " and " +
                       context.describe(in_zero));
  for (int axis = 0; zero && axis < zero->rank(); ++axis) expect_extent(context, in_zero, axis, (*x)[axis]);
  expect_extent(context, in_integer_weights, 0, (*x)[-1]);
  DDim shape = *x;
  shape[-1] = extent(context, in_integer_weights, 1);
  return shape;
}

void infer_matmul_integer(InferContext& context) { context.result(tensor_type(DType::i32, infer_sums(context))); }

KnownBytes packed_of(const Tensor& w, const Place& place, StreamRef stream) {
  const Int8Plan plan = make_int8_plan({w.dim(0), w.dim(1)}, place);
  return {plan, pack(plan, w, zeros(DDim{w.dim(1)}, DType::f32, stream), stream)};
}

/// The operands of columns, contiguous.
struct Columns {
  explicit Columns(OpContext& run) : zero(taken(run, in_weight_zeros)), added(taken(run, in_added)) {}
  operator ByteColumns() const { return {zero ? &*zero : nullptr, added ? &*added : nullptr}; }

 private:
  static std::optional<Tensor> taken(OpContext& run, std::size_t input) {
    return run.has(input) ? std::optional(contiguous_of(run.tensor(input), run.stream())) : std::nullopt;
  }
  std::optional<Tensor> zero, added;
};

OpKernel prepare_matmul_integer(const PrepareContext& context) {
  const Tensor* weights = context.constant(in_integer_weights);
  if (weights == nullptr)
    return [](OpContext& run) {
      const KnownBytes made = packed_of(run.tensor(in_integer_weights), run.stream().place(), run.stream());
      run.set(0, matmul_integer(made.plan, made.packed, run.tensor(in_integers), run.tensor(in_zero), Columns(run), run.stream()));
    };
  PackingStream stream;
  KnownBytes known = packed_of(*weights, context.place(), stream);
  for (Tensor* part : {&known.packed.data, &known.packed.offsets, &known.packed.scales}) *part = context.placed(*part);
  return [known](OpContext& run) {
    run.set(0, matmul_integer(known.plan, known.packed, run.tensor(in_integers), run.tensor(in_zero), Columns(run), run.stream()));
  };
}

OpDef matmul_integer_op() {
  OpDef def = define("matmul_integer", {"X", "Zero", "W", "WZero?", "Added?"}, {"Out"});
  def.infer = infer_matmul_integer;
  def.prepare = prepare_matmul_integer;
  def.follow_rows = [](const InferContext& context, const std::vector<int>& axes) -> std::vector<int> {
    for (std::size_t input = in_integer_weights; input < axes.size(); ++input)
      if (axes[input] >= 0) refuse_rows("rows in its weights");
    const bool shared = axes[in_zero] < 0 && axes[in_integers] >= known_rank(context, in_zero);
    if (!shared && axes[in_zero] != axes[in_integers]) refuse_rows("values and zeros have their rows on different axes");
    if (axes[in_integers] >= 0) refuse_last(context, axes[in_integers], "sums over the rows");
    return {axes[in_integers]};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) {
    expect_shared(v, op, in_integer_weights, "weights");
    expect_shared(v, op, in_weight_zeros, "zeros of weights");
    expect_shared(v, op, in_added, "what is added to sums");
    const VarId like = any_batched_var(v, op);
    std::vector<VarId> inputs{batched_var(v, op.inputs[in_integers], like), batched_var(v, op.inputs[in_zero], like),
                              v.get(op.inputs[in_integer_weights])};
    for (std::size_t input = in_weight_zeros; input < op.inputs.size(); ++input)
      inputs.push_back(op.inputs[input] == no_var ? no_var : v.get(op.inputs[input]));
    v.bind_all(op.outputs, v.emit(op.type, inputs), true);
  };
  return def;
}

// ---- integer_arithmetic: matmul_integer with known weights, and the arithmetic behind it, made when a program is compiled (lowering/join_integers.h)

/// The number of operands among so many inputs.
std::size_t operands_among(std::size_t inputs) { return inputs > in_first_operand ? inputs - in_first_operand : 0; }

void infer_integer_arithmetic(InferContext& context) {
  const std::vector<ArithmeticStep> steps = steps_of(context.attributes().get<std::string>("steps"));
  const auto taken = static_cast<std::size_t>(std::count_if(steps.begin(), steps.end(), has_operand));
  if (operands_among(context.inputs()) != taken || taken > most_operands)
    throw ProgramError("expected " + std::to_string(taken) + " operands, at most " + std::to_string(most_operands) + ", found " +
                       std::to_string(operands_among(context.inputs())));
  const std::optional<DDim> sums = infer_sums(context);
  for (std::size_t input = in_first_operand; input < context.inputs(); ++input) expect_dtype(context, input, DType::f32);
  context.result(tensor_type(context.attributes().get_or("to", DType::f32), sums));
}

OpKernel prepare_integer_arithmetic(const PrepareContext& context) {
  const Tensor* weights = context.constant(in_integer_weights);
  if (weights == nullptr) throw ProgramError("expected weights that are known");
  PackingStream stream;
  return [known = packed_of(*weights, context.place(), stream), steps = steps_of(context.attributes().get<std::string>("steps")),
          to = context.attributes().get_or("to", DType::f32)](OpContext& run) {
    std::array<const Tensor*, most_operands> operands{};
    for (std::size_t input = in_first_operand; input < run.inputs(); ++input) operands[input - in_first_operand] = &run.tensor(input);
    run.set(0, matmul_integer(known.plan, known.packed, run.tensor(in_integers), run.tensor(in_zero), Columns(run), steps,
                              std::span(operands).first(operands_among(run.inputs())), to, run.stream()));
  };
}

OpDef integer_arithmetic_op() {
  OpDef def = define("integer_arithmetic", {"X", "Zero", "W", "WZero?", "Added?", "Operands..."}, {"Out"}, {"steps", "to"});
  def.infer = infer_integer_arithmetic;
  def.prepare = prepare_integer_arithmetic;
  set_made_for_runs(def);
  return def;
}

}  // namespace

void add_int8_ops(OpRegistry& registry) {
  registry.add(quantize_op());
  registry.add(matmul_int8_op());
  registry.add(round_op());
  registry.add(matmul_bytes_op());
  registry.add(quantize_bytes_op());
  registry.add(matmul_integer_op());
  registry.add(integer_arithmetic_op());
}

}  // namespace millrace::ops
