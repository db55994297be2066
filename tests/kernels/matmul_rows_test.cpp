// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/matmul_rows.h>

#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/matmul.h>

namespace millrace::testing {

TEST_CASE("matrices that rows bring themselves are multiplied with the bits of matmul, whatever the extents") {
  CpuDevice device;
  for (const std::uint64_t seed : seeds(200)) {
    INFO("seed ", seed);
    Random random(seed);
    const DType dtype = random.coin() ? DType::f32 : DType::f64;
    const auto extent = [&] { return random.between(0, 3) == 0 ? random.between(1, 90) : random.between(1, 9); };
    const MatmulRows desc{dtype, random.between(1, 3), extent(), random.between(0, 9) == 0 ? random.between(500, 1100) : extent(),
                          extent()};
    const std::int64_t rows = random.between(1, 4);
    INFO("batch ", desc.batch, ", m ", desc.m, ", k ", desc.k, ", n ", desc.n);
    const bool shared = random.coin();
    const Tensor a = random_tensor(random, dtype, DDim{rows, desc.batch, desc.m, desc.k});
    const Tensor b = random_tensor(random, dtype, DDim{shared ? 1 : rows, desc.batch, desc.k, desc.n});
    Tensor found = random_tensor(random, dtype, DDim{rows, desc.batch, desc.m, desc.n});  // what was there before is gone after
    const std::int64_t right = desc.batch * desc.k * desc.n;
    const RowView inputs[2] = {{const_cast<void*>(a.raw()), desc.batch * desc.m * desc.k},
                               {const_cast<void*>(b.raw()), shared ? 0 : right}};
    const RowView outputs[1] = {{found.raw_mutable(), desc.batch * desc.m * desc.n}};
    matmul_rows(desc)(inputs, outputs, rows);
    CHECK(same_bits(found, matmul(a, b, device.stream(0))));
  }
}

TEST_CASE("a product of rows by nothing is zero, and one of whole numbers is refused") {
  Tensor out = Tensor::from<float>({1, 2, 3, 4}, DDim{1, 2, 2});
  const RowView none[2] = {}, outputs[1] = {{out.raw_mutable(), 4}};
  matmul_rows({DType::f32, 1, 2, 0, 2})(none, outputs, 1);
  CHECK(out.to_vector<float>() == std::vector<float>(4, 0.0f));
  CHECK_THROWS_AS(matmul_rows({DType::i64, 1, 2, 2, 2}), DTypeError);
}

}  // namespace millrace::testing
