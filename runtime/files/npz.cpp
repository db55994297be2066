// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/npz.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/inflate.h>
#include <millrace/runtime/files/internal/json_reader.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using internal::printable;

constexpr std::uint32_t local_signature = 0x04034b50, central_signature = 0x02014b50, end_signature = 0x06054b50;
constexpr std::size_t local_bytes = 30, central_bytes = 46, end_bytes = 22;
constexpr std::uint32_t stored = 0, deflated = 8;
constexpr std::uint32_t encrypted = 1, utf8_name = 1u << 11;
constexpr std::uint32_t in_zip64 = 0xffffffff;
/// The most that a byte of a deflate stream can become: 258 bytes from 2 bits.
constexpr std::uint64_t most_per_byte = 1032;
constexpr std::string_view ending = ".npy";

/// CRC-32 of ISO 3309.
std::uint32_t crc_of(std::string_view bytes) {
  static constexpr auto table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value & 1u) != 0 ? 0xedb88320u ^ (value >> 1) : value >> 1;
      made[i] = value;
    }
    return made;
  }();
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xffu] ^ (crc >> 8);
  return ~crc;
}

/// Little-endian numbers of `bytes`, whose callers have looked at its length.
std::uint32_t number(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = count; i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[at + i - 1]);
  return value;
}
std::uint32_t two(std::string_view bytes, std::size_t at) { return number(bytes, at, 2); }
std::uint32_t four(std::string_view bytes, std::size_t at) { return number(bytes, at, 4); }

/// A member as the central directory describes it, then where its bytes lie.
struct Member {
  std::string name;
  std::uint32_t method = stored;
  std::uint32_t crc = 0;
  std::uint64_t packed = 0;
  std::uint64_t size = 0;
  std::uint64_t header = 0;
  std::uint64_t begin = 0;
};

class Archive {
 public:
  Archive(std::string_view bytes, const std::string& where, std::uint64_t most) : bytes_(bytes), where_(where), most_(most) {}

  NpzTensors read() {
    find_directory();
    read_directory();
    find_members();
    NpzTensors made;
    for (const Member& member : members_) {
      const std::string label = where_ + ": member " + printable(member.name);
      const std::string_view packed = bytes_.substr(static_cast<std::size_t>(member.begin), static_cast<std::size_t>(member.packed));
      std::string inflated;
      if (member.method == deflated) inflated = internal::inflate(packed, static_cast<std::size_t>(member.size), label);
      const std::string_view bytes = member.method == deflated ? inflated : packed;
      if (crc_of(bytes) != member.crc) throw ParseError(label + ": expected bytes of another CRC-32: they are damaged");
      const std::string key = member.name.substr(0, member.name.size() - ending.size());
      if (!made.emplace(key, parse_npy(bytes, label)).second) throw ParseError(label + ": expected each name once, found it twice");
    }
    return made;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const { throw ParseError(where_ + ": expected " + expected); }
  [[noreturn]] void unsupported(const std::string& found) const {
    throw UnsupportedError(where_ + ": expected an npz file, found " + found);
  }

  /// The end record closes the file, with a comment of the length that it says.
  void find_directory() {
    if (bytes_.size() < end_bytes || four(bytes_, 0) != (bytes_.size() == end_bytes ? end_signature : local_signature))
      fail("an npz file (a zip archive), found " + std::to_string(bytes_.size()) + " other bytes");
    const std::size_t farthest = std::min(bytes_.size(), end_bytes + std::numeric_limits<std::uint16_t>::max());
    for (std::size_t back = end_bytes; back <= farthest; ++back) {
      const std::size_t at = bytes_.size() - back;
      if (four(bytes_, at) != end_signature || two(bytes_, at + 20) != back - end_bytes) continue;
      count_ = two(bytes_, at + 10);
      directory_ = four(bytes_, at + 16);
      end_ = at;
      if (count_ == 0xffff || directory_ == in_zip64) unsupported("the zip64 form, which is for more than 4 GiB");
      if (two(bytes_, at + 4) != 0 || two(bytes_, at + 6) != 0 || two(bytes_, at + 8) != count_) unsupported("one of several volumes");
      if (directory_ > end_ || four(bytes_, at + 12) != end_ - directory_)
        fail("a central directory of " + std::to_string(four(bytes_, at + 12)) +
             " bytes before its end record, found another place or size");
      return;
    }
    fail("the end record of a zip archive at the end of the file, found none: it may be cut off");
  }

  void read_directory() {
    std::size_t at = static_cast<std::size_t>(directory_);
    std::uint64_t total = 0;
    for (std::uint32_t i = 0; i < count_; ++i) {
      if (end_ - at < central_bytes || four(bytes_, at) != central_signature)
        fail("entry " + std::to_string(i) + " of the central directory, found other bytes");
      const std::size_t name_length = two(bytes_, at + 28);
      const std::size_t length = central_bytes + name_length + two(bytes_, at + 30) + two(bytes_, at + 32);
      if (length > end_ - at) fail("entry " + std::to_string(i) + " inside the central directory, found one that leaves it");
      members_.push_back(entry(at, name_length));
      total += members_.back().size;
      if (total > most_) fail("members of at most " + std::to_string(most_) + " bytes in all, found more");
      at += length;
    }
    if (at != end_) fail("a central directory of " + std::to_string(count_) + " entries, found more bytes");
  }

  Member entry(std::size_t at, std::size_t name_length) const {
    Member member;
    member.name = bytes_.substr(at + central_bytes, name_length);
    const std::string label = "member " + printable(member.name);
    member.method = two(bytes_, at + 10);
    member.crc = four(bytes_, at + 16);
    member.packed = four(bytes_, at + 20);
    member.size = four(bytes_, at + 24);
    member.header = four(bytes_, at + 42);
    if (!is_utf8(member.name) || !member.name.ends_with(ending) || member.name.find('\0') != member.name.npos)
      fail("members NAME.npy, found " + printable(member.name));
    if ((two(bytes_, at + 8) & encrypted) != 0) unsupported(label + " encrypted");
    if (member.method != stored && member.method != deflated)
      unsupported(label + " compressed in another way than deflate: method " + std::to_string(member.method));
    if (member.packed == in_zip64 || member.size == in_zip64 || member.header == in_zip64)
      unsupported(label + " in the zip64 form, which is for more than 4 GiB");
    const bool fits = member.method == stored ? member.size == member.packed : member.size <= member.packed * most_per_byte;
    if (!fits)
      fail(label + " of a size that its " + std::to_string(member.packed) + " bytes can have, found " + std::to_string(member.size));
    return member;
  }

  /// Where the bytes of each begin: behind a header of its own, which repeats the name. Its sizes are not looked at.
  void find_members() {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    for (Member& member : members_) {
      const std::string label = "member " + printable(member.name);
      if (member.header > directory_ || directory_ - member.header < local_bytes ||
          four(bytes_, static_cast<std::size_t>(member.header)) != local_signature)
        fail(label + " at byte " + std::to_string(member.header) + ", found something else there");
      const auto at = static_cast<std::size_t>(member.header);
      const std::size_t name_length = two(bytes_, at + 26);
      member.begin = member.header + local_bytes + name_length + two(bytes_, at + 28);
      if (member.begin > directory_ || directory_ - member.begin < member.packed)
        fail(label + " before the central directory, found it longer");
      if (bytes_.substr(at + local_bytes, name_length) != member.name) fail(label + " under the same name in both places, found another");
      taken.emplace_back(member.header, member.begin + member.packed);
    }
    std::sort(taken.begin(), taken.end());
    for (std::size_t i = 1; i < taken.size(); ++i)
      if (taken[i].first < taken[i - 1].second) fail("members that do not overlap, found two that do");
  }

  std::string_view bytes_;
  const std::string& where_;
  std::uint64_t most_;
  std::uint32_t count_ = 0;
  std::uint64_t directory_ = 0;
  std::uint64_t end_ = 0;
  std::vector<Member> members_;
};

// ---- Writing ----

void put(std::string& to, std::uint64_t value, std::size_t count) {
  for (std::size_t byte = 0; byte < count; ++byte, value >>= 8) to += static_cast<char>(value & 0xff);
}

/// The fields that both headers of a member share: version, flags, stored, the first day that zip knows, CRC-32, sizes, length of the name.
void put_common(std::string& to, const std::string& name, std::uint32_t crc, std::size_t size) {
  constexpr std::uint32_t first_day = 0x21;
  put(to, 20, 2);
  put(to, utf8_name, 2);
  put(to, stored, 2);
  put(to, first_day << 16, 4);
  put(to, crc, 4);
  put(to, size, 4);
  put(to, size, 4);
  put(to, name.size(), 2);
  put(to, 0, 2);
}

void check_fits(std::size_t bytes) {
  if (bytes >= in_zip64) throw UnsupportedError("npz: expected less than 4 GiB in all, found more: use safetensors, or several files");
}

}  // namespace

NpzTensors parse_npz(std::string_view bytes, const std::string& where, std::uint64_t most) { return Archive(bytes, where, most).read(); }

NpzTensors read_npz(const std::filesystem::path& path, std::uint64_t most) {
  const FileStart start = read_file_start(path, end_bytes);
  if (start.size >= in_zip64)
    throw UnsupportedError(path.string() + ": expected an npz file of less than 4 GiB, found " + std::to_string(start.size) + " bytes");
  if (start.size < end_bytes || start.bytes.substr(0, 2) != "PK")
    throw ParseError(path.string() + ": expected an npz file (a zip archive), found " + std::to_string(start.size) + " other bytes");
  return parse_npz(read_file(path), path.string(), most);
}

std::string format_npz(const NpzTensors& tensors) {
  if (tensors.size() >= 0xffff) throw UnsupportedError("npz: expected fewer than 65535 tensors, found " + std::to_string(tensors.size()));
  std::string file;
  std::string directory;
  for (const auto& [key, tensor] : tensors) {
    const std::string name = key + std::string(ending);
    if (key.empty() || !is_utf8(key) || key.find('\0') != key.npos || name.size() > 0xffff)
      throw ArgumentError("npz: expected a name in UTF-8, found " + printable(key));
    const std::string bytes = format_npy(tensor);
    const std::uint32_t crc = crc_of(bytes);
    put(directory, central_signature, 4);
    put(directory, 20, 2);
    put_common(directory, name, crc, bytes.size());
    put(directory, 0, 10);  // no comment, one volume, no attributes
    put(directory, file.size(), 4);
    directory += name;
    put(file, local_signature, 4);
    put_common(file, name, crc, bytes.size());
    file += name;
    file += bytes;
    check_fits(file.size() + directory.size());
  }
  const std::size_t begin = file.size();
  file += directory;
  put(file, end_signature, 4);
  put(file, 0, 4);
  put(file, tensors.size(), 2);
  put(file, tensors.size(), 2);
  put(file, directory.size(), 4);
  put(file, begin, 4);
  put(file, 0, 2);
  return file;
}

void write_npz(const std::filesystem::path& path, const NpzTensors& tensors) { write_file(path, format_npz(tensors)); }

}  // namespace millrace
