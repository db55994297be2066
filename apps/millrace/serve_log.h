// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <millrace/streaming/live/server.h>

namespace millrace::app {

/// The log of a server on stderr: a line for each session that is over, and for events that its operators should know; as JSON where that is asked
/// for. A slow reader does not hold the server up: lines that find no room are counted instead. Texts of clients are cut at 1 KiB, or less where they take more
/// in JSON, and end with "…" then, so that each line fits a pipe.
class ServeLog {
 public:
  /// `quiet`: no line for a session that ended, or whose client went.
  ServeLog(bool json, bool quiet) : json_(json), quiet_(quiet) {}
  void session(const Server::SessionEnd& end);
  /// `event` is a word for programs, `message` for people.
  void say(const std::string& event, const std::string& message);

 private:
  void write(const std::string& line);
  const bool json_, quiet_;
  std::size_t missed_ = 0;
};

}  // namespace millrace::app
