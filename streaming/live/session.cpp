// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/session.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/result.h>
#include <millrace/streaming/protocol/row_assembler.h>

namespace millrace {
namespace {

double element(DType dtype, std::span<const std::byte> row, std::size_t index) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    T value{};
    std::memcpy(&value, row.data() + index * sizeof(T), sizeof(T));
    return convert_element<double>(value);
  });
}

/// What a client gave for the start, as the program takes it.
Tensor given_tensor(const Recurrence::Given& wanted, const std::vector<double>& values) {
  if (std::cmp_not_equal(values.size(), wanted.dims.elements()))
    throw ProtocolError(ErrorCode::bad_input, fmt::format("given '{}': expected {} values for {}, found {}", wanted.name,
                                                          wanted.dims.elements(), wanted.dims.to_string(), values.size()));
  return visit_dtype(wanted.dtype, [&]<class T>(std::type_identity<T>) {
    Tensor made(wanted.dtype, wanted.dims);
    T* to = made.mutable_data<T>();
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = convert_element<T>(values[i]);
    return made;
  });
}

}  // namespace

Session::Session(std::shared_ptr<const ServedModel> model, Batcher& batcher, const Limits& limits)
    : model_(std::move(model)), batcher_(batcher), limits_(limits) {}

Session::~Session() { leave(); }

void Session::leave() {
  if (id_ && !over_) batcher_.close(*id_);
  over_ = true;
}

// ---- In ----

bool Session::wants_input() const noexcept {
  if (over_ || end_said_) return false;
  return incoming_.empty() || (incoming_.size() < limits_.chunks_in && incoming_bytes_ < limits_.queued_in);
}

void Session::receive(Message message) {
  if (over_) return;
  try {
    if (message.kind == MessageKind::binary) return take_data(message);
    const ClientMessage said = parse_client_message(message.payload);
    if (const auto* first = std::get_if<StartMessage>(&said)) return start(*first);
    if (!started()) throw ProtocolError(ErrorCode::bad_message, "expected start as the first message, found end");
    if (end_said_) throw ProtocolError(ErrorCode::bad_message, "expected nothing after end, found another end");
    end_said_ = true;
    feed();
  } catch (const ProtocolError& error) {
    end_with(error.code(), error.what(), {});
  } catch (const Error& error) {
    end_with(ErrorCode::bad_input, error.what(), {});
  }
}

void Session::take_data(const Message& message) {
  if (!started()) throw ProtocolError(ErrorCode::bad_message, "expected start as the first message, found data");
  if (end_said_) throw ProtocolError(ErrorCode::bad_message, "expected nothing after end, found data");
  const bool named = sources_.size() > 1;
  const DataView data = parse_data(message, named);
  Chunk chunk;
  for (const PortSpec& port : model_->inputs()) {
    if (!named || port.name == data.input) break;
    ++chunk.source;
  }
  if (chunk.source == sources_.size())
    throw ProtocolError(ErrorCode::bad_input, fmt::format("expected data for an input of the program, found '{}'", data.input));
  chunk.bytes.assign(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size());
  incoming_bytes_ += chunk.bytes.size();
  incoming_.push_back(std::move(chunk));
  feed();
}

std::unique_ptr<RowSource> Session::make_source(const PortSpec& port, const StartMessage& message, PortSpec& admitted) const {
  const auto asked = message.inputs.find(port.name);
  const InputRequest request = asked == message.inputs.end() ? InputRequest() : asked->second;
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw ProtocolError(ErrorCode::bad_input, fmt::format("input '{}': expected {}, found {}", port.name, expected, found));
  };
  if (request.dtype && *request.dtype != port.dtype) refuse(std::string(name_of(port.dtype)), std::string(name_of(*request.dtype)));
  if (request.shape && *request.shape != port.shape) refuse("rows of " + port.shape.to_string(), request.shape->to_string());
  if (!port.audio) {
    if (request.format || request.rate || request.channels) refuse("rows", "a format, rate or channels of audio");
    return std::make_unique<RowAssembler>(port.name, port.dtype, port.shape, limits_.queued_in);
  }
  AudioFormat format = *port.audio;
  format.format = request.format.value_or(format.format);
  format.rate = request.rate.value_or(format.rate);
  format.channels = request.channels.value_or(format.channels);
  admitted.audio = format;
  return std::make_unique<AudioFrontEnd>(*model_->config().audio, format, limits_.queued_in);
}

void Session::start(const StartMessage& message) {
  if (started()) throw ProtocolError(ErrorCode::bad_message, "expected one start, found another");
  StartedMessage answer;
  answer.session = label_ = message.session;
  answer.reply = reply_ = message.reply;
  const Recurrence& recurrence = *model_->recurrence();
  for (const auto& [name, request] : message.inputs) {
    const bool known = std::any_of(model_->inputs().begin(), model_->inputs().end(),
                                   [&wanted = name](const PortSpec& port) { return port.name == wanted; });
    if (!known) throw ProtocolError(ErrorCode::bad_input, fmt::format("expected an input of the program, found '{}'", name));
  }
  std::vector<RowSource*> sources;
  for (const PortSpec& port : model_->inputs()) {
    answer.inputs.push_back(port);
    sources_.push_back(make_source(port, message, answer.inputs.back()));
    sources.push_back(sources_.back().get());
    if (port.audio) audio_ = static_cast<AudioFrontEnd*>(sources.back());
  }
  for (std::size_t i = 0; i < model_->outputs().size(); ++i)
    if (!message.outputs) wanted_.push_back(i);
  for (const std::string& name : message.outputs.value_or(std::vector<std::string>())) {
    const auto at =
        std::find_if(model_->outputs().begin(), model_->outputs().end(), [&](const PortSpec& port) { return port.name == name; });
    if (at == model_->outputs().end())
      throw ProtocolError(ErrorCode::bad_input, fmt::format("expected an output of the program, found '{}'", name));
    wanted_.push_back(static_cast<std::size_t>(at - model_->outputs().begin()));
  }
  for (const std::size_t output : wanted_) answer.outputs.push_back(model_->outputs()[output]);
  std::vector<Tensor> given;
  for (const Recurrence::Given& value : recurrence.given) {
    const auto found = message.given.find(value.name);
    given.push_back(found == message.given.end() ? Tensor() : given_tensor(value, found->second));
  }
  for (const auto& [name, values] : message.given) {
    const bool known =
        std::any_of(recurrence.given.begin(), recurrence.given.end(), [&wanted = name](const auto& value) { return value.name == wanted; });
    if (!known)
      throw ProtocolError(ErrorCode::bad_input, fmt::format("expected a value that the program takes at the start, found '{}'", name));
  }
  if (message.segments && audio_ != nullptr)
    for (const LabelConfig& label : model_->config().labels) {
      std::size_t output = 0;
      while (model_->outputs()[output].name != label.output) ++output;
      labels_.push_back({Segmenter(label, model_->config().audio->step_seconds()), output, label.index});
    }
  id_ = batcher_.open(std::move(sources), *this, std::move(given));
  send(text_message(to_json(answer)));
}

/// Hands queued bytes to the sources as far as they take them, in order for each.
void Session::feed() {
  if (feeding_ || over_ || !started()) return;
  feeding_ = true;
  std::vector<bool> full(sources_.size(), false);
  bool moved = false;
  for (auto at = incoming_.begin(); at != incoming_.end();) {
    if (full[at->source]) {
      ++at;
      continue;
    }
    const std::span<const std::byte> bytes = std::as_bytes(std::span<const char>(at->bytes)).subspan(at->taken);
    std::size_t taken = 0;
    try {
      taken = sources_[at->source]->feed(bytes);
    } catch (...) {
      feeding_ = false;
      throw;
    }
    at->taken += taken;
    incoming_bytes_ -= taken;
    moved = moved || taken > 0;
    full[at->source] = taken < bytes.size();
    at = full[at->source] ? std::next(at) : incoming_.erase(at);
  }
  feeding_ = false;
  if (end_said_ && incoming_.empty() && !sources_ended_)
    finish_sources();
  else if (moved)
    batcher_.changed(*id_);
}

void Session::finish_sources() {
  sources_ended_ = true;
  for (const auto& source : sources_) source->end();
  batcher_.changed(*id_);
}

// ---- Steps ----

void Session::step(std::uint64_t seq, std::span<const std::span<const std::byte>> rows) {
  ++answered_;
  if (reply_ != ReplyFormat::none) {
    std::vector<OutputRows> outputs;
    for (const std::size_t output : wanted_)
      outputs.push_back({model_->outputs()[output].name, model_->outputs()[output].dtype, rows[output]});
    send(reply_ == ReplyFormat::json ? json_result(seq, outputs) : binary_result(seq, 1, outputs));
  }
  label_step(rows);
  try {
    feed();
  } catch (const ProtocolError& error) {
    end_with(error.code(), error.what(), {});
  }
}

void Session::label_step(std::span<const std::span<const std::byte>> rows) {
  for (Labelled& label : labels_)
    send_segment(label.segmenter.step(element(model_->outputs()[label.output].dtype, rows[label.output], label.index)));
}

void Session::send_segment(const std::optional<Segment>& segment) {
  if (segment) send(text_message(to_json(SegmentMessage{segment->label, segment->start, segment->end})));
}

void Session::failed(std::uint64_t, std::exception_ptr error) {
  std::string why = "a step failed";
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    why = fmt::format("a step failed: {}", known.what());
  } catch (...) {
    why = "a step failed";
  }
  end_with(ErrorCode::failed, why, {});
}

void Session::drained() {
  // Sources of several inputs must have ended with the same number of rows.
  for (const auto& source : sources_)
    if (source->rows() > 0) return end_with(ErrorCode::bad_input, "expected as many rows of each input, found more of one", {});
  for (Labelled& label : labels_) send_segment(label.segmenter.end(audio_->seconds()));
  send(text_message(to_json(EndedMessage{answered_})));
  leave();
}

// ---- Out ----

void Session::send(Message message) {
  outgoing_bytes_ += message.payload.size();
  outgoing_.push_back(std::move(message));
  if (on_output) on_output();
  if (outgoing_bytes_ > limits_.queued_out && id_) batcher_.allow(*id_, false);
}

Message Session::take_output() {
  Message message = std::move(outgoing_.front());
  outgoing_.pop_front();
  return message;
}

void Session::written(std::size_t bytes) {
  outgoing_bytes_ -= bytes;
  if (!over_ && id_ && outgoing_bytes_ <= limits_.queued_out) batcher_.allow(*id_, true);
}

void Session::end_with(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry_after_ms) {
  if (over_) return;
  ErrorMessage message{code, why, retry_after_ms, {}};
  if (started()) message.seq = answered_;
  send(text_message(to_json(message)));
  close_code_ = close_code_of(code);
  leave();
}

void Session::refuse(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry_after_ms) {
  end_with(code, why, retry_after_ms);
}

void Session::abandon() {
  leave();
  outgoing_.clear();
}

}  // namespace millrace
