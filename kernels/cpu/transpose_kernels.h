// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::cpu {

/// to[r·to_step + c] = from[c·from_step + r] for `rows` rows and `columns` columns, of elements of 4 and 8 bytes in vectors.
void transpose_rows(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns);
void transpose_rows(const std::uint16_t* from, std::int64_t from_step, std::uint16_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns);
void transpose_rows(const std::uint32_t* from, std::int64_t from_step, std::uint32_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns);
void transpose_rows(const std::uint64_t* from, std::int64_t from_step, std::uint64_t* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t columns);

}  // namespace millrace::cpu
