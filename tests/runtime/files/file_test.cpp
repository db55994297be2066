// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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
  CHECK_THROWS_WITH_AS(write_file(folder / "taken", "y"), doctest::Contains("taken: cannot create: Is a directory"), IoError);
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("A file above the limit, and one that memory does not hold, are refused by name and size before they are read") {
  const testing::ScratchFolder folder;
  write_file(folder / "x", "abcdef");
  CHECK(read_file(folder / "x", 6) == "abcdef");
  CHECK_THROWS_WITH_AS(read_file(folder / "x", 5), doctest::Contains("x: cannot read: expected at most 5 bytes, found 6"), IoError);
  std::filesystem::resize_file(folder / "x", std::uintmax_t{1} << 43);
  CHECK_THROWS_WITH_AS(read_file(folder / "x", 1 << 20), doctest::Contains("found 8796093022208"), IoError);
  const FileStart start = read_file_start(folder / "x", 3);
  CHECK(start.bytes == "abc");
  CHECK(start.size == std::uint64_t{1} << 43);
}

TEST_CASE("Folders are made with those above them, and a file in their way is named") {
  const testing::ScratchFolder folder;
  make_folders(folder / "a/b/c/");
  make_folders(folder / "a/b");
  CHECK(std::filesystem::is_directory(folder / "a/b/c"));
  write_file(folder / "x", "");
  CHECK_THROWS_WITH_AS(make_folders(folder / "x"), doctest::Contains("x: cannot make the folder: File exists"), IoError);
  CHECK_THROWS_WITH_AS(make_folders(folder / "x/y"), doctest::Contains("x: cannot make the folder"), IoError);
}

TEST_CASE("An extension tells files apart in letters of any size") {
  CHECK(ending_of("a/B.WAV") == ".wav");
  CHECK(ending_of("a.b/c") == "");
}

TEST_CASE("A link stays, and what it points to is replaced, there or not") {
  const testing::ScratchFolder folder;
  std::filesystem::create_directory(folder / "far");
  std::filesystem::create_symlink("far/x", folder / "link");
  for (const char* bytes : {"one", "two"}) {
    write_file(folder / "link", bytes);
    CHECK(std::filesystem::is_symlink(folder / "link"));
    CHECK(read_file(folder / "far/x") == bytes);
  }
  CHECK(files_in(folder / "far") == 1);
  std::filesystem::create_symlink("loop", folder / "loop");
  CHECK_THROWS_WITH_AS(write_file(folder / "loop", "y"), doctest::Contains("loop: cannot"), IoError);
  CHECK(std::filesystem::is_symlink(folder / "loop"));
}

TEST_CASE("A pipe stays a pipe and takes the bytes, and one that nobody reads is refused at once") {
  const testing::ScratchFolder folder;
  const std::string path = (folder / "pipe").string();
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(write_file(path, "y"), doctest::Contains("pipe: cannot open"), IoError);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  write_file(path, "bytes");
  char got[16] = {};
  CHECK(::read(reader, got, sizeof got) == 5);
  CHECK(std::string(got) == "bytes");
  ::close(reader);
  CHECK(std::filesystem::is_fifo(path));
  CHECK(files_in(folder.path()) == 1);
  CHECK_THROWS_WITH_AS(write_file("/dev/full", "y"), doctest::Contains("/dev/full: cannot write: No space left"), IoError);
  CHECK(std::filesystem::is_character_file("/dev/full"));
}

}  // namespace
}  // namespace millrace
