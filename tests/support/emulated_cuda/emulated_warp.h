// SPDX-License-Identifier: Apache-2.0
// The host's form of kernels/cuda/with_cuda/warp.cuh: each warp is a thread of the host, and all of a grid are there at once, so that barriers,
// words that blocks spin on and shared memory are those of a grid. The lanes of a warp go one after the other, in another order each time, so that
// one that reads what another wrote without a barrier between them does not find the same each time. Blocks start in any order too, shared memory is
// NaNs before, and a grid that CUDA would not launch is refused.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace millrace::cuda {

template <class T>
struct PerLane {
  T all[warp_lanes];
  T& operator[](int lane) { return all[lane]; }
  const T& operator[](int lane) const { return all[lane]; }
};

class Warp {
 public:
  using Barrier = std::barrier<>;
  Warp(int block, int warp, int warps, std::byte* shared, Barrier& of_block, Barrier& of_cluster)
      : block_(block), warp_(warp), warps_(warps), shared_(shared), of_block_(of_block), of_cluster_(of_cluster) {}

  int block() const { return block_; }
  int warp() const { return warp_; }
  int warps() const { return warps_; }
  std::byte* shared() const { return shared_; }
  template <class F>
  void each_lane(F&& f) const {
    order_ = order_ * 0x5851F42D4C957F2Du + 0x14057B7EF767814Fu;
    const auto odd = static_cast<unsigned>(order_ >> 40) | 1u;
    const auto first = static_cast<unsigned>(order_ >> 50);
    for (unsigned i = 0; i < warp_lanes; ++i) f(static_cast<int>((first + i * odd) % warp_lanes));
  }
  void sync() const { of_block_.arrive_and_wait(); }
  void cluster_arrive() { arrived_.emplace(of_cluster_.arrive()); }
  void cluster_wait() {
    of_cluster_.wait(std::move(*arrived_));
    arrived_.reset();
  }
  void relax() const { std::this_thread::yield(); }

 private:
  int block_, warp_, warps_;
  std::byte* shared_;
  Barrier& of_block_;
  Barrier& of_cluster_;
  std::optional<Barrier::arrival_token> arrived_;
  mutable std::uint64_t order_ = emulated::any_number();
};

inline void add_release(std::uint32_t* word, std::uint32_t added) { std::atomic_ref(*word).fetch_add(added, std::memory_order_release); }
inline std::uint32_t add_acquire_release(std::uint32_t* word, std::uint32_t added) {
  return std::atomic_ref(*word).fetch_add(added, std::memory_order_acq_rel);
}
inline std::uint32_t load_acquire(const std::uint32_t* word) {
  return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
}
inline void raise_release(std::uint64_t* word, std::uint64_t value) {
  std::uint64_t before = std::atomic_ref(*word).load(std::memory_order_relaxed);
  while (before < value && !std::atomic_ref(*word).compare_exchange_weak(before, value, std::memory_order_release)) {
  }
}
inline Words4 load_shared_by_blocks(const std::byte* from) { return *reinterpret_cast<const Words4*>(from); }

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
  std::deque<Warp::Barrier> of_blocks;
  std::deque<Warp::Barrier> of_clusters;
  for (int block = first; block < last; ++block) {
    of_blocks.emplace_back(shape.warps);
    if (block % shape.cluster == 0) of_clusters.emplace_back(shape.warps * shape.cluster);
  }
  std::vector<std::thread> threads;
  emulated::in_any_order(std::int64_t{last - first} * shape.warps, [&](std::int64_t which) {
    const auto at = static_cast<std::size_t>(which / shape.warps);
    threads.emplace_back([&kernel, &shape, block = first + static_cast<int>(at), warp = static_cast<int>(which % shape.warps),
                          own = reinterpret_cast<std::byte*>(shared[at].data()), &of_block = of_blocks[at],
                          &of_cluster = of_clusters[at / static_cast<std::size_t>(shape.cluster)]] {
      Warp one(block, warp, shape.warps, own, of_block, of_cluster);
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
