// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/pool.h>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <millrace/tensor/sanitized.h>

using namespace millrace;

namespace {

bool is_aligned(const void* memory, std::size_t to) { return reinterpret_cast<std::uintptr_t>(memory) % to == 0; }

struct Counted : Pooled {
  explicit Counted(int& count) : alive(count) { ++alive; }
  virtual ~Counted() { --alive; }
  int& alive;
};
struct Larger final : Counted {
  using Counted::Counted;
  std::byte more[1000] = {};
};

}  // namespace

TEST_CASE("blocks of all sizes are aligned, apart, and may be given back on another thread") {
  struct Block {
    void* memory;
    std::size_t bytes;
  };
  std::vector<Block> blocks;
  std::thread taker([&] {
    for (std::size_t bytes = 0; bytes <= 20'000; bytes += 61) {
      blocks.push_back({pool_allocate(bytes), bytes});
      std::memset(blocks.back().memory, static_cast<int>(bytes % 251), bytes);
    }
  });
  taker.join();
  for (const Block& block : blocks) {
    CHECK(is_aligned(block.memory, __STDCPP_DEFAULT_NEW_ALIGNMENT__));
    const auto* bytes = static_cast<const unsigned char*>(block.memory);
    for (std::size_t i = 0; i < block.bytes; ++i) REQUIRE(bytes[i] == block.bytes % 251);
  }
  for (const Block& block : blocks) pool_free(block.memory, block.bytes);
}

TEST_CASE("a block that a thread gave back serves its next call for that size") {
  void* const first = pool_allocate(200);
  void* const beside = pool_allocate(200);
  CHECK(first != beside);
  pool_free(first, 200);
  void* const again = pool_allocate(200);
  if constexpr (!sanitized) CHECK(again == first);  // a sanitizer sees uses after free in memory of the heap
  pool_free(again, 200);
  pool_free(beside, 200);
}

TEST_CASE("more blocks than a thread keeps go back to the heap") {
  std::vector<void*> blocks(5000);
  for (int round = 0; round < 3; ++round) {
    for (void*& block : blocks) block = pool_allocate(64);
    for (void* block : blocks) pool_free(block, 64);
  }
}

TEST_CASE("data of tensors begins at a line of the cache") {
  for (std::size_t bytes = internal::line_bytes; bytes <= 20'032; bytes += internal::line_bytes) {
    void* const memory = internal::take_lines(bytes);
    REQUIRE(memory != nullptr);
    CHECK(is_aligned(memory, internal::line_bytes));
    std::memset(memory, 0xff, bytes);
    internal::give_lines(memory, bytes);
  }
}

TEST_CASE("vectors, shared objects and objects behind a base live in the pool") {
  PooledVector<int> numbers;
  for (int i = 0; i < 10'000; ++i) numbers.push_back(i);
  CHECK(numbers.back() == 9'999);
  int alive = 0;
  {
    const std::shared_ptr<Counted> shared = make_pooled<Larger>(alive);
    const std::unique_ptr<Counted> owned = std::make_unique<Larger>(alive);
    CHECK(alive == 2);
  }
  CHECK(alive == 0);
}
