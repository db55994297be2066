// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <utility>

namespace millrace::internal {

/// Owns a file descriptor; −1 is none.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) noexcept : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

/// A regular file open for reading, and how many bytes it has. IoError otherwise.
Descriptor open_regular(const std::filesystem::path& path, std::uint64_t& size);

/// Returns when the entries of a folder have reached the disk. IoError names it.
void sync_folder(const std::filesystem::path& path);

}  // namespace millrace::internal
