// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/attention.h>

#include <algorithm>
#include <limits>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/attention.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/matmul.h>
#include <millrace/kernels/softmax.h>
#include <millrace/kernels/transpose.h>
#include <millrace/kernels/where.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

Tensor number(double value, DType dtype, StreamRef stream) { return full(DDim{}, value, dtype, stream); }

Tensor replaced(const Tensor& x, const ScoreMask& mask, StreamRef stream) {
  const Tensor value = number(mask.value, x.dtype(), stream);
  return mask.keeps ? where(mask.condition, x, value, stream) : where(mask.condition, value, x, stream);
}

/// One op after another, for extents that the scores alone do not have.
Tensor in_parts(const Attention& call, StreamRef stream) {
  const DType dtype = call.q.dtype();
  Tensor k = call.k, v = call.v;
  if (call.shares_heads) {
    const std::int64_t heads = call.q.dim(1), times = heads / std::max<std::int64_t>(1, k.dim(1));
    const Tensor index = binary(Binary::div, arange(heads, DType::i64, stream),
                                full(DDim{}, static_cast<double>(std::max<std::int64_t>(1, times)), DType::i64, stream), stream);
    k = gather(k, index, 1, stream);
    v = gather(v, index, 1, stream);
  }
  const Tensor q = call.scale == 1 ? call.q : binary(Binary::mul, call.q, number(call.scale, dtype, stream), stream);
  Tensor scores = matmul(q, k.permute({0, 1, 3, 2}), stream);
  if (!call.steps.empty()) {
    std::vector<const Tensor*> operands;
    for (const Tensor& operand : call.operands) operands.push_back(&operand);
    scores = arithmetic(call.steps, scores, operands, stream);
  }
  if (call.offset) {
    const Tensor keys = arange(call.bias_keys < 0 ? scores.dim(3) : call.bias_keys, DType::i64, stream);
    const Tensor last =
        binary(Binary::add, arange(call.bias_queries < 0 ? scores.dim(2) : call.bias_queries, DType::i64, stream).reshape(DDim{-1, 1}),
               *call.offset, stream);
    const Tensor bias = where(binary(Binary::less_equal, keys, last, stream), number(0, dtype, stream),
                              number(-std::numeric_limits<double>::infinity(), dtype, stream), stream);
    scores = binary(Binary::add, scores, bias, stream);
  }
  if (call.mask) scores = replaced(scores, *call.mask, stream);
  Tensor weights = softmax(scores, -1, stream);
  if (call.hidden) weights = replaced(weights, *call.hidden, stream);
  const Tensor made = matmul(weights, v, stream);
  const bool turned = !std::is_sorted(call.out_axes.begin(), call.out_axes.end());
  return turned ? transpose(made, call.out_axes, stream) : made;
}

/// `x` in extents `dims`, with elements side by side or one that stands for all along the last axis.
Tensor stretched(const Tensor& x, const DDim& dims, StreamRef stream) {
  Tensor view = broadcast_view(x, dims);
  const bool plain = dims[3] == 1 || view.strides()[3] == 0 || view.strides()[3] == 1;
  return plain ? view : broadcast_view(clone(x, stream), dims);
}

bool broadcasts_to(const Tensor& x, const DDim& dims) {
  if (x.rank() > dims.rank()) return false;
  for (int axis = 1; axis <= x.rank(); ++axis)
    if (x.dim(-axis) != 1 && x.dim(-axis) != dims[-axis]) return false;
  return true;
}

/// The extents of the scores of a call whose parts fit each other as they mostly do.
std::optional<DDim> scores_of(const Attention& call) {
  if (call.q.rank() != 4 || call.k.rank() != 4 || call.v.rank() != 4) return std::nullopt;
  const std::int64_t heads = call.q.dim(1), kept = call.k.dim(1), batch = std::max(call.q.dim(0), call.k.dim(0));
  const bool whole = call.shares_heads ? kept > 0 && heads % kept == 0 : kept == heads;
  const DDim scores{batch, heads, call.q.dim(2), call.k.dim(2)};
  if (!whole || call.q.dim(3) != call.k.dim(3) || call.v.dim(1) != kept || call.v.dim(2) != call.k.dim(2) || call.v.elements() == 0 ||
      scores.elements() == 0)
    return std::nullopt;
  const auto is = [](std::int64_t asked, std::int64_t extent) { return asked < 0 || asked == extent; };
  if (call.offset && (!is(call.bias_queries, scores[2]) || !is(call.bias_keys, scores[3]))) return std::nullopt;
  for (const Tensor* const x : {&call.q, &call.k, &call.v})
    if (x->dim(0) != 1 && x->dim(0) != batch) return std::nullopt;
  for (const Tensor& operand : call.operands)
    if (!broadcasts_to(operand, scores)) return std::nullopt;
  for (const auto* const mask : {&call.mask, &call.hidden})
    if (*mask && !broadcasts_to((*mask)->condition, scores)) return std::nullopt;
  return scores;
}

}  // namespace

Tensor attention(const Attention& call, StreamRef stream) {
  for (const Tensor* const x : {&call.q, &call.k, &call.v}) internal::check_device_places("attention", stream, {x});
  internal::check_same_dtype("attention", call.q, call.k);
  internal::check_same_dtype("attention", call.q, call.v);
  const std::optional<DDim> scores = scores_of(call);
  const bool wide = call.q.dtype() == DType::f32 || call.q.dtype() == DType::f64;
  if (!scores || !wide || internal::on_cuda(stream.place())) return in_parts(call, stream);
  const auto taken = static_cast<std::size_t>(std::count_if(call.steps.begin(), call.steps.end(), has_operand));
  if (taken != call.operands.size() || taken > most_operands)
    throw ArgumentError("attention: expected " + std::to_string(taken) + " operands, at most " + std::to_string(most_operands) +
                        ", found " + std::to_string(call.operands.size()));
  Attention all = call;
  const auto batched = [&](const Tensor& x) { return broadcast_view(x, DDim{(*scores)[0], x.dim(1), x.dim(2), x.dim(3)}); };
  all.q = batched(call.q);
  all.k = batched(call.k);
  all.v = batched(call.v);
  TensorRefs<most_operands + 6> read{&all.q, &all.k, &all.v};
  std::size_t count = 3;
  for (Tensor& operand : all.operands) {
    internal::check_same_dtype("attention", call.q, operand);
    operand = stretched(operand, *scores, stream);
    read[count++] = &operand;
  }
  for (std::optional<ScoreMask>* const mask : {&all.mask, &all.hidden}) {
    if (!*mask) continue;
    internal::check_dtype("attention", "condition", (*mask)->condition, DType::boolean);
    (*mask)->condition = stretched((*mask)->condition, *scores, stream);
    read[count++] = &(*mask)->condition;
  }
  if (all.offset) {
    internal::check_dtype("attention", "offset", *all.offset, DType::i64);
    internal::check_dims("attention", "offset", *all.offset, DDim{});
    read[count++] = &*all.offset;
  }
  const DDim made{(*scores)[0], (*scores)[1], (*scores)[2], call.v.dim(3)};
  DDim dims = made;
  std::vector<int> back(4);
  for (int axis = 0; axis < 4; ++axis) {
    dims[axis] = made[call.out_axes[static_cast<std::size_t>(axis)]];
    back[static_cast<std::size_t>(call.out_axes[static_cast<std::size_t>(axis)])] = axis;
  }
  Tensor out(call.q.dtype(), dims, stream.memory());
  const Tensor view = out.permute(back);
  launch(read, TensorRefs<1>{&out}, [all, view](KernelContext& context) { cpu::attention(all, view, context); }, stream);
  return out;
}

}  // namespace millrace
