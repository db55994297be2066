// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include <millrace/streaming/transport/byte_stream.h>
#include <millrace/streaming/transport/message_stream.h>

namespace millrace {

/// Messages as length-prefixed frames (protocol/frame.h) on `bytes`. `max_payload` bounds what is read.
std::unique_ptr<MessageStream> make_tcp_stream(ByteStream bytes, std::size_t max_payload);

}  // namespace millrace
