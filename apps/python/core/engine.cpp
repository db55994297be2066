// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <atomic>

#include <pthread.h>

#include <millrace/runtime/task/cpu_count.h>
#include <millrace/runtime/task/errors.h>

#include "bind.h"
#include "gil.h"

namespace millrace::python {
namespace {

std::atomic<int> forked{0};

}  // namespace

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}
SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int forks() noexcept { return forked.load(); }
void count_forks() {
  pthread_atfork(nullptr, nullptr, [] {
    ++forked;
    forget_other_threads();
  });
}

Engine* Engine::engine_ = nullptr;
int Engine::forks_of_engine_ = 0;
bool Engine::shut_down_ = false;

Engine::Engine() {
  const SignalsBlocked blocked;
  executor_ = std::make_unique<ThreadExecutor>(usable_cpus());
}

Engine& Engine::current() {
  if (shut_down_) {
    // The destructor does not return on a daemon thread.
    {
      const GilReleased released;
    }
    throw CancelledError("run: the interpreter is going away");
  }
  if (engine_ == nullptr || forks_of_engine_ != forks()) {
    engine_ = new Engine();  // one of a parent process is left alone: its threads are not here to end
    forks_of_engine_ = forks();
  }
  return *engine_;
}

std::size_t Engine::live_runs() { return engine_ != nullptr && forks_of_engine_ == forks() ? engine_->live() : 0; }

void Engine::shut_down() {
  shut_down_ = true;
  end_of_threads();
  if (engine_ == nullptr || forks_of_engine_ != forks()) return;
  const GilReleased released;
  engine_->end();
  delete engine_;
  engine_ = nullptr;
}

std::size_t Engine::live() const {
  const std::lock_guard lock(mutex_);
  return live_.size();
}

void Engine::add(Run* run) {
  const std::lock_guard lock(mutex_);
  live_.insert(run);
}

void Engine::remove(Run* run) noexcept {
  const std::lock_guard lock(mutex_);
  live_.erase(run);
  if (live_.empty()) none_.notify_all();
}

void Engine::end() {
  std::unique_lock lock(mutex_);
  for (Run* run : live_) run->cancel();
  none_.wait(lock, [this] { return live_.empty(); });
}

}  // namespace millrace::python
