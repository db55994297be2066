// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_top_k.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/cpu/sequence_top_k.h>
#include <millrace/kernels/cuda/decoding.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/transpose.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {

namespace {

constexpr internal::Implementations<const Tensor&, const std::vector<std::int64_t>&, bool, const Tensor&, const Tensor&,
                                    const std::vector<std::int64_t>&>
    top_kernels{"sequence_top_k", {{"cuda", cuda::sequence_top_k}}, cpu::sequence_top_k};
constexpr internal::Implementations<const Tensor&, bool, const Tensor&, const Tensor&> row_top_kernels{"top_k", {}, cpu::top_k};
/// The greatest k whose best elements of a row are kept in order as they come: each moves those behind it.
constexpr std::int64_t few_best = 256;
constexpr internal::Implementations<const Tensor&, const std::vector<std::int64_t>&, const std::vector<std::int64_t>&,
                                    const std::vector<std::int64_t>&, const SequenceTopKAverage&, const Tensor&>
    average_kernels{"sequence_top_k_average", {{"cuda", cuda::sequence_top_k_average}}, cpu::sequence_top_k_average};

SequenceTopK top_rows(const char* op, const Tensor& x, const std::vector<std::int64_t>& offsets, std::int64_t k, bool largest,
                      StreamRef stream) {
  if (!is_floating(x.dtype()) && x.dtype() != DType::i64 && x.dtype() != DType::i32)
    throw DTypeError(std::string(op) + ": expected floats, i64 or i32, found " + x.to_string());
  std::vector<std::int64_t> made{0};
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) made.push_back(made.back() + std::min(k, offsets[i + 1] - offsets[i]));
  DDim dims = x.dims();
  dims[0] = made.back();
  const Tensor rows = contiguous(x, stream);
  const Tensor values(x.dtype(), dims, stream.memory());
  const Tensor places(DType::i64, dims, stream.memory());
  launch(
      TensorRefs<1>{&rows}, TensorRefs<2>{&values, &places},
      [=](KernelContext& context) { top_kernels.run(rows, offsets, largest, values, places, made, context); }, stream);
  return {values, places, made};
}

}  // namespace

SequenceTopK sequence_top_k(const Tensor& x, const std::vector<std::int64_t>& offsets, std::int64_t k, StreamRef stream) {
  internal::check_device_places("sequence_top_k", stream, {&x});
  internal::check_row_offsets("sequence_top_k", x, offsets);
  if (k < 0) throw ArgumentError("sequence_top_k: expected k of 0 or more, found " + std::to_string(k));
  return top_rows("sequence_top_k", x, offsets, k, true, stream);
}

Tensor sequence_top_k_average(const Tensor& x, const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& row_lengths,
                              const std::vector<std::int64_t>& column_lengths, const SequenceTopKAverage& options, StreamRef stream) {
  constexpr const char* op = "sequence_top_k_average";
  internal::check_device_places(op, stream, {&x});
  internal::check_floating(op, x);
  if (x.rank() != 1 && !(x.rank() == 2 && x.dim(1) == 1))
    throw ShapeError(std::string(op) + ": expected elements of [T] or [T, 1], found " + x.to_string());
  internal::check_row_offsets(op, x, offsets);
  if (options.channels < 1 || std::any_of(options.ks.begin(), options.ks.end(), [](std::int64_t k) { return k < 1; }))
    throw ArgumentError(std::string(op) + ": expected 1 or more channels and each k of 1 or more");
  if (row_lengths.size() + 1 != offsets.size() || column_lengths.size() + 1 != offsets.size())
    throw LoDError(std::string(op) + ": expected as many sequences of rows and of columns as the " + std::to_string(offsets.size() - 1) +
                   " of scores, found " + std::to_string(row_lengths.size()) + " and " + std::to_string(column_lengths.size()));
  std::vector<std::int64_t> firsts{0};
  for (std::size_t i = 0; i < row_lengths.size(); ++i) {
    const std::int64_t wanted = checked_mul(checked_mul(row_lengths[i], column_lengths[i]), options.channels);
    if (wanted != offsets[i + 1] - offsets[i])
      throw LoDError(std::string(op) + ": expected " + std::to_string(options.channels) + " channels of " + std::to_string(row_lengths[i]) +
                     " by " + std::to_string(column_lengths[i]) + " elements in sequence " + std::to_string(i) + ", found " +
                     std::to_string(offsets[i + 1] - offsets[i]));
    firsts.push_back(checked_add(firsts.back(), row_lengths[i]));
  }
  const Tensor rows = contiguous(x, stream);
  Tensor out(x.dtype(), DDim{firsts.back(), checked_mul(options.channels, static_cast<std::int64_t>(options.ks.size()))}, stream.memory());
  launch(
      TensorRefs<1>{&rows}, TensorRefs<1>{&out},
      [=](KernelContext& context) { average_kernels.run(rows, offsets, firsts, column_lengths, options, out, context); }, stream);
  return out;
}

TopK top_k(const Tensor& x, std::int64_t k, int axis, bool largest, StreamRef stream) {
  internal::check_device_places("top_k", stream, {&x});
  const int at = internal::checked_axis("top_k", axis, x.dims());
  if (k < 0 || k > x.dim(at))
    throw ArgumentError("top_k: expected k of 0 to " + std::to_string(x.dim(at)) + ", the extent of axis " + std::to_string(at) + " of " +
                        x.dims().to_string() + ", found " + std::to_string(k));
  if (!internal::on_cuda(stream.place()) && at == x.rank() - 1 && k <= few_best && (x.dtype() == DType::f32 || x.dtype() == DType::f64)) {
    DDim dims = x.dims();
    dims[at] = k;
    const Tensor rows = contiguous(x, stream);
    const Tensor values(x.dtype(), dims, stream.memory());
    const Tensor places(DType::i64, dims, stream.memory());
    launch(
        TensorRefs<1>{&rows}, TensorRefs<2>{&values, &places},
        [=](KernelContext& context) { row_top_kernels.run(rows, largest, values, places, context); }, stream);
    return {values, places};
  }
  // The axis comes first, and goes back.
  std::vector<int> first{at};
  std::vector<int> back;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != at) first.push_back(i);
    back.push_back(i < at ? i + 1 : i == at ? 0 : i);
  }
  const SequenceTopK best = top_rows("top_k", transpose(x, first, stream), {0, x.dim(at)}, k, largest, stream);
  return {transpose(best.values, back, stream), transpose(best.places, back, stream)};
}

}  // namespace millrace
