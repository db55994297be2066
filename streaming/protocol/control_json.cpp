// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/control.h>

#include <set>

#include <millrace/streaming/protocol/internal/ports.h>
#include <millrace/streaming/protocol/internal/strict_json.h>

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t max_label = 128;
constexpr auto most_counted = std::numeric_limits<std::int64_t>::max();

// Text of ours may quote what a peer sent: a byte that is no UTF-8 becomes U+FFFD instead of an error about an error.
std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Errors quote what a client sent: a name of a megabyte need not go back whole.
std::string clipped(const std::string& why) {
  constexpr std::size_t most = 1024;
  constexpr std::string_view ellipsis = "…";
  if (why.size() <= most) return why;
  std::size_t end = most - ellipsis.size();
  while (end > 0 && (static_cast<unsigned char>(why[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return why.substr(0, end).append(ellipsis);
}

template <class Parse>
auto as_input_error(const std::string& where, Parse&& parse) {
  try {
    return parse();
  } catch (const ProtocolError&) {
    throw;
  } catch (const Error& error) {
    throw ProtocolError(ErrorCode::bad_input, where + ": " + error.what());
  }
}

[[noreturn]] void bad_input(const std::string& what) { throw ProtocolError(ErrorCode::bad_input, what); }

Json json_of(const InputRequest& request) {
  Json json = Json::object();
  if (request.dtype) json["dtype"] = name_of(*request.dtype);
  if (request.shape) json["shape"] = json_of_shape(*request.shape);
  if (request.format) json["format"] = name_of(*request.format);
  if (request.rate) json["rate"] = *request.rate;
  if (request.channels) json["channels"] = *request.channels;
  return json;
}

InputRequest parse_request(const std::string& name, const nlohmann::json& value) {
  const JsonObject object(value, "start.inputs." + name);
  object.only({"dtype", "shape", "format", "rate", "channels"});
  InputRequest request;
  if (const auto dtype = object.text("dtype")) request.dtype = as_input_error(object.where("dtype"), [&] { return dtype_named(*dtype); });
  if (const auto* shape = object.find("shape")) request.shape = parse_shape(*shape, object.where("shape"));
  if (const auto format = object.text("format")) {
    request.format = sample_format_named(*format);
    if (!request.format) bad_input(object.where("format") + ": expected s16 or f32, found '" + *format + "'");
  }
  if (const auto rate = object.integer("rate", AudioFormat::min_rate, AudioFormat::max_rate)) request.rate = static_cast<int>(*rate);
  if (const auto channels = object.integer("channels", 1, AudioFormat::max_channels)) request.channels = static_cast<int>(*channels);
  return request;
}

std::vector<std::string> parse_names(const nlohmann::json& value) {
  if (!value.is_array()) unexpected_json("start.outputs", "an array of names", value);
  std::vector<std::string> names;
  std::set<std::string_view> seen;
  for (const auto& entry : value) {
    if (!entry.is_string()) unexpected_json("start.outputs", "an array of names", entry);
    if (!seen.insert(entry.get_ref<const std::string&>()).second)
      bad_input("start.outputs: '" + entry.get<std::string>() + "' stands twice");
    names.push_back(entry.get<std::string>());
  }
  return names;
}

std::string parse_label(const JsonObject& object) {
  std::string label = object.text("session").value_or("");
  if (label.size() > max_label)
    bad_input("start.session: expected at most " + std::to_string(max_label) + " bytes, found " + std::to_string(label.size()));
  for (char c : label)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) bad_input("start.session: expected no control character");
  return label;
}

/// Numbers in lists of any nesting, in order.
void append_numbers(const std::string& where, const nlohmann::json& value, std::vector<GivenNumber>& numbers) {
  if (value.is_array()) {
    for (const auto& entry : value) append_numbers(where, entry, numbers);
  } else if (value.is_number_integer() && (!value.is_number_unsigned() || std::in_range<std::int64_t>(value.get<std::uint64_t>()))) {
    numbers.emplace_back(value.get<std::int64_t>());
  } else if (value.is_number()) {
    numbers.emplace_back(value.get<double>());
  } else if (value.is_boolean()) {
    numbers.emplace_back(std::int64_t{value.get<bool>() ? 1 : 0});
  } else {
    unexpected_json(where, "a number or lists of numbers", value);
  }
}

StartMessage parse_start(const JsonObject& object) {
  // The version comes first: another one may well have other keys.
  const auto version = object.required("version", object.integer("version", 0, std::numeric_limits<int>::max()));
  if (version != protocol_version)
    bad_input("start.version: expected " + std::to_string(protocol_version) + ", found " + std::to_string(version));
  object.only(
      {"type", "version", "session", "inputs", "outputs", "given", "reply", "segments", "state", "resume", "acknowledged", "model"});
  StartMessage start;
  start.session = parse_label(object);
  if (const auto* inputs = object.find("inputs")) {
    const JsonObject named(*inputs, "start.inputs");
    for (const auto& [name, value] : named.json().items()) start.inputs.emplace(name, parse_request(name, value));
  }
  if (const auto* outputs = object.find("outputs")) start.outputs = parse_names(*outputs);
  if (const auto* given = object.find("given")) {
    const JsonObject named(*given, "start.given");
    for (const auto& [name, value] : named.json().items()) append_numbers("start.given." + name, value, start.given[name]);
  }
  if (const auto reply = object.text("reply")) start.reply = parse_reply_format(*reply, "start.reply");
  start.segments = object.boolean("segments").value_or(false);
  start.state = object.text("state");
  start.model = object.text("model").value_or("");
  start.resume = object.text("resume");
  if (start.resume) object.only({"type", "version", "session", "resume", "acknowledged"});
  if (!start.resume && object.find("acknowledged") != nullptr) bad_input("start.acknowledged: expected resume beside it, found none");
  start.acknowledged = static_cast<std::uint64_t>(object.integer("acknowledged", 0, most_counted).value_or(0));
  return start;
}

}  // namespace

std::string to_json(const StartMessage& message) {
  Json json = {{"type", "start"}, {"version", message.version}};
  if (!message.session.empty()) json["session"] = message.session;
  if (!message.inputs.empty()) json["inputs"] = Json::object();
  for (const auto& [name, request] : message.inputs) json["inputs"][name] = json_of(request);
  if (message.outputs) json["outputs"] = *message.outputs;
  for (const auto& [name, values] : message.given) {
    Json& list = json["given"][name] = Json::array();
    for (const GivenNumber& value : values) std::visit([&list](auto number) { list.push_back(number); }, value);
  }
  json["reply"] = name_of(message.reply);
  if (message.segments) json["segments"] = true;
  if (message.state) json["state"] = *message.state;
  if (!message.model.empty()) json["model"] = message.model;
  if (message.resume) json = {{"type", "start"}, {"version", message.version}, {"resume", *message.resume}};
  if (message.resume) json["acknowledged"] = message.acknowledged;
  return text_of(json);
}

std::string to_json(const EndMessage&) { return R"({"type":"end"})"; }
std::string to_json(const OpenMessage& message) { return text_of({{"type", "open"}, {"level", message.level}}); }
std::string to_json(const CloseMessage& message) { return text_of({{"type", "close"}, {"level", message.level}}); }
std::string to_json(const FlushMessage&) { return R"({"type":"flush"})"; }
std::string to_json(const ResetMessage&) { return R"({"type":"reset"})"; }
std::string to_json(const SaveMessage&) { return R"({"type":"save"})"; }
std::string to_json(const AcknowledgeMessage& message) { return text_of({{"type", "acknowledge"}, {"messages", message.messages}}); }

std::string to_json(const StartedMessage& message) {
  Json json = {{"type", "started"}, {"version", message.version}, {"session", message.session}};
  json["inputs"] = Json::array();
  for (const PortSpec& port : message.inputs) json["inputs"].push_back(json_of_port(port));
  json["outputs"] = Json::array();
  for (const PortSpec& port : message.outputs) json["outputs"].push_back(json_of_port(port));
  json["reply"] = name_of(message.reply);
  if (message.seq > 0) json["seq"] = message.seq;
  if (message.resumed) json["messages"] = message.messages;
  if (message.idle_seconds) json["idle_seconds"] = *message.idle_seconds;
  if (message.ticket) json["ticket"] = *message.ticket;
  if (message.resume_seconds) json["resume_seconds"] = *message.resume_seconds;
  if (!message.model.empty()) json["model"] = message.model;
  return text_of(json);
}

std::string to_json(const SavedMessage& message) {
  return text_of({{"type", "saved"}, {"steps", message.steps}, {"messages", message.messages}, {"state", message.state}});
}

std::string to_json(const SegmentMessage& message) {
  return text_of({{"type", "segment"}, {"label", message.label}, {"start", message.start}, {"end", message.end}});
}

std::string to_json(const EndedMessage& message) { return text_of({{"type", "ended"}, {"steps", message.steps}}); }

std::string to_json(const FlushedMessage& message) { return text_of({{"type", "flushed"}, {"steps", message.steps}}); }
std::string to_json(const ResetDoneMessage& message) { return text_of({{"type", "reset"}, {"steps", message.steps}}); }

std::string to_json(const ErrorMessage& message) {
  Json json = {{"type", "error"}, {"code", name_of(message.code)}, {"message", clipped(message.message)}};
  if (message.retry_after_ms) json["retry_after_ms"] = *message.retry_after_ms;
  if (message.seq) json["seq"] = *message.seq;
  if (message.saved) json.update({{"steps", message.saved->steps}, {"messages", message.saved->messages}, {"state", message.saved->state}});
  return text_of(json);
}

namespace {

/// Any number is read here: which levels there are is the program's matter.
int parse_level(const JsonObject& object) {
  object.only({"type", "level"});
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  return static_cast<int>(object.required("level", object.integer("level", -most, most)));
}

AcknowledgeMessage parse_acknowledge(const JsonObject& object) {
  object.only({"type", "messages"});
  return {static_cast<std::uint64_t>(object.required("messages", object.integer("messages", 0, most_counted)))};
}

template <class T>
T without_keys(const JsonObject& object) {
  object.only({"type"});
  return T();
}

}  // namespace

ClientMessage parse_client_message(std::string_view text, std::size_t most) {
  JsonBounds bounds;
  bounds.bytes = most;
  const nlohmann::json json = parse_strict_json(text, bounds);
  const JsonObject object(json, "control");
  const std::string type = object.required("type", object.text("type"));
  if (type == "start") return parse_start(JsonObject(json, "start"));
  const JsonObject said(json, type);
  if (type == "end") return without_keys<EndMessage>(said);
  if (type == "open") return OpenMessage{parse_level(said)};
  if (type == "close") return CloseMessage{parse_level(said)};
  if (type == "flush") return without_keys<FlushMessage>(said);
  if (type == "reset") return without_keys<ResetMessage>(said);
  if (type == "save") return without_keys<SaveMessage>(said);
  if (type == "acknowledge") return parse_acknowledge(said);
  throw ProtocolError(ErrorCode::bad_message,
                      "control.type: expected start, open, close, flush, reset, save, acknowledge or end, found '" + type + "'");
}

}  // namespace millrace
