// SPDX-License-Identifier: Apache-2.0
#include "screen.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/asio.h>

namespace millrace::demo {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t most_values = 512;

winsize terminal() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    size.ws_col = 80;
    size.ws_row = 24;
  }
  return size;
}

/// The answer to GET /now; empty when there is none.
std::string now_of(std::uint16_t port) {
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  error_code error;
  std::string text;
  socket.connect({asio::ip::make_address("127.0.0.1"), port}, error);
  if (!error) asio::write(socket, asio::buffer(std::string("GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n")), error);
  if (!error) asio::read(socket, asio::dynamic_buffer(text), error);
  return text;
}

}  // namespace

bool can_draw() { return ::isatty(STDOUT_FILENO) != 0; }

Screen::Screen(std::vector<std::string> names, std::uint16_t port, double begins, double step) : port_(port), begins_(begins), step_(step) {
  for (std::string& name : names) voices_.push_back({std::move(name)});
}
Screen::~Screen() {
  wipe();
  std::fflush(stdout);
}

void Screen::heard(std::size_t voice, const ResultMessage& result, double seconds) {
  std::deque<float>& values = voices_.at(voice).values;
  const std::string& bytes = result.outputs.at(0).bytes;
  const std::size_t row = bytes.size() / std::max<std::uint32_t>(1, result.steps);
  for (std::uint32_t step = 0; step < result.steps && row >= sizeof(float); ++step) {
    float value = 0;
    std::memcpy(&value, bytes.data() + step * row, sizeof(float));
    values.push_back(value);
    if (values.size() > most_values) values.pop_front();
  }
  const double due = begins_ + step_ * static_cast<double>(result.seq + result.steps - 1);
  longest_lag_ = std::max(longest_lag_, seconds - due);
  seconds_ = std::max(seconds_, seconds);
  if (Clock::now() - drawn_at_ >= std::chrono::milliseconds(80)) draw();
}

void Screen::ask_server() {
  if (Clock::now() - asked_at_ < std::chrono::milliseconds(500)) return;
  asked_at_ = Clock::now();
  const std::string answer = now_of(port_);
  const auto begin = answer.find('{');
  unsigned long long sessions = 0, ticks = 0, rows = 0;
  if (begin == answer.npos ||
      std::sscanf(answer.c_str() + begin, R"({"sessions":%llu,"ticks":%llu,"rows":%llu})", &sessions, &ticks, &rows) != 3)
    return;
  const double more_ticks = static_cast<double>(ticks) - ticks_, more_rows = static_cast<double>(rows) - rows_;
  of_server_ = fmt::format("rows a tick {:5.1f}   live {}", more_ticks > 0 ? more_rows / more_ticks : 0, sessions);
  ticks_ = static_cast<double>(ticks);
  rows_ = static_cast<double>(rows);
}

void Screen::draw() {
  ask_server();
  const winsize size = terminal();
  std::string text = draw_voices(voices_, size.ws_col, size.ws_row > 2u ? size.ws_row - 2u : 0u);
  text += fmt::format("{:6.1f} s   lag {:6.1f} ms   {}", seconds_, 1000 * longest_lag_, of_server_).substr(0, size.ws_col - 1u) + "\n";
  wipe();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  lines_ = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  longest_lag_ = 0;
  drawn_at_ = Clock::now();
}

void Screen::wipe() {
  if (lines_ > 0) fmt::print("\033[{}A\033[J", lines_);
  lines_ = 0;
}

}  // namespace millrace::demo
