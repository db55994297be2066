// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <millrace/streaming/protocol/error_code.h>

namespace millrace {

/// The most that one text may hold. A peer of a server gets these; a server's text is bounded by the message that carries it.
struct JsonBounds {
  std::size_t bytes = std::size_t{64} << 10;
  std::size_t keys = 1024;        ///< of all objects together
  std::size_t containers = 4096;  ///< objects and arrays
};

/// Parses JSON that must be UTF-8, one value, at most `max_json_depth` deep, without a key twice in one object, in time linear in its bytes.
/// ProtocolError: bad_text, bad_message, too_big.
nlohmann::json parse_strict_json(std::string_view text, const JsonBounds& bounds = {});
inline constexpr int max_json_depth = 8;

/// The members of one object, by name. Errors are ProtocolErrors (bad_message) that name `where` and the key.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& value, std::string where);

  /// Refuses keys that are not among `known`.
  void only(std::initializer_list<std::string_view> known) const;
  const nlohmann::json* find(const char* key) const;
  const nlohmann::json& at(const char* key) const;

  std::optional<std::string> text(const char* key) const;
  std::optional<bool> boolean(const char* key) const;
  /// An integer in [least, most].
  std::optional<std::int64_t> integer(const char* key, std::int64_t least, std::int64_t most) const;
  std::optional<double> number(const char* key) const;
  const nlohmann::json& json() const noexcept { return value_; }
  std::string where(const char* key) const { return where_ + "." + key; }
  /// The value that a `find` like those above gave, or an error that names the missing key.
  template <class T>
  T required(const char* key, std::optional<T> value) const {
    if (!value) missing(key);
    return *std::move(value);
  }

 private:
  [[noreturn]] void missing(const char* key) const;
  const nlohmann::json& value_;
  std::string where_;
};

/// Throws bad_message: "WHERE: expected EXPECTED, found KIND", or the number that was found.
[[noreturn]] void unexpected_json(const std::string& where, const std::string& expected, const nlohmann::json& found);

}  // namespace millrace
