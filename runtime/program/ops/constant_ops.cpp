// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/one_hot.h>
#include <millrace/kernels/random.h>
#include <millrace/kernels/where.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/exact_integers.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>

namespace millrace::ops {
namespace {

OpDef constant_op() {
  OpDef def = define("constant", {}, {"Out"}, {"value"});
  def.infer = [](InferContext& context) {
    const Tensor& value = context.attributes().get<Tensor>("value");
    context.result(VarType(value.dtype(), value.dims()));
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    return [value = context.attributes().get<Tensor>("value").read_only()](OpContext& run) { run.set(0, value); };
  };
  def.follow_rows = [](const InferContext&, const std::vector<int>&) { return std::vector<int>{-1}; };
  return def;
}

/// The one element of the `value` of constant_of_shape; a zero of f32 when there is none.
Tensor fill_value(const Attributes& attributes) {
  Tensor value = attributes.get_or("value", Tensor::scalar(0.0f));
  if (value.elements() != 1) throw ProgramError("attribute 'value': expected one element, found " + value.to_string());
  return value;
}

/// A tensor of `dtype` whose extents are input 0.
void infer_of_shape(InferContext& context, DType dtype) {
  expect_index(context, 0);
  if (const auto shape = constant_integers(context, 0)) return context.result(VarType(dtype, DDim(*shape)));
  const std::int64_t rank = list_length(context, 0);
  if (rank == DDim::unknown) return context.result(VarType::unranked(dtype));
  context.result(VarType(dtype, DDim(Ints(static_cast<std::size_t>(rank), DDim::unknown))));
}

void infer_constant_of_shape(InferContext& context) { infer_of_shape(context, fill_value(context.attributes()).dtype()); }

int refuse_computed_shape(const InferContext&, int) { refuse_rows("takes its shape from the rows"); }

OpDef constant_of_shape_op() {
  OpDef def = define("constant_of_shape", {"Shape"}, {"Out"}, {"value"});
  def.infer = infer_constant_of_shape;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const Tensor value = fill_value(context.attributes());
    return
        [number = value.item(), exact = beyond_f64(value), dtype = value.dtype(), shape = constant_integers(context, 0)](OpContext& run) {
          const DDim dims(shape ? *shape : run.integers(0));
          run.set(0, exact ? full_exactly(dims, *exact, run.stream()) : full(dims, number, dtype, run.stream()));
        };
  };
  def.host_inputs = {0};
  def.follow_rows = follow_first(refuse_computed_shape);
  def.vectorize = [](Vectorizer& v, const Op& op) { expect_shared(v, op, 0, "a shape"); };
  return def;
}

RandomOptions random_options(const Attributes& attributes) {
  RandomOptions options;
  const std::string distribution = attributes.get_or("distribution", std::string("uniform"));
  if (distribution != "uniform" && distribution != "normal")
    throw ProgramError("attribute 'distribution': expected uniform or normal, found " + distribution);
  if (distribution == "normal") options.distribution = Distribution::normal;
  options.dtype = attributes.get_or("dtype", DType::f32);
  if (options.dtype != DType::f32 && options.dtype != DType::f64)
    throw ProgramError("attribute 'dtype': expected f32 or f64, found " + std::string(name_of(options.dtype)));
  options.seed = static_cast<std::uint64_t>(attributes.get_or("seed", std::int64_t{0}));
  options.number = static_cast<std::uint64_t>(attributes.get_or("number", std::int64_t{0}));
  return options;
}

void infer_random(InferContext& context) {
  const DType dtype = random_options(context.attributes()).dtype;
  if (context.has(1)) {
    expect_index(context, 1);
    expect_scalar(context, 1);
  }
  infer_of_shape(context, dtype);
}

OpKernel prepare_random(const PrepareContext& context) {
  return [options = random_options(context.attributes()), shape = constant_integers(context, 0)](OpContext& run) {
    const auto key = run.has(1) ? static_cast<std::uint64_t>(run.integers(1).at(0)) : 0;
    run.set(0, random_numbers(DDim(shape ? *shape : run.integers(0)), key, options, run.stream()));
  };
}

OpDef random_op() {
  OpDef def = define("random", {"Shape", "Key?"}, {"Out"}, {"distribution", "dtype", "seed", "number"});
  def.infer = infer_random;
  def.prepare = prepare_random;
  def.host_inputs = {0, 1};
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) -> std::vector<int> {
    for (const int axis : axes)
      if (axis >= 0) refuse_rows("draws numbers by the place of an element in the whole");
    return {-1};
  };
  def.vectorize = [](Vectorizer& v, const Op& op) {
    expect_shared(v, op, 0, "a shape");
    if (op.inputs.size() > 1 && op.inputs[1] != no_var) expect_shared(v, op, 1, "a key");
  };
  return def;
}

/// Unknown when it is no number of elements: the run says so.
std::int64_t known_count(double steps) { return steps < 9e18 ? static_cast<std::int64_t>(std::max(0.0, std::ceil(steps))) : DDim::unknown; }

void infer_range(InferContext& context) {
  for (std::size_t input = 0; input < 3; ++input) {
    expect_same_dtype(context, 0, input);
    expect_scalar(context, input);
  }
  const DType dtype = context.tensor(0).dtype;
  if (dtype == DType::boolean)
    throw ProgramError("expected numbers as " + millrace::internal::input_name(context.program(), context.op(), 0) + ", found " +
                       context.describe(0));
  std::int64_t count = DDim::unknown;
  const Tensor* ends[3] = {context.constant(0), context.constant(1), context.constant(2)};
  if (ends[0] != nullptr && ends[1] != nullptr && ends[2] != nullptr && ends[2]->item() != 0)
    count = dtype == DType::i64 ? range_count(ends[0]->item_int(), ends[1]->item_int(), ends[2]->item_int())
                                : known_count((ends[1]->item() - ends[0]->item()) / ends[2]->item());
  context.result(VarType(dtype, DDim{count}));
}

OpDef range_op() {
  OpDef def = define("range", {"Start", "Limit", "Delta"}, {"Out"});
  def.infer = infer_range;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) {
      const Tensor &start = run.tensor(0), &limit = run.tensor(1), &delta = run.tensor(2);
      if (start.dtype() == DType::i64) return run.set(0, range_exactly(start.item_int(), limit.item_int(), delta.item_int(), run.stream()));
      run.set(0, arange(start.item(), limit.item(), delta.item(), start.dtype(), run.stream()));
    };
  };
  def.host_inputs = {0, 1, 2};
  def.follow_rows = follow_first(refuse_computed_shape);
  def.vectorize = [](Vectorizer& v, const Op& op) {
    for (std::size_t input = 0; input < 3; ++input) expect_shared(v, op, input, "a range");
  };
  return def;
}

// ---- one_hot(Index, Depth, Values = [off, on]) ----

int one_hot_axis(const Attributes& attributes, int rank) { return checked_axis(attributes.get_or("axis", std::int64_t{-1}), rank + 1); }

void infer_one_hot(InferContext& context) {
  expect_index(context, 0);
  expect_index(context, 1);
  expect_scalar(context, 1);
  expect_rank(context, 2, 1);
  expect_extent(context, 2, 0, 2);
  const VarType& index = context.tensor(0);
  const DType dtype = context.tensor(2).dtype;
  if (!index.shape) return context.result(VarType::unranked(dtype));
  const auto depth = constant_integers(context, 1);
  context.result(
      VarType(dtype, index.shape->inserted(one_hot_axis(context.attributes(), index.rank()), depth ? depth->at(0) : DDim::unknown)));
}

OpDef one_hot_op() {
  OpDef def = define("one_hot", {"Index", "Depth", "Values"}, {"Out"}, {"axis"});
  def.infer = infer_one_hot;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const int axis = static_cast<int>(context.attributes().get_or("axis", std::int64_t{-1}));
    return [axis](OpContext& run) {
      const Tensor& values = run.tensor(2);
      const Tensor off = values.select(0, 0);
      const Tensor on = values.select(0, 1);
      const auto hot = [&](double zero, double one, DType dtype) {
        return one_hot(run.tensor(0), run.tensor(1).item_int(), axis, zero, one, dtype, run.stream());
      };
      if (!beyond_f64(off) && !beyond_f64(on)) return run.set(0, hot(off.item(), on.item(), values.dtype()));
      const Tensor one = full_exactly(DDim{}, on.item_int(), run.stream());
      const Tensor zero = full_exactly(DDim{}, off.item_int(), run.stream());
      run.set(0, where(hot(0, 1, DType::boolean), one, zero, run.stream()));
    };
  };
  def.host_inputs = {1, 2};
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    return axis >= one_hot_axis(context.attributes(), known_rank(context, 0)) ? axis + 1 : axis;
  });
  def.vectorize = [](Vectorizer& v, const Op& op) {
    expect_shared(v, op, 1, "a depth");
    expect_shared(v, op, 2, "values");
    const std::int64_t axis = one_hot_axis(op.attributes, v.rank(op.inputs[0])) + 1;
    vectorize_with(v, op, with(op.attributes, "axis", axis));
  };
  return def;
}

// ---- cast, bit_cast, identity ----

OpDef cast_op() {
  OpDef def = define("cast", {"X"}, {"Out"}, {"to"});
  def.infer = [](InferContext& context) { context.result(tensor_type(context.attributes().get<DType>("to"), context.tensor(0).shape)); };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    return [to = context.attributes().get<DType>("to")](OpContext& run) { run.set(0, cast(run.tensor(0), to, run.stream())); };
  };
  def.follow_rows = follow_same();
  def.vectorize = vectorize_elementwise;
  return def;
}

/// The bits of the elements as those of another dtype of the same size: a view.
OpDef bit_cast_op() {
  OpDef def = define("bit_cast", {"X"}, {"Out"}, {"to"});
  def.infer = [](InferContext& context) {
    const DType to = context.attributes().get<DType>("to");
    if (size_of(to) != size_of(context.tensor(0).dtype) || to == DType::boolean)
      throw ProgramError("attribute 'to': expected a dtype with the size of that of " + context.describe(0) + " and no bool, found " +
                         std::string(name_of(to)));
    context.result(tensor_type(to, context.tensor(0).shape));
  };
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    return [to = context.attributes().get<DType>("to")](OpContext& run) {
      const Tensor& x = run.tensor(0);
      const std::ptrdiff_t bytes = static_cast<const std::byte*>(x.raw()) - static_cast<const std::byte*>(x.storage()->data());
      run.set(0, Tensor(to, x.dims(), x.strides(), bytes / static_cast<std::ptrdiff_t>(size_of(to)), x.storage()).read_only());
    };
  };
  def.follow_rows = follow_same();
  def.vectorize = vectorize_elementwise;
  return def;
}

/// The type of the input; along the axes of the attribute `varying` (none named: all) nothing is said of extents.
void infer_identity(InferContext& context) {
  VarType type = context.type(0);
  if (context.attributes().has("varying") && context.tensor(0).shape) {
    const Ints axes = context.attributes().get<Ints>("varying");
    for (const std::int64_t axis : axes) (*type.shape)[checked_axis(axis, type.rank())] = DDim::unknown;
    for (int axis = 0; axes.empty() && axis < type.rank(); ++axis) (*type.shape)[axis] = DDim::unknown;
  }
  context.result(std::move(type));
}

/// The value itself, of any kind, with its LoD and its turn.
OpDef identity_op() {
  OpDef def = define("identity", {"X"}, {"Out"}, {"varying"});
  def.infer = infer_identity;
  def.prepare = [](const PrepareContext&) -> OpKernel { return [](OpContext& run) { run.set(0, run.in(0)); }; };
  def.follow_rows = follow_same();
  def.vectorize = [](Vectorizer& v, const Op& op) { v.bind(op.outputs[0], v.get(op.inputs[0]), true); };
  def.passes_lod = false;
  return def;
}

}  // namespace

void add_constant_ops(OpRegistry& registry) {
  registry.add(constant_op());
  registry.add(constant_of_shape_op());
  registry.add(random_op());
  registry.add(range_op());
  registry.add(one_hot_op());
  registry.add(cast_op());
  registry.add(bit_cast_op());
  registry.add(identity_op());
  add_constant_gradients(registry);
}

}  // namespace millrace::ops
