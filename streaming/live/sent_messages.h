// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>

#include <millrace/streaming/protocol/message.h>

namespace millrace {

/// Messages that a resumable session has sent and its client has not acknowledged. Messages are numbered from 0, without `started`. Bounded:
/// beyond `capacity` bytes the oldest are dropped. Not thread-safe.
class SentMessages {
 public:
  SentMessages(std::string ticket, std::size_t capacity) : ticket_(std::move(ticket)), capacity_(capacity) {}

  /// Whether `started` has gone out.
  bool greeted() const noexcept { return greeted_; }
  const std::string& ticket() const noexcept { return ticket_; }
  /// A message goes out. The first, and the first after `take`, is `started`, which is not held.
  void add(const Message& message);
  /// The client has the first `count`. Fewer than before are taken for the same. ProtocolError (bad_message) for more than were sent.
  void acknowledge(std::uint64_t count);
  /// Throws as `take` would.
  void check(std::uint64_t count) const;
  /// The messages that a client which has the first `count` lacks, to be sent again. ProtocolError: bad_message as above; unknown_ticket when some were dropped.
  std::list<Message> take(std::uint64_t count);

  std::size_t held_bytes() const noexcept { return bytes_; }

 private:
  void drop_first();
  void check_sent(std::uint64_t count) const;

  std::string ticket_;
  std::size_t capacity_;
  std::list<Message> held_;
  std::size_t bytes_ = 0;
  std::uint64_t first_ = 0;  // the number of the oldest that is held
  bool greeted_ = false;
};

}  // namespace millrace
