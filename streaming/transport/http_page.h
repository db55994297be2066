// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

/// The answer to an HTTP GET, and, without its body, to a HEAD.
struct HttpPage {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers{};  ///< besides Content-Type, Content-Length and Connection
};

/// The parts of a request on which a page may depend.
struct HttpQuestion {
  std::string_view path;   ///< without its query, such as "/"
  bool has_token = false;  ///< the request shows a token that the server knows, or the server asks for none
};

/// The page that a question gets; none: 404. Called on the thread of the connection.
using HttpPages = std::function<std::optional<HttpPage>(const HttpQuestion& question)>;

}  // namespace millrace
