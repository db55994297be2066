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
#include <utility>
#include <vector>

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
  /// `cluster`: the shared memory of each of its blocks.
  Warp(int block, int warp, int warps, std::byte* shared, Barrier& of_block, Barrier& with_helpers, Barrier& of_cluster,
       std::vector<std::byte*> cluster)
      : block_(block),
        warp_(warp),
        warps_(warps),
        shared_(shared),
        of_block_(of_block),
        with_helpers_(with_helpers),
        of_cluster_(of_cluster),
        cluster_(std::move(cluster)) {}

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
  void sync_with_helpers(int) const {
    with_helpers_.arrive_and_wait();
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
    lag(10);  // blocks meet seldom, and may be many meetings of their warps apart
  }
  void cluster_leave() { of_cluster_.arrive_and_drop(); }

  // The word has the number of bytes still to come (negative: more came than were expected), a bit for whether they are expected, and the round.
  void arrivals_begin(std::byte* word) const { *reinterpret_cast<std::uint64_t*>(word) = 0; }
  void arrivals_expect(std::byte* word, int bytes) const { count_arrivals(word, bytes, true); }
  void arrivals_wait(std::byte* word, bool odd) const {
    while ((std::atomic_ref(*reinterpret_cast<std::uint64_t*>(word)).load(std::memory_order_acquire) >> 33 & 1) == (odd ? 1u : 0u)) relax();
    lag();
  }
  void store_to_block(int rank, std::byte* own, const Words4& value, std::byte* word) const {
    std::byte* const there = cluster_[static_cast<std::size_t>(rank)];
    *reinterpret_cast<Words4*>(there + (own - shared_)) = value;
    count_arrivals(there + (word - shared_), -static_cast<int>(sizeof(Words4)), false);
  }

  // A copy writes its bytes when a lane waits for its group, so that a kernel that does not wait reads old bytes.
  void copy_16(std::byte* to, const std::byte* from) const { copies_.push_back({to, from, 16, copy_group_}); }
  void copy_8(std::byte* to, const std::byte* from) const { copies_.push_back({to, from, 8, copy_group_}); }
  void copy_4(std::byte* to, const std::byte* from) const { copies_.push_back({to, from, 4, copy_group_}); }
  void copies_end() const { ++copy_group_; }
  void copies_wait_all() const { finish_copies(copy_group_); }
  void copies_wait() const { finish_copies(copy_group_ - 1); }

  void more_registers() const {}
  void fewer_registers() const {}
  void relax() const { std::this_thread::yield(); }
  void doze() const { std::this_thread::yield(); }
  std::int64_t clock() const { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  template <class T>
  T kept(T value) const {
    return value;
  }
  template <class T>
  T of_lane(const PerLane<T>& values, int lane) const {
    return values[lane];
  }
  std::uint32_t least(const PerLane<std::uint32_t>& values) const { return *std::min_element(values.all, values.all + warp_lanes); }

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    int bytes, group;
  };
  static void count_arrivals(std::byte* word, int bytes, bool expects) {
    std::atomic_ref all(*reinterpret_cast<std::uint64_t*>(word));
    std::uint64_t before = all.load(std::memory_order_relaxed), after = 0;
    do {
      const auto left = static_cast<std::uint32_t>(before) + static_cast<std::uint32_t>(bytes);
      const std::uint64_t expected = (before >> 32 & 1) | (expects ? 1u : 0u);
      const std::uint64_t round = before >> 33;
      after = expected == 1 && left == 0 ? (round + 1) << 33 : round << 33 | expected << 32 | left;
    } while (!all.compare_exchange_weak(before, after, std::memory_order_acq_rel));
  }
  /// Finishes the copies of all groups before `group`.
  void finish_copies(int group) const {
    const auto last = std::find_if(copies_.begin(), copies_.end(), [&](const Copy& one) { return one.group >= group; });
    std::for_each(copies_.begin(), last, [](const Copy& one) { std::copy_n(one.from, one.bytes, one.to); });
    copies_.erase(copies_.begin(), last);
  }
  void draw() const { order_ = order_ * 0x5851F42D4C957F2Du + 0x14057B7EF767814Fu; }
  /// Where a test asks for it, some warps are late behind a meeting: who does not wait for what they still have to write misses it.
  void lag(int times = 1) const {
    if (const int microseconds = emulated::lateness.load(std::memory_order_relaxed); microseconds > 0) {
      draw();
      if (order_ >> 61 == 0) std::this_thread::sleep_for(std::chrono::microseconds(times * microseconds));
    }
  }
  int block_, warp_, warps_;
  std::byte* shared_;
  Barrier& of_block_;
  Barrier& with_helpers_;
  Barrier& of_cluster_;
  std::vector<std::byte*> cluster_;
  std::optional<Barrier::arrival_token> arrived_;
  mutable std::vector<Copy> copies_;
  mutable int copy_group_ = 0;
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
inline void store_release_block(std::uint32_t* word, std::uint32_t value) { store_release(word, value); }
inline std::uint32_t load_acquire_block(const std::uint32_t* word) { return load_acquire(word); }
inline void store_release_system(std::uint64_t* word, std::uint64_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}
inline Words4 load_shared_by_blocks(const std::byte* from) { return *reinterpret_cast<const Words4*>(from); }

}  // namespace millrace::cuda
