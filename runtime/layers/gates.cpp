// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/gates.h>

#include <algorithm>

#include <millrace/kernels/binary.h>
#include <millrace/kernels/concat.h>
#include <millrace/runtime/program/ops/internal/packing.h>

namespace millrace::layers {

Tensor joined(const std::vector<Tensor>& parts, int axis) {
  ops::PackingStream stream;
  return concat(parts, axis, stream).copy_to(CpuPlace{});
}

Tensor transposed(const Tensor& w) { return w.permute({1, 0}).copy_to(CpuPlace{}); }

Tensor reorder_gates(const Tensor& w, int axis, const std::string& from, const std::string& to) {
  const auto gates = static_cast<std::int64_t>(from.size());
  if (!std::is_permutation(from.begin(), from.end(), to.begin(), to.end()))
    throw ArgumentError("reorder_gates: expected the same gates, found '" + from + "' and '" + to + "'");
  const std::int64_t extent = w.dim(axis);
  if (gates == 0 || extent % gates != 0)
    throw ShapeError("reorder_gates: expected " + std::to_string(gates) + " equal blocks on axis " + std::to_string(axis) + ", found " +
                     w.to_string());
  const std::int64_t block = extent / gates;
  std::vector<Tensor> parts;
  for (const char gate : to) {
    const auto at = static_cast<std::int64_t>(from.find(gate));
    parts.push_back(w.slice(axis, at * block, (at + 1) * block));
  }
  return joined(parts, axis);
}

std::optional<Tensor> summed(const std::optional<Tensor>& a, const std::optional<Tensor>& b) {
  if (!a) return b;
  if (!b) return a;
  ops::PackingStream stream;
  return binary(Binary::add, *a, *b, stream).copy_to(CpuPlace{});
}

}  // namespace millrace::layers
