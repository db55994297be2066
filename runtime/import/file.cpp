// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/import/file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <millrace/runtime/import/internal/descriptor.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace internal {

std::string read_all(const Descriptor& file, const std::string& name) {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) throw IoError(name + ": cannot read: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw IoError(name + ": cannot read: expected a regular file");
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, std::min<std::size_t>(bytes.size() - done, 1u << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(name + ": cannot read: " + std::strerror(errno));
    if (got == 0) throw IoError(name + ": cannot read: the file became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace internal

std::string read_file(const std::filesystem::path& path) {
  const internal::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw IoError(path.string() + ": cannot open: " + std::strerror(errno));
  return internal::read_all(file, path.string());
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  // Beside the file, so that the rename stays within one file system; numbered, because an earlier writer may have
  // died.
  for (int number = 0; descriptor_ < 0; ++number) {
    temporary_ = path.string() + ".tmp" + std::to_string(number);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && (errno != EEXIST || number == 1000)) failed("create", errno);
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::failed(const std::string& doing, int error) const {
  throw IoError(path_.string() + ": cannot " + doing + ": " + std::strerror(error));
}

void AtomicFile::write(const void* bytes, std::size_t count) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t put = ::write(descriptor_, from, std::min<std::size_t>(count, 1u << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) failed("write", errno);
    from += put;
    count -= static_cast<std::size_t>(put);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) failed("write", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) failed("rename", errno);
  ::close(descriptor_);
  descriptor_ = -1;
  // The name must reach the disk too.
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const internal::Descriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent || ::fsync(parent.get()) != 0) failed("write the folder of", errno);
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace millrace
