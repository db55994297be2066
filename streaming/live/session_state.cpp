// SPDX-License-Identifier: Apache-2.0
// Saving, moving and resuming of a session: the functions of session.h about `save`, `draining`, tickets and acknowledged rows.
#include <algorithm>

#include <fmt/format.h>

#include <millrace/streaming/live/session.h>
#include <millrace/streaming/protocol/base64.h>
#include <millrace/streaming/protocol/result.h>

namespace millrace {

std::size_t Session::most_start_bytes() const noexcept {
  const std::size_t state = host_ == nullptr ? 0 : host_->most_state_bytes();
  constexpr std::size_t beside = 4096;
  return state == 0 ? limits_.start : std::max(limits_.start, base64_size(state) + beside);
}

// ---- Saving ----

/// Empty: the session can be saved.
std::string Session::why_not_saved() const {
  if (host_ == nullptr) return "this session cannot be saved";
  if (host_->seal() == nullptr) return host_->why_no_seal();
  try {
    std::string scratch;
    for (const auto& source : sources()) source->save(scratch);
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return {};
}

void Session::take_save() {
  if (const std::string why = why_not_saved(); !why.empty()) throw SavedStateError(why);
  Mark mark{Mark::Kind::save, 0, received_};
  take_mark(mark);
}

void Session::pass_save(const Mark& mark) {
  leaving_ = mark.kind == Mark::Kind::leave;
  if (leaving_ && !why_not_saved().empty()) return end_with(ErrorCode::draining, "the server is going away", {});
  saved_with_ = mark.messages;
  save();
}

/// Nothing when there is no state, for which `why` then has the reason.
std::optional<SavedMessage> Session::seal(std::vector<Tensor> states, std::string& why) {
  try {
    SavedState state = state_with(std::move(states));
    for (const Labelled& label : special().labels) label.segmenter.save(state.segmenters.emplace_back());
    return SavedMessage{answered(), saved_with_, base64(host_->seal()->seal(state))};
  } catch (const Error& error) {
    why = error.what();
    return std::nullopt;
  }
}

void Session::on_saved(std::vector<Tensor> states) {
  std::string why;
  std::optional<SavedMessage> message = seal(std::move(states), why);
  if (leaving_) return end_with(ErrorCode::draining, "the server is going away", {}, std::move(message));
  if (!message) return end_with(ErrorCode::bad_state, why, {});
  send(text_message(to_json(*message)));
  go_on();
}

void Session::drain() {
  if (over() || end_said_) return;  // an end that was announced comes
  if (!started()) return refuse(ErrorCode::draining, "the server is going away");
  Chunk chunk;
  chunk.mark = Mark{Mark::Kind::leave, 0, received_};
  incoming_.push_back(std::move(chunk));
  go_on();
}

// ---- Resuming ----

void Session::acknowledge(std::uint64_t messages) {
  if (!special_ || !special_->sent)
    throw ProtocolError(ErrorCode::bad_message, "expected nothing to be acknowledged by a session that has no ticket");
  special_->sent->acknowledge(messages);
}

void Session::check_resume(std::uint64_t acknowledged) const { special_->sent->check(acknowledged); }

/// The number of the first result of a step among the messages that wait; without one, of the next step.
std::uint64_t Session::next_result() const {
  const auto of_step = [this](const ResultMessage& result) {
    if (result.outputs.empty()) return true;
    const auto port = std::find_if(model_->outputs().begin(), model_->outputs().end(),
                                   [&](const PortSpec& one) { return one.name == result.outputs.front().name; });
    return port == model_->outputs().end() || !port->level;
  };
  for (const Message& message : outgoing_) {
    if (message.kind == MessageKind::text) {
      if (const auto seq = step_of_json_result(message.payload)) return *seq;
    } else if (const ResultMessage result = parse_binary_result(message.bytes()); of_step(result)) {
      return result.seq;
    }
  }
  return answered();
}

void Session::resume(std::uint64_t acknowledged) {
  const bool greeted = special_->sent->greeted();
  std::list<Message> again = special_->sent->take(acknowledged);
  if (!greeted) outgoing_.pop_front();  // its greeting waits yet
  outgoing_.splice(outgoing_.begin(), again);
  StartedMessage hello = greeting();
  hello.seq = next_result();
  hello.messages = received_;
  hello.resumed = true;
  outgoing_.push_front(text_message(to_json(hello)));
  outgoing_bytes_ = 0;
  for (const Message& message : outgoing_) outgoing_bytes_ += message.payload.size();
  if (!over()) batcher().allow(id(), outgoing_bytes_ <= limits_.queued_out);
}

}  // namespace millrace
