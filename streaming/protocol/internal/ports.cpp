// SPDX-License-Identifier: Apache-2.0
#include "ports.h"

#include <vector>

#include <millrace/tensor/dim.h>

#include "strict_json.h"

namespace millrace {

using Json = nlohmann::ordered_json;

Json json_of_shape(const DDim& shape) {
  Json json = Json::array();
  for (std::int64_t extent : shape) json.push_back(extent);
  return json;
}

DDim parse_shape(const nlohmann::json& value, const std::string& where) {
  if (!value.is_array()) unexpected_json(where, "an array of extents", value);
  if (value.size() > static_cast<std::size_t>(max_rank))
    throw ProtocolError(ErrorCode::bad_input,
                        where + ": expected a rank of at most " + std::to_string(max_rank) + ", found " + std::to_string(value.size()));
  std::vector<std::int64_t> extents;
  for (const auto& extent : value) {
    if (!extent.is_number_unsigned()) unexpected_json(where, "extents from 0 up", extent);
    if (extent.get<std::uint64_t>() > std::uint64_t{1} << 40)
      throw ProtocolError(ErrorCode::bad_input, where + ": expected extents of at most 2^40, found " + extent.dump());
    extents.push_back(extent.get<std::int64_t>());
  }
  return make_ddim(extents);
}

Json json_of_port(const PortSpec& port) {
  Json json = {{"name", port.name}, {"dtype", name_of(port.dtype)}, {"shape", json_of_shape(port.shape)}};
  if (port.audio) {
    json["format"] = name_of(port.audio->format);
    json["rate"] = port.audio->rate;
    json["channels"] = port.audio->channels;
  }
  if (port.level) json["level"] = *port.level;
  if (port.step_seconds) json["step_seconds"] = *port.step_seconds;
  return json;
}

PortSpec parse_port(const nlohmann::json& value, const std::string& where) {
  const JsonObject object(value, where);
  PortSpec port;
  port.name = object.required("name", object.text("name"));
  port.dtype = dtype_named(object.required("dtype", object.text("dtype")));
  port.shape = parse_shape(object.at("shape"), object.where("shape"));
  port.step_seconds = object.number("step_seconds");
  if (const auto level = object.integer("level", 1, 1 << 20)) port.level = static_cast<int>(*level);
  if (const auto format = object.text("format")) {
    AudioFormat audio;
    const auto named = sample_format_named(*format);
    if (!named) unexpected_json(object.where("format"), "s16 or f32", object.at("format"));
    audio.format = *named;
    audio.rate = static_cast<int>(object.required("rate", object.integer("rate", AudioFormat::min_rate, AudioFormat::max_rate)));
    audio.channels = static_cast<int>(object.required("channels", object.integer("channels", 1, AudioFormat::max_channels)));
    port.audio = audio;
  }
  return port;
}

ReplyFormat parse_reply_format(const std::string& name, const std::string& where) {
  for (ReplyFormat format : {ReplyFormat::json, ReplyFormat::binary, ReplyFormat::none})
    if (name_of(format) == name) return format;
  throw ProtocolError(ErrorCode::bad_input, where + ": expected json, binary or none, found '" + name + "'");
}

}  // namespace millrace
