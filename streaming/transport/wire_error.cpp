// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/wire_error.h>

#include <string>

namespace millrace {
namespace {

class Category final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "millrace.wire"; }
  std::string message(int value) const override {
    switch (static_cast<ErrorCode>(value - 1)) {
      case ErrorCode::bad_message: return "a frame or message that the protocol does not have";
      case ErrorCode::bad_text: return "text that is not UTF-8";
      case ErrorCode::bad_input: return "input that the program does not take";
      case ErrorCode::refused: return "a route, an origin or a token that is not allowed";
      case ErrorCode::idle: return "the time for it was over";
      case ErrorCode::slow_reader: return "what was sent was not read in time";
      case ErrorCode::too_big: return "a message above the limit";
      case ErrorCode::failed: return "a step failed";
      case ErrorCode::overload: return "no room for another session";
      case ErrorCode::draining: return "the server is going away";
      case ErrorCode::lost: return "the device of the session is gone";
      case ErrorCode::bad_state: return "a saved state that is not this server's";
      case ErrorCode::unknown_ticket: return "a ticket that no session waits for";
      case ErrorCode::unknown_model: return "a model that the server does not have";
    }
    return "unknown";
  }
};

}  // namespace

const boost::system::error_category& wire_category() noexcept {
  static constinit const Category category;
  return category;
}

std::optional<ErrorCode> wire_error(const boost::system::error_code& error) noexcept {
  if (!error || error.category() != wire_category()) return std::nullopt;
  return static_cast<ErrorCode>(error.value() - 1);
}

}  // namespace millrace
