// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/gather_tree.h>

#include <string>

#include <millrace/kernels/cpu/gather_tree.h>
#include <millrace/kernels/cuda/decoding.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor*, std::optional<std::int64_t>, const Tensor&> kernels{
    "gather_tree", {{"cuda", cuda::gather_tree}}, cpu::gather_tree};

}  // namespace

Tensor gather_tree(const Tensor& ids, const Tensor& parents, const Tensor* lengths, std::optional<std::int64_t> end_token,
                   StreamRef stream) {
  internal::check_index_dtype("gather_tree", ids);
  if (parents.dtype() != ids.dtype())
    throw DTypeError("gather_tree: expected parents of the dtype of ids, found " + ids.to_string() + " and " + parents.to_string());
  if (ids.rank() != 3 || parents.dims() != ids.dims())
    throw ShapeError("gather_tree: expected ids and parents of [T, N, W], found " + ids.to_string() + " and " + parents.to_string());
  if (end_token && ids.dtype() == DType::i32 && !std::in_range<std::int32_t>(*end_token))
    throw ArgumentError("gather_tree: expected an end token that i32 can hold, found " + std::to_string(*end_token));
  internal::check_device_places("gather_tree", stream, {&ids, &parents});
  Tensor rows;
  if (lengths != nullptr) {
    internal::check_index_dtype("gather_tree", *lengths);
    if (lengths->rank() != 1 || lengths->dim(0) != ids.dim(1))
      throw ShapeError("gather_tree: expected a length for each of " + std::to_string(ids.dim(1)) + ", found " + lengths->to_string());
    internal::check_device_places("gather_tree", stream, {lengths});
    rows = *lengths;
  }
  const Tensor tokens = contiguous(ids, stream);
  const Tensor from = contiguous(parents, stream);
  Tensor out(ids.dtype(), ids.dims(), stream.memory());
  const auto trace = [=](KernelContext& context) {
    kernels.run(tokens, from, lengths != nullptr ? &rows : nullptr, end_token, out, context);
  };
  if (lengths != nullptr)
    launch(TensorRefs<3>{&tokens, &from, &rows}, TensorRefs<1>{&out}, trace, stream);
  else
    launch(TensorRefs<2>{&tokens, &from}, TensorRefs<1>{&out}, trace, stream);
  return out;
}

}  // namespace millrace
