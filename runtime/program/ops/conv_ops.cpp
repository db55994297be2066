// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <vector>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/causal_filter.h>
#include <millrace/kernels/conv.h>
#include <millrace/kernels/conv1d.h>
#include <millrace/kernels/conv_integer.h>
#include <millrace/kernels/unit_weights.h>
#include <millrace/kernels/winograd.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arithmetic_names.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/packing.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/checked.h>

namespace millrace::ops {
namespace {

/// The description, less what the weights tell.
Conv1dDesc desc_of(const Attributes& attributes) {
  const Ints pads = attributes.get_or("pads", Ints{0, 0});
  if (pads.size() != 2) throw ProgramError("attribute 'pads': expected 2 numbers, found " + list_text(pads));
  Conv1dDesc desc;
  desc.stride = attributes.get_or("stride", std::int64_t{1});
  desc.dilation = attributes.get_or("dilation", std::int64_t{1});
  desc.groups = attributes.get_or("group", std::int64_t{1});
  desc.pad_before = pads[0];
  desc.pad_after = pads[1];
  if (desc.stride < 1 || desc.dilation < 1 || desc.groups < 1 || pads[0] < 0 || pads[1] < 0)
    throw ProgramError("expected a stride, dilation and group of 1 or more and pads of 0 or more, found " + std::to_string(desc.stride) +
                       ", " + std::to_string(desc.dilation) + ", " + std::to_string(desc.groups) + " and " + list_text(pads));
  return desc;
}

Conv1dDesc with_weights(Conv1dDesc desc, const Tensor& w) {
  desc.in_channels = w.dim(1) * desc.groups;
  desc.out_channels = w.dim(0);
  desc.kernel = w.dim(2);
  desc.dtype = w.dtype();
  return desc;
}

void infer_conv1d(InferContext& context) {
  Conv1dDesc desc = desc_of(context.attributes());
  expect_float(context, 0);
  expect_same_dtype(context, 0, 1);
  expect_rank(context, 0, 3);
  expect_rank(context, 1, 3);
  const std::int64_t units = extent(context, 1, 0);
  const std::int64_t group = extent(context, 1, 1);
  if (group != DDim::unknown) expect_extent(context, 0, 1, group * desc.groups);
  if (units != DDim::unknown && units % desc.groups != 0)
    throw ProgramError("expected out channels that " + std::to_string(desc.groups) + " groups share, found " + context.describe(1));
  if (context.has(2)) {
    expect_same_dtype(context, 0, 2);
    expect_rank(context, 2, 1);
    expect_extent(context, 2, 0, units);
  }
  desc.kernel = extent(context, 1, 2);
  const std::int64_t length = extent(context, 0, 2);
  const bool known = desc.kernel != DDim::unknown && length != DDim::unknown;
  const DDim shape{extent(context, 0, 0), units, known ? desc.out_length(length) : DDim::unknown};
  context.result(VarType(context.tensor(0).dtype, shape));
}

/// The same convolution by conv.h, which has the same bits; null where its kernel has another place.
std::optional<ConvDesc> over_places(const Conv1dDesc& desc, const Place& place) {
  if (!place.is_cpu()) return std::nullopt;
  return ConvDesc{{{desc.stride, desc.dilation, desc.pad_before, desc.pad_after}}, desc.groups};
}

/// The number of places of the output from which on a convolution computes vectors of places, and stores them whole. It is less where taps move by one element,
/// and 0 where a group has one unit, which would fill one lane of a vector of units.
std::int64_t many_places(const Conv1dDesc& desc) { return desc.out_channels == desc.groups ? 0 : desc.stride == 1 ? 64 : 96; }

/// Whether the weights of a group fill a second cache, so that rows meet them block by block of k, and the next block is fetched ahead: from 8 rows on, 0.8 to 0.95 of
/// the time of whole panels, with the same bits and the same packed weights.
bool from_afar(const Conv1dDesc& desc) {
  return desc.out_channels / desc.groups >= 16 &&
         desc.in_channels / desc.groups * desc.kernel * (desc.out_channels / desc.groups) >= 1 << 17;
}

/// The arithmetic of attribute `steps`, none without it.
std::vector<ArithmeticStep> arithmetic_of(const Attributes& attributes) {
  return attributes.find("steps") == nullptr ? std::vector<ArithmeticStep>{} : steps_of(attributes.get<std::string>("steps"));
}

/// The operands of `steps` behind X, W and B; one that is not there is the result of the convolution.
ConvSteps with_operands(const std::vector<ArithmeticStep>& steps, const OpContext& run) {
  ConvSteps made{steps, {}};
  for (std::size_t input = 3; input < run.inputs(); ++input)
    made.operands.push_back(run.has(input) ? std::optional(run.tensor(input)) : std::nullopt);
  return made;
}

/// Known weights as conv.h computes with them: those of f16 and bf16 in f32, once and for all runs.
Tensor computed_weights(const Tensor& weights) {
  return weights.dtype() == DType::f16 || weights.dtype() == DType::bf16 ? cast(weights, DType::f32, PackingStream()) : weights;
}

OpKernel prepare_conv1d(const PrepareContext& context) {
  const Conv1dDesc form = desc_of(context.attributes());
  const Tensor* weights = context.constant(1);
  const std::vector<ArithmeticStep> steps = arithmetic_of(context.attributes());
  if (weights == nullptr) {
    return [form, steps](OpContext& run) {
      const Tensor* bias = run.has(2) ? &run.tensor(2) : nullptr;
      const Tensor made = conv1d(with_weights(form, run.tensor(1)), run.tensor(0), run.tensor(1), bias, run.stream());
      run.set(0, steps.empty() ? made : take_steps(with_operands(steps, run), made, run.stream()));
    };
  }
  const Conv1dPlan plan = make_conv1d(with_weights(form, *weights), context.place());
  PackingStream stream;
  const Tensor packed = context.placed(pack(plan, *weights, stream).data);
  const Tensor held = context.place().is_cpu() ? computed_weights(*weights) : *weights;
  return [plan, steps, packed = PackedMatrix{packed}, places = over_places(plan.desc(), context.place()),
          known = UnitWeights{packed, held}](OpContext& context_) {
    const Tensor& x = context_.tensor(0);
    const Conv1dDesc& desc = plan.desc();
    const std::int64_t length = places ? desc.out_length(x.dim(2)) : 0;
    const Tensor* bias = context_.has(2) ? &context_.tensor(2) : nullptr;
    if (places && length >= many_places(desc))
      return context_.set(0, conv(*places, x, known.weights, bias, context_.stream(), nullptr, with_operands(steps, context_)));
    if (places && from_afar(desc) && few_places(desc.out_channels / desc.groups, x.dim(0), length) && length > 1 && x.dim(0) * length >= 8)
      return context_.set(0, conv(*places, x, known, bias, context_.stream(), with_operands(steps, context_)));
    Tensor out(desc.dtype, DDim{x.dim(0), desc.out_channels, desc.out_length(x.dim(2))}, context_.stream().memory());
    run(plan, packed, x, bias, out, context_.stream());
    context_.set(0, steps.empty() ? std::move(out) : take_steps(with_operands(steps, context_), out, context_.stream()));
  };
}

int follow_conv1d(const InferContext& context, int axis) {
  if (axis == 0) return 0;
  if (axis == 1) refuse_rows("sums over the rows");
  const Conv1dDesc desc = desc_of(context.attributes());
  const bool row_by_row = extent(context, 1, 2) == 1 && desc.stride == 1 && desc.pad_before == 0 && desc.pad_after == 0;
  if (!row_by_row) refuse_rows("a convolution along the rows reads several of them for each result");
  return 2;
}

void vectorize_conv1d(Vectorizer& v, const Op& op) {
  expect_shared(v, op, 1, "weights");
  expect_shared(v, op, 2, "a bias");
  const VarId x = v.get(op.inputs[0]);
  if (v.rank(op.inputs[0]) != 3) throw UnsupportedError("op conv1d: the rank of its input is not known");
  std::vector<VarId> inputs{merge_leading(v, x, op.inputs[0]), v.get(op.inputs[1])};
  if (op.inputs.size() > 2) inputs.push_back(v.get(op.inputs[2]));
  const VarId made = v.emit("conv1d", inputs, op.attributes).at(0);
  v.bind(op.outputs[0], split_leading(v, made, x), true);
}

// ---- conv: along several axes, made when a program is compiled (lowering/join_windows.h)

ConvDesc conv_of(const Attributes& attributes) {
  const Ints strides = attributes.get<Ints>("strides"), dilations = attributes.get<Ints>("dilations"), pads = attributes.get<Ints>("pads");
  if (strides.empty() || dilations.size() != strides.size() || pads.size() != 2 * strides.size())
    throw ProgramError("expected as many strides and dilations, and twice as many pads, found " + list_text(strides) + ", " +
                       list_text(dilations) + " and " + list_text(pads));
  ConvDesc desc;
  for (std::size_t axis = 0; axis < strides.size(); ++axis)
    desc.axes.push_back({strides[axis], dilations[axis], pads[axis], pads[axis + strides.size()]});
  desc.groups = attributes.get_or("group", std::int64_t{1});
  desc.relu = attributes.get_or("relu", false);
  return desc;
}

void infer_conv(InferContext& context) {
  const ConvDesc desc = conv_of(context.attributes());
  const int rank = static_cast<int>(desc.axes.size()) + 2;
  expect_float(context, 0);
  expect_same_dtype(context, 0, 1);
  expect_rank(context, 0, rank);
  expect_rank(context, 1, rank);
  const std::int64_t units = extent(context, 1, 0), channels = extent(context, 1, 1);
  if (channels != DDim::unknown) expect_extent(context, 0, 1, channels * desc.groups);
  if (context.has(2)) {
    expect_same_dtype(context, 0, 2);
    expect_rank(context, 2, 1);
    expect_extent(context, 2, 0, units);
  }
  DDim shape{extent(context, 0, 0), units};
  for (int axis = 2; axis < rank; ++axis) {
    const std::int64_t length = extent(context, 0, axis), kernel = extent(context, 1, axis);
    const bool known = length != DDim::unknown && kernel != DDim::unknown;
    shape =
        shape.inserted(axis, known ? ConvDesc::out_extent(desc.axes[static_cast<std::size_t>(axis - 2)], length, kernel) : DDim::unknown);
  }
  context.result(VarType(context.tensor(0).dtype, shape));
}

/// The places that an image gives, where its extents are known.
std::optional<std::int64_t> known_places(const PrepareContext& context, const ConvDesc& desc, const Tensor& weights) {
  const VarType& x = context.type(0);
  if (!x.shape || weights.rank() != x.rank()) return std::nullopt;
  std::int64_t places = 1;
  for (int axis = 2; axis < x.rank(); ++axis) {
    if ((*x.shape)[axis] == DDim::unknown) return std::nullopt;
    places = checked_mul(places, ConvDesc::out_extent(desc.axes[static_cast<std::size_t>(axis - 2)], (*x.shape)[axis], weights.dim(axis)));
  }
  return places;
}

/// Whether the places of so many images of the output are known and few.
bool has_few_places(const PrepareContext& context, const ConvDesc& desc, std::int64_t images) {
  const Tensor* const weights = context.place().is_cpu() ? context.constant(1) : nullptr;
  const std::optional<std::int64_t> places = weights == nullptr || desc.groups < 1 ? std::nullopt : known_places(context, desc, *weights);
  return places && few_places(weights->dim(0) / desc.groups, images, *places);
}

OpKernel prepare_conv(const PrepareContext& context) {
  const ConvDesc desc = conv_of(context.attributes());
  // Rows in fours have twice as many weights, which few places wait for: known extents alone decide, since the bits are others.
  const bool fours = context.attributes().get_or("winograd", false) && !has_few_places(context, desc, 1);
  const Tensor* const given = context.place().is_cpu() ? context.constant(1) : nullptr;
  const std::optional<Tensor> weights = given == nullptr ? std::nullopt : std::optional(computed_weights(*given));
  const std::vector<ArithmeticStep> steps = arithmetic_of(context.attributes());
  if (const auto transformed = fours && weights ? transform_winograd(desc, *weights) : std::nullopt) {
    return [desc, steps, held = *transformed](OpContext& run) {
      const Tensor* const bias = run.has(2) ? &run.tensor(2) : nullptr;
      run.set(0, conv(desc, run.tensor(0), held, bias, run.stream(), with_operands(steps, run)));
    };
  }
  const std::shared_ptr<const ConvTaps> taps = weights ? find_taps(desc, *weights) : nullptr;
  const VarType& x = context.type(0);
  const std::int64_t images = !x.shape || (*x.shape)[0] == DDim::unknown ? 1 : (*x.shape)[0];
  const bool few = taps == nullptr && has_few_places(context, desc, images);
  if (const auto packed = few ? pack_units(desc, *weights, PackingStream()) : std::nullopt) {
    return [desc, steps, held = *packed](OpContext& run) {
      const Tensor* const bias = run.has(2) ? &run.tensor(2) : nullptr;
      run.set(0, conv(desc, run.tensor(0), held, bias, run.stream(), with_operands(steps, run)));
    };
  }
  // Weights that are computed with as they are need no second place.
  return [desc, steps, taps, held = weights && weights->dtype() != given->dtype() ? weights : std::nullopt](OpContext& run) {
    const Tensor* const bias = run.has(2) ? &run.tensor(2) : nullptr;
    run.set(0, conv(desc, run.tensor(0), held ? *held : run.tensor(1), bias, run.stream(), taps, with_operands(steps, run)));
  };
}

int follow_conv(const InferContext&, int axis) {
  if (axis == 0) return 0;
  refuse_rows(axis == 1 ? "sums over the rows" : "a convolution along the rows reads several of them for each result");
}

void vectorize_conv(Vectorizer& v, const Op& op) {
  expect_shared(v, op, 1, "weights");
  expect_shared(v, op, 2, "a bias");
  const VarId x = v.get(op.inputs[0]);
  std::vector<VarId> inputs{merge_leading(v, x, op.inputs[0]), v.get(op.inputs[1])};
  if (op.inputs.size() > 2) inputs.push_back(v.get(op.inputs[2]));
  const VarId made = v.emit("conv", inputs, op.attributes).at(0);
  v.bind(op.outputs[0], split_leading(v, made, x), true);
}

// ---- conv_integer: of bytes, with the arithmetic behind it, made when a program is compiled (lowering/join_integers.h)

enum : std::size_t { conv_bytes, conv_zero, conv_weights, conv_weight_zeros, conv_added, conv_first_operand };

void infer_conv_integer(InferContext& context) {
  const ConvDesc desc = conv_of(context.attributes());
  const int rank = static_cast<int>(desc.axes.size()) + 2;
  if (context.tensor(conv_bytes).dtype != DType::u8) expect_dtype(context, conv_bytes, DType::i8);
  expect_same_dtype(context, conv_bytes, conv_zero);
  expect_dtype(context, conv_weights, DType::i8);
  expect_rank(context, conv_bytes, rank);
  expect_rank(context, conv_weights, rank);
  DDim shape{extent(context, conv_bytes, 0), extent(context, conv_weights, 0)};
  for (int axis = 2; axis < rank; ++axis) {
    const std::int64_t length = extent(context, conv_bytes, axis), kernel = extent(context, conv_weights, axis);
    const bool known = length != DDim::unknown && kernel != DDim::unknown;
    shape =
        shape.inserted(axis, known ? ConvDesc::out_extent(desc.axes[static_cast<std::size_t>(axis - 2)], length, kernel) : DDim::unknown);
  }
  context.result(VarType(context.attributes().get_or("to", DType::i32), shape));
}

OpKernel prepare_conv_integer(const PrepareContext& context) {
  const auto known = [&](std::size_t input) {
    const Tensor* const given = context.constant(input);
    if (given == nullptr) throw ProgramError("expected weights that are known");
    return *given;
  };
  const auto numbers = [&](std::size_t input) {
    const std::vector<VarId>& inputs = context.op().inputs;
    return input < inputs.size() && inputs[input] != no_var ? known(input).to_vector<std::int32_t>() : std::vector<std::int32_t>{};
  };
  const ConvDesc desc = conv_of(context.attributes());
  const DType to = context.attributes().get_or("to", DType::i32);
  const bool plain = context.attributes().find("steps") == nullptr;
  return [weights = pack_conv_integer(desc, known(conv_weights), numbers(conv_weight_zeros), numbers(conv_added),
                                      known_places(context, desc, known(conv_weights))),
          to, steps = plain ? std::vector<ArithmeticStep>{} : steps_of(context.attributes().get<std::string>("steps"))](OpContext& run) {
    ConvIntegerSteps made{steps, {}, to};
    for (std::size_t input = conv_first_operand; input < run.inputs(); ++input) made.operands.push_back(run.tensor(input));
    run.set(0, conv_integer(weights, run.tensor(conv_bytes), run.tensor(conv_zero), made, run.stream()));
  };
}

// ---- causal_filter: made of loops when a program is compiled (lowering/join_filters.h)

FilterDesc filter_of(const Attributes& attributes) {
  const auto axis = [&](const char* name) { return static_cast<int>(attributes.get<std::int64_t>(name)); };
  return {axis("sequences"), axis("places"), axis("channels"), attributes.get<Ints>("delays")};
}

void infer_causal_filter(InferContext& context) {
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}}) expect_rank(context, input, 3);
  for (const std::size_t input : {std::size_t{1}, std::size_t{2}}) expect_same_dtype(context, 0, input);
  context.result(context.tensor(0));
  context.result(context.tensor(1));
}

OpKernel prepare_causal_filter(const PrepareContext& context) {
  return [desc = filter_of(context.attributes())](OpContext& run) {
    const Tensor* const bias = run.has(3) ? &run.tensor(3) : nullptr;
    Filtered made = causal_filter(desc, run.tensor(0), run.tensor(1), run.tensor(2), bias, run.stream());
    run.set(0, std::move(made.out));
    run.set(1, std::move(made.last));
  };
}

}  // namespace

void add_conv_ops(OpRegistry& registry) {
  OpDef def = define("conv1d", {"X", "W", "B?"}, {"Out"}, {"group", "stride", "dilation", "pads", "winograd"});
  def.infer = infer_conv1d;
  def.prepare = prepare_conv1d;
  def.follow_rows = follow_first(follow_conv1d);
  def.vectorize = vectorize_conv1d;
  registry.add(std::move(def));

  OpDef several = define("conv", {"X", "W", "B?"}, {"Out"}, {"group", "strides", "dilations", "pads", "relu", "winograd"});
  several.infer = infer_conv;
  several.prepare = prepare_conv;
  several.follow_rows = follow_first(follow_conv);
  several.vectorize = vectorize_conv;
  registry.add(std::move(several));

  // Convolutions with arithmetic behind them, made when a program is compiled (lowering/join_convolutions.h).
  OpDef alone =
      define("conv1d_arithmetic", {"X", "W", "B?", "Operands..."}, {"Out"}, {"group", "stride", "dilation", "pads", "winograd", "steps"});
  alone.infer = infer_conv1d;
  alone.prepare = prepare_conv1d;
  set_made_for_runs(alone);
  registry.add(std::move(alone));

  OpDef joined = define("conv_arithmetic", {"X", "W", "B?", "Operands..."}, {"Out"},
                        {"group", "strides", "dilations", "pads", "relu", "winograd", "steps"});
  joined.infer = infer_conv;
  joined.prepare = prepare_conv;
  set_made_for_runs(joined);
  registry.add(std::move(joined));

  OpDef bytes = define("conv_integer", {"X", "Zero", "W", "WZero?", "Added?", "Operands..."}, {"Out"},
                       {"group", "strides", "dilations", "pads", "steps", "to"});
  bytes.infer = infer_conv_integer;
  bytes.prepare = prepare_conv_integer;
  set_made_for_runs(bytes);
  registry.add(std::move(bytes));

  OpDef filter = define("causal_filter", {"X", "Past", "W", "B?"}, {"Out", "Last"}, {"sequences", "places", "channels", "delays"});
  filter.infer = infer_causal_filter;
  filter.prepare = prepare_causal_filter;
  set_made_for_runs(filter);
  registry.add(std::move(filter));
}

}  // namespace millrace::ops
