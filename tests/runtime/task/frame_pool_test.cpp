// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/frame_pool.h>

#include <doctest/doctest.h>

#include <cstring>
#include <thread>
#include <vector>

using namespace millrace;

TEST_CASE("memory taken on one thread may be given back on another, and the count stays right") {
  std::vector<void*> blocks;
  std::thread taker([&] {
    for (std::size_t bytes = 1; bytes <= 4096; bytes += 61) {
      blocks.push_back(frame_allocate(bytes));
      std::memset(blocks.back(), 0xff, bytes);
    }
  });
  taker.join();
  CHECK(live_frames() == blocks.size());
  std::size_t bytes = 1;
  for (void* block : blocks) {
    frame_free(block, bytes);
    bytes += 61;
  }
  CHECK(live_frames() == 0);
}
