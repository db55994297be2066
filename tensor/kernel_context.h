// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <millrace/tensor/memory.h>
#include <millrace/tensor/place.h>
#include <millrace/tensor/thread_team.h>

namespace millrace {

/// The surroundings in which a stream runs a piece of work: the place, the threads that compute on the host, the stream of the device on which
/// kernels are started, and memory for scratch. A stream owns one context and hands it to each piece of work; the work must not keep it.
/// Work that computes on the host takes the team alone: a context converts to it.
class KernelContext {
 public:
  /// `team`, `workspace` and `device_queue` outlive the context. `device_queue` is the stream of a device as its backend knows it; null where
  /// the team computes.
  KernelContext(Place place, ThreadTeam& team, const std::shared_ptr<MemoryResource>& workspace, void* device_queue = nullptr)
      : place_(std::move(place)), team_(&team), workspace_(&workspace), device_queue_(device_queue) {}

  const Place& place() const noexcept { return place_; }
  ThreadTeam& team() const noexcept { return *team_; }
  operator ThreadTeam&() const noexcept { return *team_; }
  /// The stream on which kernels of a device are started, or null where the team computes.
  void* device_queue() const noexcept { return device_queue_; }
  /// Memory of the place for scratch. It may be released as soon as its last use is enqueued.
  const std::shared_ptr<MemoryResource>& workspace() const noexcept { return *workspace_; }

 private:
  Place place_;
  ThreadTeam* team_;
  const std::shared_ptr<MemoryResource>* workspace_;
  void* device_queue_;
};

}  // namespace millrace
