// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include <millrace/tensor/memory.h>

namespace millrace {

class Tensor;

/// Memory of the host whose pages lie in files without names in `folder`: the system writes them out when memory is short, and reads them again when
/// they are used. Bytes of a file are reserved on the disk before they are handed out. The files disappear with the resource, however the process
/// ends. Thread-safe.
///
/// Blocks lie one behind the other in pieces. A new piece has the bytes of all pieces that are there, but at least 64 KiB and at most 256 MiB, or the bytes
/// of a larger block. A piece whose blocks were all given back is freed, or, while other pieces have blocks, used again. Without blocks there is no file.
class SpillMemory final : public MemoryResource {
 public:
  /// All in bytes.
  struct Statistics {
    std::size_t in_use = 0;  ///< handed out now
    std::size_t peak = 0;    ///< the most that `in_use` ever was
    std::size_t files = 0;   ///< of the disk, now
  };

  /// An empty `folder` is that of the environment variable TMPDIR, or /var/tmp. The folder is looked at by `allocate` alone.
  explicit SpillMemory(std::filesystem::path folder = {});
  /// Every block must have been given back.
  ~SpillMemory() override;

  /// OutOfMemoryError names the folder, the bytes asked for and the cause: no such folder, no space left on the disk.
  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer, std::size_t bytes) noexcept override;
  Place place() const override;
  bool host_accessible() const noexcept override;

  Statistics statistics() const;

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

/// Asks the system to read the elements of `x` into memory, if they are in SpillMemory, and returns at once.
void read_ahead(const Tensor& x) noexcept;

}  // namespace millrace
