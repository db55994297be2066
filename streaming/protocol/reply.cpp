// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include <millrace/streaming/protocol/number.h>
#include <millrace/streaming/protocol/result.h>

#include <millrace/streaming/protocol/internal/ports.h>
#include <millrace/streaming/protocol/internal/strict_json.h>

namespace millrace {
namespace {

constexpr auto most = std::numeric_limits<std::int64_t>::max();
constexpr JsonBounds of_replies{std::numeric_limits<std::size_t>::max(), 1 << 16, 1 << 16};

double float_of(const nlohmann::json& value, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  unexpected_json(where, "a number, \"nan\", \"inf\" or \"-inf\"", value);
}

template <class T>
T element_of(const nlohmann::json& value, const std::string& where) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) unexpected_json(where, "true or false", value);
    return value.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{most});
    if (!fits || !std::in_range<T>(value.get<std::int64_t>())) unexpected_json(where, "an integer that the dtype holds", value);
    return static_cast<T>(value.get<std::int64_t>());
  } else {
    return convert_element<T>(float_of(value, where));
  }
}

void append_element(std::string& bytes, DType dtype, const nlohmann::json& value, const std::string& where) {
  visit_dtype(dtype, [&](auto type) {
    const auto element = element_of<typename decltype(type)::type>(value, where);
    char raw[sizeof element];
    std::memcpy(raw, &element, sizeof element);
    bytes.append(raw, sizeof element);
  });
}

ResultMessage parse_result(const JsonObject& object, const StartedMessage& started) {
  ResultMessage result;
  result.seq = static_cast<std::uint64_t>(object.required("seq", object.integer("seq", 0, most)));
  const JsonObject outputs(object.at("outputs"), "result.outputs");
  if (const auto level = object.integer("level", 1, 1 << 20)) result.level = static_cast<int>(*level);
  for (const PortSpec& port : started.outputs) {
    if (port.level != result.level) continue;
    const nlohmann::json& values = outputs.at(port.name.c_str());
    const std::string where = "result.outputs." + port.name;
    if (!values.is_array()) unexpected_json(where, "an array", values);
    ResultMessage::Output output;
    output.name = port.name;
    for (const auto& value : values) append_element(output.bytes, port.dtype, value, where);
    result.outputs.push_back(std::move(output));
  }
  return result;
}

std::optional<std::uint64_t> count_of(const JsonObject& object, const char* key) {
  const auto found = object.integer(key, 0, most);
  return found ? std::optional(static_cast<std::uint64_t>(*found)) : std::nullopt;
}

SavedMessage parse_saved(const JsonObject& object) {
  SavedMessage saved;
  saved.steps = object.required("steps", count_of(object, "steps"));
  saved.messages = object.required("messages", count_of(object, "messages"));
  saved.state = object.required("state", object.text("state"));
  return saved;
}

StartedMessage parse_started(const JsonObject& object) {
  StartedMessage started;
  started.version = static_cast<int>(object.required("version", object.integer("version", 0, std::numeric_limits<int>::max())));
  started.session = object.text("session").value_or("");
  for (const auto& port : object.at("inputs")) started.inputs.push_back(parse_port(port, "started.inputs"));
  for (const auto& port : object.at("outputs")) started.outputs.push_back(parse_port(port, "started.outputs"));
  started.reply = parse_reply_format(object.required("reply", object.text("reply")), "started.reply");
  started.seq = count_of(object, "seq").value_or(0);
  const std::optional<std::uint64_t> taken = count_of(object, "messages");
  started.messages = taken.value_or(0);
  started.resumed = taken.has_value();
  started.idle_seconds = object.number("idle_seconds");
  started.ticket = object.text("ticket");
  started.resume_seconds = object.number("resume_seconds");
  started.model = object.text("model").value_or("");
  return started;
}

ErrorMessage parse_error(const JsonObject& object) {
  ErrorMessage error;
  const std::string code = object.required("code", object.text("code"));
  // A newer server may know causes that this client does not: the session is over all the same.
  if (const auto known = error_code_named(code))
    error.code = *known;
  else
    error.unknown_code = code;
  error.message = object.text("message").value_or(code);
  if (const auto after = object.integer("retry_after_ms", 0, std::numeric_limits<std::uint32_t>::max()))
    error.retry_after_ms = static_cast<std::uint32_t>(*after);
  error.seq = count_of(object, "seq");
  if (object.find("state") != nullptr) error.saved = parse_saved(object);
  return error;
}

SegmentMessage parse_segment(const JsonObject& object) {
  SegmentMessage segment;
  segment.label = object.required("label", object.text("label"));
  segment.start = object.required("start", object.number("start"));
  segment.end = object.required("end", object.number("end"));
  return segment;
}

// Each row of a binary result must be whole: the answer to `start` says how long it is.
void check_rows(const ResultMessage& result, const StartedMessage& started) {
  std::vector<PortSpec> ports;
  for (const PortSpec& port : started.outputs)
    if (port.level == result.level) ports.push_back(port);
  if (result.outputs.size() != ports.size())
    throw ProtocolError(ErrorCode::bad_message,
                        "result: expected " + std::to_string(ports.size()) + " outputs, found " + std::to_string(result.outputs.size()));
  for (std::size_t k = 0; k < result.outputs.size(); ++k) {
    const PortSpec& port = ports[k];
    const auto& output = result.outputs[k];
    const auto row = static_cast<std::size_t>(port.shape.elements()) * size_of(port.dtype);
    if (output.name == port.name && output.bytes.size() == row * result.steps) continue;
    throw ProtocolError(ErrorCode::bad_message, "result: expected " + std::to_string(row * result.steps) + " bytes of '" + port.name +
                                                    "', found " + std::to_string(output.bytes.size()) + " of '" + output.name + "'");
  }
}

}  // namespace

namespace {

void append_json_text(std::string& text, std::string_view value) {
  const auto plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  if (std::all_of(value.begin(), value.end(), plain))
    text.append(1, '"').append(value).append(1, '"');
  else
    text += nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Message json_result(std::uint64_t seq, std::span<const OutputRows> outputs, std::optional<int> level) {
  // As much as f32 and f64 take on average, and a little more: few results are moved while they grow.
  std::size_t about = 64;
  for (const OutputRows& output : outputs)
    about += output.name.size() + output.bytes.size() / size_of(output.dtype) * (6 + 2 * size_of(output.dtype));
  std::string text;
  text.reserve(about);
  text += "{\"type\":\"result\",";
  if (level) text.append("\"level\":").append(std::to_string(*level)).append(",");
  text.append("\"seq\":").append(std::to_string(seq)).append(",\"outputs\":{");
  for (const OutputRows& output : outputs) {
    if (&output != outputs.data()) text += ',';
    append_json_text(text, output.name);
    text += ":[";
    append_json_values(text, output.dtype, output.bytes);
    text += ']';
  }
  return text_message(std::move(text += "}}"));
}

std::optional<std::uint64_t> step_of_json_result(std::string_view text) {
  constexpr std::string_view head = "{\"type\":\"result\",\"seq\":";
  std::uint64_t seq = 0;
  if (!text.starts_with(head)) return std::nullopt;
  std::from_chars(text.data() + head.size(), text.data() + text.size(), seq);
  return seq;
}

namespace {

ServerMessage read_reply(const Message& message, std::optional<StartedMessage>& started) {
  const bool binary = message.kind == MessageKind::binary;
  const nlohmann::json json = binary ? nlohmann::json::object() : parse_strict_json(message.payload, of_replies);
  const JsonObject object(json, "reply");
  const std::string type = binary ? "result" : object.required("type", object.text("type"));
  if (type == "error") return parse_error(object);
  if (type == "started") {
    if (started) throw ProtocolError(ErrorCode::bad_message, "reply: expected one 'started', found two");
    started = parse_started(object);
    return *started;
  }
  if (!started) throw ProtocolError(ErrorCode::bad_message, "reply: expected 'started' or 'error' first, found '" + type + "'");
  if (type == "result") {
    ResultMessage result = binary ? parse_binary_result(message.bytes()) : parse_result(object, *started);
    // The outputs of a level stand together, so the first name says which level it is.
    for (const PortSpec& port : started->outputs)
      if (binary && !result.outputs.empty() && port.name == result.outputs[0].name) result.level = port.level;
    check_rows(result, *started);
    return result;
  }
  if (type == "segment") return parse_segment(object);
  if (type == "saved") return parse_saved(object);
  if (type == "flushed") return FlushedMessage{static_cast<std::uint64_t>(object.required("steps", object.integer("steps", 0, most)))};
  if (type == "reset") return ResetDoneMessage{static_cast<std::uint64_t>(object.required("steps", object.integer("steps", 0, most)))};
  if (type != "ended") throw ProtocolError(ErrorCode::bad_message, "reply.type: expected a reply of the protocol, found '" + type + "'");
  EndedMessage ended;
  ended.steps = static_cast<std::uint64_t>(object.required("steps", object.integer("steps", 0, most)));
  return ended;
}

}  // namespace

ServerMessage ReplyReader::read(const Message& message) {
  try {
    return read_reply(message, started_);
  } catch (const ProtocolError&) {
    throw;
  } catch (const Error& error) {  // a dtype that is unknown here, a shape whose size overflows
    throw ProtocolError(ErrorCode::bad_message, std::string("reply: ") + error.what());
  }
}

}  // namespace millrace
