// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/row_buffer.h>

#include <doctest/doctest.h>

#include <streaming/live/allocation_count.h>

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("rows that fit what was there take its memory, and more rows take memory for twice as many") {
  Tensor kept;
  fit_rows(kept, DType::i64, {2, 3}, 4);
  CHECK(kept.dims() == DDim{4, 2, 3});
  CHECK(kept.dtype() == DType::i64);
  fit_rows(kept, DType::i64, {2, 3}, 5);
  const void* const memory = kept.raw();
  AllocationCount count;
  for (const std::int64_t rows : {8, 1, 0, 7}) fit_rows(kept, DType::i64, {2, 3}, rows);
  CHECK(count.stop() == 0);
  CHECK(kept.raw() == memory);
  CHECK(kept.dims() == DDim{7, 2, 3});
  kept.mutable_data<std::int64_t>()[41] = 1;
  fit_rows(kept, DType::f32, {}, 3);
  CHECK(kept.dims() == DDim{3});
  CHECK(kept.mutable_data<float>() != nullptr);
}
