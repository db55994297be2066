// SPDX-License-Identifier: Apache-2.0
#include <support/sim_device.h>

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <stdexcept>
#include <vector>

#include <millrace/tensor/launch.h>
#include <millrace/tensor/work_failure.h>

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

TEST_CASE("a fault that was told fails its stream with op, place and stream, and what waits for it, and nothing else") {
  SimDevice device({.streams = 3, .fail_work = 2});
  const Tensor a = constant(1, device.stream(1));
  const Tensor b = add(a, a, device.stream(1));
  const Tensor c = add(a, b, device.stream(0));
  const Tensor d = constant(4, device.stream(2));
  while (device.works() < 2) device.take(0);  // stream 0 waits
  device.drain(1);
  for (const Tensor& tensor : {b, c})
    CHECK_THROWS_WITH_AS(tensor.ready().check(), "sim:0: work failed, as it was told to (on sim:0, stream 1)", DeviceError);
  CHECK(a.item() == 1);
  CHECK(d.item() == 4);
  CHECK(device.idle());
}

TEST_CASE("what is thrown by work keeps its type and says where it was, and a foreign exception becomes a DeviceError") {
  SimDevice device;
  device.stream(0).enqueue([](ThreadTeam&) { throw IndexError("gather: bad row"); });
  device.stream(1).enqueue([](ThreadTeam&) { throw std::runtime_error("odd"); });
  const Point first = device.stream(0).position();
  const Point second = device.stream(1).position();
  device.drain(1);
  CHECK_THROWS_WITH_AS(first.check(), "gather: bad row (on sim:0, stream 0)", IndexError);
  CHECK_THROWS_WITH_AS(second.check(), "odd (on sim:0, stream 1)", DeviceError);
}

TEST_CASE("on a late device work has run before its point is reached") {
  SimDevice device({.late = true});
  int ran = 0;
  device.stream(0).enqueue([&](ThreadTeam&) { ++ran; });
  const Point done = device.stream(0).position();
  device.take(0);
  CHECK(ran == 1);
  CHECK_FALSE(done.reached());
  CHECK_FALSE(device.idle());
  CHECK(device.choices() == 1);
  device.take(0);
  CHECK(done.reached());
  CHECK(device.idle());
  SimDevice random({.streams = 3, .late = true});
  CHECK(fibonacci(random, 20, 3) == 6765);
}

TEST_CASE(
    "a simulated device runs out of memory: at its capacity, at the allocation that was told, and past its cache only when that is empty") {
  SimDevice small({.capacity = 100});
  const Tensor held(DType::f32, DDim{16}, small.memory());
  CHECK_THROWS_WITH_AS(Tensor(DType::f32, DDim{16}, small.memory()), "memory on sim:0: 64 bytes were refused by the device with 64 in use",
                       OutOfMemoryError);
  SimDevice told({.fail_allocation = 2});
  const Tensor first(DType::f32, DDim{1}, told.memory());
  CHECK_THROWS_AS(Tensor(DType::f32, DDim{1}, told.memory()), OutOfMemoryError);
  const Tensor third(DType::f32, DDim{1}, told.memory());
  // With a cache the refusal frees what is kept, and the allocation is tried once more.
  SimDevice caching({.fail_allocation = 2, .caching = true});
  {
    const Tensor kept(DType::f32, DDim{100}, caching.memory());
  }
  CHECK(caching.sim_memory().live_bytes() == 448);
  const Tensor other(DType::f32, DDim{1000}, caching.memory());
  CHECK(caching.sim_memory().live_bytes() == 4096);
  CHECK(caching.sim_memory().allocations() == 3);
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
