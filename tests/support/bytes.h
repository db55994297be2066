// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <unistd.h>

#include <support/random.h>

namespace millrace::testing {

/// `bytes` damaged as files are: cut short, lengthened, or with some bytes changed.
inline std::string damaged(std::string bytes, Random& random) {
  const auto pick = [&](std::size_t size) { return static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(size) - 1)); };
  if (random.between(0, 3) == 0) bytes.resize(pick(bytes.size() + 1));
  if (random.between(0, 7) == 0) bytes.append(static_cast<std::size_t>(random.between(1, 16)), static_cast<char>(random.next()));
  for (std::int64_t left = bytes.empty() ? 0 : random.between(0, 4); left > 0; --left) {
    char& byte = bytes[pick(bytes.size())];
    byte = random.coin() ? static_cast<char>(random.next()) : static_cast<char>(byte ^ (1 << random.between(0, 7)));
  }
  return bytes;
}

/// A folder of its own that goes away with its contents.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / ("millrace." + std::string(6, 'X'))).string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace millrace::testing
