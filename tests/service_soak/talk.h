// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <millrace/streaming/protocol/frame.h>
#include <millrace/streaming/protocol/message.h>
#include <support/random_tensor.h>

namespace millrace::simulated {

/// A client's side of a connection without I/O, over plain TCP or WebSocket (RFC 6455): messages become bytes and bytes become messages. It shows a token first,
/// masks its frames, cuts messages into fragments with pings between them, and answers most closes, as `random` decides.
class Talk {
 public:
  /// `token`: empty: none is shown.
  Talk(bool web, std::string token, testing::Random& random);

  /// Bytes to send for this message. Over WebSocket they wait for the server's answer to the request: then `hear` gives them.
  std::string say(const Message& message);
  /// Messages of the server; bytes to send are appended to `answer`.
  std::vector<Message> hear(std::string_view bytes, std::string& answer);
  /// Bytes to send first.
  std::string begin();

  /// Of the server's answer to the request, other than 101; 0: none.
  int refused_with() const noexcept { return refused_with_; }

 private:
  std::string frame(unsigned first, std::string_view payload);
  std::string frames_of(const Message& message);
  bool take_head();
  bool take_frame(std::vector<Message>& messages, std::string& answer);

  bool web_;
  std::string token_;
  testing::Random& random_;
  FrameDecoder decoder_;
  std::string waiting_;  // to be sent behind the answer to the request
  std::string bytes_;    // that arrived
  Message message_;      // of fragments so far
  bool open_ = false;
  int refused_with_ = 0;
};

}  // namespace millrace::simulated
