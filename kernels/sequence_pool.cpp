// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_pool.h>

#include <string>

#include <millrace/kernels/cpu/sequence_pool.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

bool takes(SequencePool kind, DType dtype) {
  if (is_floating(dtype) || kind == SequencePool::max || kind == SequencePool::first || kind == SequencePool::last) return true;
  return kind != SequencePool::sqrt && (dtype == DType::i64 || dtype == DType::i32);
}

Tensor edges(const Tensor& x, const std::vector<std::int64_t>& offsets, bool last, double empty, StreamRef stream) {
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    rows.push_back(offsets[i] == offsets[i + 1] ? -1 : last ? offsets[i + 1] - 1 : offsets[i]);
  return gather_rows_or(x, rows, full(DDim{}, empty, x.dtype(), stream), stream);
}

}  // namespace

std::string_view name_of(SequencePool kind) {
  constexpr std::string_view names[] = {"average", "sum", "sqrt", "max", "first", "last"};
  return names[static_cast<std::size_t>(kind)];
}

namespace {

constexpr internal::Implementations<SequencePool, const Tensor&, const std::vector<std::int64_t>&, const Tensor&> kernels{
    "sequence_pool", {{"cuda", cuda::sequence_pool}}, cpu::sequence_pool};

}  // namespace

Tensor sequence_pool(SequencePool kind, const Tensor& x, const std::vector<std::int64_t>& offsets, double empty, StreamRef stream) {
  internal::check_device_places("sequence_pool", stream, {&x});
  internal::check_row_offsets("sequence_pool", x, offsets);
  if (!takes(kind, x.dtype()))
    throw DTypeError("sequence_pool: expected a dtype that " + std::string(name_of(kind)) + " takes, found " + x.to_string());
  if (kind == SequencePool::first || kind == SequencePool::last) return edges(x, offsets, kind == SequencePool::last, empty, stream);
  DDim dims = x.dims();
  dims[0] = static_cast<std::int64_t>(offsets.size()) - 1;
  const Tensor rows = contiguous(x, stream);
  const Tensor out = full(dims, empty, x.dtype(), stream);
  launch(
      TensorRefs<1>{&rows}, TensorRefs<1>{&out}, [=](KernelContext& context) { kernels.run(kind, rows, offsets, out, context); }, stream);
  return out;
}

}  // namespace millrace
