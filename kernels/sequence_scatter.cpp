// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_scatter.h>

#include <string>

#include <millrace/kernels/cpu/sequence_scatter.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor&, const std::vector<std::int64_t>&, const Tensor&> kernels{
    "sequence_scatter", {{"cuda", cuda::sequence_scatter}}, cpu::sequence_scatter};

}  // namespace

Tensor sequence_scatter(const Tensor& x, const Tensor& ids, const Tensor& updates, const std::vector<std::int64_t>& offsets,
                        StreamRef stream) {
  constexpr const char* op = "sequence_scatter";
  internal::check_device_places(op, stream, {&x, &ids, &updates});
  internal::check_index_dtype(op, ids);
  internal::check_same_dtype(op, x, updates);
  if (!is_floating(x.dtype()) && x.dtype() != DType::i64 && x.dtype() != DType::i32)
    throw DTypeError("sequence_scatter: expected floats, i64 or i32, found " + x.to_string());
  internal::check_row_offsets(op, ids, offsets);
  if (x.rank() != 2 || ids.elements() != ids.dim(0) || updates.rank() == 0 || updates.dim(0) != ids.dim(0) ||
      updates.elements() != ids.elements())
    throw ShapeError("sequence_scatter: expected x of [N, C] and as many ids as updates, found " + x.to_string() + ", " + ids.to_string() +
                     " and " + updates.to_string());
  if (static_cast<std::int64_t>(offsets.size()) - 1 != x.dim(0))
    throw LoDError("sequence_scatter: expected a sequence of ids for each row of " + x.to_string() + ", found " +
                   std::to_string(offsets.size() - 1));
  const Tensor from = contiguous(x, stream);
  const Tensor added = contiguous(updates, stream);
  const Tensor out(x.dtype(), x.dims(), stream.memory());
  launch(
      TensorRefs<3>{&from, &ids, &added}, TensorRefs<1>{&out},
      [=](KernelContext& context) { kernels.run(from, ids, added, offsets, out, context); }, stream);
  return out;
}

}  // namespace millrace
