// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/caching_resource.h>

#include <map>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/tensor/tensor.h>

#include "support/random.h"

using namespace millrace;

namespace {

/// Counts what is taken from it, refuses beyond `room`, and fails the test that gives back what it never took.
class Upstream final : public MemoryResource {
 public:
  explicit Upstream(std::size_t room = CachingResource::unlimited) : room_(room) {}
  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (bytes > room_ - taken_) throw OutOfMemoryError("upstream: no room");
    void* pointer = host_memory()->allocate(bytes);
    taken_ += bytes;
    blocks_[pointer] = bytes;
    return pointer;
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(pointer);
    if (block == blocks_.end() || block->second != bytes) std::terminate();
    blocks_.erase(block);
    taken_ -= bytes;
    host_memory()->deallocate(pointer, bytes);
  }
  Place place() const override { return BackendPlace{"box", 2}; }
  bool host_accessible() const noexcept override { return true; }
  std::size_t taken() const { return taken_; }

 private:
  std::mutex mutex_;
  std::map<void*, std::size_t> blocks_;
  std::size_t room_;
  std::size_t taken_ = 0;
};

}  // namespace

TEST_CASE("what is given back is handed out again") {
  const auto upstream = std::make_shared<Upstream>();
  CachingResource cache(upstream);
  void* first = cache.allocate(1000);
  cache.deallocate(first, 1000);
  CHECK(cache.allocate(1000) == first);
  const auto seen = cache.statistics();
  CHECK(seen.allocations == 2);
  CHECK(seen.upstream_allocations == 1);
  CHECK(seen.in_use == 1024);
  CHECK(seen.cached == 0);
  cache.deallocate(first, 1000);
}

TEST_CASE("sizes of one class share blocks and others do not") {
  CachingResource cache(std::make_shared<Upstream>());
  void* block = cache.allocate(1000);
  cache.deallocate(block, 1000);
  void* same = cache.allocate(1024);
  CHECK(same == block);
  void* larger = cache.allocate(1025);
  CHECK(larger != block);
  cache.deallocate(same, 1024);
  cache.deallocate(larger, 1025);
}

TEST_CASE("a class is at least the size, less than a quarter above it, and holds itself") {
  CHECK(CachingResource::class_size(0) == 64);
  CHECK(CachingResource::class_size(1) == 64);
  CHECK(CachingResource::class_size(65) == 128);
  CHECK(CachingResource::class_size(256) == 256);
  CHECK(CachingResource::class_size(257) == 320);
  CHECK(CachingResource::class_size(1024) == 1024);
  CHECK(CachingResource::class_size(1025) == 1280);
  for (std::size_t bytes = 257; bytes < 100000; bytes += 7) {
    const std::size_t size = CachingResource::class_size(bytes);
    REQUIRE(size >= bytes);
    REQUIRE(size < bytes + bytes / 4 + 1);
    REQUIRE(size % 64 == 0);
    REQUIRE(CachingResource::class_size(size) == size);
  }
  CHECK_THROWS_AS(CachingResource::class_size(~std::size_t{0}), OutOfMemoryError);
}

TEST_CASE("beyond its budget a cache refuses and names the sizes") {
  CachingResource cache(std::make_shared<Upstream>(), 2048);
  void* block = cache.allocate(1024);
  CHECK_THROWS_WITH_AS(cache.allocate(2000),
                       "memory on box:2: 2000 bytes (2048 as a block) were refused with 1024 in use, nothing cached and a budget of 2048",
                       OutOfMemoryError);
  cache.deallocate(block, 1024);
}

TEST_CASE("cached blocks make room for other sizes before an allocation is refused") {
  const auto upstream = std::make_shared<Upstream>();
  CachingResource cache(upstream, 2048);
  cache.deallocate(cache.allocate(1024), 1024);
  CHECK(cache.statistics().cached == 1024);
  void* block = cache.allocate(2048);
  CHECK(cache.statistics().cached == 0);
  CHECK(upstream->taken() == 2048);
  cache.deallocate(block, 2048);
}

TEST_CASE("when the upstream resource is full the cache is freed and it is asked once more") {
  const auto upstream = std::make_shared<Upstream>(2048);
  CachingResource cache(upstream);
  cache.deallocate(cache.allocate(1024), 1024);
  void* block = cache.allocate(2048);
  CHECK(block != nullptr);
  CHECK_THROWS_WITH_AS(cache.allocate(64), doctest::Contains("no budget"), OutOfMemoryError);
  cache.deallocate(block, 2048);
}

TEST_CASE("after a refusal the next allocation that fits succeeds") {
  CachingResource cache(std::make_shared<Upstream>(), 1024);
  CHECK_THROWS_AS(cache.allocate(5000), OutOfMemoryError);
  void* block = cache.allocate(1024);
  CHECK(cache.statistics().in_use == 1024);
  cache.deallocate(block, 1024);
}

TEST_CASE("the peak stays when memory is given back, and releasing empties the cache") {
  const auto upstream = std::make_shared<Upstream>();
  CachingResource cache(upstream, 1 << 20);
  void* a = cache.allocate(512);
  void* b = cache.allocate(512);
  cache.deallocate(a, 512);
  cache.deallocate(b, 512);
  CHECK(cache.statistics().peak == 1024);
  CHECK(cache.statistics().in_use == 0);
  CHECK(cache.statistics().cached == 1024);
  CHECK(cache.statistics().budget == 1 << 20);
  cache.release_cached();
  CHECK(cache.statistics().cached == 0);
  CHECK(upstream->taken() == 0);
}

TEST_CASE("a cache that goes away gives everything back") {
  const auto upstream = std::make_shared<Upstream>();
  {
    const auto cache = std::make_shared<CachingResource>(upstream);
    const Tensor tensor(DType::f32, DDim{100}, cache);
    CHECK(tensor.place().to_string() == "box:2");
    CHECK(cache->statistics().in_use == 448);
  }
  CHECK(upstream->taken() == 0);
}

TEST_CASE("a cache over nothing is an error") { CHECK_THROWS_AS(CachingResource(nullptr), ArgumentError); }

TEST_CASE("any order of taking and giving back keeps the books") {
  for (const std::uint64_t seed : testing::seeds(30)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const auto upstream = std::make_shared<Upstream>();
    CachingResource cache(upstream, 20000);
    std::vector<std::pair<void*, std::size_t>> held;
    for (int iteration = 0; iteration < 300; ++iteration) {
      if (random.coin() || held.empty()) {
        const auto bytes = static_cast<std::size_t>(random.between(0, 3000));
        try {
          held.emplace_back(cache.allocate(bytes), bytes);
        } catch (const OutOfMemoryError&) {
        }
      } else {
        cache.deallocate(held.back().first, held.back().second);
        held.pop_back();
      }
      std::size_t in_use = 0;
      for (const auto& [pointer, bytes] : held) in_use += CachingResource::class_size(bytes);
      const auto seen = cache.statistics();
      REQUIRE(seen.in_use == in_use);
      REQUIRE(seen.in_use + seen.cached == upstream->taken());
      REQUIRE(upstream->taken() <= 20000);
    }
    for (const auto& [pointer, bytes] : held) cache.deallocate(pointer, bytes);
  }
}

TEST_CASE("threads share a cache") {
  const auto upstream = std::make_shared<Upstream>();
  CachingResource cache(upstream);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&cache] {
      for (std::size_t i = 0; i < 500; ++i) {
        auto* bytes = static_cast<unsigned char*>(cache.allocate(i));
        if (i > 0) bytes[i - 1] = 1;
        cache.deallocate(bytes, i);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(cache.statistics().in_use == 0);
  CHECK(cache.statistics().allocations == 2000);
}
