// SPDX-License-Identifier: Apache-2.0
#include "serve_log.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <string_view>

#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include <millrace/runtime/files/utf8.h>
#include <millrace/streaming/admin/log_line.h>

namespace millrace::app {
namespace {

constexpr std::size_t longest_text = 1024;            // bytes of a text of others
constexpr std::size_t longest_line = PIPE_BUF - 256;  // bytes, which leaves room for the line that counts missed ones

bool write_if_room(const std::string& text) {
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  const bool room = text.size() <= PIPE_BUF && ::poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0;
  return room && ::write(STDERR_FILENO, text.data(), text.size()) >= 0;
}

/// At most `most` bytes of the text, with "…" where some are left out. A byte that is no UTF-8 counts as a character.
std::string clipped(std::string_view text, std::size_t most) {
  std::size_t end = 0;
  while (end < text.size() && end < most) {
    const std::size_t next = end + std::max<std::size_t>(1, utf8_length(text.substr(end)));
    if (next > most) break;
    end = next;
  }
  return std::string(text.substr(0, end)) + (end < text.size() ? "…" : "");
}

/// The line that `line_of` makes of texts of at most so many bytes, and fits a pipe: a text of JSON may take six bytes for one, so shorter texts are tried
/// while it does not. A client must not keep its line out of the log by a long one.
template <class LineOf>
std::string fitting(const LineOf& line_of) {
  std::size_t most = longest_text;
  std::string line = line_of(most);
  while (line.size() > longest_line && most > 0) line = line_of(most /= 2);
  return line;
}

std::string plain_line(const Server::SessionEnd& end) {
  std::string line = fmt::format("millrace: session {} of {}{}: {}, {} steps, {:.3f} s", end.number, end.address,
                                 end.label.empty() ? "" : fmt::format(" '{}'", one_line(end.label)), end.outcome, end.steps, end.seconds);
  if (!end.model.empty() && end.model != default_route) line += " of " + end.model;
  if (!end.why.empty()) line += ": " + one_line(end.why);
  return line;
}

}  // namespace

void ServeLog::session(const Server::SessionEnd& end) {
  if (quiet_ && (end.outcome == "ended" || end.outcome == "gone")) return;
  write(fitting([&](std::size_t most) {
    Server::SessionEnd clip = end;
    clip.label = clipped(end.label, most);
    clip.why = clipped(end.why, most);
    return json_ ? json_line(clip, std::chrono::system_clock::now()) : plain_line(clip);
  }));
}

void ServeLog::say(const std::string& event, const std::string& message) {
  write(fitting([&](std::size_t most) {
    const std::string clip = clipped(message, most);
    return json_ ? json_line("warn", event, clip, std::chrono::system_clock::now()) : "millrace: " + one_line(clip);
  }));
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
