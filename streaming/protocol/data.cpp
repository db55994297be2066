// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/data.h>

#include <millrace/streaming/protocol/error_code.h>

namespace millrace {

DataView parse_data(const Message& message, bool several) {
  const auto bytes = message.bytes();
  DataView view;
  view.bytes = bytes;
  if (!several) return view;
  const std::size_t length = bytes.empty() ? 0 : static_cast<std::size_t>(bytes[0]);
  if (bytes.empty() || bytes.size() < 1 + length)
    throw ProtocolError(ErrorCode::bad_message,
                        "data: expected the length of an input's name and the name, found " + std::to_string(bytes.size()) + " bytes");
  view.input = std::string_view(message.payload).substr(1, length);
  view.bytes = bytes.subspan(1 + length);
  return view;
}

Message encode_data(std::string_view input, std::span<const std::byte> bytes) {
  if (input.size() > 255) throw ArgumentError("data: expected an input's name of at most 255 bytes, found " + std::to_string(input.size()));
  std::string payload;
  payload.reserve(1 + input.size() + bytes.size());
  if (!input.empty()) {
    payload += static_cast<char>(input.size());
    payload += input;
  }
  payload.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return binary_message(std::move(payload));
}

}  // namespace millrace
