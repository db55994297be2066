// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <millrace/streaming/audio/wav.h>
#include <millrace/tensor/error.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto sound = millrace::parse_wav({reinterpret_cast<const char*>(data), size}, "input");
    if (sound.bytes.size() % sound.format.frame_bytes() != 0) std::abort();
  } catch (const millrace::ParseError&) {
  }
  return 0;
}
