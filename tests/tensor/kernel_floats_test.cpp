// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/kernel_floats.h>

#include <cfenv>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include <doctest/doctest.h>

#include <millrace/tensor/cpu_stream.h>
#include <millrace/tensor/float16.h>

using namespace millrace;

namespace {

/// 2^-130, made of two normal numbers by the processor and multiplied by `factor`. Zero where a subnormal is a result or an operand.
double tiny_times(float factor) {
  volatile float half = 0x1p-65f;
  volatile float tiny = half * half;
  volatile float product = tiny * factor;
  return static_cast<double>(product);
}

/// The least subnormal times 2^100, read by the processor.
float least_raised() {
  volatile float least = std::numeric_limits<float>::denorm_min();
  volatile float raised = least * 0x1p100f;
  return raised;
}

constexpr bool flushes = KernelFloats::flushes;
constexpr double kept = flushes ? 0 : 0x1p-30;

}  // namespace

TEST_CASE("subnormal results and operands are zeros while a guard lives, also behind an inner one, and numbers again afterwards") {
  CHECK(tiny_times(0x1p100f) == 0x1p-30);
  {
    const KernelFloats floats;
    CHECK(tiny_times(0x1p100f) == kept);
    CHECK((least_raised() == 0) == flushes);
    std::optional<KernelFloats> inner(std::in_place);
    inner.reset();
    CHECK(tiny_times(0x1p100f) == kept);
  }
  CHECK(tiny_times(0x1p100f) == 0x1p-30);
}

TEST_CASE("work of a stream, in its caller or queued, and every thread of a team take subnormals as zeros, and the caller does not") {
  const auto team = std::make_shared<ThreadTeam>(3);
  CpuStream owner(team);
  const StreamRef stream(owner);
  double in_caller = -1, queued = -1;
  stream.enqueue([&](ThreadTeam&) { in_caller = tiny_times(0x1p100f); });
  CHECK(in_caller == kept);
  CHECK(tiny_times(0x1p100f) == 0x1p-30);

  const auto timeline = std::make_shared<Timeline>();
  stream.wait(Point(timeline, 1));
  stream.enqueue([&](ThreadTeam&) { queued = tiny_times(0x1p100f); });
  std::thread([&] {
    timeline->advance(1);
    CHECK(tiny_times(0x1p100f) == 0x1p-30);
  }).join();
  CHECK(queued == kept);

  std::mutex mutex;
  std::multiset<double> found;
  stream.enqueue([&](ThreadTeam& threads) {
    threads.parallel(3, 1, [&](std::int64_t, std::int64_t) {
      const double mine = tiny_times(0x1p100f);
      const std::lock_guard lock(mutex);
      found.insert(mine);
    });
  });
  CHECK(found == std::multiset<double>{kept, kept, kept});
}

TEST_CASE("halves widen and narrow to the same bits where subnormals of f32 are zeros") {
  for (std::uint32_t i = 0; i <= 0xffffu; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const auto widened = static_cast<float>(float16::from_bits(bits));
    std::optional<KernelFloats> floats(std::in_place);
    volatile float at_run = static_cast<float>(float16::from_bits(bits));
    const std::uint16_t narrowed = float16(static_cast<float>(at_run)).bits;
    floats.reset();
    if (widened != widened) continue;
    REQUIRE(at_run == widened);
    REQUIRE(narrowed == bits);
  }
}
