// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/streaming/transport/connection.h>
#include <millrace/tensor/error.h>
#include <support/child.h>

namespace millrace::demo {

/// Where `millrace serve` says that it listens. IoError when it says something else.
inline StreamUrl url_of(app::Child& server) {
  const std::string line = server.read_line();
  const auto space = line.rfind(' ');
  if (!line.starts_with("millrace: serving ") || space == line.npos)
    throw IoError("millrace serve: expected 'millrace: serving MODEL on ADDRESS:PORT', found '" + line + "'");
  return parse_stream_url("tcp://" + line.substr(space + 1));
}

}  // namespace millrace::demo
