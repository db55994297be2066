// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/device.h>

#include <string>
#include <vector>

#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/cpu_stream.h>
#include <millrace/tensor/error.h>

namespace millrace {

struct CpuDevice::Ring {
  std::vector<std::unique_ptr<CpuStream>> streams;
};

CpuDevice::CpuDevice(int threads, std::size_t streams, std::shared_ptr<MemoryResource> memory)
    : memory_(std::move(memory)), ring_(std::make_unique<Ring>()) {
  if (streams < 1) throw ArgumentError("cpu device: expected at least 1 stream, found " + std::to_string(streams));
  // Streams may run at the same time in different callers: a team serves one of them at a time, the others run alone.
  const auto team = std::make_shared<ThreadTeam>(threads);
  for (std::size_t i = 0; i < streams; ++i) ring_->streams.push_back(std::make_unique<CpuStream>(team, memory_));
}

CpuDevice::~CpuDevice() = default;

std::size_t CpuDevice::stream_count() const noexcept { return ring_->streams.size(); }

StreamRef CpuDevice::stream(std::size_t index) { return *ring_->streams[index % ring_->streams.size()]; }

std::shared_ptr<Device> make_cpu_device(int threads, std::size_t streams) {
  return std::make_shared<CpuDevice>(threads, streams, std::make_shared<CachingResource>(host_memory()));
}

}  // namespace millrace
