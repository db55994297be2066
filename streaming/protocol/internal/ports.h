// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <millrace/streaming/protocol/control.h>

namespace millrace {

/// The parts that both directions of the control messages use.
nlohmann::ordered_json json_of_shape(const DDim& shape);
DDim parse_shape(const nlohmann::json& value, const std::string& where);
nlohmann::ordered_json json_of_port(const PortSpec& port);
PortSpec parse_port(const nlohmann::json& value, const std::string& where);
ReplyFormat parse_reply_format(const std::string& name, const std::string& where);

}  // namespace millrace
