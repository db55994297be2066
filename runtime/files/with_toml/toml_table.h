// SPDX-License-Identifier: Apache-2.0
#pragma once

// Header-only toml++ asserts on text such as `[!` just before it reports it as the error that it is; text is input and must not abort.
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/tensor/error.h>

/// Reading of TOML files that a person writes: every error is a ParseError of one line, `NAME:LINE: …`, that says what was expected and found.
namespace millrace::internal {

/// One table of the file.
class TomlTable {
 public:
  TomlTable(const toml::table& table, const std::string& name, std::string where) : table_(table), name_(name), where_(std::move(where)) {}

  /// Control characters in `what`, which may quote the file, are given as '?'.
  [[noreturn]] void fail(const toml::node& at, std::string what) const {
    std::replace_if(what.begin(), what.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
    throw ParseError(name_ + ":" + std::to_string(at.source().begin.line) + ": " + where_ + ": " + what);
  }
  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : table_) {
      if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
      std::string names;
      for (std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
      fail(value, (known.size() == 1 ? "expected the key " : "expected the keys ") + names + ", found " + printable(key.str()));
    }
  }
  std::string text(std::string_view key) const {
    const toml::node& node = required(key);
    if (!node.is_string()) fail(node, std::string(key) + ": expected a text, found " + kind(node));
    if (node.as_string()->get().empty()) fail(node, std::string(key) + ": expected a text, found an empty one");
    return text_of(key, node);
  }
  /// A string without a NUL, at which the system would cut a path off.
  std::string text_of(std::string_view key, const toml::node& node) const {
    const std::string& text = node.as_string()->get();
    if (text.find('\0') != text.npos) fail(node, std::string(key) + ": expected a text without a NUL, found one");
    return text;
  }
  int integer(std::string_view key, std::int64_t least, std::int64_t most) const {
    const toml::node& node = required(key);
    const std::string expected = std::string(key) + ": expected an integer from " + std::to_string(least) + " to " + std::to_string(most);
    if (!node.is_integer()) fail(node, expected + ", found " + kind(node));
    const std::int64_t value = node.as_integer()->get();
    if (value < least || value > most) fail(node, expected + ", found " + std::to_string(value));
    return static_cast<int>(value);
  }
  double number(std::string_view key, double least, double most) const {
    const toml::node& node = required(key);
    const auto value = node.value<double>();
    std::ostringstream expected;
    expected << key << ": expected a number from " << least << " to " << most << ", found ";
    if (!node.is_number() || !value) fail(node, expected.str() + kind(node));
    expected << *value;
    if (!(*value >= least && *value <= most)) fail(node, expected.str());
    return *value;
  }
  bool boolean(std::string_view key) const {
    const toml::node& node = required(key);
    if (!node.is_boolean()) fail(node, std::string(key) + ": expected true or false, found " + kind(node));
    return node.as_boolean()->get();
  }
  /// The place in `names` of the text.
  std::size_t one_of(std::string_view key, std::initializer_list<std::string_view> names) const {
    const std::string found = text(key);
    std::string all;
    for (std::string_view name : names) all += (all.empty() ? "" : ", ") + std::string(name);
    const auto at = std::find(names.begin(), names.end(), found);
    if (at == names.end()) fail(required(key), std::string(key) + ": expected one of " + all + ", found " + printable(found));
    return static_cast<std::size_t>(at - names.begin());
  }
  const toml::table& table_at(std::string_view key) const {
    const toml::node& node = required(key);
    if (!node.is_table()) fail(node, std::string(key) + ": expected a table, found " + kind(node));
    return *node.as_table();
  }
  /// Calls `f(table)` for each of the tables [[key]].
  template <class F>
  void each_table(std::string_view key, const F& f) const {
    const std::string expected = std::string(key) + ": expected [[" + std::string(key) + "]] tables, found ";
    const toml::node& node = required(key);
    if (!node.is_array()) fail(node, expected + kind(node));
    for (const toml::node& entry : *node.as_array()) {
      if (!entry.is_table()) fail(entry, expected + kind(entry));
      f(TomlTable(*entry.as_table(), name_, "[[" + std::string(key) + "]]"));
    }
  }
  /// `NAME:LINE` of the table.
  std::string place() const { return name_ + ":" + std::to_string(table_.source().begin.line); }
  bool has(std::string_view key) const { return table_.contains(key); }
  const toml::node& required(std::string_view key) const {
    const toml::node* node = table_.get(key);
    if (!node) fail(table_, "expected the key '" + std::string(key) + "', found none");
    return *node;
  }
  const toml::table& table() const noexcept { return table_; }

  static std::string kind(const toml::node& node) {
    std::ostringstream text;
    text << node.type();
    return text.str();
  }

 private:
  const toml::table& table_;
  const std::string& name_;
  std::string where_;
};

constexpr std::size_t longest_toml_line = 1000;

// toml++ recurses once for each dot of a key, so lines are bounded.
inline void check_toml_lines(std::string_view text, const std::string& name) {
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), row.size() + 1));
    const auto first = row.find_first_not_of(" \t");
    if (first != row.npos && row[first] == '#') continue;
    if (row.size() > longest_toml_line)
      throw ParseError(name + ":" + std::to_string(line) + ": expected a line of at most " + std::to_string(longest_toml_line) +
                       " bytes, found " + std::to_string(row.size()));
  }
}

/// The same TOML in ASCII: a letter in a string of double quotes becomes its escape (`\u` or `\U`), one in a comment becomes '?'. Lines stay. toml++ 3.3
/// runs into undefined behaviour on some letters outside strings, so those in keys, and those in literal strings, which know no escapes, are refused.
class AsciiToml {
 public:
  AsciiToml(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // the mark of UTF-8 that some editors write
  }

  std::string made() {
    made_.reserve(text_.size());
    while (!text_.empty()) {
      if (text_[0] == '#')
        comment();
      else if (text_[0] == '"' || text_[0] == '\'')
        string();
      else
        copy();
    }
    return std::move(made_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw ParseError(name_ + ":" + std::to_string(line_) + ": " + what); }
  static bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

  /// One character of ASCII.
  void copy() {
    if (!is_ascii(text_[0])) fail("expected ASCII outside comments and strings in \"double quotes\", found another letter");
    line_ += text_[0] == '\n';
    made_ += text_[0];
    text_.remove_prefix(1);
  }
  void copy(std::size_t count) {
    for (; count > 0; --count) copy();
  }

  void comment() {
    while (!text_.empty() && text_[0] != '\n') {
      if (is_ascii(text_[0])) {
        copy();
      } else {
        static_cast<void>(letter());
        made_ += '?';
      }
    }
  }

  /// Up to the closing quotes, or, of one that does not close, to where toml++ finds that out.
  void string() {
    const char quote = text_[0];
    const std::string three(3, quote);
    const bool lines = text_.starts_with(three);
    copy(lines ? 3 : 1);
    while (!text_.empty() && (lines || text_[0] != '\n')) {
      if (lines ? text_.starts_with(three) : text_[0] == quote) {
        const std::size_t run = std::min(text_.find_first_not_of(quote), text_.size());
        return copy(lines ? std::min<std::size_t>(run, 5) : 1);  // up to two quotes may stand in front of three that close
      }
      if (quote == '"' && text_[0] == '\\')
        copy(std::min<std::size_t>(2, text_.size()));
      else if (quote == '"' && !is_ascii(text_[0]))
        escape(letter());
      else
        copy();
    }
  }

  /// Takes one letter of UTF-8: no overlong form, no surrogate, nothing above U+10FFFF.
  std::uint32_t letter() {
    const auto byte = [&](std::size_t i) {
      return i < text_.size() ? static_cast<std::uint32_t>(static_cast<unsigned char>(text_[i])) : 0u;
    };
    const std::uint32_t first = byte(0);
    const std::size_t more = first >= 0xf0 && first < 0xf8 ? 3 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xc0 && first < 0xe0 ? 1 : 0;
    constexpr std::uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    std::uint32_t code = first & (0x3fu >> more);
    bool whole = more > 0;
    for (std::size_t i = 1; i <= more; ++i) {
      whole = whole && (byte(i) & 0xc0) == 0x80;
      code = code << 6 | (byte(i) & 0x3f);
    }
    if (!whole || code < least[more] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) fail("expected UTF-8, found another byte");
    text_.remove_prefix(more + 1);
    return code;
  }

  void escape(std::uint32_t code) {
    const int digits = code > 0xffff ? 8 : 4;
    made_ += digits == 8 ? "\\U" : "\\u";
    for (int i = digits - 1; i >= 0; --i) made_ += "0123456789abcdef"[code >> (4 * i) & 15];
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t line_ = 1;
  std::string made_;
};

/// Parses `text`, which is UTF-8, and calls `f(table)` with the whole file.
template <class F>
auto read_toml(std::string_view text, const std::string& name, const F& f) {
  check_toml_lines(text, name);
  try {
    const toml::table file = toml::parse(AsciiToml(text, name).made(), name);
    return f(TomlTable(file, name, "file"));
  } catch (const toml::parse_error& error) {
    std::string what(error.description());
    std::replace(what.begin(), what.end(), '\n', ' ');
    throw ParseError(name + ":" + std::to_string(error.source().begin.line) + ": expected TOML: " + what);
  }
}

}  // namespace millrace::internal
