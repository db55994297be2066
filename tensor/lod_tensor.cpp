// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/lod_tensor.h>

namespace millrace {

LoDTensor::LoDTensor(Tensor rows, LoD lod) : tensor_(std::move(rows)), lod_(std::move(lod)) { validate(tensor_, lod_); }

void LoDTensor::validate(const Tensor& rows, const LoD& lod) {
  if (lod.empty()) return;
  if (rows.rank() == 0) throw LoDError("lod tensor: expected rows for " + lod.brief() + ", found the scalar " + rows.to_string());
  lod.validate(rows.dim(0));
}

std::int64_t LoDTensor::rows() const {
  if (tensor_.rank() == 0) throw ShapeError("lod tensor: expected rows, found the scalar " + tensor_.to_string());
  return tensor_.dim(0);
}

LoDTensor LoDTensor::slice(int level, std::int64_t begin, std::int64_t end) const {
  LoD part = lod_.slice(level, begin, end);
  const auto [first, last] = lod_.row_range(level, begin, end);
  return {tensor_.rows(first, last), std::move(part)};
}

std::vector<LoDTensor> LoDTensor::peel() const {
  const std::int64_t count = lod_.sequences(0);
  std::vector<LoDTensor> parts;
  parts.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto [first, last] = lod_.row_range(0, i, i + 1);
    parts.emplace_back(tensor_.rows(first, last), lod_.slice(0, i, i + 1).erase_outermost());
  }
  return parts;
}

LoDTensor LoDTensor::group(const LoD::Level& lengths) const { return {tensor_, LoD::from_lengths({lengths}).append(lod_)}; }

std::string LoDTensor::to_string() const { return lod_.empty() ? tensor_.to_string() : tensor_.to_string() + " with " + lod_.brief(); }

}  // namespace millrace
