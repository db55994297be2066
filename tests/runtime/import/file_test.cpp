// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/import/file.h>

#include <doctest/doctest.h>

#include <support/bytes.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

std::size_t files_in(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST_CASE("A file is written whole and read back") {
  const testing::ScratchFolder folder;
  const std::string bytes("a\0b\n", 4);
  write_file(folder / "x", bytes);
  CHECK(read_file(folder / "x") == bytes);
  write_file(folder / "x", "");
  CHECK(read_file(folder / "x").empty());
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("A file that is not committed leaves the old one and no temporary") {
  const testing::ScratchFolder folder;
  write_file(folder / "x", "old");
  {
    AtomicFile file(folder / "x");
    file.write("half of the new");
    CHECK(files_in(folder.path()) == 2);
  }
  CHECK(read_file(folder / "x") == "old");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("A temporary that a dead writer left is no obstacle") {
  const testing::ScratchFolder folder;
  write_file(folder / "x.tmp0", "left");
  write_file(folder / "x", "new");
  CHECK(read_file(folder / "x") == "new");
  CHECK(read_file(folder / "x.tmp0") == "left");
}

TEST_CASE("Files that cannot be read or written are named with the cause") {
  const testing::ScratchFolder folder;
  CHECK_THROWS_WITH_AS(read_file(folder / "none"), doctest::Contains("none: cannot open: No such file"), IoError);
  CHECK_THROWS_WITH_AS(read_file(folder.path()), doctest::Contains("expected a regular file"), IoError);
  CHECK_THROWS_WITH_AS(write_file(folder / "none/x", "y"), doctest::Contains("none/x: cannot create: No such file"), IoError);
  std::filesystem::create_directory(folder / "taken");
  CHECK_THROWS_WITH_AS(write_file(folder / "taken", "y"), doctest::Contains("taken: cannot rename"), IoError);
  CHECK(files_in(folder.path()) == 1);
}

}  // namespace
}  // namespace millrace
