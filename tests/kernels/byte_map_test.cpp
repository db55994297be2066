// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/byte_map.h>

#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("Bytes are mapped by a table of 256, for any extents and strides, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(3);
  std::vector<std::uint8_t> entries;
  for (int i = 0; i < 256; ++i) entries.push_back(static_cast<std::uint8_t>(random.between(0, 255)));
  const Tensor table = Tensor::from(entries, DDim{256});
  for (const std::int64_t width : {0, 1, 63, 64, 65, 300, 300000}) {
    std::vector<std::uint8_t> from, wanted;
    std::vector<std::int8_t> with_sign;
    for (std::int64_t i = 0; i < 2 * width; ++i) {
      from.push_back(static_cast<std::uint8_t>(random.between(0, 255)));
      with_sign.push_back(static_cast<std::int8_t>(from.back()));
      wanted.push_back(entries[from.back()]);
    }
    const DDim dims{2, width};
    const Tensor x = Tensor::from(from, dims), made = Tensor::from(wanted, dims);
    for (CpuDevice* device : {&one, &two}) {
      CHECK(same_bits(map_bytes(table, x, device->stream(0)), made));
      CHECK(same_bits(map_bytes(table, Tensor::from(with_sign, dims), device->stream(0)), made));
      CHECK(same_bits(map_bytes(table, x.permute({1, 0}), device->stream(0)), made.permute({1, 0})));
    }
  }
  CHECK_THROWS_AS(map_bytes(table.rows(0, 255), table, one.stream(0)), ShapeError);
  CHECK_THROWS_AS(map_bytes(table, Tensor::from<float>({1}), one.stream(0)), DTypeError);
  CHECK_THROWS_AS(map_bytes(Tensor::from<float>({1}), table, one.stream(0)), DTypeError);
}

}  // namespace millrace::testing
