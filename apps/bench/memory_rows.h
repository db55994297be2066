// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::bench {

/// `millrace-bench sessions COUNT`: opens so many live sessions of an LSTM of 128 units, steps each once, and prints "besides BYTES": what
/// they hold while idle, besides their states. No sockets.
int sessions_command(std::int64_t count);

}  // namespace millrace::bench
