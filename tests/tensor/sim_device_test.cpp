// SPDX-License-Identifier: Apache-2.0
#include <support/sim_device.h>

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include <millrace/tensor/error.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

using testing::SimDevice;

/// out = a + b, one f32 each.
Tensor add(const Tensor& a, const Tensor& b, StreamRef stream) {
  Tensor out(DType::f32, DDim{}, stream.memory());
  launch<2, 1>(
      {&a, &b}, {&out},
      [a, b, out](ThreadTeam&) {
        *static_cast<float*>(out.raw_mutable()) = *static_cast<const float*>(a.raw()) + *static_cast<const float*>(b.raw());
      },
      stream);
  return out;
}

Tensor constant(float value, StreamRef stream) {
  Tensor out(DType::f32, DDim{}, stream.memory());
  launch<0, 1>({}, {&out}, [out, value](ThreadTeam&) { *static_cast<float*>(out.raw_mutable()) = value; }, stream);
  return out;
}

/// Fibonacci over the ring: each number on another stream than the two before it.
float fibonacci(SimDevice& device, int count, std::uint64_t seed) {
  Tensor a = constant(1, device.stream(0));
  Tensor b = constant(1, device.stream(1));
  for (int i = 2; i < count; ++i) {
    const Tensor c = add(a, b, device.stream(static_cast<std::size_t>(i)));
    a = b;
    b = c;
  }
  device.drain(seed);
  CHECK(device.idle());
  return static_cast<float>(b.item());
}

TEST_CASE("a simulated stream queues what it is given and runs it when driven") {
  SimDevice device;
  CHECK(device.place().to_string() == "sim:0");
  const Tensor a = constant(2, device.stream(0));
  CHECK(!a.ready().reached());
  CHECK_THROWS_AS((void)a.item(), NotReadyError);
  CHECK(device.choices() == 1);
  device.take(0);
  CHECK(a.ready().reached());
  CHECK(a.item() == 2.0);
  CHECK(device.choices() == 0);
  CHECK_THROWS_AS(device.take(0), IndexError);
}

TEST_CASE("fresh memory of a simulated device is poisoned and given back when its tensors go") {
  SimDevice device;
  {
    const Tensor fresh(DType::f32, DDim{4}, device.memory());
    CHECK(std::isnan(static_cast<const float*>(fresh.raw())[3]));
    CHECK(device.sim_memory().live_bytes() == 16);
  }
  CHECK(device.sim_memory().live_bytes() == 0);
  CHECK(device.sim_memory().peak_bytes() == 16);
}

TEST_CASE("streams complete in many orders with the same result") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed ", seed);
    SimDevice device({.streams = 3});
    CHECK(fibonacci(device, 20, seed) == 6765);
  }
  std::set<std::vector<std::size_t>> orders;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimDevice device({.streams = 4});
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < 12; ++i) {
      const StreamRef stream = device.stream(i);
      stream.enqueue([&order, i](ThreadTeam&) { order.push_back(i); });
    }
    device.drain(seed);
    REQUIRE(order.size() == 12);
    orders.insert(order);
  }
  CHECK(orders.size() > 40);
}

TEST_CASE("a dropped wait between streams changes a result") {
  SimDevice whole({.streams = 3});
  CHECK(fibonacci(whole, 12, 0) == 144);
  const std::size_t waits = whole.waits();
  REQUIRE(waits > 0);
  std::size_t noticed = 0;
  for (std::size_t drop = 1; drop <= waits; ++drop) {
    bool wrong = false;
    for (std::uint64_t seed = 0; seed < 200 && !wrong; ++seed) {
      SimDevice device({.streams = 3, .drop_wait = drop});
      wrong = !(fibonacci(device, 12, seed) == 144);
    }
    noticed += wrong;
  }
  // Some waits are implied by others (b already waited for a): those may go unnoticed.
  CHECK(noticed * 2 > waits);
}

TEST_CASE("work that throws fails its stream and those that wait for it") {
  SimDevice device;
  const StreamRef first = device.stream(0);
  const StreamRef second = device.stream(1);
  bool ran = false;
  first.enqueue([](ThreadTeam&) { throw ShapeError("launch: bad"); });
  first.enqueue([&](ThreadTeam&) { ran = true; });
  second.wait(first.position());
  second.enqueue([&](ThreadTeam&) { ran = true; });
  const Point done = second.position();
  device.drain(1);
  CHECK(!ran);
  CHECK(!done.reached());
  CHECK_THROWS_AS(done.check(), ShapeError);
}

TEST_CASE("what a simulated device never ran fails its points when it goes") {
  Point done;
  {
    SimDevice device;
    const StreamRef stream = device.stream(0);
    stream.enqueue([](ThreadTeam&) {});
    done = stream.position();
  }
  CHECK_THROWS_AS(done.check(), Error);
}

}  // namespace
}  // namespace millrace
