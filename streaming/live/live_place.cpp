// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_place.h>

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include <millrace/tensor/recovery.h>
#include <millrace/tensor/work_failure.h>

namespace millrace {

using Clock = std::chrono::steady_clock;

LivePlace::LivePlace(const std::shared_ptr<const Recurrence>& recurrence, Options options)
    : options_(std::move(options)),
      batcher_(recurrence, options_.max_rows),
      slab_(recurrence, options_.device, options_.backend),
      worker_(options_.worker ? std::exchange(options_.worker, nullptr) : std::make_shared<ThreadExecutor>(1)) {}

/// A tick for which there is no memory is tried again: nothing of it was done, and its rows and starts are nowhere else.
void LivePlace::step_tick() {
  for (;;) {
    try {
      return slab_.run(tick_, result_, options_.tracer);
    } catch (const std::bad_alloc&) {
      if (stopped_) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void LivePlace::run_tick() noexcept {
  const auto begun = Clock::now();
  try {
    step_tick();
    if (options_.behind_tick && result_.failures.empty() && !result_.lost)
      if (std::shared_ptr<const Recurrence> changed = options_.behind_tick(tick_)) slab_.renew_weights(std::move(changed));
  } catch (...) {
    result_.error = std::current_exception();  // not a step's error (those are in the result) but the tick's own: it is every row's
  }
  seconds_ = std::chrono::duration<double>(Clock::now() - begun).count();
  state_bytes_out_ = slab_.bytes();  // here, where nobody else is at the slab
  tick_done();
}

void LivePlace::count_waiting() {
  if (options_.counts && batcher_.waiting() && waiting_since_ == Clock::time_point()) waiting_since_ = Clock::now();
}

void LivePlace::pump() {
  if (finishing_ || stopped_ || !batcher_.ready()) return;
  try {
    batcher_.take(tick_);
  } catch (const std::bad_alloc&) {
    return starved();
  } catch (const OutOfMemoryError&) {  // of the inputs
    return starved();
  }
  const auto since = std::exchange(waiting_since_, {});
  if (options_.counts) {
    // A sequence that had rows left when its last tick came back is ready only now.
    const bool waited = since != Clock::time_point();
    options_.counts->queue_seconds.observe(waited ? std::chrono::duration<double>(Clock::now() - since).count() : 0);
  }
  tick_taken();
  worker_->post(job_);
  if (batcher_.waiting()) waiting_since_ = since;  // more were ready than a tick takes
}

void LivePlace::count_tick() {
  const std::size_t rows = tick_.slots.size();
  state_bytes_ = state_bytes_out_;
  if (options_.counts) {
    options_.counts->tick_rows.observe(static_cast<double>(rows));
    options_.counts->tick_seconds.observe(seconds_);
  }
  if (rows == 0) return;
  // Each tick counts for a sixteenth of what is known, so that one that was held up says little.
  const double a_row = seconds_ / static_cast<double>(rows);
  seconds_a_row_ = seconds_a_row_ > 0 ? seconds_a_row_ + (a_row - seconds_a_row_) / 16 : a_row;
}

/// Sequences that are ahead of their pace get what a tick may spend on them, and no less than what makes a tick worth its overhead.
void LivePlace::count_cost(double seconds) {
  if (options_.ahead.count() == 0 || tick_.slots.empty()) return;
  const double a_row = seconds / static_cast<double>(tick_.slots.size());
  cost_a_row_ = cost_a_row_ > 0 ? cost_a_row_ + (a_row - cost_a_row_) / 16 : a_row;
  constexpr double least = 32;
  const double rows = std::chrono::duration<double>(options_.ahead).count() / std::max(cost_a_row_, 1e-9);
  batcher_.limit_ahead(static_cast<std::size_t>(std::max(least, rows)));
}

void LivePlace::finish() {
  count_tick();
  if (result_.lost) told_ = batcher_.live();
  const auto begun = Clock::now();
  finishing_ = true;
  batcher_.finish(result_);
  finishing_ = false;
  count_cost(seconds_ + std::chrono::duration<double>(Clock::now() - begun).count());
  if (result_.lost) lose(result_.lost);
  pump();
  if (idle()) became_idle();
}

void LivePlace::check() {
  if (lost_ || batcher_.tick_out()) return;  // a tick that is out finds out itself
  const std::exception_ptr gone = millrace::lost(*options_.device);
  if (!gone) return;
  told_ = batcher_.live();
  lose(place_lost(place(), gone));
}

void LivePlace::lose(std::exception_ptr error) {
  lost_ = std::move(error);
  batcher_.lose(lost_);
  became_lost();
}

}  // namespace millrace
