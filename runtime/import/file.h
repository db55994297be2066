// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace millrace {

/// The bytes of a regular file, read once into memory: never mapped, because files can change. IoError names path and
/// cause.
std::string read_file(const std::filesystem::path& path);

/// A file that appears whole or not at all: bytes go to a temporary beside `path`, which `commit` writes to the disk
/// and renames. Without `commit` the destructor removes the temporary and `path` stays as it was. IoError names path
/// and cause. Not thread-safe.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, std::size_t count);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  /// At most once; nothing may be written after it.
  void commit();

 private:
  [[noreturn]] void failed(const std::string& doing, int error) const;

  std::filesystem::path path_;
  std::string temporary_;
  int descriptor_ = -1;
};

/// The same in one call.
void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace millrace
