// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/error_code.h>

#include <array>

namespace millrace {
namespace {

struct Entry {
  ErrorCode code;
  std::string_view name;
  std::uint16_t close;
};
constexpr std::array<Entry, 14> entries{{{ErrorCode::bad_message, "bad_message", 1002},
                                         {ErrorCode::bad_text, "bad_text", 1007},
                                         {ErrorCode::bad_input, "bad_input", 1008},
                                         {ErrorCode::refused, "refused", 1008},
                                         {ErrorCode::idle, "idle", 1008},
                                         {ErrorCode::slow_reader, "slow_reader", 1008},
                                         {ErrorCode::too_big, "too_big", 1009},
                                         {ErrorCode::failed, "failed", 1011},
                                         {ErrorCode::overload, "overload", 1013},
                                         {ErrorCode::draining, "draining", 1001},
                                         {ErrorCode::lost, "lost", 1011},
                                         {ErrorCode::bad_state, "bad_state", 1008},
                                         {ErrorCode::unknown_ticket, "unknown_ticket", 1008},
                                         {ErrorCode::unknown_model, "unknown_model", 1008}}};

}  // namespace

std::string_view name_of(ErrorCode code) { return entries.at(static_cast<std::size_t>(code)).name; }

std::optional<ErrorCode> error_code_named(std::string_view name) {
  for (const Entry& entry : entries)
    if (entry.name == name) return entry.code;
  return std::nullopt;
}

std::uint16_t close_code_of(ErrorCode code) { return entries.at(static_cast<std::size_t>(code)).close; }

}  // namespace millrace
