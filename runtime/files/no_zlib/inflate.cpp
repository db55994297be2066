// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/internal/inflate.h>

#include <millrace/tensor/error.h>

namespace millrace::internal {

std::string inflate(std::string_view, std::size_t, const std::string& where) {
  throw UnsupportedError(where + ": inflating it needs the part zlib, which this build was made without");
}

}  // namespace millrace::internal
