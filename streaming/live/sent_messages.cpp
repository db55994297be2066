// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/sent_messages.h>

#include <utility>

#include <fmt/format.h>

#include <millrace/streaming/protocol/error_code.h>

namespace millrace {

void SentMessages::drop_first() {
  bytes_ -= held_.front().payload.size();
  held_.pop_front();
  ++first_;
}

void SentMessages::add(const Message& message) {
  if (!std::exchange(greeted_, true)) return;
  bytes_ += message.payload.size();
  held_.push_back(message);
  while (bytes_ > capacity_) drop_first();
}

void SentMessages::check_sent(std::uint64_t count) const {
  if (count > first_ + held_.size())
    throw ProtocolError(ErrorCode::bad_message,
                        fmt::format("expected at most {} messages to be acknowledged, found {}", first_ + held_.size(), count));
}

void SentMessages::check(std::uint64_t count) const {
  check_sent(count);
  if (count < first_)
    throw ProtocolError(ErrorCode::unknown_ticket,
                        fmt::format("expected a client that has {} messages, found one that has {}: those between were not acknowledged in "
                                    "time, and are not held any more",
                                    first_, count));
}

void SentMessages::acknowledge(std::uint64_t count) {
  check_sent(count);
  while (first_ < count) drop_first();
}

std::list<Message> SentMessages::take(std::uint64_t count) {
  check(count);
  acknowledge(count);
  greeted_ = false;
  bytes_ = 0;
  return std::exchange(held_, {});
}

}  // namespace millrace
