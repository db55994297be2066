// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include <millrace/runtime/files/internal/descriptor.h>

namespace millrace::training::internal {

/// One job at a time in a folder: a lock of the system on the folder itself, which leaves no file behind and ends with the process, however that ends.
/// A file system without locks locks nothing. Not thread-safe.
class FolderLock {
 public:
  /// Holds nothing.
  FolderLock() = default;
  /// Never waits. TrainingError, naming the folder, while another FolderLock of this machine, in this process or another, holds it. IoError, naming
  /// folder and cause, where the system gives no lock for another reason, such as too many open files. A folder that is not there is not locked.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  millrace::internal::Descriptor folder_;
};

}  // namespace millrace::training::internal
