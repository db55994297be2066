// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/internal/batching.h>

#include <algorithm>
#include <numeric>

#include <millrace/runtime/program/ops/internal/inference.h>

namespace millrace::ops {

VarId literal(Vectorizer& v, const std::vector<std::int64_t>& values) {
  Tensor held = Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())});
  return v.emit("constant", {}, {{"value", std::move(held)}}).at(0);
}

VarId scalar_literal(Vectorizer& v, std::int64_t value) { return v.emit("constant", {}, {{"value", Tensor::scalar(value)}}).at(0); }

VarId extents(Vectorizer& v, VarId made, int begin, int end) {
  return v.emit("shape", {made}, {{"start", std::int64_t{begin}}, {"end", std::int64_t{end}}}).at(0);
}

VarId joined(Vectorizer& v, const std::vector<VarId>& lists) { return v.emit("concat", lists, {{"axis", std::int64_t{0}}}).at(0); }

VarId batched_var(Vectorizer& v, VarId old, VarId like) {
  if (v.batched(old)) return v.get(old);
  // N stands in a shape, which the host would read in each step. A comparison that is false for N elements needs none: where(false, x, x) is x.
  const VarType& type = v.to().var(like).type;
  const bool truths = type.dtype == DType::boolean;
  if (type.shape && std::all_of(type.shape->begin() + 1, type.shape->end(), [](std::int64_t extent) { return extent > 0; })) {
    const auto others = static_cast<std::size_t>(type.shape->rank() - 1);
    VarId column = like;
    std::vector<std::int64_t> axes(others), apart(static_cast<std::size_t>(v.rank(old)) + 1, 1);
    std::iota(axes.begin(), axes.end(), 1);
    apart[0] = 0;
    if (others > 0)
      column = v.emit("slice", {like},
                      {{"starts", std::vector<std::int64_t>(others, 0)},
                       {"ends", std::vector<std::int64_t>(others, 1)},
                       {"axes", axes},
                       {"steps", std::vector<std::int64_t>(others, 1)}})
                   .at(0);
    column = v.emit("reshape", {column}, {{"shape", apart}}).at(0);
    if (truths) column = v.emit("cast", {column}, {{"to", DType::i32}}).at(0);
    const VarId never = v.emit("greater", {column, column}).at(0);
    return v.emit("where", {never, v.get(old), v.get(old)}).at(0);
  }
  const VarId ones = literal(v, std::vector<std::int64_t>(static_cast<std::size_t>(v.rank(old)), 1));
  const VarId wanted = joined(v, {extents(v, like, 0, 1), ones});
  return v.emit("expand", {v.get(old), wanted}).at(0);
}

VarId any_batched_var(const Vectorizer& v, const Op& op) {
  for (const VarId input : op.inputs)
    if (v.batched(input)) return v.get(input);
  throw UnsupportedError("op " + op.type + ": expected an input that depends on the sequence, found none");
}

VarId merge_leading(Vectorizer& v, VarId batched, VarId old) {
  const DDim& shape = v.from().var(old).type.shape.value();
  std::vector<std::int64_t> merged{-1};
  merged.insert(merged.end(), shape.begin() + 1, shape.end());
  const bool known = std::all_of(merged.begin() + 1, merged.end(), [](std::int64_t extent) { return extent > 0; });
  if (known) return v.emit("reshape", {batched}, {{"shape", merged}}).at(0);
  // The number of rows is computed: with an empty axis behind it, −1 could not be inferred.
  const VarId leading = extents(v, batched, 0, 2);
  const VarId rows =
      v.emit("reduce", {leading}, {{"kind", std::string("prod")}, {"axes", std::vector<std::int64_t>{0}}, {"keepdims", true}}).at(0);
  const VarId rest = extents(v, batched, 2, shape.rank() + 1);
  return v.emit("reshape_to", {batched, joined(v, {rows, rest})}, {{"allowzero", true}}).at(0);
}

VarId split_leading(Vectorizer& v, VarId merged, VarId like) {
  // By value: what is emitted below moves the vars of the new program.
  const std::optional<DDim> from = v.to().var(merged).type.shape;
  const std::optional<DDim> wanted = v.to().var(like).type.shape;
  if (!from || !wanted) throw UnsupportedError("the rank of '" + v.to().var(merged).name + "' is not known");
  std::vector<std::int64_t> shape{-1, (*wanted)[1]};
  shape.insert(shape.end(), from->begin() + 1, from->end());
  const bool known = std::all_of(shape.begin() + 1, shape.end(), [](std::int64_t extent) { return extent > 0; });
  if (known) return v.emit("reshape", {merged}, {{"shape", shape}}).at(0);
  const VarId all = joined(v, {extents(v, like, 0, 2), extents(v, merged, 1, from->rank())});
  return v.emit("reshape_to", {merged, all}, {{"allowzero", true}}).at(0);
}

Attributes with(Attributes attributes, const std::string& name, Attribute value) {
  attributes.set(name, std::move(value));
  return attributes;
}

std::int64_t moved_axis(std::int64_t axis, int old_rank) { return checked_axis(axis, old_rank) + 1; }

std::vector<std::int64_t> moved_axes(const std::vector<std::int64_t>& axes, int old_rank) {
  std::vector<std::int64_t> moved;
  for (const std::int64_t axis : axes) moved.push_back(moved_axis(axis, old_rank));
  return moved;
}

void expect_shared(const Vectorizer& v, const Op& op, std::size_t input, const std::string& what) {
  if (input < op.inputs.size() && v.batched(op.inputs[input]))
    throw UnsupportedError("op " + op.type + ": expected " + what +
                           " that is the same for every sequence, found one that depends on the sequence");
}

void vectorize_elementwise(Vectorizer& v, const Op& op) {
  int rank = 0;
  for (const VarId input : op.inputs)
    if (input != no_var) rank = std::max(rank, v.rank(input));
  std::vector<VarId> inputs;
  for (const VarId input : op.inputs) inputs.push_back(input == no_var ? no_var : v.aligned(input, rank));
  v.bind_all(op.outputs, v.emit(op.type, inputs, op.attributes), true);
}

void vectorize_with(Vectorizer& v, const Op& op, Attributes attributes) {
  std::vector<VarId> inputs;
  for (const VarId input : op.inputs) inputs.push_back(v.get(input));
  v.bind_all(op.outputs, v.emit(op.type, inputs, std::move(attributes)), true);
}

}  // namespace millrace::ops
