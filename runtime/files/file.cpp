// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <millrace/runtime/files/internal/descriptor.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace internal {

Descriptor open_regular(const std::filesystem::path& path, std::uint64_t& size) {
  const std::string name = path.string();
  // A FIFO that nobody writes to must not hold us up.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw IoError(name + ": cannot open: " + std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) throw IoError(name + ": cannot read: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw IoError(name + ": cannot read: expected a regular file");
  size = static_cast<std::uint64_t>(status.st_size);
  return file;
}

void sync_folder(const std::filesystem::path& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) throw IoError(path.string() + ": cannot write the folder: " + std::strerror(errno));
}

}  // namespace internal

namespace {

std::string read_first(const internal::Descriptor& file, std::uint64_t count, const std::string& name) {
  std::string bytes;
  try {
    bytes.resize(count);
  } catch (const std::exception&) {  // too long, or no memory for it
    throw IoError(name + ": cannot read: its " + std::to_string(count) + " bytes do not fit in memory");
  }
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

/// Where the links of `path` lead, whether or not something is there.
std::filesystem::path follow_links(std::filesystem::path path) {
  constexpr int most = 40;
  std::error_code error;
  for (int count = 0; count < most && std::filesystem::is_symlink(path, error); ++count) {
    const std::filesystem::path to = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = to.is_absolute() ? to : path.parent_path() / to;
  }
  return path;
}

/// Something that a rename would do away with and that can be written to as it is.
bool is_device_or_pipe(const std::filesystem::path& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode) || S_ISFIFO(status.st_mode));
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::uint64_t most) {
  std::uint64_t size = 0;
  const internal::Descriptor file = internal::open_regular(path, size);
  if (size > most)
    throw IoError(path.string() + ": cannot read: expected at most " + std::to_string(most) + " bytes, found " + std::to_string(size));
  return read_first(file, size, path.string());
}

FileStart read_file_start(const std::filesystem::path& path, std::size_t count) {
  FileStart start;
  const internal::Descriptor file = internal::open_regular(path, start.size);
  start.bytes = read_first(file, std::min<std::uint64_t>(start.size, count), path.string());
  return start;
}

std::string ending_of(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return ending;
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path), target_(follow_links(path)) {
  if (is_device_or_pipe(path)) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) failed("open", errno);
    // Only opening must not wait, for a reader that never comes.
    ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
    return;
  }
  std::error_code error;
  if (std::filesystem::is_symlink(target_, error)) failed("create", ELOOP);
  if (std::filesystem::is_directory(target_, error)) failed("create", EISDIR);
  // Beside the file, so that the rename stays within one file system; numbered, because an earlier writer may have
  // died.
  for (int number = 0; descriptor_ < 0; ++number) {
    temporary_ = target_.string() + ".tmp" + std::to_string(number);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && (errno != EEXIST || number == 1000)) failed("create", errno);
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
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
  if (temporary_.empty()) {
    const int closed = ::close(std::exchange(descriptor_, -1));
    if (closed != 0) failed("write", errno);
    return;
  }
  if (::fsync(descriptor_) != 0) failed("write", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) failed("rename", errno);
  ::close(descriptor_);
  descriptor_ = -1;
  // The name must reach the disk too.
  const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : std::filesystem::path(".");
  const internal::Descriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent || ::fsync(parent.get()) != 0) failed("write the folder of", errno);
}

void make_folders(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return;
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (parent != path) make_folders(parent);
  if (::mkdir(path.c_str(), 0777) != 0 && (errno != EEXIST || !std::filesystem::is_directory(path, error)))
    throw IoError(path.string() + ": cannot make the folder: " + std::strerror(errno));
  internal::sync_folder(parent);
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace millrace
