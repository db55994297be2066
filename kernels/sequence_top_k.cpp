// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/sequence_top_k.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/cpu/sequence_top_k.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {

SequenceTopK sequence_top_k(const Tensor& x, const std::vector<std::int64_t>& offsets, std::int64_t k, StreamRef stream) {
  internal::check_places("sequence_top_k", stream, {&x});
  internal::check_row_offsets("sequence_top_k", x, offsets);
  if (k < 0) throw ArgumentError("sequence_top_k: expected k of 0 or more, found " + std::to_string(k));
  if (!is_floating(x.dtype()) && x.dtype() != DType::i64 && x.dtype() != DType::i32)
    throw DTypeError("sequence_top_k: expected floats, i64 or i32, found " + x.to_string());
  std::vector<std::int64_t> made{0};
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) made.push_back(made.back() + std::min(k, offsets[i + 1] - offsets[i]));
  DDim dims = x.dims();
  dims[0] = made.back();
  const Tensor rows = contiguous(x, stream);
  const Tensor values(x.dtype(), dims, stream.memory());
  const Tensor places(DType::i64, dims, stream.memory());
  launch(
      TensorRefs<1>{&rows}, TensorRefs<2>{&values, &places},
      [=](ThreadTeam& team) { cpu::sequence_top_k(rows, offsets, values, places, made, team); }, stream);
  return {values, places, made};
}

}  // namespace millrace
