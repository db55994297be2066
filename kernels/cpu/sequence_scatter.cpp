// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/sequence_scatter.h>

#include <string>

#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/segments.h>

namespace millrace::cpu {
namespace {

template <class T, class Wide>
void run_type(const Tensor& x, const std::vector<std::int64_t>& places, const Tensor& updates, const std::vector<std::int64_t>& offsets,
              const Tensor& out, ThreadTeam& team) {
  const std::int64_t columns = x.dim(1);
  const T* from = static_cast<const T*>(x.raw());
  const T* added = static_cast<const T*>(updates.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  const std::int64_t grain = std::max<std::int64_t>(1, grain_light / (columns + offsets.back() / x.dim(0) + 1));
  team.parallel(x.dim(0), grain, [&](std::int64_t first, std::int64_t last) {
    std::vector<Wide> row(static_cast<std::size_t>(columns));
    for (std::int64_t n = first; n < last; ++n) {
      for (std::int64_t c = 0; c < columns; ++c) row[static_cast<std::size_t>(c)] = convert_element<Wide>(from[n * columns + c]);
      for (std::int64_t j = offsets[static_cast<std::size_t>(n)]; j < offsets[static_cast<std::size_t>(n) + 1]; ++j)
        row[static_cast<std::size_t>(places[static_cast<std::size_t>(j)])] += convert_element<Wide>(added[j]);
      for (std::int64_t c = 0; c < columns; ++c) to[n * columns + c] = convert_element<T>(row[static_cast<std::size_t>(c)]);
    }
  });
}

}  // namespace

void sequence_scatter(const Tensor& x, const Tensor& ids, const Tensor& updates, const std::vector<std::int64_t>& offsets,
                      const Tensor& out, ThreadTeam& team) {
  const std::vector<std::int64_t> places = index_values(ids);
  for (const std::int64_t place : places)
    if (place < 0 || place >= x.dim(1))
      throw IndexError("sequence_scatter: expected an id within axis 1 of " + x.dims().to_string() + ", found " + std::to_string(place));
  if (out.elements() == 0) return;
  visit_numbers(x.dtype(),
                [&](auto element, auto wide) { run_type<decltype(element), decltype(wide)>(x, places, updates, offsets, out, team); });
}

}  // namespace millrace::cpu
