// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/device.h>

#include <string>
#include <vector>

#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/cpu_stream.h>
#include <millrace/tensor/error.h>

namespace millrace {

// Streams may run at the same time in different callers: a team serves one of them at a time, the others run alone.
struct CpuDevice::Ring {
  Ring(std::shared_ptr<ThreadTeam> of, std::size_t count, const std::shared_ptr<MemoryResource>& memory) : team(std::move(of)) {
    constexpr std::size_t most = 1024;
    if (count < 1 || count > most)
      throw ArgumentError("cpu device: expected from 1 to " + std::to_string(most) + " streams, found " + std::to_string(count));
    for (std::size_t i = 0; i < count; ++i) streams.push_back(std::make_unique<CpuStream>(team, memory));
  }
  std::shared_ptr<ThreadTeam> team;
  std::vector<std::unique_ptr<CpuStream>> streams;
};

CpuDevice::CpuDevice(int threads, std::size_t streams, std::shared_ptr<MemoryResource> memory)
    : memory_(std::move(memory)), ring_(std::make_unique<Ring>(std::make_shared<ThreadTeam>(threads), streams, memory_)) {}

CpuDevice::CpuDevice(std::unique_ptr<Ring> ring, std::shared_ptr<MemoryResource> memory)
    : memory_(std::move(memory)), ring_(std::move(ring)) {}

std::shared_ptr<Device> CpuDevice::with_own_streams() const {
  return std::shared_ptr<Device>(new CpuDevice(std::make_unique<Ring>(ring_->team, ring_->streams.size(), memory_), memory_));
}

CpuDevice::~CpuDevice() = default;

std::size_t CpuDevice::stream_count() const noexcept { return ring_->streams.size(); }

StreamRef CpuDevice::stream(std::size_t index) { return *ring_->streams[index % ring_->streams.size()]; }

std::shared_ptr<Device> make_cpu_device(int threads, std::size_t streams) {
  return std::make_shared<CpuDevice>(threads, streams, std::make_shared<CachingResource>(host_memory()));
}

}  // namespace millrace
