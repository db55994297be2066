// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/row_conv.h>

#include <millrace/kernels/cpu/segments.h>

namespace millrace::cpu {
namespace {

template <class T, class Wide>
void run_type(const Tensor& x, const Tensor& w, const std::vector<std::int64_t>& offsets, const Tensor& out, ThreadTeam& team) {
  const std::int64_t columns = x.dim(1);
  const std::int64_t reach = w.dim(0);
  const T* from = static_cast<const T*>(x.raw());
  const T* taps = static_cast<const T*>(w.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  each_segment(offsets, columns * std::max<std::int64_t>(1, reach), team, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    std::vector<Wide> sums(static_cast<std::size_t>(columns));
    for (std::int64_t row = begin; row < end; ++row) {
      std::fill(sums.begin(), sums.end(), Wide{});
      for (std::int64_t j = 0; j < std::min(reach, end - row); ++j)
        for (std::int64_t c = 0; c < columns; ++c)
          sums[static_cast<std::size_t>(c)] +=
              convert_element<Wide>(taps[j * columns + c]) * convert_element<Wide>(from[(row + j) * columns + c]);
      for (std::int64_t c = 0; c < columns; ++c) to[row * columns + c] = convert_element<T>(sums[static_cast<std::size_t>(c)]);
    }
  });
}

}  // namespace

void row_conv(const Tensor& x, const Tensor& w, const std::vector<std::int64_t>& offsets, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  visit_floats(x.dtype(), [&](auto element, auto wide) { run_type<decltype(element), decltype(wide)>(x, w, offsets, out, team); });
}

}  // namespace millrace::cpu
