// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

/// What an HTTP GET is answered with.
struct HttpPage {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers{};  ///< besides Content-Type, Content-Length and Connection
};

/// The page of a path without its query, such as "/"; none: 404.
using HttpPages = std::function<std::optional<HttpPage>(std::string_view path)>;

}  // namespace millrace
