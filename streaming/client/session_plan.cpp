// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/client/session_plan.h>

#include <algorithm>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include <millrace/streaming/protocol/control.h>
#include <millrace/streaming/protocol/data.h>

namespace millrace {
namespace {

/// One input of the server and the rows it gets.
struct Fed {
  const PortSpec* port = nullptr;
  LoDTensor rows;
};

std::span<const std::byte> bytes_of(const Tensor& rows, std::int64_t begin, std::int64_t end) {
  const Tensor part = rows.rows(begin, end);
  return {static_cast<const std::byte*>(part.raw()), part.bytes()};
}

LoDTensor rows_for(const PortSpec& port, const std::map<std::string, LoDTensor>& feeds) {
  const std::string wanted = fmt::format("{}{}", name_of(port.dtype), port.shape.inserted(0, DDim::unknown).to_string());
  const auto found = feeds.find(port.name);
  if (found == feeds.end()) {
    std::string names;
    for (const auto& [name, value] : feeds) names += (names.empty() ? "rows of '" : "', '") + name;
    throw ArgumentError(fmt::format("input '{}': expected {}, found {}", port.name, wanted, names.empty() ? "nothing" : names + "'"));
  }
  if (port.audio) throw UnsupportedError(fmt::format("input '{}': expected sound, found rows", port.name));
  const LoDTensor& value = found->second;
  if (value.dtype() != port.dtype)
    throw DTypeError(
        fmt::format("input '{}': expected {}, found {}{}", port.name, wanted, name_of(value.dtype()), value.dims().to_string()));
  if (value.dims().rank() != port.shape.rank() + 1 || value.dims().erased(0) != port.shape)
    throw ShapeError(
        fmt::format("input '{}': expected {}, found {}{}", port.name, wanted, name_of(value.dtype()), value.dims().to_string()));
  return value;
}

/// The levels that all inputs share: those of the inputs with a row each step.
LoD shared_lod(const std::vector<Fed>& fed) {
  const Fed* deepest = nullptr;
  for (const Fed& each : fed)
    if (!each.port->level && (deepest == nullptr || each.rows.lod().depth() > deepest->rows.lod().depth())) deepest = &each;
  if (deepest == nullptr) throw UnsupportedError("expected a server with an input that has a row each step, found none");
  const LoD lod = deepest->rows.lod().empty() ? LoD::from_lengths({{deepest->rows.rows()}}) : deepest->rows.lod();
  for (const Fed& each : fed) {
    const int depth = each.port->level.value_or(lod.depth());
    if (depth > lod.depth() || (each.port->level && depth == lod.depth()))
      throw LoDError(
          fmt::format("input '{}': expected sequences inside those of level {}, found {}", deepest->port->name, depth, lod.brief()));
    const LoD wanted = lod.levels(0, depth);
    const bool same = each.rows.lod().empty() ? each.rows.rows() == wanted.rows() : each.rows.lod() == wanted;
    if (!same)
      throw LoDError(fmt::format("input '{}': expected the sequences {} of '{}', found {}", each.port->name, wanted.brief(),
                                 deepest->port->name, each.rows.to_string()));
  }
  return lod;
}

/// Messages of one session, between `start` and `end`.
class Script {
 public:
  Script(const std::vector<Fed>& fed, const LoD& lod, const SessionPlanOptions& options, std::vector<Message>& messages)
      : fed_(fed), lod_(lod), options_(options), messages_(messages) {}

  /// The events inside the sequence number `index` of `level`.
  void sequence(int level, std::int64_t index) {
    const auto at = static_cast<std::size_t>(index);
    const std::int64_t begin = lod_.offsets(level)[at], end = lod_.offsets(level)[at + 1];
    if (level + 1 == lod_.depth()) return rows(begin, end);
    for (std::int64_t inner = begin; inner < end; ++inner) {
      for (const Fed& each : fed_)
        if (each.port->level == level + 1) data(each, inner, inner + 1);
      messages_.push_back(text_message(to_json(OpenMessage{level + 1})));
      sequence(level + 1, inner);
      messages_.push_back(text_message(to_json(CloseMessage{level + 1})));
      if (level + 2 == lod_.depth()) flush();
    }
  }
  void flush() {
    if (options_.flush) messages_.push_back(text_message(to_json(FlushMessage{})));
  }

 private:
  /// Inputs take turns, so that none runs ahead of the others by more than a server holds.
  void rows(std::int64_t begin, std::int64_t end) {
    std::size_t largest = 1;
    for (const Fed& each : fed_)
      if (!each.port->level && each.rows.rows() > 0)
        largest = std::max(largest, each.rows.tensor().bytes() / static_cast<std::size_t>(each.rows.rows()));
    const auto block = static_cast<std::int64_t>(std::max<std::size_t>(1, options_.piece_bytes / largest));
    for (std::int64_t at = begin; at < end; at += block)
      for (const Fed& each : fed_)
        if (!each.port->level) data(each, at, std::min(end, at + block));
    if (lod_.depth() == 1) flush();
  }
  void data(const Fed& each, std::int64_t begin, std::int64_t end) {
    constexpr std::size_t most = std::size_t{64} << 10;  // far below any server's limit of a message
    for (std::span<const std::byte> left = bytes_of(each.rows.tensor(), begin, end); !left.empty();) {
      const auto piece = left.first(std::min(most, left.size()));
      messages_.push_back(encode_data(fed_.size() > 1 ? std::string_view(each.port->name) : std::string_view(), piece));
      left = left.subspan(piece.size());
    }
  }

  const std::vector<Fed>& fed_;
  const LoD& lod_;
  const SessionPlanOptions& options_;
  std::vector<Message>& messages_;
};

/// Row `session` of a value that is given at the start.
std::vector<GivenNumber> given_values(const std::string& name, const LoDTensor& value, std::size_t session, std::size_t sessions) {
  if (value.dims().rank() == 0 || std::cmp_not_equal(value.rows(), sessions))
    throw ShapeError(fmt::format("'{}', which is no input that arrives: expected a row for each of {} sessions, found {}{}", name, sessions,
                                 name_of(value.dtype()), value.dims().to_string()));
  const auto row = static_cast<std::int64_t>(session);
  const Tensor own = value.tensor().rows(row, row + 1);
  return visit_dtype(own.dtype(), [&]<class T>(std::type_identity<T>) {
    std::vector<GivenNumber> values;
    using Held = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
    for (const T element : own.to_vector<T>()) values.emplace_back(convert_element<Held>(element));
    return values;
  });
}

}  // namespace

SessionPlan::SessionPlan(const std::map<std::string, LoDTensor>& feeds, const StartedMessage& server, const SessionPlanOptions& options)
    : outputs_(server.outputs) {
  std::vector<Fed> fed;
  for (const PortSpec& port : server.inputs) fed.push_back({&port, rows_for(port, feeds)});
  lod_ = shared_lod(fed);
  const auto sequences = static_cast<std::size_t>(lod_.sequences(0));
  plans_.resize(options.one_session ? 1 : sequences);
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    ClientPlan& plan = plans_[i];
    plan.start.reply = ReplyFormat::binary;
    for (const Fed& each : fed) plan.start.inputs[each.port->name] = {each.port->dtype, each.port->shape, {}, {}, {}};
    for (const auto& [name, value] : feeds) {
      const bool arrives = std::any_of(fed.begin(), fed.end(), [&wanted = name](const Fed& each) { return each.port->name == wanted; });
      if (!arrives) plan.start.given[name] = given_values(name, value, i, plans_.size());
    }
  }
  for (std::size_t i = 0; i < sequences; ++i) {
    std::vector<Message>& messages = plans_[options.one_session ? 0 : i].script;
    if (options.one_session && i > 0) messages.push_back(text_message(to_json(ResetMessage{})));
    Script(fed, lod_, options, messages).sequence(0, static_cast<std::int64_t>(i));
  }
}

std::vector<std::pair<std::string, LoDTensor>> SessionPlan::outputs(const std::vector<ClientRecord>& records) const {
  std::vector<std::pair<std::string, LoDTensor>> made;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const PortSpec& port = outputs_[i];
    const LoD lod = lod_.levels(0, std::min(port.level.value_or(lod_.depth()), lod_.depth()));
    std::string bytes;
    for (const ClientRecord& record : records) bytes += record.outputs.at(i);
    Tensor rows(port.dtype, port.shape.inserted(0, lod.rows()));
    if (rows.bytes() != bytes.size())
      throw ParseError(fmt::format("output '{}': expected {} rows of {} bytes in all, found {} bytes", port.name, lod.rows(), rows.bytes(),
                                   bytes.size()));
    rows.storage()->mark_written();
    std::memcpy(rows.raw_mutable(), bytes.data(), bytes.size());
    made.emplace_back(port.name, LoDTensor(std::move(rows), lod));
  }
  return made;
}

}  // namespace millrace
