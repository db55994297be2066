// SPDX-License-Identifier: Apache-2.0
// G10, and what the calls cost that it is made of.
#include <atomic>
#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <sys/resource.h>

#include <bench_gpu/device_costs.h>
#include <bench_gpu/gpu_families.h>
#include <millrace/runtime/runtime.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/tensor/start_thread.h>

namespace millrace::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Notes when the word changes, as a thread sees it that does nothing else.
class Watcher {
 public:
  explicit Watcher(const HostWord& word) : thread_(start_thread("bench: the thread that watches a word", [this, &word] { watch(word); })) {
    while (!watching_.load()) std::this_thread::yield();
  }
  Clock::time_point seen() {
    thread_.join();
    return seen_;
  }

 private:
  void watch(const HostWord& word) {
    watching_ = true;
    while (word.get() == 0) {
    }
    seen_ = Clock::now();
  }
  std::atomic<bool> watching_{false};
  Clock::time_point seen_;
  std::thread thread_;
};

/// Enqueues a kernel of so many nanoseconds and awaits it; gives when it went on.
task<Clock::time_point> awaited(HostWord& word, std::int64_t nanoseconds, StreamRef stream) {
  word.written_after(nanoseconds, 1, stream);
  const Point point = stream.position();
  co_await ready(point);
  co_return Clock::now();
}

double resumed_after(Runtime& runtime, StreamRef stream, std::int64_t nanoseconds, int times) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    HostWord word;
    Watcher watcher(word);
    const Clock::time_point at = sync_wait(runtime.executor(), awaited(word, nanoseconds, stream), "bench");
    all.push_back(std::chrono::duration<double>(at - watcher.seen()).count());
  }
  return median(std::move(all));
}

double process_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void emit_limit(Context& context, const std::string& shape, double ours, double limit, const std::string& note) {
  Row row;
  row.id = "G10";
  row.shape = shape;
  row.peer_name = "goal";
  row.goal = 1;
  row.ours = ours;
  row.peer = limit;
  row.note = note;
  context.emit(std::move(row));
}

void emit_cost(Context& context, const std::string& what, std::optional<double> seconds, const std::string& note) {
  Row row;
  row.id = "costs";
  row.shape = what;
  row.ours = seconds;
  row.note = note;
  context.emit(std::move(row));
}

/// Seconds of one of `count` empty kernels through our stream; `ask`: a point of each is asked for, as a coroutine that awaits it would.
double our_launches(StreamRef stream, bool ask) {
  constexpr int count = 500;
  std::vector<double> all;
  for (int iteration = 0; iteration < 6; ++iteration) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      HostWord::nothing(stream);
      if (ask) stream.position().expect();
    }
    stream.position().wait();
    if (iteration > 0) all.push_back(seconds_since(start) / count);
  }
  return median(std::move(all));
}

}  // namespace

void measure_resuming(Context& context) {
  RuntimeOptions options;
  options.threads = 1;
  options.devices = {context.gpu->device()};
  Runtime runtime(std::move(options));
  const StreamRef stream = context.gpu->device()->stream(0);
  resumed_after(runtime, stream, 10'000, 2);
  emit_limit(context, "resumed, the waiter spinning (a kernel of 30 us)", resumed_after(runtime, stream, 30'000, context.quick ? 3 : 300),
             5e-6, "behind the kernel's last store, as a spinning thread sees it");
  emit_limit(context, "resumed, the waiter asleep (a kernel of 3 ms)", resumed_after(runtime, stream, 3'000'000, context.quick ? 2 : 100),
             40e-6, "behind the kernel's last store, as a spinning thread sees it");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = process_seconds();
  const double idle = context.quick ? 0.05 : 2;
  std::this_thread::sleep_for(std::chrono::duration<double>(idle));
  emit_limit(context, "processor time of a second with nothing in flight", std::max(1e-9, (process_seconds() - before) / idle), 1e-3, "");
}

void measure_costs(Context& context) {
  for (const DriverCost& cost : measure_driver_costs(*context.gpu)) emit_cost(context, cost.what, cost.seconds, cost.note);
  const StreamRef stream = context.gpu->device()->stream(0);
  emit_cost(context, "a kernel through a stream of ours, back to back", our_launches(stream, false), "");
  emit_cost(context, "the same, a point of each asked for", our_launches(stream, true), "");
  emit_cost(context, "a barrier of the 16 blocks of a cluster", context.gpu->cluster_barrier(), "");
  emit_cost(context, "a barrier of all multiprocessors, by a counter", context.gpu->counter_barrier(), "");
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const std::optional<double> rate = context.gpu->matrix_rate(dtype);
    emit_cost(context, fmt::format("2^40 operations of a matrix product of {}", name_of(dtype)),
              rate ? std::optional<double>(static_cast<double>(1LL << 40) / *rate) : std::nullopt,
              rate ? fmt::format("{:.1f} TFLOP/s by cuBLAS", *rate * 1e-12) : "not measured: no cuBLAS");
  }
}

}  // namespace millrace::bench
