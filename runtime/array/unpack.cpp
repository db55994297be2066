// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/unpack.h>

#include <millrace/kernels/gather.h>
#include <millrace/tensor/ragged.h>

namespace millrace {

std::pair<TensorArray, SequenceOrder> unpack(const LoDTensor& x, int level, bool sort_by_length, StreamRef stream, bool reverse) {
  const UnpackPlan plan = make_unpack_plan(x.lod(), level, sort_by_length, x.rows(), reverse);
  const Tensor slab = plan.identity ? x.tensor() : gather_rows(x.tensor(), plan.sources, stream);
  DDim dims = x.dims();
  dims[0] = DDim::unknown;
  const TensorArray steps = TensorArray(plan.steps(), plan.order).named("steps").of(x.dtype(), dims, plan.order.depth_below());
  if (plan.order.depth_below() == 0) {
    steps.fill(slab, plan.step_offsets);
    return {steps, plan.order};
  }
  for (std::size_t t = 0; t < plan.step_lods.size(); ++t)
    steps.write(t, LoDTensor(slab.rows(plan.step_offsets[t], plan.step_offsets[t + 1]), plan.step_lods[t]));
  return {steps, plan.order};
}

TensorArray unpack(const TensorArray& open, bool sort_by_length) {
  if (sort_by_length)
    throw UnsupportedError(
        "unpack: " + open.to_string() +
        " cannot be sorted by length: expected a whole LoDTensor, found an array whose sequences may still grow; unpack it unsorted");
  return open;
}

}  // namespace millrace
