// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/spill_memory.h>

#include <sys/statvfs.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include <doctest/doctest.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/tensor.h>

namespace millrace::testing {
namespace {

TEST_CASE("blocks of spill memory are aligned, hold what was written, and leave no file behind") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  SpillMemory memory(folder);
  CHECK(memory.host_accessible());
  CHECK(memory.place() == Place(CpuPlace{}));
  std::vector<std::pair<std::byte*, std::size_t>> blocks;
  for (std::size_t i = 0; i < 300; ++i) {
    const std::size_t bytes = i % 7 == 0 ? 0 : i * 97;
    auto* const block = static_cast<std::byte*>(memory.allocate(bytes));
    CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
    std::memset(block, static_cast<int>(i % 251), bytes);
    blocks.emplace_back(block, bytes);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (std::size_t at = 0; at < blocks[i].second; ++at) REQUIRE(blocks[i].first[at] == static_cast<std::byte>(i % 251));
  const SpillMemory::Statistics full = memory.statistics();
  CHECK(full.in_use > std::size_t{1} << 20);
  CHECK(full.files >= full.in_use);
  for (const auto& [block, bytes] : blocks) memory.deallocate(block, bytes);
  CHECK(memory.statistics().in_use == 0);
  CHECK(memory.statistics().files == 0);
  CHECK(memory.statistics().peak == full.in_use);
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    CHECK(entry.path().filename().string().find("millrace.spill") == std::string::npos);
}

TEST_CASE("files of spill memory stay as small as its blocks, however often blocks are given back and taken again") {
  SpillMemory memory(std::filesystem::temp_directory_path());
  constexpr std::size_t bytes = 4000, small = std::size_t{64} << 10;
  const auto step = [&](std::size_t most) {
    std::vector<void*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(memory.allocate(bytes));
    CHECK(memory.statistics().files <= most);
    for (void* block : blocks) memory.deallocate(block, bytes);
  };
  for (int i = 0; i < 30; ++i) {
    step(small);
    CHECK(memory.statistics().files == 0);
  }
  void* const kept = memory.allocate(bytes);
  for (int i = 0; i < 30; ++i) step(2 * small);
  void* const great = memory.allocate(std::size_t{1} << 20);
  CHECK(memory.statistics().files < (std::size_t{1} << 20) + 3 * small);
  memory.deallocate(kept, bytes);
  memory.deallocate(great, std::size_t{1} << 20);
  CHECK(memory.statistics().files == 0);
}

TEST_CASE("pieces of spill memory grow with the bytes that are in use, and all files go with the last block, in any order") {
  SpillMemory memory(std::filesystem::temp_directory_path());
  constexpr std::size_t bytes = 10000, count = 500;
  for (const std::size_t stride : {1, 3, 7}) {
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(memory.allocate(bytes));
    CHECK(memory.statistics().files >= bytes * count);
    CHECK(memory.statistics().files < 3 * bytes * count);
    for (std::size_t first = 0; first < stride; ++first)
      for (std::size_t i = first; i < count; i += stride) memory.deallocate(blocks[count - 1 - i], bytes);
    CHECK(memory.statistics().in_use == 0);
    CHECK(memory.statistics().files == 0);
  }
}

TEST_CASE("a tensor lives in spill memory, and keeps it alive") {
  auto memory = std::make_shared<SpillMemory>(std::filesystem::temp_directory_path());
  Tensor x(DType::f64, DDim{1000, 100}, memory);
  const std::weak_ptr<SpillMemory> watched = memory;
  memory.reset();
  for (std::int64_t i = 0; i < x.elements(); ++i) x.mutable_data<double>()[i] = static_cast<double>(i);
  read_ahead(x);
  read_ahead(Tensor());
  CHECK(x.data<double>()[99999] == 99999);
  CHECK(watched.lock() != nullptr);
  x = Tensor();
  CHECK(watched.lock() == nullptr);
}

TEST_CASE("a folder that is not there, and more bytes than the disk has, are errors that name the folder and the bytes") {
  CHECK_THROWS_WITH_AS(SpillMemory("/no/such/folder").allocate(10), doctest::Contains("'/no/such/folder': expected room for a file of"),
                       OutOfMemoryError);
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  SpillMemory memory(folder);
  CHECK_THROWS_WITH_AS(memory.allocate(std::size_t{1} << 55), doctest::Contains(folder.c_str()), OutOfMemoryError);
  CHECK(memory.statistics().files == 0);
  void* const block = memory.allocate(100);  // goes on
  memory.deallocate(block, 100);
}

}  // namespace
}  // namespace millrace::testing
