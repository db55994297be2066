// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace millrace::app {

/// A folder of its own in the system's place for temporary files; it goes away with its contents. IoError when it cannot be made.
class ScratchFolder {
 public:
  /// `program` is part of its name.
  explicit ScratchFolder(const std::string& program);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace millrace::app
