// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <millrace/streaming/protocol/row_source.h>

namespace millrace {

/// Rows of a dtype and a shape, sent as raw little-endian elements. A bool is the byte 0 or 1.
class RowAssembler final : public RowSource {
 public:
  /// `input` is the name that errors mention. ShapeError for rows without elements or of unknown extents.
  RowAssembler(std::string input, DType dtype, const DDim& row_dims, std::size_t capacity = default_row_capacity);

  DType dtype() const override { return kind_->dtype; }
  const DDim& row_dims() const override { return kind_->row_dims; }
  std::size_t row_bytes() const override { return kind_->row_bytes; }
  std::size_t feed(std::span<const std::byte> bytes) override;
  void reserve(std::size_t bytes) override;
  void end() override;
  bool ended() const override { return ended_; }
  std::size_t rows() const override { return held_bytes() / kind_->row_bytes; }
  std::span<const std::byte> row(std::size_t k) const override;
  void pop(std::size_t count) override;
  std::size_t held_bytes() const override { return bytes_.size() - begin_; }
  std::unique_ptr<RowSource> anew() const override { return std::make_unique<RowAssembler>(kind_, capacity_); }
  void save(std::string& to) const override;
  void load(std::string_view bytes) override;

  /// The part that all assemblers of one input share, so that a session that waits is small.
  struct Kind {
    Kind(std::string of_input, DType of_dtype, const DDim& of_row);
    std::string input;
    DType dtype;
    DDim row_dims;
    std::size_t row_bytes;  ///< 0 where the extents are unknown or give no elements
  };
  /// ShapeError likewise.
  explicit RowAssembler(std::shared_ptr<const Kind> kind, std::size_t capacity = default_row_capacity);

 private:
  void compact();

  std::shared_ptr<const Kind> kind_;
  std::size_t capacity_;
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;  // of the oldest row in bytes_
  bool ended_ = false;
};

}  // namespace millrace
