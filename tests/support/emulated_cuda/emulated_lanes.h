// SPDX-License-Identifier: Apache-2.0
// The host's form of kernels/cuda/recurrent/device.cuh: a warp is a thread, and its lanes go one after the other.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>

#include <any_order.h>

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
    draw();
    const auto odd = static_cast<unsigned>(order_ >> 40) | 1u;
    const auto first = static_cast<unsigned>(order_ >> 50);
    for (unsigned i = 0; i < warp_lanes; ++i) f(static_cast<int>((first + i * odd) % warp_lanes));
  }
  void sync() const { of_block_.arrive_and_wait(); }
  void sync(int) const {  // `warps` of them: one that publishes is beyond
    sync();
    lag();
  }
  void sync_lanes() const {}
  void cluster_arrive() {
    arrived_.emplace(of_cluster_.arrive());
    lag();
  }
  void cluster_wait() {
    of_cluster_.wait(std::move(*arrived_));
    arrived_.reset();
  }
  void cluster_leave() { of_cluster_.arrive_and_drop(); }
  void relax() const { std::this_thread::yield(); }
  void doze() const { std::this_thread::yield(); }
  std::int64_t clock() const { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  std::uint32_t least(const PerLane<std::uint32_t>& values) const { return *std::min_element(values.all, values.all + warp_lanes); }

 private:
  void draw() const { order_ = order_ * 0x5851F42D4C957F2Du + 0x14057B7EF767814Fu; }
  /// Where a test asks for it, some warps are late behind a meeting: who does not wait for what they still have to write misses it.
  void lag() const {
    if (const int microseconds = emulated::lateness.load(std::memory_order_relaxed); microseconds > 0) {
      draw();
      if (order_ >> 61 == 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    }
  }
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
inline void store_release(std::uint32_t* word, std::uint32_t value) { std::atomic_ref(*word).store(value, std::memory_order_release); }
inline void store_release_system(std::uint64_t* word, std::uint64_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}
inline Words4 load_shared_by_blocks(const std::byte* from) { return *reinterpret_cast<const Words4*>(from); }

}  // namespace millrace::cuda
