// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/code_cache.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <millrace/runtime/files/sha256.h>

namespace millrace {

namespace fs = std::filesystem;

CodeCache CodeCache::of_user() {
  const auto variable = [](const char* name) {
    const char* const found = std::getenv(name);
    return std::string(found == nullptr ? "" : found);
  };
  if (const std::string chosen = variable("MILLRACE_CODE_CACHE"); !chosen.empty())
    return CodeCache(chosen == "off" ? fs::path() : fs::path(chosen));
  if (const std::string caches = variable("XDG_CACHE_HOME"); !caches.empty()) return CodeCache(fs::path(caches) / "millrace");
  if (const std::string home = variable("HOME"); !home.empty()) return CodeCache(fs::path(home) / ".cache" / "millrace");
  return CodeCache(fs::path());
}

bool CodeCache::is_own() const {
  struct ::stat found{};
  return !folder_.empty() && ::lstat(folder_.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
         (found.st_mode & 077) == 0;
}

fs::path CodeCache::file_of(std::string_view key) const { return folder_ / (sha256(key) + ".code"); }

std::optional<std::string> CodeCache::find(std::string_view key) const {
  if (!is_own()) return std::nullopt;
  std::ifstream file(file_of(key), std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return std::nullopt;
  std::string all = std::move(text).str();
  constexpr std::size_t digits = 64;
  if (all.size() < digits || sha256(std::string_view(all).substr(digits)) != std::string_view(all).substr(0, digits)) return std::nullopt;
  return all.substr(digits);
}

void CodeCache::store(std::string_view key, std::string_view code) const {
  if (folder_.empty()) return;
  std::error_code failed;
  if (folder_.has_parent_path()) fs::create_directories(folder_.parent_path(), failed);
  ::mkdir(folder_.c_str(), 0700);  // where there is none
  if (!is_own()) return;
  static std::atomic<unsigned> stored{0};
  const fs::path aside = folder_ / ("aside." + std::to_string(::getpid()) + "." + std::to_string(++stored));
  {
    std::ofstream file(aside, std::ios::binary | std::ios::trunc);
    file << sha256(code) << code;
    if (!file.flush()) {
      fs::remove(aside, failed);
      return;
    }
  }
  fs::rename(aside, file_of(key), failed);
  if (failed) fs::remove(aside, failed);
}

}  // namespace millrace
