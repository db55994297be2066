// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/embedding.h>

#include <cstring>

#include <millrace/runtime/builder/ops.h>

namespace millrace::layers {
namespace {

/// The table with the row of `padding` empty.
Tensor without(const Tensor& table, std::int64_t padding) {
  const std::int64_t row = padding < 0 ? padding + table.dim(0) : padding;
  if (row < 0 || row >= table.dim(0))
    throw IndexError("embedding: expected a padding number of " + table.to_string() + ", found " + std::to_string(padding));
  Tensor made = table.copy_to(CpuPlace{});
  Tensor own(made.dtype(), made.dims());
  std::memcpy(own.raw_mutable(), made.raw(), made.bytes());
  own.storage()->mark_written();
  std::memset(own.rows(row, row + 1).raw_mutable(), 0, own.rows(row, row + 1).bytes());
  return own;
}

}  // namespace

build::Var embedding(const build::Var& ids, const Tensor& table, std::optional<std::int64_t> padding, const std::string& name) {
  if (table.rank() != 2) throw ShapeError(name + ": expected a table [V, C], found " + table.to_string());
  const build::Var rows = build::parameter(name + "_table", padding ? without(table, *padding) : table);
  const VarType& type = ids.type();
  const bool column = type.rank() == 2 && (*type.shape)[1] == 1;
  const build::Var numbers = column ? build::call1("squeeze", {ids}, {{"axes", std::vector<std::int64_t>{1}}}) : ids;
  return build::embedding(rows, numbers);
}

}  // namespace millrace::layers
