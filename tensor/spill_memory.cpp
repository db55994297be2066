// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/spill_memory.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <system_error>

#include <millrace/tensor/error.h>
#include <millrace/tensor/tensor.h>

namespace millrace {
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t first_piece = std::size_t{64} << 10;
constexpr std::size_t largest_piece = std::size_t{256} << 20;

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::filesystem::path chosen(std::filesystem::path folder) {
  if (!folder.empty()) return folder;
  const char* const from = std::getenv("TMPDIR");
  return from != nullptr && *from != '\0' ? from : "/var/tmp";
}

/// A file that no name leads to; below 0 with errno.
int open_nameless(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  // A file system without O_TMPFILE (overlayfs of old kernels, NFS): the file loses its name as soon as it is open.
  std::string name = (folder / "millrace.spill.XXXXXX").string();  // mkostemp replaces the six letters
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

struct SpillMemory::Files {
  struct Piece {
    std::byte* end = nullptr;
    std::size_t bytes = 0;
    std::size_t used = 0;
    std::size_t blocks = 0;  // handed out now
  };

  explicit Files(std::filesystem::path of) : folder(std::move(of)) {}
  ~Files() {
    for (const auto& [begin, piece] : pieces) ::munmap(begin, piece.bytes);
  }

  [[noreturn]] void refuse(std::size_t bytes, int error) const {
    throw OutOfMemoryError("spill folder '" + folder.string() + "': expected room for a file of " + std::to_string(bytes) +
                           " bytes, found: " + std::generic_category().message(error));
  }

  void add_piece(std::size_t bytes) {
    const int file = open_nameless(folder);
    if (file < 0) refuse(bytes, errno);
    int error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
    void* begin = MAP_FAILED;
    if (error == 0) {
      begin = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (begin == MAP_FAILED) error = errno;
    }
    ::close(file);
    if (error != 0) refuse(bytes, error);
    current = static_cast<std::byte*>(begin);
    pieces[current] = {current + bytes, bytes, 0, 0};
    counted.files += bytes;
  }

  /// A piece as large as all others together: few files, and no more than twice the bytes that are needed.
  std::size_t next_piece() const { return std::clamp(counted.files, first_piece, largest_piece); }

  /// The piece has no blocks any more. The current one is used again while there are others; without blocks no file stays.
  void release(std::map<std::byte*, Piece>::iterator piece) {
    if (piece->first == current && pieces.size() > 1) {
      piece->second.used = 0;
      return;
    }
    drop(piece);
    if (pieces.size() == 1 && pieces.begin()->second.blocks == 0) drop(pieces.begin());
  }

  void drop(std::map<std::byte*, Piece>::iterator piece) {
    ::munmap(piece->first, piece->second.bytes);
    counted.files -= piece->second.bytes;
    if (piece->first == current) current = nullptr;
    pieces.erase(piece);
  }

  std::filesystem::path folder;
  mutable std::mutex mutex;
  std::map<std::byte*, Piece> pieces;  // by where they begin
  std::byte* current = nullptr;
  Statistics counted;
};

SpillMemory::SpillMemory(std::filesystem::path folder) : files_(std::make_unique<Files>(chosen(std::move(folder)))) {}
SpillMemory::~SpillMemory() = default;

void* SpillMemory::allocate(std::size_t bytes) {
  if (bytes > ~std::size_t{0} / 2) files_->refuse(bytes, ENOSPC);
  // A tail of one vector lets kernels read whole vectors at the end of a block.
  const std::size_t size = rounded(bytes, line) + line;
  const std::lock_guard lock(files_->mutex);
  const auto room = [&] {
    if (files_->current == nullptr) return false;
    const Files::Piece& piece = files_->pieces.at(files_->current);
    return piece.bytes - piece.used >= size;
  };
  if (!room()) {
    const auto emptied = files_->pieces.find(files_->current);
    if (emptied != files_->pieces.end() && emptied->second.blocks == 0) files_->drop(emptied);
    files_->add_piece(rounded(std::max(size, files_->next_piece()), 4096));
  }
  Files::Piece& piece = files_->pieces.at(files_->current);
  std::byte* const made = files_->current + piece.used;
  piece.used += size;
  ++piece.blocks;
  files_->counted.in_use += bytes;
  files_->counted.peak = std::max(files_->counted.peak, files_->counted.in_use);
  return made;
}

void SpillMemory::deallocate(void* pointer, std::size_t bytes) noexcept {
  const std::lock_guard lock(files_->mutex);
  const auto piece = std::prev(files_->pieces.upper_bound(static_cast<std::byte*>(pointer)));
  files_->counted.in_use -= bytes;
  if (--piece->second.blocks == 0) files_->release(piece);
}

Place SpillMemory::place() const { return CpuPlace{}; }
bool SpillMemory::host_accessible() const noexcept { return true; }

SpillMemory::Statistics SpillMemory::statistics() const {
  const std::lock_guard lock(files_->mutex);
  return files_->counted;
}

void read_ahead(const Tensor& x) noexcept {
  if (x.storage() == nullptr || dynamic_cast<const SpillMemory*>(&x.storage()->resource()) == nullptr) return;
  constexpr std::uintptr_t page = 4096;
  std::byte* const data = x.storage()->data();
  const std::size_t before = reinterpret_cast<std::uintptr_t>(data) % page;
  ::madvise(data - before, before + x.storage()->bytes(), MADV_WILLNEED);
}

}  // namespace millrace
