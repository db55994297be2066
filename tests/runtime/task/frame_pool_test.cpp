// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/frame_pool.h>

#include <doctest/doctest.h>

#include <cstring>
#include <thread>
#include <vector>

using namespace millrace;

TEST_CASE("memory taken on one thread may be given back on another, and the count stays right") {
  constexpr auto counted = FrameCount::counted;
  std::vector<void*> blocks;
  std::thread taker([&] {
    for (std::size_t bytes = 1; bytes <= 4096; bytes += 61) {
      blocks.push_back(frame_allocate(bytes, counted));
      std::memset(blocks.back(), 0xff, bytes);
    }
  });
  taker.join();
  CHECK(live_frames() == blocks.size());
  std::size_t bytes = 1;
  for (void* block : blocks) {
    frame_free(block, bytes, counted);
    bytes += 61;
  }
  CHECK(live_frames() == 0);
}

TEST_CASE("uncounted memory does not show") {
  void* block = frame_allocate(100, FrameCount::uncounted);
  CHECK(live_frames() == 0);
  frame_free(block, 100, FrameCount::uncounted);
}
