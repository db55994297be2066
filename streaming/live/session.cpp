// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/session.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <boost/container/small_vector.hpp>

#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/result.h>
#include <millrace/tensor/work_failure.h>

namespace millrace {
namespace {

double element(DType dtype, std::span<const std::byte> row, std::size_t index) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    T value{};
    std::memcpy(&value, row.data() + index * sizeof(T), sizeof(T));
    return convert_element<double>(value);
  });
}

}  // namespace

Session::Session(std::shared_ptr<const ServedModel> model, Batcher& batcher, const Limits& limits)
    : LiveSequence(batcher), model_(std::move(model)), limits_(limits) {}

Session::Session(SessionHost& host, const Limits& limits) : host_(&host), limits_(limits) {}

void SessionHost::resume(const std::string&, std::uint64_t) {
  throw ProtocolError(ErrorCode::unknown_ticket, "expected a server that holds sessions without a connection, found one that does not");
}

// ---- In ----

bool Session::wants_input() const noexcept { return has_room() && !far_ahead(); }

bool Session::has_room() const noexcept {
  if (over() || end_said_) return false;
  return incoming_.empty() || (incoming_.size() < limits_.chunks_in && incoming_bytes_ < limits_.queued_in);
}

/// Reading stops for a client that sends ahead, since its messages cost time already when they are read. While the session is held up, one row is enough.
bool Session::far_ahead() const noexcept {
  if (!started() || over()) return false;
  const auto end = sources().begin() + batcher().recurrence().inputs.size();
  const std::size_t enough = held_up() ? 0 : 4 * Batcher::few_rows;
  return std::all_of(sources().begin(), end, [enough](const auto& source) { return source->rows() > enough; });
}

bool Session::receive(Message message) {
  if (over()) return false;
  try {
    if (message.kind == MessageKind::binary) return take_data(std::move(message));
    take_control(message);
  } catch (...) {
    end_with_caught();
  }
  return true;
}

void Session::take_control(const Message& message) {
  const std::size_t most = started() ? limits_.control : most_start_bytes();
  if (message.payload.size() > most)
    throw ProtocolError(ErrorCode::too_big,
                        fmt::format("expected a control message of at most {} bytes, found {}", most, message.payload.size()));
  const ClientMessage said = parse_client_message(message.payload, most);
  if (const auto* first = std::get_if<StartMessage>(&said)) return start(*first);
  if (!started()) throw ProtocolError(ErrorCode::bad_message, "expected start as the first message, found another");
  if (const auto* got = std::get_if<AcknowledgeMessage>(&said)) return acknowledge(got->messages);
  if (end_said_) throw ProtocolError(ErrorCode::bad_message, "expected nothing after end, found another message");
  ++received_;
  if (const auto* open = std::get_if<OpenMessage>(&said)) return take_mark(*open);
  if (const auto* close = std::get_if<CloseMessage>(&said)) return take_mark(*close);
  if (std::holds_alternative<FlushMessage>(said)) return take_mark({Mark::Kind::flush, 0});
  if (std::holds_alternative<SaveMessage>(said)) return take_save();
  if (std::holds_alternative<ResetMessage>(said)) {
    open_said_ = 0;
    return take_mark({Mark::Kind::reset, 0});
  }
  end_said_ = true;
  take_mark({Mark::Kind::end, 0});
}

bool Session::take_data(Message message) {
  if (!started()) throw ProtocolError(ErrorCode::bad_message, "expected start as the first message, found data");
  if (end_said_) throw ProtocolError(ErrorCode::bad_message, "expected nothing after end, found data");
  const bool named = sources().size() > 1;
  const DataView data = parse_data(message, named);
  Chunk chunk;
  for (const PortSpec& port : model_->inputs()) {
    if (!named || port.name == data.input) break;
    ++chunk.source;
  }
  if (chunk.source == sources().size())
    throw ProtocolError(ErrorCode::bad_input, fmt::format("expected data for an input of the program, found '{}'", data.input));
  const PortSpec& port = model_->inputs()[chunk.source];
  if (const int innermost = model_->recurrence()->levels - 1; !port.level && open_said_ < innermost && !data.bytes.empty())
    throw ProtocolError(ErrorCode::bad_message,
                        fmt::format("expected open of level {} before data of '{}', found data", open_said_ + 1, port.name));
  ++received_;
  if (data.bytes.empty()) return false;
  incoming_bytes_ += data.bytes.size();
  chunk.taken = message.payload.size() - data.bytes.size();
  chunk.bytes = std::move(message.payload);
  incoming_.push_back(std::move(chunk));
  feed();
  return true;
}

std::size_t Session::waiting_rows() const noexcept {
  if (sources().size() == 0) return 0;
  const RowSource& first = **sources().begin();
  return first.rows() + incoming_bytes_ / std::max<std::size_t>(first.row_bytes(), 1);
}

std::string_view Session::outcome() const noexcept {
  switch (outcome_) {
    case Outcome::live: return "live";
    case Outcome::ended: return "ended";
    case Outcome::gone: return "gone";
    default: return name_of(error_);
  }
}

void Session::take_mark(Mark mark) {
  Chunk chunk;
  chunk.mark = mark;
  incoming_.push_back(std::move(chunk));
  feed();
}

void Session::take_mark(const OpenMessage& message) {
  const int innermost = model_->recurrence()->levels - 1;
  if (message.level < 1 || message.level > innermost)
    throw ProtocolError(ErrorCode::bad_message,
                        innermost == 0
                            ? fmt::format("expected no open, as the program has no inner sequences, found one of level {}", message.level)
                            : fmt::format("open: expected a level from 1 to {}, found {}", innermost, message.level));
  if (message.level != open_said_ + 1)
    throw ProtocolError(ErrorCode::bad_message,
                        open_said_ == innermost
                            ? fmt::format("open: expected close of level {} first, found level {}", open_said_, message.level)
                            : fmt::format("open: expected level {}, found {}", open_said_ + 1, message.level));
  ++open_said_;
  take_mark({Mark::Kind::open, message.level});
}

void Session::take_mark(const CloseMessage& message) {
  if (message.level != open_said_ || open_said_ == 0)
    throw ProtocolError(ErrorCode::bad_message,
                        open_said_ == 0
                            ? fmt::format("close: expected an inner sequence that is open, found level {} and none open", message.level)
                            : fmt::format("close: expected level {}, the innermost that is open, found {}", open_said_, message.level));
  --open_said_;
  take_mark({Mark::Kind::close, message.level});
}

// ---- The queue ----

/// Works the queue off: bytes go to the sources as far as they take them, in order for each; a mark waits for all before it.
void Session::feed() {
  if (feeding_ || over() || !started()) return;
  struct Feeding {
    explicit Feeding(bool& on) : flag(on) { flag = true; }
    ~Feeding() { flag = false; }
    bool& flag;
  } const feeding(feeding_);
  bool moved = false;
  while (!over() && !under_way()) {
    boost::container::small_vector<bool, 8> full(sources().size(), false);
    std::size_t with_room = sources().size();
    auto at = incoming_.begin();
    while (at != incoming_.end() && !at->mark && with_room > 0) {
      if (full[at->source]) {
        ++at;
        continue;
      }
      const std::span<const std::byte> bytes = std::as_bytes(std::span<const char>(at->bytes)).subspan(at->taken);
      const std::size_t taken = sources()[at->source]->feed(bytes);
      at->taken += taken;
      incoming_bytes_ -= taken;
      moved = moved || taken > 0;
      full[at->source] = taken < bytes.size();
      with_room -= full[at->source] ? 1 : 0;
      at = full[at->source] ? std::next(at) : incoming_.erase(at);
    }
    if (incoming_.empty() || !incoming_.front().mark) break;
    if (moved) fed();
    moved = false;
    if (!pass(*incoming_.front().mark)) break;
  }
  if (moved && !over()) fed();
  check_not_stuck();
}

/// Only more rows of another input would help, and no more is read: the inputs are too far apart.
void Session::check_not_stuck() const {
  if (over() || incoming_.empty() || incoming_.front().mark || has_room() || !settled()) return;
  const std::string& ahead = model_->inputs()[incoming_.front().source].name;
  for (std::size_t i = 0; i < sources().size(); ++i)
    if (sources()[i]->rows() == 0 && !model_->inputs()[i].level)
      throw ProtocolError(ErrorCode::bad_input,
                          fmt::format("expected rows of '{}' before more of '{}', of which {} bytes wait", model_->inputs()[i].name, ahead,
                                      sources()[incoming_.front().source]->held_bytes()));
}

/// The mark at the front of the queue takes effect and goes away, or what is open before it closes. False: not yet.
bool Session::pass(const Mark& front) {
  if (!settled()) return false;
  const Mark mark = front;
  // A flush and a reset are answered at once, so they wait for room among the replies, as a step does. An end needs none: a session has one.
  if ((mark.kind == Mark::Kind::flush || mark.kind == Mark::Kind::reset) && output_full()) return false;
  const bool ends = mark.kind == Mark::Kind::end || mark.kind == Mark::Kind::reset;
  if (ends && open_levels() > 0) {
    cross(false, open_levels());
    return true;
  }
  incoming_.pop_front();
  switch (mark.kind) {
    case Mark::Kind::open: cross(true, mark.level); break;
    case Mark::Kind::close: cross(false, mark.level); break;
    case Mark::Kind::flush: send(text_message(to_json(FlushedMessage{answered()}))); break;
    case Mark::Kind::save:
    case Mark::Kind::leave: pass_save(mark); break;
    case Mark::Kind::reset: begin_anew(); break;
    case Mark::Kind::end: end(); break;
  }
  return true;
}

// ---- Steps ----

/// Goes on with the queue: an event is done that its marks and bytes waited for.
void Session::go_on() {
  try {
    feed();
  } catch (...) {
    end_with_caught();
  }
  if (on_change) on_change();
}

/// The outputs of a step, or of an inner sequence of `level` that closed.
void Session::send_rows(std::uint64_t seq, std::optional<int> level, Row row) {
  if (reply_ == ReplyFormat::none) return;
  boost::container::small_vector<OutputRows, 4> outputs;
  std::size_t first = 0;
  while (first < model_->outputs().size() && model_->outputs()[first].level != level) ++first;
  for (const std::size_t output : wanted())
    if (const PortSpec& port = model_->outputs()[output]; port.level == level)
      outputs.push_back({port.name, port.dtype, row[output - first]});
  // A program whose outputs are all of inner sequences has none at a step, and the other way round.
  if (outputs.empty() && (level || !wanted().empty())) return;
  const std::span<const OutputRows> said(outputs.data(), outputs.size());
  send(reply_ == ReplyFormat::json ? json_result(seq, said, level) : binary_result(seq, 1, said));
}

void Session::on_step(std::uint64_t seq, Row row) {
  send_rows(seq, std::nullopt, row);
  label_step(row);
  go_on();
}

void Session::on_crossed(std::size_t boundary, std::uint64_t number, Row row) {
  const Recurrence::Boundary& at = model_->recurrence()->boundaries[boundary];
  if (!at.opens && !row.empty()) send_rows(number, at.level, row);
  go_on();
}

void Session::on_begun_anew() {
  find_audio();
  if (!special().labels.empty()) make_labels();
  go_on();
}

void Session::label_step(Row row) {
  if (!special_) return;
  for (Labelled& label : special_->labels)
    send_segment(label.segmenter.step(element(model_->outputs()[label.output].dtype, row[label.output], label.index)));
}

void Session::send_segment(const std::optional<Segment>& segment) {
  if (segment) send(text_message(to_json(SegmentMessage{segment->label, segment->start, segment->end})));
}

void Session::on_failed(std::uint64_t, std::exception_ptr error) {
  drop_input();
  std::string why = "a step failed";
  try {
    std::rethrow_exception(error);
  } catch (const PlaceLostError& gone) {
    return end_with(ErrorCode::lost, gone.what(), {});
  } catch (const Error& known) {
    try {
      why = fmt::format("a step failed: {}", known.what());
    } catch (const std::bad_alloc&) {  // then without the reason
    }
  } catch (...) {  // of no name
  }
  end_with(ErrorCode::failed, why, {});
}

void Session::on_drained(bool anew) {
  // Sources of several inputs must have ended with the same number of rows.
  for (std::size_t i = 0; i < sources().size(); ++i)
    if (sources()[i]->rows() > 0)
      return end_with(ErrorCode::bad_input,
                      fmt::format("expected as many rows of each input, found more of '{}'", model_->inputs()[i].name), {});
  if (special_)
    for (Labelled& label : special_->labels) send_segment(label.segmenter.end(special_->audio->seconds()));
  if (anew) return send(text_message(to_json(ResetDoneMessage{answered()})));
  leave();
  outcome_ = Outcome::ended;
  send(text_message(to_json(EndedMessage{answered()})));
}

// ---- Out ----

bool Session::output_full() const noexcept { return outgoing_bytes_ > limits_.queued_out; }

bool Session::held_up() const noexcept {
  constexpr std::size_t for_those_ahead = 16384;
  if (outgoing_bytes_ <= std::min(limits_.queued_out, for_those_ahead)) return false;
  return output_full() || waiting_rows() > Batcher::few_rows;
}

void Session::send(Message message) {
  outgoing_bytes_ += message.payload.size();
  outgoing_.push_back(std::move(message));
  if (on_change) on_change();
  if (started() && !over() && held_up()) batcher().allow(id(), false);
}

Message Session::take_output() {
  Message message = std::move(outgoing_.front());
  outgoing_.pop_front();
  if (special_ && special_->sent) special_->sent->add(message);
  return message;
}

bool Session::about_to_say_more() const noexcept {
  constexpr std::size_t few_messages = 8, few_bytes = 4096;
  return !over() && started() && outgoing_.size() < few_messages && outgoing_bytes_ < std::min(few_bytes, limits_.queued_out) &&
         batcher().will_step(id());
}

void Session::written(std::size_t bytes) {
  outgoing_bytes_ -= bytes;
  if (over() || !started()) return;
  if (!held_up()) batcher().allow(id(), true);
  if (!output_full() && !incoming_.empty() && incoming_.front().mark) go_on();
}

void Session::end_with(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry_after_ms,
                       std::optional<SavedMessage> saved) {
  if (over()) return;
  outcome_ = Outcome::error;
  error_ = code;
  leave();
  try {
    ErrorMessage message{code, why, retry_after_ms, {}, std::move(saved)};
    if (started()) message.seq = answered();
    make_special().why = std::make_unique<std::string>(why);
    send(text_message(to_json(message)));
  } catch (const std::bad_alloc&) {
    if (on_change) on_change();  // the end of the connection is all that the client is told
  }
}

void Session::end_with_caught() {
  try {
    throw;
  } catch (const ProtocolError& error) {
    end_with(error.code(), error.what(), error.retry_after_ms());
  } catch (const SavedStateError& error) {
    end_with(ErrorCode::bad_state, error.what(), {});
  } catch (const Error& error) {
    end_with(ErrorCode::bad_input, error.what(), {});
  } catch (const std::bad_alloc&) {
    fail();
  } catch (const std::exception& error) {
    end_with(ErrorCode::failed, error.what(), {});
  }
}

/// The input that waits is dropped first: the error message needs its memory.
void Session::fail() {
  drop_input();
  end_with(ErrorCode::failed, "no memory is left for the session", {});
}

void Session::drop_input() noexcept {
  incoming_.clear();
  incoming_bytes_ = 0;
}

void Session::refuse(ErrorCode code, const std::string& why, std::optional<std::uint32_t> retry_after_ms) {
  end_with(code, why, retry_after_ms);
}

void Session::abandon() {
  if (!over()) outcome_ = Outcome::gone;
  leave();
  outgoing_.clear();
}

}  // namespace millrace
