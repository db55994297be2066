// SPDX-License-Identifier: Apache-2.0
#include "strict_json.h"

#include <algorithm>

#include <millrace/streaming/protocol/utf8.h>

namespace millrace {
namespace {

/// Refuses depth and repeated keys while the parser runs, so that hostile text is dropped at its first offence.
class Watch {
 public:
  bool operator()(int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (keys_.size() == max_json_depth)
        throw ProtocolError(ErrorCode::bad_message, "control: expected JSON at most " + std::to_string(max_json_depth) + " deep");
      keys_.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      keys_.pop_back();
    } else if (event == Event::key && !keys_.back().insert(value.get_ref<const std::string&>()).second) {
      throw ProtocolError(ErrorCode::bad_message, "control: the key '" + value.get<std::string>() + "' stands twice in one object");
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

nlohmann::json parse_strict_json(std::string_view text) {
  if (!is_utf8(text)) throw ProtocolError(ErrorCode::bad_text, "control: expected UTF-8 text");
  try {
    Watch watch;
    return nlohmann::json::parse(
        text, [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) { return watch(depth, event, value); });
  } catch (const nlohmann::json::parse_error& error) {
    throw ProtocolError(ErrorCode::bad_message, "control: expected JSON, found something else at byte " + std::to_string(error.byte));
  } catch (const nlohmann::json::out_of_range&) {
    throw ProtocolError(ErrorCode::bad_message, "control: expected numbers that a double can hold");
  }
}

JsonObject::JsonObject(const nlohmann::json& value, std::string where) : value_(value), where_(std::move(where)) {
  if (!value.is_object()) unexpected_json(where_, "an object", value);
}

void JsonObject::only(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : value_.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string names;
    for (std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
    throw ProtocolError(ErrorCode::bad_message, where_ + ": expected the keys " + names + ", found '" + key + "'");
  }
}

const nlohmann::json* JsonObject::find(const char* key) const {
  const auto found = value_.find(key);
  return found == value_.end() ? nullptr : &*found;
}

const nlohmann::json& JsonObject::at(const char* key) const {
  const nlohmann::json* found = find(key);
  if (!found) missing(key);
  return *found;
}

std::optional<std::string> JsonObject::text(const char* key) const {
  const nlohmann::json* found = find(key);
  if (!found) return std::nullopt;
  if (!found->is_string()) unexpected_json(where(key), "a string", *found);
  return found->get<std::string>();
}

std::optional<bool> JsonObject::boolean(const char* key) const {
  const nlohmann::json* found = find(key);
  if (!found) return std::nullopt;
  if (!found->is_boolean()) unexpected_json(where(key), "true or false", *found);
  return found->get<bool>();
}

std::optional<std::int64_t> JsonObject::integer(const char* key, std::int64_t least, std::int64_t most) const {
  const nlohmann::json* found = find(key);
  if (!found) return std::nullopt;
  const std::string expected = "an integer from " + std::to_string(least) + " to " + std::to_string(most);
  if (!found->is_number_integer()) unexpected_json(where(key), expected, *found);
  const bool fits =
      !found->is_number_unsigned() || found->get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::int64_t value = fits ? found->get<std::int64_t>() : 0;
  if (!fits || value < least || value > most)
    throw ProtocolError(ErrorCode::bad_message, where(key) + ": expected " + expected + ", found " + found->dump());
  return value;
}

std::optional<double> JsonObject::number(const char* key) const {
  const nlohmann::json* found = find(key);
  if (!found) return std::nullopt;
  if (!found->is_number()) unexpected_json(where(key), "a number", *found);
  return found->get<double>();
}

void JsonObject::missing(const char* key) const {
  throw ProtocolError(ErrorCode::bad_message, where_ + ": expected the key '" + key + "', found none");
}

void unexpected_json(const std::string& where, const std::string& expected, const nlohmann::json& found) {
  throw ProtocolError(ErrorCode::bad_message, where + ": expected " + expected + ", found " + std::string(found.type_name()));
}

}  // namespace millrace
