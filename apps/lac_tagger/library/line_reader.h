// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace millrace::lac {

/// Lines of a descriptor as they come: a person at a terminal gets an answer to each line, and a file comes in batches. Not thread-safe.
class LineReader {
 public:
  static constexpr std::size_t longest = std::size_t{1} << 20;

  explicit LineReader(int descriptor) : descriptor_(descriptor) {}

  /// Lines that are there, without their ends, at most `most`; waits until there is one. Empty: nothing follows. The last line may lack its
  /// end. IoError when reading fails; ParseError when more than `longest` bytes came without an end of a line.
  std::vector<std::string> next(std::size_t most);

 private:
  bool take_line(std::string& line);

  int descriptor_;
  std::string bytes_;
  std::size_t begin_ = 0;    // of what was not taken yet
  std::size_t scanned_ = 0;  // up to here there is no end of a line
  bool ended_ = false;
};

}  // namespace millrace::lac
