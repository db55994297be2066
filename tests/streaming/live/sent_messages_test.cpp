// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/sent_messages.h>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/error_code.h>

using namespace millrace;

namespace {

ErrorCode refusal(SentMessages& sent, std::uint64_t count) {
  try {
    sent.take(count);
  } catch (const ProtocolError& error) {
    return error.code();
  }
  return ErrorCode::failed;
}

}  // namespace

TEST_CASE("what was sent and not acknowledged is given once more, in order, and started is not among it") {
  SentMessages sent("t", 100);
  sent.add(text_message("started"));
  for (const char* text : {"0", "1", "2", "3"}) sent.add(text_message(text));
  sent.acknowledge(1);
  sent.acknowledge(0);  // known already
  CHECK(sent.held_bytes() == 3);
  CHECK(refusal(sent, 5) == ErrorCode::bad_message);
  const std::list<Message> again = sent.take(2);
  REQUIRE(again.size() == 2);
  CHECK(again.front().payload == "2");
  CHECK(again.back().payload == "3");
  CHECK(sent.held_bytes() == 0);
  sent.add(text_message("started again"));
  for (const Message& message : again) sent.add(message);
  CHECK(sent.take(3).size() == 1);
}

TEST_CASE("what is held is bounded, and a client that lacks more is refused") {
  SentMessages sent("t", 4);
  sent.add(text_message("started"));
  for (int i = 0; i < 10; ++i) sent.add(text_message("ab"));
  CHECK(sent.held_bytes() == 4);
  CHECK(refusal(sent, 7) == ErrorCode::unknown_ticket);
  CHECK(sent.take(8).size() == 2);
}
