// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/caller_devices.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "support/sim_device.h"

using namespace millrace;

TEST_CASE("each caller has streams of its own, of the same place, memory and number, and they are used again") {
  const auto shared = std::make_shared<CpuDevice>(2, 3);
  CallerDevices callers(shared);
  const Device* first = nullptr;
  {
    const CallerDevices::Lease one = callers.take(), other = callers.take();
    first = &*one;
    CHECK(&*one != &*other);
    CHECK(&*one != shared.get());
    CHECK(one->place().is_cpu());
    CHECK(one->stream_count() == 3);
    CHECK(one->memory() == shared->memory());
    CHECK_FALSE(one->stream(0) == shared->stream(0));
    // Work of one runs at once while another's waits.
    const auto timeline = std::make_shared<Timeline>();
    other->stream(0).wait(Point(timeline, 1));
    bool ran = false, late = false;
    other->stream(0).enqueue([&late](ThreadTeam&) { late = true; });
    one->stream(0).enqueue([&ran](ThreadTeam& team) { ran = team.size() == 2; });
    CHECK(ran);
    CHECK_FALSE(late);
    timeline->advance(1);
    CHECK(late);
  }
  const CallerDevices::Lease again = callers.take(), another = callers.take();
  CHECK((&*again == first || &*another == first));
}

TEST_CASE("streams on which work failed are not handed out again, and those with work under way only behind it") {
  CallerDevices callers(std::make_shared<CpuDevice>());
  const auto timeline = std::make_shared<Timeline>();
  bool ran = false;
  {
    const CallerDevices::Lease fails = callers.take(), waits = callers.take();
    fails->stream(0).wait(Point(timeline, 1));
    fails->stream(0).enqueue([](ThreadTeam&) { throw std::runtime_error("an index outside"); });
    waits->stream(0).wait(Point(timeline, 1));
    waits->stream(0).enqueue([&ran](ThreadTeam&) { ran = true; });
  }
  {
    const CallerDevices::Lease fresh = callers.take();
    CHECK(fresh->stream(0).position().reached());
  }
  timeline->advance(1);
  CHECK(ran);
  std::vector<CallerDevices::Lease> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(callers.take());
    bool works = false;
    all.back()->stream(0).enqueue([&works](ThreadTeam&) { works = true; });
    CHECK(works);
  }
}

TEST_CASE("work that a caller left under way is waited for") {
  const auto timeline = std::make_shared<Timeline>();
  bool ran = false;
  std::thread later;
  {
    CallerDevices callers(std::make_shared<CpuDevice>());
    {
      const CallerDevices::Lease one = callers.take();
      one->stream(0).wait(Point(timeline, 1));
      one->stream(0).enqueue([&ran](ThreadTeam&) { ran = true; });
    }
    later = std::thread([timeline] { timeline->advance(1); });
  }
  CHECK(ran);
  later.join();
}

TEST_CASE("a device whose streams are few and everybody's is everybody's") {
  const auto shared = std::make_shared<testing::SimDevice>();
  CallerDevices callers(shared);
  const CallerDevices::Lease one = callers.take(), other = callers.take();
  CHECK(&*one == shared.get());
  CHECK(&*other == shared.get());
}
