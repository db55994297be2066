// SPDX-License-Identifier: Apache-2.0
// G9: one step of many live sessions, whose states lie in a slab on the device.
#include <ctime>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include <bench/library/python_peer.h>
#include <bench_gpu/gpu_families.h>
#include <bench_gpu/gpu_lstm.h>
#include <millrace/kernels/cast.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/streaming/live/state_slab.h>

namespace millrace::bench {
namespace {

constexpr std::size_t stacked = 2;

struct Live {
  std::int64_t sessions, rows, hidden;
};

/// The slab with all sessions started, and ticks of different ones in turn.
class Ticks {
 public:
  Ticks(Context& context, const Live& live) {
    const GpuLstm problem = make_gpu_lstm(*context.gpu, 1, 1, live.hidden, DType::f16, stacked);
    const auto recurrence = std::make_shared<const Recurrence>(make_recurrence(lstm_program(problem, false)));
    slab_ = std::make_shared<StateSlab>(recurrence, context.gpu->device());
    std::vector<Slot> slots(static_cast<std::size_t>(live.sessions));
    std::iota(slots.begin(), slots.end(), Slot{0});
    std::shuffle(slots.begin(), slots.end(), std::mt19937_64(5));
    CpuDevice host;
    const Tensor rows = cast(random_tensor(DDim{live.rows, live.hidden}, 6), DType::f16, host.stream(0));
    const auto each = static_cast<std::size_t>(live.rows);
    for (std::size_t at = 0; at + each <= slots.size(); at += each) {
      Tick tick;
      tick.slots.assign(slots.begin() + static_cast<std::ptrdiff_t>(at), slots.begin() + static_cast<std::ptrdiff_t>(at + each));
      tick.inputs = {rows};
      for (const Slot slot : tick.slots) tick.starts.push_back({slot, {}});
      run(tick);
      tick.starts.clear();
      ticks_.push_back(std::move(tick));
    }
  }
  /// One tick, to its end: the outputs lie on the host.
  void next() {
    while (under_way_ > 0) finish();
    run(ticks_[at_++ % ticks_.size()]);
  }
  /// One tick, behind those under way: the outputs of the fourth before it lie on the host.
  void start() {
    slab_->start(ticks_[at_++ % ticks_.size()]);
    if (++under_way_ == 5) finish();
  }

 private:
  void run(const Tick& tick) { check(slab_->run(tick)); }
  void finish() {
    --under_way_;
    check(slab_->finish());
  }
  static void check(const TickResult& result) {
    if (!result.failures.empty()) std::rethrow_exception(result.failures.front().error);
  }

  std::shared_ptr<StateSlab> slab_;
  std::vector<Tick> ticks_;
  int under_way_ = 0;
  std::size_t at_ = 0;
};

/// Seconds that this thread computed.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void tick_row(Context& context, const Live& live) {
  const auto ticks = std::make_shared<Ticks>(context, live);
  PythonPeer peer = make_python_peer(context.python, "PyTorch, a CUDA graph",
                                     {"torch_cuda_tick", std::to_string(context.gpu->index()), std::to_string(live.sessions),
                                      std::to_string(live.rows), std::to_string(live.hidden), std::to_string(stacked)});
  Row row;
  row.id = "G9";
  row.shape = fmt::format("a tick waited for, 2 layers, B{} of {}, H{} f16", live.rows, live.sessions, live.hidden);
  row.peer_name = peer.name;
  row.goal = live.rows >= 1024 ? 1.8 : 3;
  emit_pair(context, row, timer_of([ticks] { ticks->next(); }), peer.timer, peer.note);

  row.shape = fmt::format("ticks one behind the other, B{} of {}, H{} f16", live.rows, live.sessions, live.hidden);
  row.goal = live.rows >= 1024 ? 1.8 : 5;
  emit_pair(context, row, timer_of([ticks] { ticks->start(); }), peer.timer, peer.note);

  row.shape = fmt::format("the host's work for one session's step, B{} of {}", live.rows, live.sessions);
  row.peer_name = "goal";
  row.peer = 150e-9;
  row.goal = 1;
  row.note = "processor time of the thread that runs the tick";
  const int times = context.quick ? 1 : 50;
  const double before = thread_seconds();
  for (int i = 0; i < times; ++i) ticks->next();
  row.ours = (thread_seconds() - before) / times / static_cast<double>(live.rows);
  context.emit(row);
}

}  // namespace

void measure_ticks(Context& context) {
  if (context.quick) return tick_row(context, {64, 4, 32});
  for (const std::int64_t rows : {64, 256, 1024, 4096}) tick_row(context, {16384, rows, 512});
}

}  // namespace millrace::bench
