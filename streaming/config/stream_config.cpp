// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/config/stream_config.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <millrace/tensor/error.h>

namespace millrace {

StreamConfig read_stream_config(const std::string& path) {
  struct CloseFile {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  constexpr std::size_t most_bytes = std::size_t{1} << 20;
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) throw IoError(path + ": cannot be opened: " + std::strerror(errno));
  std::string text;
  std::array<char, 4096> piece;
  while (const std::size_t got = std::fread(piece.data(), 1, piece.size(), file.get())) {
    if (text.size() + got > most_bytes) throw ParseError(path + ": expected at most 1 MiB, found more");
    text.append(piece.data(), got);
  }
  if (std::ferror(file.get())) throw IoError(path + ": cannot be read: " + std::strerror(errno));
  return parse_stream_config(text, path);
}

}  // namespace millrace
