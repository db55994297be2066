// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/tensor/lod.h>

namespace millrace::internal {

/// LoDError unless `lod` has a level and describes `rows` rows.
inline void check_sequences(const char* op, const LoD& lod, std::int64_t rows) {
  if (lod.empty()) throw LoDError(std::string(op) + ": expected rows with sequences, found a LoD without levels");
  lod.validate(rows);
}

}  // namespace millrace::internal
