// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/token_set.h>

#include <algorithm>
#include <utility>

#include <millrace/runtime/files/file.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

bool is_token_character(char c) noexcept {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
}

std::vector<std::string> read_tokens(const std::string& file) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 20;
  const std::string text = read_file(file, most_bytes);
  std::vector<std::string> tokens;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    if (!is_token(line))
      throw ParseError("tokens: " + file + ", line " + std::to_string(number) + ": expected " + std::to_string(TokenSet::least_characters) +
                       " to " + std::to_string(TokenSet::most_characters) + " characters of A-Z a-z 0-9 - . _ ~, found " +
                       std::to_string(line.size()) + " characters, or others");
    tokens.emplace_back(line);
  }
  if (tokens.empty()) throw ParseError("tokens: " + file + ": expected a token a line, found none");
  return tokens;
}

}  // namespace

bool is_token(std::string_view text) noexcept {
  return text.size() >= TokenSet::least_characters && text.size() <= TokenSet::most_characters &&
         std::all_of(text.begin(), text.end(), is_token_character);
}

TokenSet::TokenSet(std::string file) : file_(std::move(file)) {
  if (file_.empty()) throw IoError("tokens: expected the name of a file, found none");
  reload();
}

TokenSet::Padded TokenSet::padded(std::string_view token) noexcept {
  Padded bytes{};
  std::copy(token.begin(), token.end(), bytes.begin());
  return bytes;
}

TokenSet TokenSet::of(const std::vector<std::string>& tokens) {
  if (tokens.empty()) throw ArgumentError("tokens: expected one or more, found none");
  TokenSet made;
  for (const std::string& token : tokens) {
    if (!is_token(token))
      throw ArgumentError("tokens: token " + std::to_string(made.tokens_.size()) + ": expected " + std::to_string(least_characters) +
                          " to " + std::to_string(most_characters) + " characters of A-Z a-z 0-9 - . _ ~, found " +
                          std::to_string(token.size()) + " characters, or others");
    made.tokens_.push_back(padded(token));
  }
  return made;
}

void TokenSet::reload() {
  if (file_.empty()) return;
  std::vector<Padded> read;
  for (const std::string& token : read_tokens(file_)) read.push_back(padded(token));
  tokens_ = std::move(read);
}

bool TokenSet::holds(std::string_view token) const noexcept {
  if (!is_token(token)) return false;
  const Padded shown = padded(token);
  // The compiler may not leave the loops early: each difference is volatile.
  volatile std::uint8_t found = 0;
  for (const Padded& known : tokens_) {
    volatile std::uint8_t difference = 0;
    for (std::size_t i = 0; i < known.size(); ++i) difference = static_cast<std::uint8_t>(difference | (known[i] ^ shown[i]));
    const unsigned is_zero = (static_cast<unsigned>(difference) - 1u) >> 31;
    found = static_cast<std::uint8_t>(found | is_zero);
  }
  return found != 0;
}

std::string read_token(const std::string& file) { return read_tokens(file).front(); }

}  // namespace millrace
