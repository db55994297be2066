// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/code_cache.h>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace millrace::testing {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() / ("millrace_code_cache_" + std::to_string(::getpid()));
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
};

fs::path only_file(const fs::path& folder) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    CHECK(found.empty());
    found = entry.path();
  }
  return found;
}

}  // namespace

TEST_CASE("code is found again under the key it was stored under, and under no other") {
  const Folder folder;
  const CodeCache cache(folder.path / "codes");
  CHECK_FALSE(cache.find("key"));
  const std::string code("\0code\n", 6);
  cache.store("key", code);
  CHECK(cache.find("key") == code);
  CHECK_FALSE(cache.find("key "));
  cache.store("key", "other");
  CHECK(cache.find("key") == "other");
  CHECK(CodeCache(folder.path / "codes").find("key") == "other");
  struct ::stat found{};
  REQUIRE(::stat((folder.path / "codes").c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0700);
}

TEST_CASE("a file that was damaged or cut off is missing") {
  const Folder folder;
  const CodeCache cache(folder.path);
  cache.store("key", "machine code");
  const fs::path file = only_file(folder.path);
  {
    std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(70);
    damaged << '#';
  }
  CHECK_FALSE(cache.find("key"));
  cache.store("key", "machine code");
  CHECK(cache.find("key") == "machine code");
  fs::resize_file(file, 68);
  CHECK_FALSE(cache.find("key"));
  fs::resize_file(file, 3);
  CHECK_FALSE(cache.find("key"));
}

TEST_CASE("a folder that others may look into, or that is a link, is not used") {
  const Folder folder;
  const CodeCache cache(folder.path);
  cache.store("key", "code");
  REQUIRE(::chmod(folder.path.c_str(), 0750) == 0);
  CHECK_FALSE(cache.find("key"));
  cache.store("other", "code");
  REQUIRE(::chmod(folder.path.c_str(), 0700) == 0);
  CHECK(cache.find("key") == "code");
  CHECK_FALSE(cache.find("other"));
  const fs::path link = fs::path(folder.path) += "_link";
  fs::create_directory_symlink(folder.path, link);
  CHECK_FALSE(CodeCache(link).find("key"));
  fs::remove(link);
}

TEST_CASE("without a folder nothing is stored or found") {
  const CodeCache none{fs::path()};
  none.store("key", "code");
  CHECK_FALSE(none.find("key"));
}

}  // namespace millrace::testing
