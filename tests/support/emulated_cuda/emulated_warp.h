// SPDX-License-Identifier: Apache-2.0
// The host's form of kernels/cuda/with_cuda/warp.cuh: each warp is a thread of the host, and all of a grid are there at once, so that barriers,
// words that blocks spin on and shared memory are those of a grid. The lanes of a warp go one after the other, in another order each time, so that
// one that reads what another wrote without a barrier between them does not find the same each time. Blocks start in any order too, shared memory is
// NaNs before, and a grid that CUDA would not launch is refused.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <emulated_lanes.h>

namespace millrace::cuda {

namespace emulated_grid {

/// As a device of lstm_limits' would see it.
inline cudaError_t refusal(const GridShape& shape) {
  constexpr int most_warps = 8, most_cluster = 16, most_meeting = 4;
  constexpr std::int64_t most_shared_bytes = 232448;
  if (shape.blocks < 1 || shape.warps < 1 || shape.warps > most_warps) return cudaErrorInvalidConfiguration;
  if (shape.cluster < 1 || shape.cluster > most_cluster || shape.blocks % shape.cluster != 0) return cudaErrorInvalidConfiguration;
  if (shape.shared_bytes < 0 || shape.shared_bytes > most_shared_bytes) return cudaErrorInvalidValue;
  return shape.meets && shape.blocks > most_meeting ? cudaErrorCooperativeLaunchTooLarge : cudaSuccess;
}

/// Blocks [first, last) of the grid, all at once.
template <class F>
void run(const GridShape& shape, const F& kernel, int first, int last, const std::function<void()>& begun = {}) {
  const auto words = static_cast<std::size_t>(shape.shared_bytes + 15) / 16;
  constexpr Words4 nothing{{~0u, ~0u, ~0u, ~0u}};
  std::vector<std::vector<Words4>> shared(static_cast<std::size_t>(last - first), std::vector<Words4>(words, nothing));
  const int all_warps = shape.warps + (shape.publishes ? shape.publishing : 0);
  std::deque<Warp::Barrier> of_blocks, with_helpers;
  std::deque<Warp::Barrier> of_clusters;
  for (int block = first; block < last; ++block) {
    of_blocks.emplace_back(shape.warps);
    with_helpers.emplace_back(std::max(all_warps - 1, 1));  // one of the others publishes
    if (block % shape.cluster == 0) of_clusters.emplace_back(all_warps * shape.cluster);
  }
  std::vector<std::thread> threads;
  emulated::in_any_order(std::int64_t{last - first} * all_warps, [&](std::int64_t which) {
    const auto at = static_cast<std::size_t>(which / all_warps);
    const auto blocks = static_cast<std::size_t>(shape.cluster);
    std::vector<std::byte*> cluster;
    for (std::size_t i = 0; i < blocks; ++i) cluster.push_back(reinterpret_cast<std::byte*>(shared[at / blocks * blocks + i].data()));
    threads.emplace_back([&kernel, &shape, block = first + static_cast<int>(at), warp = static_cast<int>(which % all_warps),
                          own = reinterpret_cast<std::byte*>(shared[at].data()), &of_block = of_blocks[at], &helpers = with_helpers[at],
                          &of_cluster = of_clusters[at / blocks], cluster] {
      Warp one(block, warp, shape.warps, own, of_block, helpers, of_cluster, cluster);
      kernel(one);
    });
  });
  if (begun) begun();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace emulated_grid

template <class F>
void run_grid(const Queue& queue, const GridShape& shape, const F& kernel) {
  check(emulated_grid::refusal(shape), "cudaLaunchKernelEx", queue.device);
  check(emulated::grids_give(), "cudaLaunchKernelEx", queue.device);
  // Blocks that do not meet need not be there together.
  const int wave = shape.meets ? shape.blocks : std::max(shape.cluster, 8);
  const int waves = (shape.blocks + wave - 1) / wave;
  const auto run = [shape, kernel, wave, waves](const std::function<void()>& begun) {
    int left = waves;
    emulated::in_any_order(waves, [&](std::int64_t which) {
      const int first = static_cast<int>(which) * wave;
      emulated_grid::run(shape, kernel, first, std::min(shape.blocks, first + wave), --left == 0 ? begun : std::function<void()>());
    });
  };
  if (shape.begun != nullptr) return emulated::enqueue(queue.stream, shape.begun, run);
  emulated::enqueue(queue.stream, [run] { run({}); });
}

}  // namespace millrace::cuda
