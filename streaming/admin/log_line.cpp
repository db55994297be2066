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

}  // namespace

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
