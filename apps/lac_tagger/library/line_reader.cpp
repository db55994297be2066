// SPDX-License-Identifier: Apache-2.0
#include <lac_tagger/library/line_reader.h>

#include <cerrno>
#include <cstring>
#include <string>

#include <unistd.h>

#include <millrace/tensor/error.h>

namespace millrace::lac {

bool LineReader::take_line(std::string& line) {
  const std::size_t end = bytes_.find('\n', scanned_);
  if (end == bytes_.npos && (!ended_ || begin_ == bytes_.size())) {
    scanned_ = bytes_.size();
    return false;
  }
  line = bytes_.substr(begin_, end == bytes_.npos ? end : end - begin_);
  begin_ = scanned_ = end == bytes_.npos ? bytes_.size() : end + 1;
  return true;
}

std::vector<std::string> LineReader::next(std::size_t most) {
  std::vector<std::string> lines;
  while (true) {
    for (std::string line; lines.size() < most && take_line(line);) lines.push_back(std::move(line));
    if (!lines.empty() || ended_) return lines;
    scanned_ -= begin_;
    bytes_.erase(0, begin_);
    begin_ = 0;
    constexpr std::size_t piece = std::size_t{64} << 10;
    const std::size_t held = bytes_.size();
    if (held > longest) throw ParseError("stdin: expected lines of at most " + std::to_string(longest) + " bytes, found a longer one");
    bytes_.resize(held + piece);
    const ssize_t got = ::read(descriptor_, bytes_.data() + held, piece);
    const int error = errno;
    bytes_.resize(held + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got < 0 && error != EINTR) throw IoError(std::string("stdin: cannot read: ") + std::strerror(error));
    if (got == 0) ended_ = true;
  }
}

}  // namespace millrace::lac
