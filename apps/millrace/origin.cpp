// SPDX-License-Identifier: Apache-2.0
#include "origin.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <boost/asio/ip/address_v6.hpp>

#include <millrace/runtime/task/asio.h>

namespace millrace::app {
namespace {

/// The small letter of an ASCII letter. Letters of a locale are not those of a browser.
char small(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_letter(char c) { return c >= 'a' && c <= 'z'; }
bool is_of_word(char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.'; }

bool is_scheme(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && std::ranges::all_of(text, [](char c) { return is_of_word(c) || c == '+'; });
}
bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return is_of_word(c) || c == '_'; });
}

/// A number from 1 to 65535 without a zero in front; else 0.
std::uint16_t port_of(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && text[0] != '0' ? port : std::uint16_t{0};
}

/// [ADDRESS] in the shortest form, which browsers write; empty for what is no address of IPv6.
std::string bracketed(std::string_view text) {
  if (text.size() < 2 || !text.ends_with(']')) return {};
  boost::system::error_code error;
  const auto address = asio::ip::make_address_v6(std::string(text.substr(1, text.size() - 2)), error);
  return error || address.scope_id() != 0 ? std::string() : "[" + address.to_string() + "]";
}

}  // namespace

std::string browser_origin(const std::string& text) {
  const auto refuse = [&text] {
    throw CLI::ValidationError(
        fmt::format("expected an origin as browsers send it, scheme://host or scheme://host:port without a path, found '{}'", text));
  };
  std::string origin = text;
  std::ranges::transform(origin, origin.begin(), small);
  if (origin == "null") return origin;
  const auto mark = origin.find("://");
  if (mark == origin.npos || !is_scheme(std::string_view(origin).substr(0, mark))) refuse();
  const std::string scheme = origin.substr(0, mark);
  std::string host = origin.substr(mark + 3);
  std::uint16_t port = 0;
  if (const auto colon = host.rfind(':'); colon != host.npos && host.find(']', colon) == host.npos) {
    port = port_of(std::string_view(host).substr(colon + 1));
    if (port == 0) refuse();
    host.resize(colon);
  }
  if (host.starts_with('[')) host = bracketed(host);
  if (!host.starts_with('[') && !is_name(host)) refuse();
  const bool usual = (scheme == "http" && port == 80) || (scheme == "https" && port == 443);
  return port == 0 || usual ? scheme + "://" + host : fmt::format("{}://{}:{}", scheme, host, port);
}

}  // namespace millrace::app
