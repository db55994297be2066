// SPDX-License-Identifier: Apache-2.0
#include "serve_log.h"

#include <chrono>
#include <climits>

#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include <millrace/streaming/admin/log_line.h>

namespace millrace::app {
namespace {

bool write_if_room(const std::string& text) {
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  const bool room = text.size() <= PIPE_BUF && ::poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0;
  return room && ::write(STDERR_FILENO, text.data(), text.size()) >= 0;
}

}  // namespace

void ServeLog::session(const Server::SessionEnd& end) {
  if (quiet_ && (end.outcome == "ended" || end.outcome == "gone")) return;
  if (json_) return write(json_line(end, std::chrono::system_clock::now()));
  std::string line = fmt::format("millrace: session {} of {}{}: {}, {} steps, {:.3f} s", end.number, end.address,
                                 end.label.empty() ? "" : fmt::format(" '{}'", one_line(end.label)), end.outcome, end.steps, end.seconds);
  if (!end.model.empty() && end.model != default_route) line += " of " + end.model;
  if (!end.why.empty()) line += ": " + one_line(end.why);
  write(line);
}

void ServeLog::say(const std::string& event, const std::string& message) {
  write(json_ ? json_line("warn", event, message, std::chrono::system_clock::now()) : "millrace: " + one_line(message));
}

void ServeLog::write(const std::string& line) {
  std::string text = line + "\n";
  if (missed_ > 0) {
    const std::string lines = fmt::format("{} lines found no room", missed_);
    text = (json_ ? json_line("warn", "log", lines, std::chrono::system_clock::now()) : "millrace: " + lines) + "\n" + text;
  }
  missed_ = write_if_room(text) ? 0 : missed_ + 1;
}

}  // namespace millrace::app
