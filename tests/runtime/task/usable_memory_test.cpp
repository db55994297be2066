// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/usable_memory.h>

#include <doctest/doctest.h>

#include <fstream>

#include <support/bytes.h>

using namespace millrace;

namespace {

void put(const std::filesystem::path& path, const char* text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("usable memory is the least of the machine's and of the limits of the control groups") {
  const std::uint64_t machine = usable_memory("/absent");
  CHECK(machine > 1 << 20);
  const testing::ScratchFolder folder;
  const std::filesystem::path root = folder / "";
  put(root / "proc/self/cgroup", "0::/a/b\n");
  put(root / "sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(usable_memory(root) == machine);
  put(root / "sys/fs/cgroup/a/memory.max", "1048576\n");
  CHECK(usable_memory(root) == 1048576);
  put(root / "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n");
  put(root / "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2097152\n");
  CHECK(usable_memory(root) == 2097152);
}
