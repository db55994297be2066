// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <millrace/streaming/protocol/limits.h>
#include <millrace/streaming/transport/byte_stream.h>
#include <millrace/streaming/transport/http_page.h>
#include <millrace/streaming/transport/message_stream.h>
#include <millrace/streaming/transport/token_set.h>

namespace millrace {

/// The route that is always answered with a WebSocket.
inline constexpr const char* websocket_route = "/stream";

/// The sub-protocol that a browser names, beside `bearer.TOKEN`, which is how it shows its token: it cannot set headers.
inline constexpr const char* websocket_protocol = "millrace.v1";

/// The requests that are answered, and the answers.
struct HttpAccess {
  std::vector<std::string> origins;          ///< of browsers that may connect
  std::shared_ptr<const TokenSet> tokens{};  ///< none: no token is asked for
  std::shared_ptr<const HttpPages> pages{};  ///< for a GET that is not for `websocket_route`, nor for a WebSocket of `routes`
  std::shared_ptr<const std::vector<std::string>> routes{};  ///< answered with a WebSocket as well, each as /NAME, where one is asked for
  bool encrypted = false;                                    ///< the bytes come by TLS: an own page has an origin of https
  bool only_pages = false;  ///< nothing is answered with a WebSocket, and only a Host that is an address or localhost

  HttpAccess() = default;
};

/// Server side: reads the HTTP request from `bytes`, answers it and completes with the stream. No permessage-deflate; message and request
/// head are bounded by `limits`. A request that is refused gets its HTTP status and completes with ErrorCode::refused: another method 405, another
/// route 404 (who has a token is told those that there are), an Origin that may not connect 403, no upgrade 426, no token that is known 401. A page is given, and then completes with eof. A
/// page's own origin is that of the request's Host, if that is an address or localhost: another name could be anybody's. The caller keeps the
/// deadline.
void accept_websocket(ByteStream bytes, const Limits& limits, HttpAccess access, MessageStreamHandler handler);

/// Client side: asks `host` for `path` over `bytes`, and shows `token` unless that is empty. Completes within `limits.handshake`.
void connect_websocket(ByteStream bytes, const Limits& limits, std::string host, std::string path, std::string token,
                       MessageStreamHandler handler);

}  // namespace millrace
