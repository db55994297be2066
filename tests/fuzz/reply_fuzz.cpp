// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <millrace/streaming/protocol/result.h>

// Lines of text and, for a line that begins with B, of binary: what a server says to a client.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  millrace::ReplyReader reader;
  while (!rest.empty()) {
    const std::string line(rest.substr(0, rest.find('\n')));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    try {
      reader.read(line.starts_with('B') ? millrace::binary_message(line.substr(1)) : millrace::text_message(line));
    } catch (const millrace::ProtocolError&) {
    }
  }
  return 0;
}
