// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/frame.h>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/error_code.h>
#include <support/bytes.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

std::vector<Message> decode_all(FrameDecoder& decoder, std::span<const std::byte> bytes) {
  std::vector<Message> messages;
  while (true) {
    bytes = bytes.subspan(decoder.feed(bytes));
    if (auto message = decoder.take())
      messages.push_back(*std::move(message));
    else if (bytes.empty())
      return messages;
  }
}

Message random_message(Random& random) {
  std::string payload(static_cast<std::size_t>(random.between(0, 40)), ' ');
  for (char& c : payload) c = static_cast<char>(random.next());
  return random.coin() ? text_message(payload) : binary_message(payload);
}

std::string head(std::uint32_t length, char kind) {
  std::string bytes(reinterpret_cast<const char*>(&length), 4);
  return bytes + kind;
}

}  // namespace

TEST_CASE("a frame is a little-endian length, a kind and the payload") {
  CHECK(encode_frame(text_message("{}")) == std::string("\x02\0\0\0J{}", 7));
  CHECK(encode_frame(binary_message("")) == std::string("\0\0\0\0B", 5));
}

TEST_CASE("frames come out whole wherever their bytes were cut") {
  for (const auto seed : seeds(300)) {
    INFO("seed ", seed);
    Random random(seed);
    std::vector<Message> sent, received;
    std::string wire;
    for (std::int64_t left = random.between(0, 12); left > 0; --left) wire += encode_frame(sent.emplace_back(random_message(random)));
    FrameDecoder decoder(40);
    for (const auto piece : cut_anywhere(bytes_of(wire), random))
      for (Message& message : decode_all(decoder, piece)) received.push_back(std::move(message));
    CHECK(received == sent);
    CHECK_FALSE(decoder.mid_frame());
  }
}

TEST_CASE("an unfinished frame shows as such") {
  FrameDecoder decoder(10);
  CHECK_FALSE(decoder.mid_frame());
  decoder.feed(bytes_of(std::string("\x02", 1)));
  CHECK(decoder.mid_frame());
  CHECK_FALSE(decoder.take());
}

TEST_CASE("a length above the limit is refused at its head, before any of its payload") {
  for (const std::uint32_t length : {11u, 1u << 31, 0xffffffffu}) {
    FrameDecoder decoder(10);
    try {
      decoder.feed(bytes_of(head(length, 'B')));
      FAIL("taken");
    } catch (const ProtocolError& error) {
      CHECK(error.code() == ErrorCode::too_big);
      CHECK(std::string(error.what()).find(std::to_string(length)) != std::string::npos);
    }
    CHECK_THROWS_AS(decoder.feed(bytes_of(head(0, 'B'))), ProtocolError);
    CHECK_FALSE(decoder.take());
  }
  FrameDecoder decoder(10);
  CHECK_NOTHROW(decoder.feed(bytes_of(head(10, 'B'))));
}

TEST_CASE("a kind that is neither J nor B is refused") {
  for (int kind = 0; kind < 256; ++kind) {
    FrameDecoder decoder(10);
    if (kind == 'J' || kind == 'B')
      CHECK_NOTHROW(decoder.feed(bytes_of(head(1, static_cast<char>(kind)))));
    else
      CHECK_THROWS_AS(decoder.feed(bytes_of(head(1, static_cast<char>(kind)))), ProtocolError);
  }
}

TEST_CASE("damaged frames give frames or one typed error") {
  for (const auto seed : seeds(500)) {
    INFO("seed ", seed);
    Random random(seed);
    std::string wire;
    for (int k = 0; k < 4; ++k) wire += encode_frame(random_message(random));
    wire = damaged(std::move(wire), random);
    FrameDecoder decoder(64);
    try {
      for (const Message& message : decode_all(decoder, bytes_of(wire))) CHECK(message.payload.size() <= 64);
    } catch (const ProtocolError& error) {
      CHECK((error.code() == ErrorCode::too_big || error.code() == ErrorCode::bad_message));
    }
  }
}
