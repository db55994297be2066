// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <unistd.h>

#include <millrace/streaming/transport/connection.h>
#include <millrace/tensor/error.h>
#include <support/child.h>

namespace millrace::demo {

/// A folder that goes away with its contents.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-demo.XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw IoError(pattern + ": cannot make the folder");
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Where `millrace serve` says that it listens. IoError when it says something else.
inline StreamUrl url_of(app::Child& server) {
  const std::string line = server.read_line();
  const auto space = line.rfind(' ');
  if (!line.starts_with("millrace: serving ") || space == line.npos)
    throw IoError("millrace serve: expected 'millrace: serving MODEL on ADDRESS:PORT', found '" + line + "'");
  return parse_stream_url("tcp://" + line.substr(space + 1));
}

}  // namespace millrace::demo
