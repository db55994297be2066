// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

namespace millrace {

/// The bytes of a regular file, read once into memory: never mapped, because files can change. IoError names path and
/// cause: no such file, no regular file, more than `most` bytes (nothing is read then), memory that does not suffice.
std::string read_file(const std::filesystem::path& path, std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

/// The first bytes of a regular file, and its length: as much as it takes to refuse one without reading it whole.
struct FileStart {
  std::string bytes;       ///< the first ones, as many as were asked for or as there are
  std::uint64_t size = 0;  ///< of the whole file
};
/// IoError as `read_file`.
FileStart read_file_start(const std::filesystem::path& path, std::size_t count);

/// The extension in small letters, by which files are told apart: ".wav" of "A.WAV".
std::string ending_of(const std::filesystem::path& path);

/// A file that appears whole or not at all: bytes go to a temporary beside `path`, which `commit` writes to the disk
/// and renames. Without `commit` the destructor removes the temporary and `path` stays as it was. A link stays and what
/// it points to is replaced. A device or a pipe (/dev/stdout, a FIFO that somebody reads) stays what it is and takes the
/// bytes as they are written. IoError names path and cause. Not thread-safe.
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

  std::filesystem::path path_;    // as it was given: for errors
  std::filesystem::path target_;  // where its links lead
  std::string temporary_;         // empty for a device or a pipe
  int descriptor_ = -1;
};

/// Makes a folder and those above it that are not there, each of which has reached the disk on return. IoError names the folder that cannot be made.
void make_folders(const std::filesystem::path& path);

/// An AtomicFile in one call.
void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace millrace
