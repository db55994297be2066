// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/reverse_sequence.h>

#include <string>

#include <millrace/kernels/cpu/copy.h>
#include <millrace/kernels/cpu/index.h>

namespace millrace::cpu {

void reverse_sequence(const Tensor& x, const Tensor& lengths, int time_axis, const Tensor& out, ThreadTeam& team) {
  const std::vector<std::int64_t> counts = index_values(lengths);
  const std::int64_t steps = x.dim(time_axis);
  for (const std::int64_t count : counts)
    if (count < 0 || count > steps)
      throw IndexError("reverse_sequence: expected lengths of 0 to " + std::to_string(steps) + ", found " + std::to_string(count));
  for (std::size_t n = 0; n < counts.size(); ++n) {
    const Tensor from = x.select(1 - time_axis, static_cast<std::int64_t>(n));
    const Tensor to = out.select(1 - time_axis, static_cast<std::int64_t>(n));
    for (std::int64_t t = 0; t < steps; ++t) copy(from.select(0, t < counts[n] ? counts[n] - 1 - t : t), to.select(0, t), team);
  }
}

}  // namespace millrace::cpu
