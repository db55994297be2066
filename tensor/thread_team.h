// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace millrace {

/// The threads that one kernel may split its rows and units over; the caller is one of them. Every other thread has the
/// floating-point environment of kernels (kernel_floats.h). Results never depend on the size. One `run` at a time: the
/// owner (a CPU stream's strand) sees to that; a call from inside the team runs alone.
class ThreadTeam {
 public:
  /// `threads` ≥ 1, the caller included; ArgumentError otherwise. ThreadError.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const noexcept { return size_; }

  /// Calls `f(begin, end)` on disjoint ranges that cover [0, count), each at least `grain` long but the last; returns when all are done.
  /// `f` must not throw.
  template <class F>
  void parallel(std::int64_t count, std::int64_t grain, F&& f) {
    if (size_ == 1 || count <= grain) {
      if (count > 0) f(std::int64_t{0}, count);
      return;
    }
    using Callable = std::remove_reference_t<F>;
    run(
        count, grain, [](void* callable, std::int64_t begin, std::int64_t end) { (*static_cast<Callable*>(callable))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Body = void (*)(void* callable, std::int64_t begin, std::int64_t end);
  struct Workers;
  void run(std::int64_t count, std::int64_t grain, Body body, void* callable);

  int size_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace millrace
