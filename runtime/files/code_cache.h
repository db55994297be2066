// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// Compiled code on disk, by what it was compiled from. The folder belongs to this user alone: one of another owner, or that others may read
/// or write, is not used, and neither is a link. A file is written aside and renamed, so that processes share a folder; a file whose SHA-256 is
/// not the one it begins with is taken for missing. Errors of the file system mean a missing file, and are never reported. Thread-safe.
class CodeCache {
 public:
  /// An empty path: there is no cache. The folder is made, with mode 0700, when something is stored.
  explicit CodeCache(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// $MILLRACE_CODE_CACHE ("off": none), else millrace/ in $XDG_CACHE_HOME or ~/.cache.
  static CodeCache of_user();

  /// `key`: all that the code depends on.
  std::optional<std::string> find(std::string_view key) const;
  void store(std::string_view key, std::string_view code) const;

 private:
  bool is_own() const;
  std::filesystem::path file_of(std::string_view key) const;
  std::filesystem::path folder_;
};

}  // namespace millrace
