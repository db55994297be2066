// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_softmax.h>

#include <numeric>

#include <millrace/kernels/cpu/segments.h>
#include <millrace/kernels/cpu/softmax.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// The same view with the rows as the last axis.
Tensor rows_last(const Tensor& x) {
  std::vector<int> axes(static_cast<std::size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), 1);
  axes.back() = 0;
  return x.permute(axes);
}

void softmax_of_each(const Tensor& from, const std::vector<std::int64_t>& offsets, const Tensor& to, ThreadTeam& team) {
  const std::int64_t columns = from.dims().erased(-1).elements();
  cpu::each_segment(offsets, columns, team, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    if (begin < end) cpu::softmax(from.slice(-1, begin, end), false, to.slice(-1, begin, end), team);
  });
}

constexpr internal::Implementations<const Tensor&, const std::vector<std::int64_t>&, const Tensor&> kernels{
    "sequence_softmax", {{"cuda", cuda::sequence_softmax}}, softmax_of_each};

}  // namespace

Tensor sequence_softmax(const Tensor& x, const std::vector<std::int64_t>& offsets, StreamRef stream) {
  internal::check_floating("sequence_softmax", x);
  internal::check_row_offsets("sequence_softmax", x, offsets);
  Tensor out(x.dtype(), x.dims(), stream.memory());
  internal::check_device_places("sequence_softmax", stream, {&x, &out});
  launch(
      TensorRefs<1>{&x}, TensorRefs<1>{&out},
      [from = rows_last(x), to = rows_last(out), offsets](KernelContext& context) { kernels.run(from, offsets, to, context); }, stream);
  return out;
}

}  // namespace millrace
