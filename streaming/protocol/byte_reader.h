// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <millrace/streaming/protocol/little_endian.h>
#include <millrace/tensor/error.h>

namespace millrace {

/// Takes pieces off the front of bytes that somebody else made. ParseError ("WHAT: expected 8 more bytes, found 3") where they were cut: nothing is
/// allocated from a size that the bytes declare. The bytes outlive it.
class ByteReader {
 public:
  explicit ByteReader(std::string_view what, std::span<const std::byte> bytes) : what_(what), bytes_(bytes) {}
  explicit ByteReader(std::string_view what, std::string_view bytes)
      : ByteReader(what, std::as_bytes(std::span<const char>(bytes.data(), bytes.size()))) {}

  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size())
      throw ParseError(what_ + ": expected " + std::to_string(count) + " more bytes, found " + std::to_string(bytes_.size()));
    const auto piece = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return piece;
  }
  template <std::unsigned_integral T>
  T number() {
    return read_little_endian<T>(take(sizeof(T)).data());
  }
  std::string text(std::size_t count) {
    const auto piece = take(count);
    return {reinterpret_cast<const char*>(piece.data()), piece.size()};
  }
  std::size_t left() const noexcept { return bytes_.size(); }
  /// ParseError when something is left.
  void end() const {
    if (!bytes_.empty()) throw ParseError(what_ + ": expected the end, found " + std::to_string(bytes_.size()) + " more bytes");
  }

 private:
  std::string what_;
  std::span<const std::byte> bytes_;
};

}  // namespace millrace
