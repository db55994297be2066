// SPDX-License-Identifier: Apache-2.0
// Waiting for a watermark, with and without a driver that has streams wait for words.
#include <cuda.h>

#include <doctest/doctest.h>

#include <gpu/spin.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/runtime/array/slab.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace::testing {

TEST_CASE(
    "a stream waits for a word in the driver, and where the driver has no such thing the host starts its work when the word is there") {
  for (const bool knows : {true, false}) {
    emulated::answer_waits(knows ? cudaSuccess : cudaErrorNotSupported);
    const auto device = make_cuda_device({.streams = 2});
    const auto watermark = device->stream(0).watermark(4);
    SteppedWork work;
    work.steps = work.a_launch = 4;
    work.nanoseconds = 20'000'000;
    const Tensor stamps = stepped(work, watermark, device->stream(0));
    const std::size_t before = emulated::waits_enqueued();
    const Tensor second = part_of(stamps.rows(1, 2), Point(watermark, 2));
    const Tensor sum = add(second, second, device->stream(1));
    CHECK((emulated::waits_enqueued() > before) == knows);
    CHECK(watermark->reached() < 2);
    sum.ready().wait();
    CHECK(stamps.ready().reached() == false);  // two steps are left
    const auto made = stamps.copy_to(CpuPlace{}).to_vector<std::int64_t>();
    CHECK(sum.copy_to(CpuPlace{}).to_vector<std::int64_t>() == std::vector<std::int64_t>{2 * made[2], 2 * made[3]});
  }
  emulated::answer_waits(cudaSuccess);
}

}  // namespace millrace::testing
