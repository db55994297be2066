// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/row_assembler.h>

#include <algorithm>

#include <millrace/streaming/protocol/error_code.h>
#include <millrace/tensor/checked.h>

namespace millrace {
namespace {

std::size_t bytes_of_row(DType dtype, const DDim& dims) {
  for (std::int64_t extent : dims)
    if (extent < 1) return 0;
  return checked_mul(checked_cast<std::size_t>(dims.elements()), size_of(dtype));
}

}  // namespace

RowAssembler::Kind::Kind(std::string of_input, DType of_dtype, const DDim& of_row)
    : input(std::move(of_input)), dtype(of_dtype), row_dims(of_row), row_bytes(bytes_of_row(dtype, row_dims)) {}

RowAssembler::RowAssembler(std::string input, DType dtype, const DDim& row_dims, std::size_t capacity)
    : RowAssembler(std::make_shared<const Kind>(std::move(input), dtype, row_dims), capacity) {}

RowAssembler::RowAssembler(std::shared_ptr<const Kind> kind, std::size_t capacity)
    : kind_(std::move(kind)), capacity_(std::max(capacity, kind_->row_bytes)) {
  if (kind_->row_bytes == 0)
    throw ShapeError("input '" + kind_->input + "': expected rows of known extents from 1 up, found " + kind_->row_dims.to_string());
}

std::size_t RowAssembler::feed(std::span<const std::byte> bytes) {
  if (ended_) throw ProtocolError(ErrorCode::bad_input, "input '" + kind_->input + "': expected no data after its end");
  const std::size_t room = capacity_ - std::min(capacity_, held_bytes());
  const auto taken = bytes.first(std::min(bytes.size(), room));
  if (kind_->dtype == DType::boolean)
    for (std::byte byte : taken)
      if (byte > std::byte{1})
        throw ProtocolError(ErrorCode::bad_input, "input '" + kind_->input + "': expected a bool of 0 or 1, found the byte " +
                                                      std::to_string(static_cast<unsigned>(byte)));
  compact();
  bytes_.insert(bytes_.end(), taken.begin(), taken.end());
  return taken.size();
}

void RowAssembler::reserve(std::size_t bytes) {
  compact();
  if (bytes_.capacity() - bytes_.size() >= bytes) return;
  bytes_.reserve(std::max(bytes_.size() + bytes, 2 * bytes_.capacity()));
}

void RowAssembler::end() {
  const std::size_t part = held_bytes() % kind_->row_bytes;
  if (part != 0)
    throw ProtocolError(ErrorCode::bad_input, "input '" + kind_->input + "': expected whole rows of " + std::to_string(kind_->row_bytes) +
                                                  " bytes, found " + std::to_string(part) + " bytes of one at the end");
  ended_ = true;
}

std::span<const std::byte> RowAssembler::row(std::size_t k) const {
  if (k >= rows()) throw IndexError("input '" + kind_->input + "': row " + std::to_string(k) + " of " + std::to_string(rows()));
  return {bytes_.data() + begin_ + k * kind_->row_bytes, kind_->row_bytes};
}

void RowAssembler::pop(std::size_t count) {
  if (count > rows())
    throw IndexError("input '" + kind_->input + "': dropping " + std::to_string(count) + " of " + std::to_string(rows()) + " rows");
  begin_ += count * kind_->row_bytes;
  if (begin_ < bytes_.size()) return;
  std::vector<std::byte>().swap(bytes_);  // a source that waits for more holds no memory for it
  begin_ = 0;
}

void RowAssembler::save(std::string& to) const { to.append(reinterpret_cast<const char*>(bytes_.data()) + begin_, held_bytes()); }

void RowAssembler::load(std::string_view bytes) {
  if (feed(std::as_bytes(std::span<const char>(bytes.data(), bytes.size()))) != bytes.size())
    throw ParseError("input '" + kind_->input + "': expected at most " + std::to_string(capacity_) + " bytes that wait, found " +
                     std::to_string(bytes.size()));
}

// Moving what is left only once it is the smaller part keeps the cost per byte constant.
void RowAssembler::compact() {
  if (begin_ < bytes_.size() - begin_) return;
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
}

}  // namespace millrace
