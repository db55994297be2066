// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/config/stream_config.h>

#include <millrace/runtime/files/file.h>

namespace millrace {

StreamConfig read_stream_config(const std::string& path) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 20;
  return parse_stream_config(read_file(path, most_bytes), path);
}

}  // namespace millrace
