// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <millrace/runtime/files/safetensors.h>
#include <millrace/tensor/error.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    millrace::parse_safetensors({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const millrace::Error&) {
  }
  return 0;
}
