// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/log_line.h>

#include <cstdint>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

Json beginning(std::string_view level, std::string_view event, std::chrono::system_clock::time_point now) {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  const std::int64_t milliseconds = since.count() % 1000;
  Json line;
  line["time"] = fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(since.count() / 1000)), milliseconds);
  line["level"] = level;
  line["event"] = event;
  return line;
}

// Text of a client may hold a byte that is no UTF-8, and a cut text may end inside a character.
std::string text_of(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Bytes of the character that `text` begins with, where a terminal is not to have it; else 0.
std::size_t unshown(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return 1;
  if (byte(0) == 0xc2 && byte(1) >= 0x80 && byte(1) <= 0x9f) return 2;  // C1
  if (byte(0) == 0xd8 && byte(1) == 0x9c) return 2;                     // U+061C
  if (byte(0) != 0xe2) return 0;
  if (byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae)))
    return 3;                                                            // U+200E, U+200F, U+2028 … U+202E
  return byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9 ? 3 : 0;  // U+2066 … U+2069
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t bytes = unshown(text);
    line += bytes > 0 ? '?' : text.front();
    text.remove_prefix(bytes > 0 ? bytes : 1);
  }
  return line;
}

std::string json_line(const Server::SessionEnd& end, std::chrono::system_clock::time_point now) {
  const bool fine = end.outcome == "ended" || end.outcome == "gone";
  Json line = beginning(fine ? "info" : "warn", end.started ? "session_end" : "refused", now);
  line["number"] = end.number;
  line["address"] = end.address;
  line["session"] = end.label;
  if (!end.model.empty()) line["model"] = end.model;
  line["outcome"] = end.outcome;
  if (!end.why.empty()) line["why"] = end.why;
  line["steps"] = end.steps;
  line["seconds"] = end.seconds;
  return text_of(line);
}

std::string json_line(std::string_view level, std::string_view event, std::string_view message, std::chrono::system_clock::time_point now) {
  Json line = beginning(level, event, now);
  line["message"] = message;
  return text_of(line);
}

}  // namespace millrace
