// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/internal/inflate.h>

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>

#include <millrace/tensor/error.h>

namespace millrace::internal {
namespace {

/// Releases what zlib holds.
struct Stream {
  Stream() {
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~Stream() { inflateEnd(&z); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  z_stream z{};
};

/// As many as zlib counts at a time.
uInt some_of(std::size_t count) { return static_cast<uInt>(std::min<std::size_t>(count, std::numeric_limits<uInt>::max())); }

}  // namespace

std::string inflate(std::string_view bytes, std::size_t size, const std::string& where) {
  std::string made(size, '\0');
  Stream stream;
  std::size_t read = 0;
  std::size_t written = 0;
  unsigned char beyond = 0;  // where a byte too many would go
  for (int code = Z_OK; code != Z_STREAM_END;) {
    const uInt in = some_of(bytes.size() - read);
    const uInt out = written < size ? some_of(size - written) : 1;
    // zlib does not write to what it reads.
    stream.z.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data() + read));
    stream.z.avail_in = in;
    stream.z.next_out = written < size ? reinterpret_cast<Bytef*>(made.data() + written) : &beyond;
    stream.z.avail_out = out;
    code = ::inflate(&stream.z, Z_NO_FLUSH);
    read += in - stream.z.avail_in;
    written += out - stream.z.avail_out;
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    const bool moved = in != stream.z.avail_in || out != stream.z.avail_out;
    if (written > size || (code != Z_OK && code != Z_STREAM_END) || (code == Z_OK && !moved)) break;
    if (code == Z_STREAM_END && written == size && read == bytes.size()) return made;
  }
  throw ParseError(where + ": expected deflated bytes that give " + std::to_string(size) + " bytes, found " + std::to_string(bytes.size()) +
                   " that do not");
}

}  // namespace millrace::internal
