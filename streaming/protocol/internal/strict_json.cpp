// SPDX-License-Identifier: Apache-2.0
#include "strict_json.h"

#include <algorithm>

#include <millrace/runtime/files/utf8.h>

namespace millrace {
namespace {

using Json = nlohmann::json;

[[noreturn]] void bad_message(const std::string& what) { throw ProtocolError(ErrorCode::bad_message, "control: " + what); }

/// Makes the value while the parser runs, in linear time, and refuses at the first offence. The parser's own callback looks through a whole array
/// at the end of each object in it.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonBounds& bounds) : bounds_(bounds) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr) != nullptr; }
  bool boolean(bool value) override { return put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return put(value) != nullptr; }
  bool string(string_t& value) override { return put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (++keys_ > bounds_.keys) bad_message("expected at most " + std::to_string(bounds_.keys) + " keys");
    const auto [at, fresh] = open_.back()->get_ref<Json::object_t&>().emplace(name, nullptr);
    if (!fresh) bad_message("the key '" + name + "' stands twice in one object");
    member_ = &at->second;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    constexpr int number_overflow = 406;
    if (error.id == number_overflow) bad_message("expected numbers that a double can hold");
    bad_message("expected JSON, found something else at byte " + std::to_string(position));
  }

 private:
  template <class T>
  Json* put(T&& value) {
    if (open_.empty()) return &(root_ = std::forward<T>(value));
    if (open_.back()->is_object()) return &(*member_ = std::forward<T>(value));
    open_.back()->push_back(std::forward<T>(value));
    return &open_.back()->back();
  }
  // An open value stays where it is: an array grows only behind closed ones.
  bool open(Json empty) {
    if (open_.size() == static_cast<std::size_t>(max_json_depth))
      bad_message("expected JSON at most " + std::to_string(max_json_depth) + " deep");
    if (++containers_ > bounds_.containers) bad_message("expected at most " + std::to_string(bounds_.containers) + " objects and arrays");
    open_.push_back(put(std::move(empty)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonBounds& bounds_;
  Json root_;
  std::vector<Json*> open_;
  Json* member_ = nullptr;
  std::size_t keys_ = 0, containers_ = 0;
};

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, const JsonBounds& bounds) {
  if (text.size() > bounds.bytes)
    throw ProtocolError(ErrorCode::too_big, "control: expected text of at most " + std::to_string(bounds.bytes) + " bytes, found " +
                                                std::to_string(text.size()));
  if (!is_utf8(text)) throw ProtocolError(ErrorCode::bad_text, "control: expected UTF-8 text");
  Builder builder(bounds);
  if (!Json::sax_parse(text, &builder)) bad_message("expected JSON");
  return builder.take();
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
  throw ProtocolError(ErrorCode::bad_message, where + ": expected " + expected + ", found " +
                                                  (found.is_number() ? "the number " + found.dump() : found.type_name()));
}

}  // namespace millrace
