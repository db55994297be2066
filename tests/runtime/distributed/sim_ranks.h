// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/distributed/local.h>
#include <millrace/runtime/distributed/partition_run.h>
#include <millrace/runtime/trace/tracer.h>

#include "support/program_runs.h"

/// Ranks under a seeded schedule.
namespace millrace::testing {

inline task<RunResult> on_device(Partition partition, int rank, Device* device, std::unique_ptr<Communicator> communicator, Feeds feeds) {
  const PartitionPart part(partition, rank, borrow(*device));
  RunResult result = co_await run_part(part, std::move(communicator), std::move(feeds));
  co_return std::move(result);
}

/// All ranks in one thread, on devices that complete in any order, by one seed: the bits of rank 0's result, then the failures.
inline std::string on_sim_ranks(const Partition& partition, const Feeds& feeds, std::uint64_t seed, SimDevice::Options broken = {},
                                int broken_rank = -1, Tracer* tracer = nullptr) {
  SeededExecutor executor(seed, policy_of(seed));
  std::vector<std::unique_ptr<SimDevice>> devices;
  std::string said;
  {
    std::vector<Running<RunResult>> running;
    auto communicators = make_local_communicators(partition.ranks);
    for (int rank = 0; rank < partition.ranks; ++rank) {
      SimDevice::Options options = rank == broken_rank ? broken : SimDevice::Options();
      options.index = rank;
      options.late = options.late || seed % 4 == 3;
      devices.push_back(std::make_unique<SimDevice>(options));
      executor.add_source(*devices.back());
      running.push_back(start_run(
          executor, on_device(partition, rank, devices.back().get(), std::move(communicators[static_cast<std::size_t>(rank)]), feeds),
          "rank " + std::to_string(rank), tracer));
    }
    executor.run();
    for (std::size_t rank = 0; rank < running.size(); ++rank) {
      REQUIRE(running[rank].ended());
      try {
        const RunResult result = running[rank].get();
        if (rank == 0) said += bits(result);
      } catch (const Error& error) {
        said += "rank " + std::to_string(rank) + " failed: " + error.what() + "\n";
      }
    }
  }
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    devices[rank]->drain(seed);
    CHECK(devices[rank]->idle());
    devices[rank]->release_cached();
    CHECK(devices[rank]->sim_memory().live_bytes() == 0);
    executor.remove_source(*devices[rank]);
  }
  CHECK(live_frames() == 0);
  return said;
}

/// Whether a slot of an array reached rank `first` before the last one reached rank `last`.
inline bool arrives_before_the_end(const Tracer& tracer, int first, int last) {
  std::size_t at = 0, first_at = 0, last_at = 0;
  for (const Tracer::Event& event : tracer.events("slot")) {
    ++at;
    if (event.name.ends_with("on rank " + std::to_string(last))) last_at = at;
    if (event.name.ends_with("on rank " + std::to_string(first)) && first_at == 0) first_at = at;
  }
  return first_at > 0 && first_at < last_at;
}

}  // namespace millrace::testing
