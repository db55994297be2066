// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <demo/library/voices.h>
#include <millrace/streaming/protocol/control.h>

namespace millrace::demo {

/// A picture of the voices that a server hears, drawn in place on the terminal that stdout is: a row of blocks a voice, and below them lag, rows a tick and live sessions. Its drawing is
/// wiped in the destructor.
class Screen {
 public:
  /// `port`: of the server on this machine, which is asked for its ticks. `begins`, `step`: seconds from a voice's start to the end of its first window, and
  /// from one to the next.
  Screen(std::vector<std::string> names, std::uint16_t port, double begins, double step);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// The values of the first output of `result`, which came `seconds` after its session began.
  void heard(std::size_t voice, const ResultMessage& result, double seconds);

 private:
  void draw();
  void wipe();
  void ask_server();

  std::vector<Voice> voices_;
  const std::uint16_t port_;
  const double begins_, step_;
  double longest_lag_ = 0;  // of those that came since the last drawing
  double seconds_ = 0;
  std::chrono::steady_clock::time_point drawn_at_{}, asked_at_{};
  std::size_t lines_ = 0;  // of the last drawing
  double ticks_ = 0, rows_ = 0;
  std::string of_server_;
};

/// Whether there is a terminal to draw on.
bool can_draw();

}  // namespace millrace::demo
