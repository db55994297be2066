// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/ops/internal/sequences.h>

#include <algorithm>

#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/rows.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {

OpDef sequence_op(const char* name, std::vector<std::string> inputs, std::vector<std::string> outputs, void (*infer)(InferContext&),
                  OpKernel (*prepare)(const PrepareContext&), const char* reason, std::vector<std::string> attributes) {
  OpDef def = define(name, std::move(inputs), std::move(outputs), std::move(attributes));
  def.infer = infer;
  def.prepare = prepare;
  def.follow_rows = [reason, count = def.outputs.size()](const InferContext&, const std::vector<int>& axes) {
    if (std::any_of(axes.begin(), axes.end(), [](int axis) { return axis >= 0; })) refuse_rows(reason);
    return std::vector<int>(count, -1);
  };
  def.passes_lod = false;
  return def;
}

int expect_lod(const InferContext& context, std::size_t input) {
  const int depth = context.tensor(input).lod_depth;
  if (depth == 0)
    throw ProgramError("expected sequences (a LoD) as " + millrace::internal::input_name(context.program(), context.op(), input) +
                       ", found " + context.describe(input));
  return depth;
}

int level_of(const Attributes& attributes, const char* name) {
  return static_cast<int>(std::clamp<std::int64_t>(attributes.get_or(name, std::int64_t{-1}), -1000, 1000));
}

int expect_level(const InferContext& context, std::size_t input, const char* name) {
  const int depth = expect_lod(context, input);
  const std::int64_t level = context.attributes().get_or(name, std::int64_t{-1});
  if (level < -depth || level >= depth)
    throw ProgramError("attribute '" + std::string(name) + "': expected a level from " + std::to_string(-depth) + " to " +
                       std::to_string(depth - 1) + " (0 is the outermost, -1 the innermost), found " + std::to_string(level) + " for " +
                       context.describe(input));
  return static_cast<int>(level < 0 ? level + depth : level);
}

VarType same_rows(const InferContext& context, std::size_t input, int levels) {
  const VarType& x = context.tensor(input);
  if (x.rank() == 0)
    throw ProgramError("expected rows as " + millrace::internal::input_name(context.program(), context.op(), input) + ", found " +
                       context.describe(input));
  VarType type = tensor_type(x.dtype, x.shape);
  type.lod_depth = levels;
  return type;
}

VarType other_rows(const InferContext& context, std::size_t input, int levels) {
  VarType type = same_rows(context, input, levels);
  if (type.shape) (*type.shape)[0] = DDim::unknown;
  return type;
}

void expect_column(const InferContext& context, std::size_t input) {
  const VarType& x = context.tensor(input);
  if (!x.shape) return;
  const bool one = x.rank() == 1 || (x.rank() == 2 && ((*x.shape)[1] == 1 || (*x.shape)[1] == DDim::unknown));
  if (!one)
    throw ProgramError("expected [N] or [N, 1] as " + millrace::internal::input_name(context.program(), context.op(), input) + ", found " +
                       context.describe(input));
}

void expect_index_column(const InferContext& context, std::size_t input) {
  expect_index(context, input);
  expect_column(context, input);
}

DDim with_leading_dims(const DDim& rows, const std::vector<std::int64_t>& leading) {
  DDim dims = rows.erased(0);
  for (std::size_t i = leading.size(); i-- > 0;) dims = dims.inserted(0, leading[i]);
  return dims;
}

Tensor list_on(const std::vector<std::int64_t>& values, StreamRef stream) {
  const Tensor list = Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())});
  const Tensor made(DType::i64, list.dims(), stream.memory());
  copy(list, made, stream);
  return made;
}

}  // namespace millrace::ops
