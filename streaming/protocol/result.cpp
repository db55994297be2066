// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/result.h>

#include <limits>

#include <millrace/streaming/protocol/byte_reader.h>
#include <millrace/streaming/protocol/little_endian.h>

namespace millrace {
namespace {

constexpr std::size_t most_named = 255;  // a count, and a length of a name, are a byte

void check_fits(const char* what, std::size_t found, std::size_t most) {
  if (found > most)
    throw ArgumentError("result: expected at most " + std::to_string(most) + " " + what + ", found " + std::to_string(found));
}

}  // namespace

Message binary_result(std::uint64_t seq, std::uint32_t steps, std::span<const OutputRows> outputs) {
  check_fits("outputs", outputs.size(), most_named);
  constexpr std::size_t head = sizeof seq + sizeof steps + 1, head_of_output = 1 + sizeof(std::uint32_t);
  std::size_t size = head;
  for (const OutputRows& output : outputs) size += head_of_output + output.name.size() + output.bytes.size();
  std::string payload;
  payload.reserve(size);
  append_little_endian(payload, seq);
  append_little_endian(payload, steps);
  payload += static_cast<char>(outputs.size());
  for (const OutputRows& output : outputs) {
    check_fits("bytes of an output's name", output.name.size(), most_named);
    check_fits("bytes of an output", output.bytes.size(), std::numeric_limits<std::uint32_t>::max());
    payload += static_cast<char>(output.name.size());
    payload += output.name;
    append_little_endian(payload, static_cast<std::uint32_t>(output.bytes.size()));
    payload.append(reinterpret_cast<const char*>(output.bytes.data()), output.bytes.size());
  }
  return binary_message(std::move(payload));
}

void check_binary_result(std::span<const std::string_view> names) {
  try {
    check_fits("outputs", names.size(), most_named);
    for (const std::string_view name : names) check_fits("bytes of an output's name", name.size(), most_named);
  } catch (const ArgumentError& error) {
    throw ProtocolError(ErrorCode::bad_input, error.what());
  }
}

namespace {

ResultMessage read_binary_result(ByteReader reader) {
  ResultMessage result;
  result.seq = reader.number<std::uint64_t>();
  result.steps = reader.number<std::uint32_t>();
  const auto count = reader.number<std::uint8_t>();
  for (int k = 0; k < count; ++k) {
    ResultMessage::Output output;
    output.name = reader.text(reader.number<std::uint8_t>());
    output.bytes = reader.text(reader.number<std::uint32_t>());
    result.outputs.push_back(std::move(output));
  }
  reader.end();
  return result;
}

}  // namespace

ResultMessage parse_binary_result(std::span<const std::byte> bytes) {
  try {
    return read_binary_result(ByteReader("result", bytes));
  } catch (const ParseError& cut) {
    throw ProtocolError(ErrorCode::bad_message, cut.what());
  }
}

}  // namespace millrace
