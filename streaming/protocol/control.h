// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <millrace/streaming/protocol/audio_format.h>
#include <millrace/streaming/protocol/error_code.h>
#include <millrace/streaming/protocol/number.h>
#include <millrace/tensor/ddim.h>
#include <millrace/tensor/dtype.h>

/// The control messages of docs/protocol.md, as values. Text is made and read by nlohmann/json (control_json.cpp).
namespace millrace {

inline constexpr int protocol_version = 1;

/// The form in which a session wants its results: JSON text, binary rows, or not at all (segments only).
enum class ReplyFormat : std::uint8_t { json, binary, none };
std::string_view name_of(ReplyFormat format);

/// A client's words about one of its inputs; a field that it leaves out is the server's default.
struct InputRequest {
  std::optional<DType> dtype;
  std::optional<DDim> shape;           ///< of one row
  std::optional<SampleFormat> format;  ///< this and below: audio inputs only
  std::optional<int> rate;
  std::optional<int> channels;
};

/// Client: the first message.
struct StartMessage {
  int version = protocol_version;
  std::string session;  ///< a label for logs, at most 128 bytes; it need not be unique
  std::map<std::string, InputRequest> inputs;
  std::optional<std::vector<std::string>> outputs;  ///< those wanted; absent: all
  std::map<std::string, std::vector<GivenNumber>>
      given;  ///< values that the program takes at the start, row-major; those left out have the default of the model, else zeros
  ReplyFormat reply = ReplyFormat::json;
  bool segments = false;                             ///< whether labelled segments are wanted
  std::optional<std::string> state = std::nullopt;   ///< base64 of a saved state (live/saved_state.h), from which the sequence goes on
  std::optional<std::string> resume = std::nullopt;  ///< the ticket of a session that lost its connection: nothing else may stand beside it
  std::uint64_t acknowledged = 0;                    ///< with `resume`: messages of that session that arrived here
  std::string model{};                               ///< which one of the server's; empty: that of the address, else the default
};

/// Client: no more data; the server answers what is left and then `ended`.
struct EndMessage {};

/// Client: the next inner sequence of this level begins; the one that is open ends.
struct OpenMessage {
  int level = 1;
};
struct CloseMessage {
  int level = 1;
};

/// Client: everything that can be answered is, then `flushed`, before anything that follows is looked at.
struct FlushMessage {};
/// Client: the sequence ends as by `end`, then `reset` is answered and it begins anew.
struct ResetMessage {};
/// Client: as `flush`, answered by `saved`, which holds the state.
struct SaveMessage {};
/// Client: so many messages of the session arrived, from its `started` on, and need not be held for a `resume`.
struct AcknowledgeMessage {
  std::uint64_t messages = 0;
};

using ClientMessage =
    std::variant<StartMessage, EndMessage, OpenMessage, CloseMessage, FlushMessage, ResetMessage, SaveMessage, AcknowledgeMessage>;

/// One input or output of the served program, as a session sees it.
struct PortSpec {
  std::string name;
  DType dtype = DType::f32;
  DDim shape;                          ///< of one row
  std::optional<AudioFormat> audio;    ///< an audio input: what the client sends instead of rows
  std::optional<double> step_seconds;  ///< an audio input: time from one row to the next
  /// The level of the inner sequences for each of which the port has one row: an input's is taken when the sequence opens, an output's is given when it
  /// closes. Absent: a row each step.
  std::optional<int> level = std::nullopt;
};

/// Server: the session is admitted.
struct StartedMessage {
  int version = protocol_version;
  std::string session;
  std::vector<PortSpec> inputs;
  std::vector<PortSpec> outputs;  ///< those the session gets, in the order of its results
  ReplyFormat reply = ReplyFormat::json;
  std::uint64_t seq = 0;                                ///< of the next result of a step: not 0 where a sequence goes on
  std::uint64_t messages = 0;                           ///< of the client's that the session took before, where one is `resumed`
  bool resumed = false;                                 ///< another connection goes on with the session
  std::optional<double> idle_seconds = std::nullopt;    ///< silence that ends the session
  std::optional<std::string> ticket = std::nullopt;     ///< for `resume`
  std::optional<double> resume_seconds = std::nullopt;  ///< how long a session without a connection waits for its ticket
  std::string model{};                                  ///< where the server has several
};

/// Server: the outputs of `steps` consecutive steps, the first of them `seq`. Steps count from 0.
struct ResultMessage {
  struct Output {
    std::string name;
    std::string bytes;  ///< `steps` rows, raw little-endian
  };
  std::uint64_t seq = 0;
  std::uint32_t steps = 1;
  std::vector<Output> outputs;
  std::optional<int> level = std::nullopt;  ///< of the sequence that closed, whose rows these are: `seq` counts those. Absent: a step
};

/// Server: a span of time that carries a label, sent once it closed.
struct SegmentMessage {
  std::string label;
  double start = 0;  ///< seconds from the first sample
  double end = 0;
};

/// Server: every accepted step was answered.
struct EndedMessage {
  std::uint64_t steps = 0;
};

/// Server: answers `flush` and `reset`; `steps` were answered since the session started, or was reset.
struct FlushedMessage {
  std::uint64_t steps = 0;
};
struct ResetDoneMessage {
  std::uint64_t steps = 0;
};

/// Server: answers `save`. The sequence goes on here, and from `state` wherever else it is started.
struct SavedMessage {
  std::uint64_t steps = 0;     ///< that were answered
  std::uint64_t messages = 0;  ///< of the client's that are in the state: its start not counted, nor any `acknowledge`
  std::string state;           ///< base64
};

/// Server: the session is over. Steps from `seq` on get no result.
struct ErrorMessage {
  ErrorCode code = ErrorCode::failed;
  std::string message;
  std::optional<std::uint32_t> retry_after_ms;
  std::optional<std::uint64_t> seq;
  std::optional<SavedMessage> saved = std::nullopt;  ///< of `draining`: where the sequence stands, to go on elsewhere
  std::string unknown_code = {};                     ///< the code of a newer server, in place of which `code` is `failed`; not sent
};

using ServerMessage =
    std::variant<StartedMessage, ResultMessage, SegmentMessage, EndedMessage, ErrorMessage, FlushedMessage, ResetDoneMessage, SavedMessage>;

/// Text of a control message. The text of an error is cut at 1 KiB.
std::string to_json(const StartMessage& message);
std::string to_json(const EndMessage& message);
std::string to_json(const OpenMessage& message);
std::string to_json(const CloseMessage& message);
std::string to_json(const FlushMessage& message);
std::string to_json(const ResetMessage& message);
std::string to_json(const SaveMessage& message);
std::string to_json(const AcknowledgeMessage& message);
std::string to_json(const StartedMessage& message);
std::string to_json(const SavedMessage& message);
std::string to_json(const SegmentMessage& message);
std::string to_json(const EndedMessage& message);
std::string to_json(const ErrorMessage& message);
std::string to_json(const FlushedMessage& message);
std::string to_json(const ResetDoneMessage& message);

/// Reads what a client says. ProtocolError: bad_text (not UTF-8), bad_message (not JSON, deeper than 8, a key twice, an unknown type or
/// key, a value of the wrong kind), bad_input (another version, an unknown dtype or sample format, a rate or a channel count out of range),
/// too_big (more bytes than `most`).
ClientMessage parse_client_message(std::string_view text, std::size_t most = std::size_t{64} << 10);

}  // namespace millrace
