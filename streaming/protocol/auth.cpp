// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/auth.h>

#include <millrace/streaming/protocol/error_code.h>
#include <millrace/streaming/protocol/internal/strict_json.h>

namespace millrace {

std::string to_json(const AuthMessage& message) {
  nlohmann::ordered_json json;
  json["type"] = "auth";
  json["token"] = message.token;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

AuthMessage parse_auth_message(std::string_view text) {
  JsonBounds bounds;
  bounds.bytes = most_auth_bytes;
  bounds.keys = 2;
  bounds.containers = 1;
  const nlohmann::json json = parse_strict_json(text, bounds);
  const JsonObject object(json, "auth");
  if (object.text("type") != "auth")
    throw ProtocolError(ErrorCode::bad_message, "expected {\"type\":\"auth\",\"token\":…} before start, found another message");
  object.only({"type", "token"});
  return AuthMessage{object.required("token", object.text("token"))};
}

}  // namespace millrace
