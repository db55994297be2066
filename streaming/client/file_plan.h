// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include <millrace/streaming/client/stream_client.h>

namespace millrace {

/// A file as a session of a server that said `server` (see describe_server): a .wav for its audio input, at the file's own rate and
/// channels; a .npy for an input of rows, where axis 0 of the file is time. Replies are asked for as bytes, and segments where there is
/// audio. IoError, ParseError, DTypeError, ShapeError, UnsupportedError name the file, what was expected and what was found.
ClientPlan plan_file(const std::filesystem::path& path, const StartedMessage& server);

}  // namespace millrace
