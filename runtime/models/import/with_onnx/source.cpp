// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/source.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <millrace/runtime/files/internal/elements.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/tensor/checked.h>

namespace millrace::importing {
namespace {

using internal::Descriptor;
using internal::printable;

/// Walks `location` down from `folder`, part by part, without ever following a link or going up: what openat2 with
/// RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS promises, on kernels and in sandboxes that lack it too.
Descriptor open_beneath(const std::filesystem::path& folder, const std::string& location, const std::string& where) {
  Descriptor at(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::size_t begin = 0;
  while (at) {
    const std::size_t end = location.find('/', begin);
    const bool last = end == std::string::npos;
    const std::string part = location.substr(begin, last ? end : end - begin);
    if (part.empty() || part == ".." || part.find('\0') != std::string::npos)
      throw ParseError(where + ": expected external data beneath the model's folder, found the location " + printable(location));
    at = Descriptor(::openat(at.get(), part.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (last ? 0 : O_DIRECTORY)));
    if (at && last) return at;
    begin = end + 1;
  }
  if (errno == ELOOP || errno == ENOTDIR)
    throw ParseError(where +
                     ": expected external data that is reached without symbolic links, which may lead out of the model's folder, found " +
                     printable(location) + ": copy the files that the links name beside the model, as cp -L does");
  throw IoError(where + ": cannot open external data " + printable(location) + ": " + std::strerror(errno));
}

std::string read_part(const Descriptor& file, std::int64_t offset, std::int64_t count, const std::string& where) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(file.get(), bytes.data() + done, bytes.size() - done, offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw IoError(where + ": cannot read external data: " + (got < 0 ? std::strerror(errno) : "the file became shorter"));
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace

Source::Source(std::string name, std::optional<std::filesystem::path> folder) : name_(std::move(name)), folder_(std::move(folder)) {}

Source::File& Source::open(const std::string& location, const std::string& where) {
  if (!folder_) throw ParseError(where + ": expected elements in the model itself, found external data " + printable(location));
  if (const auto found = files_.find(location); found != files_.end()) return found->second;
  File file;
  file.descriptor = open_beneath(*folder_, location, where);
  struct stat status = {};
  if (::fstat(file.descriptor.get(), &status) != 0 || !S_ISREG(status.st_mode))
    throw IoError(where + ": expected a regular file of external data, found " + printable(location));
  file.bytes = status.st_size;
  return files_.emplace(location, std::move(file)).first->second;
}

Tensor Source::external(const std::string& location, std::int64_t offset, DType dtype, const DDim& dims, const std::string& where) {
  File& file = open(location, where);
  const std::int64_t count = checked_mul(dims.elements(), static_cast<std::int64_t>(size_of(dtype)));
  if (offset < 0 || offset > file.bytes || count > file.bytes - offset)
    throw ParseError(where + ": expected " + std::to_string(count) + " bytes at " + std::to_string(offset) + " of external data " +
                     printable(location) + ", found a file of " + std::to_string(file.bytes));
  const auto key = std::make_tuple(offset, dtype, dims.to_string());
  if (const auto found = file.parts.find(key); found != file.parts.end()) return found->second;
  file.taken = checked_add(file.taken, count);
  if (file.taken > file.bytes) throw ParseError(where + ": expected external tensors that do not overlap in " + printable(location));
  const Tensor tensor = internal::from_bytes(dtype, dims, read_part(file.descriptor, offset, count, where), where);
  return file.parts.emplace(key, tensor).first->second;
}

}  // namespace millrace::importing
