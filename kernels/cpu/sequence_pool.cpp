// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/sequence_pool.h>

#include <cmath>

#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/segments.h>

namespace millrace::cpu {
namespace {

using Offsets = std::vector<std::int64_t>;

std::int64_t columns_of(const Tensor& x) { return x.dims().erased(0).elements(); }

template <class T, class Wide>
void greatest_rows(const Tensor& x, const Offsets& offsets, const Tensor& out, ThreadTeam& team) {
  const std::int64_t columns = columns_of(x);
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  each_segment(offsets, columns, team, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    T* most = to + n * columns;
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t c = 0; c < columns; ++c) {
        const T v = from[row * columns + c];
        const Wide wide = convert_element<Wide>(v);
        if (row == begin || wide > convert_element<Wide>(most[c]) || wide != wide) most[c] = v;
      }
  });
}

/// The pool's value, from a sum over n rows.
template <class T, class Wide>
T finished(SequencePool kind, Wide sum, std::int64_t n) {
  if constexpr (std::is_integral_v<T>) {
    if (kind == SequencePool::average) return static_cast<T>(static_cast<std::int64_t>(static_cast<T>(sum)) / n);
    return static_cast<T>(sum);
  } else {
    if (kind == SequencePool::average) sum /= static_cast<Wide>(n);
    if (kind == SequencePool::sqrt) sum /= std::sqrt(static_cast<Wide>(n));
    return convert_element<T>(sum);
  }
}

template <class T, class Wide>
void sum_rows_of(SequencePool kind, const Tensor& x, const Offsets& offsets, const Tensor& out, ThreadTeam& team) {
  const std::int64_t columns = columns_of(x);
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  each_segment(offsets, columns, team, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    // Column by column, a few at a time: their chains are independent.
    for (std::int64_t left = 0; left < columns && begin < end; left += sum_rows) {
      const std::int64_t count = std::min<std::int64_t>(sum_rows, columns - left);
      Wide total[sum_rows] = {};
      for (std::int64_t block = begin; block < end; block += k_block) {
        Wide part[sum_rows] = {};
        for (std::int64_t row = block; row < std::min(end, block + k_block); ++row)
          for (std::int64_t c = 0; c < count; ++c) part[c] += convert_element<Wide>(from[row * columns + left + c]);
        for (std::int64_t c = 0; c < count; ++c) total[c] = block == begin ? part[c] : total[c] + part[c];
      }
      for (std::int64_t c = 0; c < count; ++c) to[n * columns + left + c] = finished<T, Wide>(kind, total[c], end - begin);
    }
  });
}

}  // namespace

void sequence_pool(SequencePool kind, const Tensor& x, const Offsets& offsets, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  if (kind != SequencePool::max)
    return visit_numbers(x.dtype(),
                         [&](auto element, auto wide) { sum_rows_of<decltype(element), decltype(wide)>(kind, x, offsets, out, team); });
  switch (x.dtype()) {
    case DType::i64: return greatest_rows<std::int64_t, std::int64_t>(x, offsets, out, team);
    case DType::i32: return greatest_rows<std::int32_t, std::int32_t>(x, offsets, out, team);
    case DType::i8: return greatest_rows<std::int8_t, std::int8_t>(x, offsets, out, team);
    case DType::u8: return greatest_rows<std::uint8_t, std::uint8_t>(x, offsets, out, team);
    case DType::boolean: return greatest_rows<bool, bool>(x, offsets, out, team);
    default:
      return visit_floats(x.dtype(),
                          [&](auto element, auto wide) { greatest_rows<decltype(element), decltype(wide)>(x, offsets, out, team); });
  }
}

}  // namespace millrace::cpu
