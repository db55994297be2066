// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

namespace millrace::cpu {

/// Elements as the unsigned integers of their size.
template <class T>
auto bits_of(T* x) {
  using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
  return reinterpret_cast<std::conditional_t<std::is_const_v<T>, const U*, U*>>(x);
}

/// to[r·to_step + c] = from[c·from_step + r] for `rows` rows and `columns` columns, in vectors.
void transpose_rows(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns);
void transpose_rows(const std::uint16_t* from, std::int64_t from_step, std::uint16_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns);
void transpose_rows(const std::uint32_t* from, std::int64_t from_step, std::uint32_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns);
void transpose_rows(const std::uint64_t* from, std::int64_t from_step, std::uint64_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns);

}  // namespace millrace::cpu
