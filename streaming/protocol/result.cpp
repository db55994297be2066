// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/result.h>

#include <limits>

#include <millrace/streaming/protocol/little_endian.h>

namespace millrace {
namespace {

/// Takes pieces off the front of bytes, or says that they were cut.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size())
      throw ProtocolError(ErrorCode::bad_message,
                          "result: expected " + std::to_string(count) + " more bytes, found " + std::to_string(bytes_.size()));
    const auto piece = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return piece;
  }
  template <class T>
  T number() {
    return read_little_endian<T>(take(sizeof(T)).data());
  }
  std::string text(std::size_t count) {
    const auto piece = take(count);
    return {reinterpret_cast<const char*>(piece.data()), piece.size()};
  }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

constexpr std::size_t most_named = 255;  // a count, and a length of a name, are a byte

void check_fits(const char* what, std::size_t found, std::size_t most) {
  if (found > most)
    throw ArgumentError("result: expected at most " + std::to_string(most) + " " + what + ", found " + std::to_string(found));
}

}  // namespace

Message binary_result(std::uint64_t seq, std::uint32_t steps, std::span<const OutputRows> outputs) {
  check_fits("outputs", outputs.size(), most_named);
  std::string payload;
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

ResultMessage parse_binary_result(std::span<const std::byte> bytes) {
  Cursor cursor(bytes);
  ResultMessage result;
  result.seq = cursor.number<std::uint64_t>();
  result.steps = cursor.number<std::uint32_t>();
  const auto count = cursor.number<std::uint8_t>();
  for (int k = 0; k < count; ++k) {
    ResultMessage::Output output;
    output.name = cursor.text(cursor.number<std::uint8_t>());
    output.bytes = cursor.text(cursor.number<std::uint32_t>());
    result.outputs.push_back(std::move(output));
  }
  if (cursor.left() > 0)
    throw ProtocolError(ErrorCode::bad_message, "result: expected the end, found " + std::to_string(cursor.left()) + " more bytes");
  return result;
}

}  // namespace millrace
