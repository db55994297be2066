// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/internal/when_all.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

namespace millrace::detail {
namespace {

/// Goes away with the last that arrives.
struct Awaited {
  struct One final : Waiter {
    explicit One(Awaited& whole) : all(whole) {}
    void complete(std::exception_ptr said) noexcept override { all.arrived(std::move(said)); }
    Awaited& all;
  };

  void arrived(std::exception_ptr said) noexcept {
    if (said != nullptr) {
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = std::move(said);
    }
    if (left.fetch_sub(1) != 1) return;
    const std::function<void(std::exception_ptr)> last = std::move(then);
    std::exception_ptr first = std::move(error);
    delete this;
    last(std::move(first));
  }

  std::deque<One> ones;
  std::atomic<std::size_t> left{1};
  std::mutex mutex;
  std::exception_ptr error;
  std::function<void(std::exception_ptr)> then;
};

}  // namespace

void when_all(const std::vector<Point>& points, std::function<void(std::exception_ptr)> then) {
  auto* const all = new Awaited;
  all->then = std::move(then);
  all->left.fetch_add(points.size());
  for (const Point& point : points) {
    if (point.reached())
      all->arrived(nullptr);
    else if (!point.timeline()->add(all->ones.emplace_back(*all), point.value()))
      all->arrived(point.error());
  }
  all->arrived(nullptr);
}

}  // namespace millrace::detail
