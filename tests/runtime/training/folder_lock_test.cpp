// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <filesystem>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/training/errors.h>
#include <millrace/runtime/training/internal/folder_lock.h>
#include <millrace/tensor/sanitized.h>

#include "support/bytes.h"

using millrace::testing::ScratchFolder;
using millrace::training::TrainingError;
using millrace::training::internal::FolderLock;

TEST_CASE("a folder is locked by one job at a time, and leaves no file behind") {
  const ScratchFolder folder;
  std::optional<FolderLock> first;
  first.emplace(folder.path());
  const std::string wanted = folder.path().string() + ": expected a folder in which no other job trains, found one that does";
  CHECK_THROWS_WITH_AS(FolderLock(folder.path()), wanted.c_str(), TrainingError);
  CHECK(std::filesystem::is_empty(folder.path()));
  first.reset();
  FolderLock moved;
  moved = FolderLock(folder.path());
  CHECK_THROWS_AS(FolderLock(folder.path()), TrainingError);
}

TEST_CASE("a folder that is not there is not locked, and others are free") {
  const ScratchFolder folder, other;
  const FolderLock held(folder.path());
  const FolderLock free(other.path());
  const FolderLock absent(folder / "absent");
  CHECK(!std::filesystem::exists(folder / "absent"));
}

TEST_CASE("a folder that cannot be opened for another reason than that it is not there is an error that says why") {
  const ScratchFolder folder;
  if (!millrace::sanitized) {  // a sanitizer opens files of its own
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    std::string found;
    try {
      const FolderLock unlocked(folder.path());
    } catch (const millrace::IoError& error) {
      found = error.what();
    }
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK(found == folder.path().string() + ": cannot open: Too many open files");
  }
  millrace::write_file(folder / "file", "x");
  CHECK_THROWS_WITH_AS(FolderLock(folder / "file"), doctest::Contains("file: cannot open: Not a directory"), millrace::IoError);
}
