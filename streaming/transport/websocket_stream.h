// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/streaming/protocol/limits.h>
#include <millrace/streaming/transport/byte_stream.h>
#include <millrace/streaming/transport/message_stream.h>

namespace millrace {

/// The one route that is answered with a WebSocket.
inline constexpr const char* websocket_route = "/stream";

/// Server side: reads the HTTP request from `bytes`, answers it and completes with the stream. No permessage-deflate; message and request
/// head are bounded by `limits`. Any other method or route, a request that is no upgrade, or an Origin that is not in `origins`, gets its
/// HTTP status (405, 404, 426, 403) and completes with ErrorCode::refused. The caller keeps the deadline.
void accept_websocket(ByteStream bytes, const Limits& limits, std::vector<std::string> origins, MessageStreamHandler handler);

/// Client side: asks `host` for `path` over `bytes`. Completes within `limits.handshake`.
void connect_websocket(ByteStream bytes, const Limits& limits, std::string host, std::string path, MessageStreamHandler handler);

}  // namespace millrace
