// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <millrace/streaming/protocol/control.h>

// A start that is taken must be taken again, in the same words, once it was written.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  millrace::ClientMessage message;
  try {
    message = millrace::parse_client_message({reinterpret_cast<const char*>(data), size});
  } catch (const millrace::ProtocolError&) {
    return 0;
  }
  if (const auto* start = std::get_if<millrace::StartMessage>(&message)) {
    const std::string text = to_json(*start);
    if (to_json(std::get<millrace::StartMessage>(millrace::parse_client_message(text))) != text) std::abort();
  }
  return 0;
}
