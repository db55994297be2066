// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <millrace/streaming/live/server.h>

/// Lines of a log, each a JSON object without its newline: `time` (UTC, ISO 8601 with milliseconds), `level` and `event` come first.
namespace millrace {

/// `event` is "session_end" or, before a start, "refused"; then number, address, session, model (of one that started), outcome, why, steps, seconds. `level` is "info" for a
/// session that ended or went, else "warn".
std::string json_line(const Server::SessionEnd& end, std::chrono::system_clock::time_point now);
/// Anything else: `message` is text for people.
std::string json_line(std::string_view level, std::string_view event, std::string_view message, std::chrono::system_clock::time_point now);

/// Text of others for a line that a terminal shows: "?" in place of control characters (C0, DEL, C1), line and paragraph separators, and characters that change the
/// direction of text.
std::string one_line(std::string_view text);

}  // namespace millrace
