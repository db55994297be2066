// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/control.h>
#include <millrace/streaming/protocol/result.h>

namespace millrace {
namespace {

[[noreturn]] void absent(const char* what) {
  throw UnsupportedError(std::string(what) +
                         ": this build has no JSON: configure with MILLRACE_JSON=ON (Debian package nlohmann-json3-dev)");
}

}  // namespace

std::string to_json(const StartMessage&) { absent("start"); }
std::string to_json(const EndMessage&) { absent("end"); }
std::string to_json(const OpenMessage&) { absent("open"); }
std::string to_json(const CloseMessage&) { absent("close"); }
std::string to_json(const FlushMessage&) { absent("flush"); }
std::string to_json(const ResetMessage&) { absent("reset"); }
std::string to_json(const FlushedMessage&) { absent("flushed"); }
std::string to_json(const ResetDoneMessage&) { absent("reset"); }
std::string to_json(const StartedMessage&) { absent("started"); }
std::string to_json(const SegmentMessage&) { absent("segment"); }
std::string to_json(const EndedMessage&) { absent("ended"); }
std::string to_json(const ErrorMessage&) { absent("error"); }
ClientMessage parse_client_message(std::string_view) { absent("control message"); }
Message json_result(std::uint64_t, std::span<const OutputRows>, std::optional<int>) { absent("result"); }
ServerMessage ReplyReader::read(const Message&) { absent("reply"); }

}  // namespace millrace
