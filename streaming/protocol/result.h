// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <millrace/streaming/protocol/control.h>
#include <millrace/streaming/protocol/message.h>

namespace millrace {

/// One output's row of one step (or rows of several), borrowed.
struct OutputRows {
  std::string_view name;
  DType dtype = DType::f32;
  std::span<const std::byte> bytes;
};

/// A result as JSON text, for one step: values in row-major order. Floats are the shortest decimals that read back as the same bits (−0 is
/// "-0.0"); "nan", "inf" and "-inf" are strings, and the payload of a NaN is lost. UnsupportedError without the part json.
/// `level`: of the inner sequence that closed, whose outputs these are.
Message json_result(std::uint64_t seq, std::span<const OutputRows> outputs, std::optional<int> level = {});

/// The number of the step whose result `json_result` made that text of; nothing for another text.
std::optional<std::uint64_t> step_of_json_result(std::string_view text);

/// A result as bytes, all little-endian: u64 seq, u32 steps, u8 number of outputs, then for each output u8 length of the name, the name,
/// u32 bytes, the rows. ArgumentError for more than 255 outputs, a name above 255 bytes or rows above 2^32 − 1.
Message binary_result(std::uint64_t seq, std::uint32_t steps, std::span<const OutputRows> outputs);

/// ProtocolError (bad_input) when `binary_result` would refuse outputs of these names.
void check_binary_result(std::span<const std::string_view> names);

/// Reads a binary result. ProtocolError (bad_message) when it is cut, or holds more than it says.
ResultMessage parse_binary_result(std::span<const std::byte> bytes);

/// The client's side: every message of the server, as a value. Remembers `started`, without which results have no dtypes. Not thread-safe.
class ReplyReader {
 public:
  /// ProtocolError when the message is none of the protocol's, or comes before `started`.
  ServerMessage read(const Message& message);
  /// The terms that the session was admitted with, once it was.
  const std::optional<StartedMessage>& started() const noexcept { return started_; }

 private:
  std::optional<StartedMessage> started_;
};

}  // namespace millrace
