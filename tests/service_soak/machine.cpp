// SPDX-License-Identifier: Apache-2.0
#include <service_soak/machine.h>

#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>

#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/error.h>

namespace millrace::simulated {
namespace {

using Clock = Machine::Clock;

struct Work {
  const ThreadExecutor* executor = nullptr;
  Runnable* runnable = nullptr;
};

Clock::time_point time_now{};
std::map<int, Clock::time_point> timers;  // by descriptor
std::deque<Work> works;

long set_timer(int descriptor, int flags, const itimerspec& value) {
  return ::syscall(SYS_timerfd_settime, descriptor, flags, &value, nullptr);
}

/// Due timers become readable.
void fire() {
  for (auto at = timers.begin(); at != timers.end();) {
    if (at->second > time_now) {
      ++at;
      continue;
    }
    itimerspec now{};
    now.it_value.tv_nsec = 1;
    set_timer(at->first, TFD_TIMER_ABSTIME, now);
    at = timers.erase(at);
  }
}

void execute(const Work& work) {
  const RuntimeThread mark(*work.executor);
  work.runnable->execute();
}

}  // namespace

void Machine::reset() {
  time_now = Clock::time_point(std::chrono::hours(1));  // the epoch has a meaning of its own in places
  timers.clear();
  works.clear();
}
void Machine::advance(Clock::duration by) {
  time_now += by;
  fire();
}
std::optional<Clock::time_point> Machine::next_timer() {
  std::optional<Clock::time_point> next;
  for (const auto& [descriptor, when] : timers)
    if (!next || when < *next) next = when;
  return next;
}
std::size_t Machine::waiting() { return works.size(); }
void Machine::run(std::size_t index) {
  const Work work = works.at(index);
  works.erase(works.begin() + static_cast<std::ptrdiff_t>(index));
  execute(work);
}

}  // namespace millrace::simulated

// ---- In place of the library's and the kernel's ----

std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept { return millrace::simulated::time_now; }

/// Asio asks for a time from now, or for the time 1 ns where something is due already.
extern "C" int timerfd_settime(int descriptor, int flags, const itimerspec* value, itimerspec* old) noexcept {
  using namespace millrace::simulated;
  if (old != nullptr) *old = itimerspec{};
  const auto delay = std::chrono::seconds(value->it_value.tv_sec) + std::chrono::nanoseconds(value->it_value.tv_nsec);
  set_timer(descriptor, 0, itimerspec{});
  timers.erase(descriptor);
  if (delay.count() == 0) return 0;
  timers[descriptor] = (flags & TFD_TIMER_ABSTIME) != 0 ? time_now : time_now + delay;
  fire();
  return 0;
}

namespace millrace {

using simulated::Work;
using simulated::works;

ThreadExecutor::ThreadExecutor(std::size_t) : alone_(true) {}
ThreadExecutor::~ThreadExecutor() {
  for (;;) {
    const auto mine = std::find_if(works.begin(), works.end(), [this](const Work& work) { return work.executor == this; });
    if (mine == works.end()) return;
    const Work work = *mine;
    works.erase(mine);
    simulated::execute(work);
  }
}
void ThreadExecutor::post(Runnable& runnable) noexcept { works.push_back({this, &runnable}); }
bool ThreadExecutor::running_in_this_thread() const noexcept { return RuntimeThread::current() == this; }
TimePoint ThreadExecutor::now() const noexcept { return simulated::time_now - start_; }
void ThreadExecutor::add_timer(Timer&, TimePoint) noexcept { std::terminate(); }  // the service has none
bool ThreadExecutor::cancel_timer(Timer&) noexcept { std::terminate(); }

}  // namespace millrace
