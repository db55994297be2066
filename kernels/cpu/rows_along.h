// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <millrace/kernels/cpu/convert_run.h>
#include <millrace/kernels/cpu/fold_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/kernels/cpu/transpose_kernels.h>
#include <millrace/tensor/tensor.h>

namespace millrace::cpu {

/// Whether each of sum_rows offsets is one behind the last.
inline bool sides_lie(const std::int64_t* starts) {
  bool all = true;
  for (int r = 1; r < sum_rows; ++r) all = all && starts[r] == starts[0] + r;
  return all;
}

/// Takes the rows of `x` along its last `axes` axes (any strides) a few at a time into contiguous buffers of `Wide`,
/// lets f(rows, count, n) change them, and writes them to the same places of `out` (any strides, the same extents). `x`
/// holds T, `out` holds T.
template <class T, class Wide, class F>
void each_rows(const Tensor& x, int axes, const Tensor& out, ThreadTeam& team, F&& f) {
  if (out.elements() == 0) return;
  const int split = x.rank() - axes;
  const DDim outer = x.dims().slice(0, split);
  const DDim inner = x.dims().slice(split, x.rank());
  const DDim strides[4] = {x.strides().slice(0, split), out.strides().slice(0, split), x.strides().slice(split, x.rank()),
                           out.strides().slice(split, x.rank())};
  const StridedLoop<2> rows(outer, {&strides[0], &strides[1]});
  const StridedLoop<2> elements(inner, {&strides[2], &strides[3]});
  const std::int64_t n = elements.count();
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  const auto [from_step, to_step] = elements.inner();
  team.parallel(rows.count(), std::max<std::int64_t>(1, grain_heavy / n), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Wide> room(static_cast<std::size_t>(n) * sum_rows);
    Wide* buffers[sum_rows];
    for (int r = 0; r < sum_rows; ++r) buffers[r] = room.data() + r * n;
    for (std::int64_t at = begin; at < end; at += sum_rows) {
      const std::int64_t last = std::min<std::int64_t>(end, at + sum_rows);
      std::int64_t starts[2][sum_rows];
      int count = 0;
      rows.each_run(at, last, [&](const auto& offsets, std::int64_t run) {
        for (std::int64_t i = 0; i < run; ++i, ++count)
          for (int side = 0; side < 2; ++side) starts[side][count] = offsets[side] + i * rows.inner()[side];
      });
      // Rows that lie side by side share cache lines: an element of each at a time.
      const bool beside = count == sum_rows && sides_lie(starts[0]) && sides_lie(starts[1]);
      const bool turned = std::is_same_v<T, Wide> && beside && elements.runs() == 1;
      if (turned) {
        if constexpr (std::is_same_v<T, Wide>) transpose_rows(bits_of(from + starts[0][0]), from_step, bits_of(buffers[0]), n, sum_rows, n);
      } else if (beside) {
        std::int64_t at_element = 0;
        elements.each_run(0, n, [&](const auto& offsets, std::int64_t run) {
          const T* source = from + starts[0][0] + offsets[0];
          for (std::int64_t i = 0; i < run; ++i, ++at_element)
            for (int r = 0; r < sum_rows; ++r) buffers[r][at_element] = convert_element<Wide>(source[i * from_step + r]);
        });
      } else {
        for (int r = 0; r < count; ++r) {
          Wide* buffer = buffers[r];
          elements.each_run(0, n, [&](const auto& offsets, std::int64_t run) {
            convert_run(from + starts[0][r] + offsets[0], from_step, buffer, 1, run);
            buffer += run;
          });
        }
      }
      f(buffers, count, n);
      if (turned) {
        if constexpr (std::is_same_v<T, Wide>) transpose_rows(bits_of(buffers[0]), n, bits_of(to + starts[1][0]), to_step, n, sum_rows);
        continue;
      }
      if (beside) {
        std::int64_t at_element = 0;
        elements.each_run(0, n, [&](const auto& offsets, std::int64_t run) {
          T* target = to + starts[1][0] + offsets[1];
          for (std::int64_t i = 0; i < run; ++i, ++at_element)
            for (int r = 0; r < sum_rows; ++r) target[i * to_step + r] = convert_element<T>(buffers[r][at_element]);
        });
        continue;
      }
      for (int r = 0; r < count; ++r) {
        const Wide* buffer = buffers[r];
        elements.each_run(0, n, [&](const auto& offsets, std::int64_t run) {
          convert_run(buffer, 1, to + starts[1][r] + offsets[1], to_step, run);
          buffer += run;
        });
      }
    }
  });
}

/// Calls f(T{}, Wide{}) for a float dtype and the type it is computed in.
template <class F>
void visit_floats(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double{}, double{});
    case DType::f32: return f(float{}, float{});
    case DType::f16: return f(float16{}, float{});
    default: return f(bfloat16{}, float{});
  }
}

}  // namespace millrace::cpu
