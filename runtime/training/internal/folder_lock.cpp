// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/internal/folder_lock.h>

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <system_error>

#include <millrace/runtime/training/errors.h>

namespace millrace::training::internal {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& folder, const char* doing, int error) {
  throw IoError(folder.string() + ": cannot " + doing + ": " + std::generic_category().message(error));
}

/// A file system without locks, or whose server of locks does not run.
bool has_no_locks(int error) { return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL || error == ENOLCK; }

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (!folder_) {
    if (errno == ENOENT) return;
    refuse(folder, "open", errno);
  }
  if (::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) throw TrainingError(folder.string() + ": expected a folder in which no other job trains, found one that does");
  if (!has_no_locks(errno)) refuse(folder, "lock", errno);
}

}  // namespace millrace::training::internal
