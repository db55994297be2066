// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include <millrace/runtime/training/errors.h>
#include <millrace/runtime/training/internal/folder_lock.h>

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
