// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/memory.h>

#include <cstdint>
#include <cstring>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <millrace/tensor/sanitized.h>

using namespace millrace;

TEST_CASE("host memory is aligned, never null, and the host's") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{4097}}) {
    void* pointer = host_memory()->allocate(bytes);
    REQUIRE(pointer != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(pointer) % 64 == 0);
    std::memset(pointer, 0, bytes);
    host_memory()->deallocate(pointer, bytes);
  }
  CHECK(host_memory()->place().is_cpu());
  CHECK(host_memory()->host_accessible());
}

TEST_CASE("a small block of host memory goes back to the thread that gave it back, and only for as many bytes in lines of 64") {
  if (sanitized) return;  // there each block comes from the heap
  void* const first = host_memory()->allocate(200);
  host_memory()->deallocate(first, 200);
  void* const other = host_memory()->allocate(500);
  void* const again = host_memory()->allocate(250);
  CHECK(again == first);
  CHECK(other != first);
  std::memset(again, 1, 250);
  host_memory()->deallocate(again, 250);
  host_memory()->deallocate(other, 500);
}

TEST_CASE("more than there can be is out of memory, with the size") {
  CHECK_THROWS_WITH_AS(host_memory()->allocate(~std::size_t{0}), doctest::Contains("18446744073709551615 bytes"), OutOfMemoryError);
}

TEST_CASE("an allocation starts unwritten, writable and ready") {
  Allocation block(host_memory(), 100);
  CHECK(block.bytes() == 100);
  CHECK_FALSE(block.written());
  CHECK_FALSE(block.frozen());
  CHECK(block.ready().reached());
  block.mark_written();
  block.freeze();
  CHECK(block.written());
  CHECK(block.frozen());
}

TEST_CASE("an allocation is ready when its latest point is reached") {
  Allocation block(host_memory(), 8);
  const auto timeline = std::make_shared<Timeline>();
  block.set_ready(Point(timeline, 1));
  CHECK_FALSE(block.ready().reached());
  block.set_ready(Point(timeline, 2));
  timeline->advance(1);
  CHECK_FALSE(block.ready().reached());
  timeline->advance(2);
  CHECK(block.ready().reached());
  block.set_ready(Point());
  CHECK(block.ready() == Point());
}
