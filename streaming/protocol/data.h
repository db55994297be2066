// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <millrace/streaming/protocol/message.h>

namespace millrace {

/// A client's data message to a program of several inputs: u8 length of the name, the name, then bytes of that input. A program of one
/// input takes the bytes alone.
struct DataView {
  std::string_view input;  ///< empty for a program of one input
  std::span<const std::byte> bytes;
};

/// Reads a binary message; the view borrows from it. `several`: whether the program has more than one input. ProtocolError (bad_message)
/// when the name is cut.
DataView parse_data(const Message& message, bool several);

/// The message that carries `bytes` for `input` (empty: the only one). ArgumentError when the name is longer than 255 bytes.
Message encode_data(std::string_view input, std::span<const std::byte> bytes);

}  // namespace millrace
