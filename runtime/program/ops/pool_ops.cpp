// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/pool.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/runtime/program/ops/internal/unary_names.h>

/// Windows along the last axes, made when a program is compiled (lowering/join_windows.h).
namespace millrace::ops {
namespace {

PoolDesc pool_of(const Attributes& attributes) {
  const std::string& fold = attributes.get<std::string>("fold");
  const std::optional<Binary> kind = find_binary(fold);
  if (kind != Binary::maximum && kind != Binary::minimum && kind != Binary::add)
    throw ProgramError("attribute 'fold': expected maximum, minimum or add, found '" + fold + "'");
  const Ints kernels = attributes.get<Ints>("kernels"), strides = attributes.get<Ints>("strides"),
             dilations = attributes.get<Ints>("dilations"), pads = attributes.get<Ints>("pads");
  if (kernels.empty() || strides.size() != kernels.size() || dilations.size() != kernels.size() || pads.size() != 2 * kernels.size())
    throw ProgramError("expected as many kernels, strides and dilations, and twice as many pads, found " + list_text(kernels) + ", " +
                       list_text(strides) + ", " + list_text(dilations) + " and " + list_text(pads));
  PoolDesc desc;
  desc.fold = *kind;
  for (std::size_t axis = 0; axis < kernels.size(); ++axis) {
    desc.axes.push_back({kernels[axis], strides[axis], dilations[axis], pads[axis], pads[axis + kernels.size()]});
    if (kernels[axis] < 1 || strides[axis] < 1 || dilations[axis] < 1 || pads[axis] < 0 || pads[axis + kernels.size()] < 0)
      throw ProgramError("expected kernels, strides and dilations of 1 or more and pads of 0 or more, found " + list_text(kernels) + ", " +
                         list_text(strides) + ", " + list_text(dilations) + " and " + list_text(pads));
  }
  return desc;
}

void infer_pool(InferContext& context) {
  const PoolDesc desc = pool_of(context.attributes());
  expect_float(context, 0);
  const VarType& x = context.tensor(0);
  if (!x.shape) return context.result(x);
  const int folded = static_cast<int>(desc.axes.size()), first = x.rank() - folded;
  if (first < 0) throw ProgramError("expected " + std::to_string(folded) + " axes or more, found " + context.describe(0));
  DDim shape = *x.shape;
  for (int axis = first; axis < x.rank(); ++axis)
    if (shape[axis] != DDim::unknown) shape[axis] = PoolDesc::out_extent(desc.axes[static_cast<std::size_t>(axis - first)], shape[axis]);
  context.result(VarType(x.dtype, shape));
}

OpKernel prepare_pool(const PrepareContext& context) {
  return [desc = pool_of(context.attributes())](OpContext& run) { run.set(0, pool(desc, run.tensor(0), run.stream())); };
}

int follow_pool(const InferContext& context, int axis) {
  const int folded = static_cast<int>(context.attributes().get<Ints>("kernels").size());
  if (axis >= known_rank(context, 0) - folded) refuse_rows("folds windows of several rows");
  return axis;
}

}  // namespace

void add_pool_ops(OpRegistry& registry) {
  OpDef def = define("pool", {"X"}, {"Out"}, {"fold", "kernels", "strides", "dilations", "pads"});
  def.infer = infer_pool;
  def.prepare = prepare_pool;
  def.follow_rows = follow_first(follow_pool);
  // The folded axes are counted from the last.
  def.vectorize = [](Vectorizer& v, const Op& op) { vectorize_with(v, op, op.attributes); };
  registry.add(std::move(def));
}

}  // namespace millrace::ops
