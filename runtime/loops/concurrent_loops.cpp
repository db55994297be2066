// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/concurrent_loops.h>

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include <millrace/runtime/loops/operand_binding.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/pool.h>

namespace millrace {

void ConcurrentLoops::add(const std::vector<const Op*>& group, const std::vector<bool>& late, const std::set<VarId>& behind) {
  std::vector<std::shared_ptr<LoopStage>>& led = led_by_[group.front()];
  for (std::size_t i = 1; i < group.size(); ++i) {
    const auto stage = make_pooled<LoopStage>(group[i], behind);
    stage->late = late[i] || (!led.empty() && led.back()->late);
    if (!led.empty()) stage->before = led.back();
    stages_[group[i]] = stage;
    led.push_back(stage);
  }
}

std::shared_ptr<LoopStage> ConcurrentLoops::stage(const Op* op) const {
  const auto found = stages_.find(op);
  return found == stages_.end() ? nullptr : found->second;
}

const std::vector<std::shared_ptr<LoopStage>>& ConcurrentLoops::led_by(const Op* leader) const {
  static const std::vector<std::shared_ptr<LoopStage>> none;
  const auto found = led_by_.find(leader);
  return found == led_by_.end() ? none : found->second;
}

task<std::unique_ptr<LoopRun>> ConcurrentLoops::taken_along(std::shared_ptr<LoopStage> stage, bool waits) {
  co_await stage->decided.wait();
  std::unique_ptr<LoopRun> done = std::move(stage->run);
  if (done != nullptr) co_return std::move(done);
  for (std::shared_ptr<LoopStage> each = stage->before; waits && each != nullptr; each = each->before) co_await each->ended.wait();
  co_return nullptr;
}

bool ConcurrentLoops::may_start(const Op* op) const {
  const std::shared_ptr<LoopStage> own = stage(op);
  if (own == nullptr) return true;
  if (!own->decided.is_open() || own->run != nullptr) return false;
  for (const LoopStage* each = own->before.get(); each != nullptr; each = each->before.get())
    if (!each->ended.is_open()) return false;
  return true;
}

namespace {

/// Asks for the size; it is there behind the stream's position.
std::shared_ptr<const int> asked_size(StreamRef stream) {
  const auto threads = std::make_shared<int>(1);
  stream.enqueue([threads](ThreadTeam& team) { *threads = team.size(); });
  return threads;
}

}  // namespace

std::optional<int> team_size_now(StreamRef stream) {
  const std::shared_ptr<const int> threads = asked_size(stream);
  return stream.position().reached() ? std::optional<int>(*threads) : std::nullopt;
}

task<int> team_size(StreamRef stream) {
  const std::shared_ptr<const int> threads = asked_size(stream);
  const Point known = stream.position();
  co_await ready(known);
  co_return *threads;
}

namespace {

/// Tasks of this thread that a message goes through, one behind the other: iterations would keep them waiting.
constexpr int tasks_of_a_message = 6;

task<void> let_messages_through() {
  for (int task = 0; task < tasks_of_a_message; ++task) co_await this_task::yield();
}

/// Waits until a piece of iterations that was enqueued on the host is done.
task<void> until_done(Point done) {
  // Another thread may be on the stream: then it runs the iterations, later.
  co_await ready(done);
  co_await this_task::yield();  // timers, and other runs of the executor, get their turn
  co_await this_task::checkpoint();
}

/// Binds the slots of the iterations before `end`; false when those of the next iteration do not come, or do not fit.
task<bool> bind_next(LoopRun* run, std::int64_t end) {
  const bool there = co_await await_slots(run->next_slots());
  co_return there && run->bind(end);
}

}  // namespace

task<void> run_stages(const std::vector<std::unique_ptr<LoopRun>>* runs, LoopStages* stages, bool on_host, LoopTrace trace) {
  const auto left = [runs] {
    return std::find_if(runs->begin(), runs->end(), [](const auto& run) { return run->iterations_done() < run->iterations(); });
  };
  const bool passes = std::any_of(runs->begin(), runs->end(), [](const auto& run) { return run->passes_slots(); });
  const std::int64_t stride = passes ? stages->stride() : std::numeric_limits<std::int64_t>::max();
  if (passes && on_host) co_await let_messages_through();
  for (bool goes_on = true; goes_on;) {
    // The runs that feed the first one that is not at its end are at theirs.
    const auto next = left();
    if (next == runs->end()) co_return;
    LoopRun* const first = next->get();
    const std::int64_t begin = first->iterations_done();
    const std::int64_t end = passes ? begin + stride : stride;
    for (const auto& run : *runs) {
      if (!passes || !goes_on || run->iterations_done() >= end) continue;
      goes_on = co_await bind_next(run.get(), end);
    }
    std::optional<TraceSpan> span;
    if (passes) {
      const std::int64_t last = std::min(end, first->iterations_bound()) - 1;
      span.emplace(trace.tracer, "iterations", fmt::format("{}, iterations {} to {}", trace.name, begin, last), trace.track, begin);
    }
    while (stages->advance(end)) {
      const Point done = first->position();
      if (on_host) co_await until_done(done);
      if (!on_host && passes) {
        co_await this_task::yield();  // to the loops that read its slots
        co_await this_task::checkpoint();
      }
    }
    for (const auto& run : *runs) run->publish();
    if (first->iterations_done() == begin) co_return;
    if (passes && on_host) co_await let_messages_through();
  }
}

}  // namespace millrace
