// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/files/utf8.h>

namespace millrace::internal {

/// Pulls values out of JSON text in the order they stand: for small headers whose structure is known. Strict RFC 8259,
/// integers ≥ 0 only. ParseError opens with `where` and names the byte.
class JsonReader {
 public:
  JsonReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  /// { key: value, … }: calls `value(key)` behind each colon; it must read the value. A key twice is an error. At most
  /// `max_depth` objects deep.
  template <class F>
  void object(F&& value) {
    enter('{');
    std::set<std::string> keys;
    for (bool first = true; !take('}'); first = false) {
      if (!first) expect(',');
      std::string key = string();
      if (!keys.insert(key).second) fail("each key once, found " + printable(key) + " twice");
      expect(':');
      value(key);
    }
    --depth_;
  }

  /// [ value, … ]: calls `value()` for each.
  template <class F>
  void array(F&& value) {
    enter('[');
    for (bool first = true; !take(']'); first = false) {
      if (!first) expect(',');
      value();
    }
    --depth_;
  }

  std::string string();
  std::int64_t integer();
  /// Only blanks may follow.
  void end();
  [[noreturn]] void fail(const std::string& expected) const;

 private:
  static constexpr int max_depth = 4;
  void enter(char open);
  bool take(char wanted);
  void expect(char wanted);
  void blanks();
  void escape(std::string& to);
  std::uint32_t hex4();

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

/// `text` as a JSON string with its quotes.
std::string json_quoted(std::string_view text);

}  // namespace millrace::internal
