// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/implementations.h>

#include <string>

namespace millrace::internal {

void refuse_all(const char* op, const Place& place, std::span<const RefusedImplementation> refused) {
  std::string text = std::string(op) + ": expected an implementation for " + place.to_string() + ", found none: ";
  for (std::size_t i = 0; i < refused.size(); ++i) text += std::string(i == 0 ? "" : ", ") + refused[i].name + " " + refused[i].reason;
  if (!place.is_cpu()) text += ": run the program on cpu";
  throw UnsupportedError(text);
}

}  // namespace millrace::internal
