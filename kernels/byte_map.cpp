// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/byte_map.h>

#include <millrace/kernels/cpu/byte_map.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {

Tensor map_bytes(const Tensor& table, const Tensor& x, StreamRef stream) {
  internal::check_device_places("map_bytes", stream, {&table, &x});
  internal::check_host("map_bytes", stream, x);
  if (table.dtype() != DType::u8) internal::check_dtype("map_bytes", "the table", table, DType::i8);
  if (x.dtype() != DType::u8) internal::check_dtype("map_bytes", "x", x, DType::i8);
  internal::check_dims("map_bytes", "the table", table, DDim{256});
  internal::check_contiguous("map_bytes", "the table", table);
  const Tensor from = x.is_contiguous() ? x : internal::row_major("map_bytes", x, stream);
  Tensor out(table.dtype(), x.dims(), stream.memory());
  launch(
      TensorRefs<2>{&table, &from}, TensorRefs<1>{&out},
      [table, from, out = out](ThreadTeam& team) { cpu::map_bytes(table, from, out, team); }, stream);
  return out;
}

}  // namespace millrace
