// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/spin_helper.h>

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

using namespace millrace;

namespace {

TEST_CASE("a helper does half of every piece, and the owner sees what it did") {
  SpinHelper helper;
  std::atomic<bool> serving = false;
  std::thread other([&] {
    serving = true;
    helper.serve();
  });
  std::vector<int> numbers(64);
  int shared = 0;
  // Until the other thread is there, the owner does all of it.
  for (int iteration = 1; iteration <= 20000 || shared == 0; ++iteration) {
    int parts_of_iteration = 1;
    helper.both([&](int part, int parts) {
      if (part == 0) parts_of_iteration = parts;
      const int count = static_cast<int>(numbers.size());
      for (int i = count * part / parts; i < count * (part + 1) / parts; ++i) numbers[static_cast<std::size_t>(i)] = iteration;
    });
    if (parts_of_iteration == 2) ++shared;
    if (!serving) std::this_thread::yield();
    REQUIRE(numbers == std::vector<int>(64, iteration));
  }
  helper.release();
  other.join();
}

TEST_CASE("without a helper the owner does everything, and one that comes late goes again") {
  SpinHelper helper;
  int calls = 0;
  helper.both([&](int part, int parts) {
    CHECK(part == 0);
    CHECK(parts == 1);
    ++calls;
  });
  CHECK(calls == 1);
  helper.release();
  helper.serve();
}

}  // namespace
