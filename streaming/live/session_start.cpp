// SPDX-License-Identifier: Apache-2.0
// The beginning of a session: the functions of session.h about `start`.
#include <algorithm>
#include <chrono>
#include <optional>

#include <fmt/format.h>

#include <millrace/streaming/live/session.h>
#include <millrace/streaming/protocol/base64.h>
#include <millrace/streaming/protocol/result.h>
#include <millrace/streaming/protocol/row_assembler.h>

namespace millrace {
namespace {

/// The values that a client gave for the start, as the program takes them.
Tensor given_tensor(const Recurrence::Given& wanted, const std::vector<GivenNumber>& values) {
  if (std::cmp_not_equal(values.size(), wanted.dims.elements()))
    throw ProtocolError(ErrorCode::bad_input, fmt::format("given '{}': expected {} values for {}, found {}", wanted.name,
                                                          wanted.dims.elements(), wanted.dims.to_string(), values.size()));
  return visit_dtype(wanted.dtype, [&]<class T>(std::type_identity<T>) {
    Tensor made(wanted.dtype, wanted.dims);
    T* to = made.mutable_data<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::optional<T> held = element_of<T>(values[i]);
      if (!held)
        throw ProtocolError(ErrorCode::bad_input,
                            fmt::format("given '{}': expected a value that {} can hold, found {}", wanted.name, name_of(wanted.dtype),
                                        std::visit([](auto number) { return fmt::to_string(number); }, values[i])));
      to[i] = *held;
    }
    return made;
  });
}

}  // namespace

std::unique_ptr<RowSource> Session::make_source(std::size_t input, const StartMessage& message) const {
  const PortSpec& port = model_->inputs()[input];
  const auto asked = message.inputs.find(port.name);
  const InputRequest request = asked == message.inputs.end() ? InputRequest() : asked->second;
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw ProtocolError(ErrorCode::bad_input, fmt::format("input '{}': expected {}, found {}", port.name, expected, found));
  };
  if (request.dtype && *request.dtype != port.dtype) refuse(std::string(name_of(port.dtype)), std::string(name_of(*request.dtype)));
  if (request.shape && *request.shape != port.shape) refuse("rows of " + port.shape.to_string(), request.shape->to_string());
  if (!port.audio) {
    if (request.format || request.rate || request.channels) refuse("rows", "a format, rate or channels of audio");
    return std::make_unique<RowAssembler>(model_->rows_of(input), limits_.queued_in);
  }
  AudioFormat format = *port.audio;
  format.format = request.format.value_or(format.format);
  format.rate = request.rate.value_or(format.rate);
  format.channels = request.channels.value_or(format.channels);
  return std::make_unique<AudioFrontEnd>(*model_->config().audio, format, limits_.queued_in);
}

LiveSequence::Sources Session::make_sources(const StartMessage& message) const {
  for (const auto& [name, request] : message.inputs) {
    const bool known = std::any_of(model_->inputs().begin(), model_->inputs().end(),
                                   [&wanted = name](const PortSpec& port) { return port.name == wanted; });
    if (!known) throw ProtocolError(ErrorCode::bad_input, fmt::format("expected an input of the program, found '{}'", name));
  }
  Sources made;
  made.reserve(model_->inputs().size());
  for (std::size_t i = 0; i < model_->inputs().size(); ++i) made.push_back(make_source(i, message));
  return made;
}

void Session::find_audio() {
  for (std::size_t i = 0; i < sources().size(); ++i)
    if (model_->inputs()[i].audio) make_special().audio = static_cast<AudioFrontEnd*>(sources()[i].get());
}

const Session::Special& Session::special() const noexcept {
  static const Special none;
  return special_ ? *special_ : none;
}

Session::Special& Session::make_special() {
  if (!special_) special_ = std::make_unique<Special>();
  return *special_;
}

const std::vector<std::size_t>& Session::wanted() const {
  const Special& own = special();
  return own.wanted ? *own.wanted : model_->all_outputs();
}

void Session::choose_outputs(const StartMessage& message) {
  const auto check = [&] {
    std::vector<std::string_view> names;
    for (const std::size_t output : wanted()) names.push_back(model_->outputs()[output].name);
    if (message.reply == ReplyFormat::binary) check_binary_result(names);
  };
  if (!message.outputs) return check();
  std::vector<std::size_t> chosen;
  for (const std::string& name : *message.outputs) {
    const auto at =
        std::find_if(model_->outputs().begin(), model_->outputs().end(), [&](const PortSpec& port) { return port.name == name; });
    if (at == model_->outputs().end())
      throw ProtocolError(ErrorCode::bad_input, fmt::format("expected an output of the program, found '{}'", name));
    chosen.push_back(static_cast<std::size_t>(at - model_->outputs().begin()));
  }
  // The outputs of a step come first, then the outputs of each level.
  std::vector<std::size_t> grouped;
  const int levels = model_->recurrence()->levels;
  for (int level = levels; level > 0; --level)
    for (const std::size_t output : chosen)
      if (model_->outputs()[output].level.value_or(levels) == level) grouped.push_back(output);
  make_special().wanted = std::move(grouped);
  check();
}

std::vector<Tensor> Session::given_of(const StartMessage& message) const {
  const Recurrence& recurrence = *model_->recurrence();
  for (const auto& [name, values] : message.given) {
    const bool known =
        std::any_of(recurrence.given.begin(), recurrence.given.end(), [&wanted = name](const auto& value) { return value.name == wanted; });
    if (!known)
      throw ProtocolError(ErrorCode::bad_input, fmt::format("expected a value that the program takes at the start, found '{}'", name));
  }
  std::vector<Tensor> given;
  if (message.given.empty()) return given;
  for (const Recurrence::Given& value : recurrence.given) {
    const auto found = message.given.find(value.name);
    given.push_back(found == message.given.end() ? Tensor() : given_tensor(value, found->second));
  }
  return given;
}

SavedState Session::unsealed(const StartMessage& message) const {
  if (!message.state) return {};
  if (host_ == nullptr || host_->seal() == nullptr)
    throw SavedStateError(host_ == nullptr ? "this session takes no saved states" : host_->why_no_seal());
  if (!message.given.empty())
    throw ProtocolError(ErrorCode::bad_input, "expected a saved state or given values, found both: a state has those it was started with");
  if (message.state->size() > base64_size(host_->seal()->most_bytes()))
    throw SavedStateError(
        fmt::format("saved state: expected at most {} letters, found {}", base64_size(host_->seal()->most_bytes()), message.state->size()));
  try {
    return host_->seal()->unseal(from_base64(*message.state));
  } catch (const SavedStateError&) {
    throw;
  } catch (const ParseError& error) {
    throw SavedStateError(fmt::format("saved state: {}", error.what()));
  }
}

/// The parts of a Session beside its sequence continue from the saved state.
void Session::go_on_from(const SavedState& saved, const StartMessage& message) {
  open_said_ = saved.open;
  if (!message.segments || special().labels.empty()) return;
  std::vector<Labelled>& labels = make_special().labels;
  // The session before had no segments: those of this one begin here.
  if (saved.segmenters.empty())
    for (Labelled& label : labels) label.segmenter.begin_behind(saved.steps);
  else if (labels.size() != saved.segmenters.size())
    throw SavedStateError(
        fmt::format("saved state: expected segments of {} labels, found those of {}", labels.size(), saved.segmenters.size()));
  for (std::size_t i = 0; i < saved.segmenters.size(); ++i) labels[i].segmenter.load(saved.segmenters[i]);
}

void Session::choose_model(const std::string& name) {
  if (host_ != nullptr)
    model_ = host_->model_named(name);
  else if (!name.empty())
    throw ProtocolError(ErrorCode::unknown_model, fmt::format("expected no model's name, as there is one model, found '{}'", name));
}

void Session::start(const StartMessage& message) {
  if (started()) throw ProtocolError(ErrorCode::bad_message, "expected one start, found another");
  if (message.resume) {
    if (host_ == nullptr) throw ProtocolError(ErrorCode::unknown_ticket, "expected a ticket of this server's, found another");
    return host_->resume(*message.resume, message.acknowledged);
  }
  choose_model(message.model);
  SavedState from = unsealed(message);
  reply_ = message.reply;
  choose_outputs(message);
  if (!message.state) from.given = given_of(message);
  prepare(make_sources(message), from);
  find_audio();
  if (!message.session.empty()) make_special().label = message.session;
  if (message.segments) make_labels();
  if (message.state) go_on_from(from, message);
  begin(host_ != nullptr ? host_->choose() : batcher(), std::move(from.states));
  if (host_ != nullptr)
    if (std::string ticket = host_->new_ticket(); !ticket.empty()) {
      auto sent = std::make_unique<SentMessages>(std::move(ticket), limits_.held_out);
      Special& own = make_special();
      host_->issue_ticket(
          sent->ticket());  // nothing throws behind it: a session that does not know its ticket leaves it behind when it ends
      own.sent = std::move(sent);
    }
  // Lasting objects are made before passing ones, so that no gaps are left.
  send(text_message(to_json(greeting())));
}

StartedMessage Session::greeting() const {
  StartedMessage answer;
  answer.session = label();
  if (host_ != nullptr) answer.model = host_->model_name();
  answer.reply = reply_;
  answer.seq = answered();
  answer.idle_seconds = std::chrono::duration<double>(limits_.idle).count();
  if (const Special& own = special(); own.sent) {
    answer.ticket = own.sent->ticket();
    answer.resume_seconds = std::chrono::duration<double>(limits_.resume).count();
  }
  answer.inputs = model_->inputs();
  for (PortSpec& port : answer.inputs)
    if (port.audio) port.audio = special().audio->format();
  for (const std::size_t output : wanted()) answer.outputs.push_back(model_->outputs()[output]);
  return answer;
}

void Session::make_labels() {
  if (special().audio == nullptr) return;
  std::vector<Labelled>& labels = make_special().labels;
  labels.clear();
  for (const LabelConfig& label : model_->config().labels) {
    std::size_t output = 0;
    while (model_->outputs()[output].name != label.output) ++output;
    labels.push_back({Segmenter(label, model_->config().audio->step_seconds()), output, label.index});
  }
}

}  // namespace millrace
