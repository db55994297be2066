// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include <millrace/kernels/byte_sums.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/reduce.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>

namespace millrace::ops {
namespace {

struct Named {
  const char* name;
  Reduction kind;
};
constexpr Named kinds[] = {
    {"sum", Reduction::sum},         {"mean", Reduction::mean},
    {"max", Reduction::max},         {"min", Reduction::min},
    {"prod", Reduction::prod},       {"l1", Reduction::l1},
    {"l2", Reduction::l2},           {"sum_square", Reduction::sum_square},
    {"log_sum", Reduction::log_sum}, {"log_sum_exp", Reduction::log_sum_exp},
};

Reduction kind_named(const std::string& name) {
  std::string known;
  for (const Named& each : kinds) {
    if (name == each.name) return each.kind;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  throw ProgramError("attribute 'kind': expected one of " + known + ", found '" + name + "'");
}

bool takes(Reduction kind, DType dtype) {
  if (is_floating(dtype)) return true;
  if (kind == Reduction::max || kind == Reduction::min) return true;
  const bool floats_alone = kind == Reduction::l2 || kind == Reduction::log_sum || kind == Reduction::log_sum_exp;
  return !floats_alone && (dtype == DType::i64 || dtype == DType::i32);
}

/// The attributes of a reduction, read once.
struct ReduceForm {
  Reduction kind;
  Ints axes;
  bool keep;
  bool empty;  ///< max and min of no elements are the ends of their dtype, a mean of integers is 0
  explicit ReduceForm(const Attributes& attributes)
      : kind(kind_named(attributes.get<std::string>("kind"))),
        axes(attributes.get_or("axes", Ints{})),
        keep(attributes.get_or("keepdims", true)),
        empty(attributes.get_or("empty", false)) {}
};

/// Axes 0 … rank−1 where none are named.
std::vector<int> reduced_axes(const Ints& axes, int rank) {
  std::vector<int> all = checked_axes(axes, rank);
  if (all.empty())
    for (int axis = 0; axis < rank; ++axis) all.push_back(axis);
  return all;
}

/// Without `axes`, or with them as 1.
DDim without(const DDim& shape, const std::vector<int>& axes, bool keep) {
  DDim left;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (!reduced || keep) left = left.inserted(left.rank(), reduced ? 1 : shape[axis]);
  }
  return left;
}

/// Where `axis` lies once `axes` are reduced.
int follow_past(int axis, const std::vector<int>& axes, bool keep, const char* reason) {
  if (std::find(axes.begin(), axes.end(), axis) != axes.end()) refuse_rows(reason);
  if (keep) return axis;
  return axis - static_cast<int>(std::count_if(axes.begin(), axes.end(), [axis](int gone) { return gone < axis; }));
}

void infer_reduce(InferContext& context) {
  const ReduceForm form(context.attributes());
  const VarType& x = context.tensor(0);
  if (!takes(form.kind, x.dtype))
    throw ProgramError("expected a dtype that '" + context.attributes().get<std::string>("kind") + "' takes, found " + context.describe(0));
  if (!x.shape) return context.result(form.axes.empty() && !form.keep ? VarType(x.dtype, DDim{}) : VarType::unranked(x.dtype));
  context.result(VarType(x.dtype, without(*x.shape, reduced_axes(form.axes, x.rank()), form.keep)));
}

/// Whether no elements have a result that `empty` says and that `reduce` refuses.
bool needs_empty(Reduction kind, DType dtype) {
  return kind == Reduction::max || kind == Reduction::min || (kind == Reduction::mean && !is_floating(dtype));
}

/// The greatest element of none, or the least: integers saturate. The mean of none is 0.
double of_none(Reduction kind, DType dtype) {
  if (kind == Reduction::mean) return 0;
  if (dtype == DType::boolean) return kind == Reduction::max ? 0 : 1;
  const double infinity = std::numeric_limits<double>::infinity();
  return kind == Reduction::max ? -infinity : infinity;
}

OpKernel prepare_reduce(const PrepareContext& context) {
  const ReduceForm form(context.attributes());
  return [kind = form.kind, keep = form.keep, empty = form.empty,
          axes = std::vector<int>(form.axes.begin(), form.axes.end())](OpContext& run) {
    const Tensor& x = run.tensor(0);
    if (empty && x.elements() == 0 && needs_empty(kind, x.dtype()))
      return run.set(0, full(reduced_dims(x.dims(), axes, keep), of_none(kind, x.dtype()), x.dtype(), run.stream()));
    run.set(0, reduce(kind, x, axes, keep, run.stream()));
  };
}

void vectorize_reduce(Vectorizer& v, const Op& op) {
  const ReduceForm form(op.attributes);
  const int rank = v.rank(op.inputs[0]);
  if (rank > 0) {
    const std::vector<int> axes = reduced_axes(form.axes, rank);
    Ints moved;
    for (const int axis : axes) moved.push_back(axis + 1);
    return vectorize_with(v, op, with(op.attributes, "axes", moved));
  }
  // A scalar of each sequence: folded over an axis of one element.
  const VarId column = v.emit("unsqueeze", {v.get(op.inputs[0])}, {{"axes", Ints{1}}}).at(0);
  Attributes attributes = with(with(op.attributes, "axes", Ints{1}), "keepdims", false);
  v.bind_all(op.outputs, v.emit("reduce", {column}, std::move(attributes)), true);
}

OpDef reduce_op() {
  OpDef def = define("reduce", {"X"}, {"Out"}, {"kind", "axes", "keepdims", "empty"});
  def.infer = infer_reduce;
  def.prepare = prepare_reduce;
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    const ReduceForm form(context.attributes());
    return follow_past(axis, reduced_axes(form.axes, known_rank(context, 0)), form.keep, "reduces over the rows");
  });
  def.vectorize = vectorize_reduce;
  return def;
}

// ---- argmax, argmin ----

struct ArgForm {
  std::int64_t axis;
  bool keep;
  bool last;
  explicit ArgForm(const Attributes& attributes)
      : axis(attributes.get_or("axis", std::int64_t{0})),
        keep(attributes.get_or("keepdims", true)),
        last(attributes.get_or("select_last", false)) {}
};

void infer_arg(InferContext& context) {
  const ArgForm form(context.attributes());
  const VarType& x = context.tensor(0);
  if (!x.shape) return context.result(VarType::unranked(DType::i64));
  context.result(VarType(DType::i64, without(*x.shape, {checked_axis(form.axis, x.rank())}, form.keep)));
}

OpDef arg_op(const char* name, bool greatest) {
  OpDef def = define(name, {"X"}, {"Out"}, {"axis", "keepdims", "select_last"});
  def.infer = infer_arg;
  def.prepare = [greatest](const PrepareContext& context) -> OpKernel {
    const ArgForm form(context.attributes());
    return [greatest, form](OpContext& run) {
      const int axis = static_cast<int>(form.axis);
      run.set(0, greatest ? argmax(run.tensor(0), axis, form.keep, form.last, run.stream())
                          : argmin(run.tensor(0), axis, form.keep, form.last, run.stream()));
    };
  };
  def.follow_rows = follow_first([](const InferContext& context, int axis) {
    const ArgForm form(context.attributes());
    return follow_past(axis, {checked_axis(form.axis, known_rank(context, 0))}, form.keep, "picks one of the rows");
  });
  def.vectorize = [](Vectorizer& v, const Op& op) {
    const ArgForm form(op.attributes);
    vectorize_with(v, op, with(op.attributes, "axis", moved_axis(form.axis, v.rank(op.inputs[0]))));
  };
  return def;
}

// ---- byte_sums: sums of bytes, made when a program is compiled (lowering/join_integers.h)

void infer_byte_sums(InferContext& context) {
  const VarType& x = context.tensor(0);
  if (x.dtype != DType::u8 && x.dtype != DType::i8) throw ProgramError("expected bytes, found " + context.describe(0));
  if (!x.shape) return context.result(VarType::unranked(DType::f32));
  std::vector<int> axes;
  for (auto axis = static_cast<int>(context.attributes().get<std::int64_t>("axes")); axis > 0; --axis) axes.push_back(x.rank() - axis);
  context.result(VarType(DType::f32, without(*x.shape, axes, context.attributes().get<bool>("keepdims"))));
}

OpDef byte_sums_op() {
  OpDef def = define("byte_sums", {"X"}, {"Out"}, {"zero", "axes", "keepdims"});
  def.infer = infer_byte_sums;
  def.prepare = [](const PrepareContext& context) -> OpKernel {
    const Attributes& attributes = context.attributes();
    return
        [zero = attributes.get<std::int64_t>("zero"), axes = static_cast<int>(attributes.get<std::int64_t>("axes")),
         keep = attributes.get<bool>("keepdims")](OpContext& run) { run.set(0, sum_bytes(run.tensor(0), zero, axes, keep, run.stream())); };
  };
  set_made_for_runs(def);
  return def;
}

}  // namespace

void add_reduce_ops(OpRegistry& registry) {
  registry.add(reduce_op());
  registry.add(arg_op("argmax", true));
  registry.add(arg_op("argmin", false));
  registry.add(byte_sums_op());
  add_reduce_gradients(registry);
}

}  // namespace millrace::ops
