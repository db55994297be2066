// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/sequence_top_k.h>

#include <algorithm>
#include <numeric>

#include <millrace/kernels/cpu/segments.h>

namespace millrace::cpu {
namespace {

template <class T, class Wide>
void run_type(const Tensor& x, const std::vector<std::int64_t>& offsets, bool largest, const Tensor& values, const Tensor& places,
              const std::vector<std::int64_t>& made, ThreadTeam& team) {
  const std::int64_t columns = x.dims().erased(0).elements();
  const T* from = static_cast<const T*>(x.raw());
  T* best = static_cast<T*>(values.raw_mutable());
  auto* where = static_cast<std::int64_t*>(places.raw_mutable());
  each_segment(offsets, columns, team, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    const std::int64_t target = made[static_cast<std::size_t>(n)];
    const std::int64_t count = made[static_cast<std::size_t>(n) + 1] - target;
    std::vector<std::int64_t> rows(static_cast<std::size_t>(end - begin));
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto value = [&](std::int64_t row) { return convert_element<Wide>(from[(begin + row) * columns + c]); };
      std::iota(rows.begin(), rows.end(), std::int64_t{0});
      std::partial_sort(rows.begin(), rows.begin() + count, rows.end(), [&](std::int64_t a, std::int64_t b) {
        const Wide left = value(a);
        const Wide right = value(b);
        const bool left_nan = left != left;
        const bool right_nan = right != right;
        if (left_nan != right_nan) return left_nan == largest;
        if (!left_nan && left != right) return (left > right) == largest;
        return a < b;
      });
      for (std::int64_t i = 0; i < count; ++i) {
        best[(target + i) * columns + c] = from[(begin + rows[static_cast<std::size_t>(i)]) * columns + c];
        where[(target + i) * columns + c] = rows[static_cast<std::size_t>(i)];
      }
    }
  });
}

}  // namespace

void sequence_top_k(const Tensor& x, const std::vector<std::int64_t>& offsets, bool largest, const Tensor& values, const Tensor& places,
                    const std::vector<std::int64_t>& made, ThreadTeam& team) {
  if (values.elements() == 0) return;
  if (x.dtype() == DType::i64) return run_type<std::int64_t, std::int64_t>(x, offsets, largest, values, places, made, team);
  if (x.dtype() == DType::i32) return run_type<std::int32_t, std::int32_t>(x, offsets, largest, values, places, made, team);
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    run_type<decltype(element), decltype(wide)>(x, offsets, largest, values, places, made, team);
  });
}

}  // namespace millrace::cpu
