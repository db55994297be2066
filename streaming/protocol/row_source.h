// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <millrace/tensor/ddim.h>
#include <millrace/tensor/dtype.h>

namespace millrace {

/// One input of one session: bytes cut anywhere go in, whole rows come out, in order. No I/O; not thread-safe.
///
/// Memory is bounded: `feed` stops taking bytes while `capacity` bytes or more are held, so what is left of a message stays with the caller
/// until `pop` made room. It always takes some when no row waits, so feeding and popping in turns ends.
class RowSource {
 public:
  virtual ~RowSource() = default;

  virtual DType dtype() const = 0;
  /// Extents of one row; rows are dense and row-major.
  virtual const DDim& row_dims() const = 0;
  virtual std::size_t row_bytes() const = 0;

  /// Takes bytes and returns how many. ProtocolError (bad_input) for bytes that no element of the dtype has, and after `end`.
  virtual std::size_t feed(std::span<const std::byte> bytes) = 0;
  /// Asks now for the memory of the next `bytes` that are fed. By default `feed` does.
  virtual void reserve(std::size_t bytes) { static_cast<void>(bytes); }
  /// No byte follows. ProtocolError (bad_input) when the bytes ended inside a row, or inside a sample of audio. May make further rows.
  virtual void end() = 0;
  virtual bool ended() const = 0;

  /// Whole rows that wait.
  virtual std::size_t rows() const = 0;
  /// The bytes of row k of those that wait, valid until the next `feed`, `end` or `pop`. Not aligned: copy. IndexError beyond `rows()`.
  virtual std::span<const std::byte> row(std::size_t k) const = 0;
  /// Drops the oldest `count` rows. IndexError beyond `rows()`.
  virtual void pop(std::size_t count) = 0;
  /// Bytes held, rows and parts of rows.
  virtual std::size_t held_bytes() const = 0;
  /// A source like this one was when it was made.
  virtual std::unique_ptr<RowSource> anew() const = 0;

  /// Appends what the source holds, from which `load` goes on with the same rows. UnsupportedError names what cannot be written down.
  virtual void save(std::string& to) const = 0;
  /// Goes on from the bytes of `save`. The source was made like the one that saved, and was not fed. ParseError for bytes that no `save` of such a source appends.
  virtual void load(std::string_view bytes) = 0;
};

inline constexpr std::size_t default_row_capacity = std::size_t{256} << 10;

}  // namespace millrace
