// SPDX-License-Identifier: Apache-2.0
#include "toml_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/files/utf8.h>
#include <millrace/tensor/error.h>

namespace millrace::app {
namespace {

constexpr std::size_t longest = 900;  // bytes, which leaves room for a key

/// A character as a string of double quotes holds it.
std::string escaped(std::string_view letter) {
  const char c = letter[0];
  if (c == '"' || c == '\\') return std::string("\\") + c;
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') return fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
  return std::string(letter);
}

bool is_bare(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

}  // namespace

std::string toml_key(std::string_view key) {
  return !key.empty() && std::ranges::all_of(key, is_bare) ? std::string(key) : toml_string(key);
}

std::string toml_string(std::string_view text) {
  if (!is_utf8(text)) throw ArgumentError("expected UTF-8, as TOML is, found " + internal::printable(text));
  std::string whole, line;
  while (!text.empty()) {
    const std::size_t bytes = utf8_length(text);
    std::string letter = escaped(text.substr(0, bytes));
    text.remove_prefix(bytes);
    if (line.size() + letter.size() > longest) {
      whole += line + "\\\n";
      line.clear();
    }
    if (line.empty() && !whole.empty() && letter == " ")
      letter = "\\u0020";  // blanks behind a line that goes on are not part of the string
    line += letter;
  }
  return whole.empty() ? "\"" + line + "\"" : "\"\"\"" + whole + line + "\"\"\"";
}

std::string toml_array(const std::vector<std::string>& values) {
  const std::string line = fmt::format("[{}]", fmt::join(values, ", "));
  if (line.size() <= longest) return line;
  return fmt::format("[\n{},\n]", fmt::join(values, ",\n"));
}

}  // namespace millrace::app
