// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/internal/folder_lock.h>

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include <millrace/runtime/training/errors.h>

namespace millrace::training::internal {

FolderLock::FolderLock(const std::filesystem::path& folder) : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (folder_ && ::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw TrainingError(folder.string() + ": expected a folder in which no other job trains, found one that does");
}

}  // namespace millrace::training::internal
