// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_place.h>

#include <chrono>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/tensor/recovery.h>
#include <millrace/tensor/work_failure.h>

namespace millrace {

class LivePlace::Job final : public Runnable {
 public:
  Job(std::shared_ptr<LivePlace> place, Tick tick)
      : place_(std::move(place)), tick_(std::move(tick)), work_(place_->context_.get_executor()) {}
  void execute() noexcept override {
    TickResult result;
    const auto begun = std::chrono::steady_clock::now();
    try {
      result = place_->slab_.run(tick_, place_->options_.tracer);
    } catch (...) {
      // Not a step's error (those are in the result) but the tick's own, such as memory that ran out: it is every row's.
      result = TickResult::failed(tick_, std::current_exception());
    }
    // The context's thread lets go of the place: the last to do so joins the worker, which cannot join itself.
    asio::io_context& io = place_->context_;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    const std::size_t bytes = place_->slab_.bytes();  // here, where nobody else is at the slab
    asio::post(io, [place = std::move(place_), work = std::move(work_), made = std::move(result), seconds, bytes]() mutable {
      place->tick_done(std::move(made), seconds, bytes);
    });
    delete this;
  }

 private:
  std::shared_ptr<LivePlace> place_;
  Tick tick_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
};

LivePlace::LivePlace(asio::io_context& context, const std::shared_ptr<const Recurrence>& recurrence, Options options)
    : context_(context),
      options_(std::move(options)),
      batcher_(recurrence, options_.max_rows),
      slab_(recurrence, options_.device, options_.backend) {}

void LivePlace::pump_soon() {
  if (options_.counts && batcher_.waiting() && waiting_since_ == std::chrono::steady_clock::time_point())
    waiting_since_ = std::chrono::steady_clock::now();
  if (!batcher_.ready()) return;
  if (std::exchange(pump_posted_, true)) return;
  asio::post(context_, [self = shared_from_this()] {
    self->pump_posted_ = false;
    self->pump();
  });
}

void LivePlace::pump() {
  if (pumping_ || !batcher_.ready()) return;
  const auto since = std::exchange(waiting_since_, {});
  if (options_.counts) count_wait(since);
  worker_.post(*new Job(shared_from_this(), batcher_.take()));
  if (batcher_.waiting()) waiting_since_ = since;  // more were ready than a tick takes
}

/// A tick is taken. A sequence that had rows left when its last tick came back is ready only now.
void LivePlace::count_wait(std::chrono::steady_clock::time_point since) {
  const bool waited = since != std::chrono::steady_clock::time_point();
  const double seconds = waited ? std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count() : 0;
  options_.counts->queue_seconds.observe(seconds);
}

void LivePlace::count_tick(std::size_t rows, double seconds) {
  options_.counts->tick_rows.observe(static_cast<double>(rows));
  options_.counts->tick_seconds.observe(seconds);
}

void LivePlace::tick_done(TickResult result, double seconds, std::size_t state_bytes) {
  state_bytes_ = state_bytes;
  if (options_.counts) count_tick(result.slots.size(), seconds);
  if (const std::size_t rows = result.slots.size(); rows > 0) {
    // Each tick counts for a sixteenth of what is known, so that one that was held up says little.
    const double a_row = seconds / static_cast<double>(rows);
    seconds_a_row_ = seconds_a_row_ > 0 ? seconds_a_row_ + (a_row - seconds_a_row_) / 16 : a_row;
  }
  if (result.lost) told_ = batcher_.live();
  pumping_ = true;
  batcher_.finish(result);
  pumping_ = false;
  if (result.lost) lose(result.lost);
  pump();
  if (idle() && on_idle) on_idle();
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
  if (on_lost) on_lost();
}

}  // namespace millrace
