// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cpu_fused/wavefront.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include <millrace/runtime/loops/cpu_fused/internal/fused_state.h>

namespace millrace {
namespace {

/// From so many rows on, half of them keep a thread's multipliers as busy as all do.
constexpr std::int64_t few_rows = 16;
/// A run of iterations: enough rows for its products, and enough runs for all threads to be at work most of the time.
constexpr std::int64_t piece_rows = 16;
constexpr std::int64_t pieces_of_thread = 8;
/// Looks at another thread's progress before the core is yielded.
constexpr int spins = 2000;

}  // namespace

struct Wavefront::Stages {
  struct Before {
    std::size_t stage = 0;
    std::int64_t shift = 0;
  };
  struct Stage {
    std::shared_ptr<FusedRun::State> run;
    std::vector<Before> before;
    int worker = 0;
    std::int64_t piece = 1;                          // iterations
    alignas(64) std::atomic<std::int64_t> done = 0;  // iterations
  };

  std::vector<std::unique_ptr<Stage>> all;
  int workers = 1;

  std::int64_t iterations() const {
    std::int64_t most = 0;
    for (const auto& stage : all) most = std::max(most, stage->run->operands.iterations);
    return most;
  }

  bool ready(const Stage& stage, std::int64_t end) const {
    return std::all_of(stage.before.begin(), stage.before.end(),
                       [&](const Before& before) { return all[before.stage]->done.load(std::memory_order_acquire) >= end + before.shift; });
  }

  /// The iteration that a stage comes to while the stages that feed it come to `end`: not beyond what they have made, and what has arrived, by then.
  std::int64_t target(const Stage& stage, std::int64_t end) const {
    std::int64_t iterations = std::min(end, stage.run->bound);
    for (const Before& before : stage.before) iterations = std::min(iterations, target(*all[before.stage], end) - before.shift);
    return iterations;
  }

  /// One piece of each of the worker's stages that may go on. False when all have come to their targets.
  bool sweep(int worker, std::int64_t end, bool& moved) {
    bool left = false;
    for (const auto& stage : all) {
      if (stage->worker != worker) continue;
      const std::int64_t begin = stage->done.load(std::memory_order_relaxed);
      const std::int64_t last = target(*stage, end);
      if (begin >= last) continue;
      left = true;
      const std::int64_t to = std::min(begin + stage->piece, last);
      if (!ready(*stage, to)) continue;
      for (FusedRun::State::Part& part : stage->run->parts) stage->run->run_part(part, begin, to);
      stage->done.store(to, std::memory_order_release);
      moved = true;
    }
    return left;
  }

  void work(int worker, std::int64_t end) {
    int idle = 0;
    for (bool moved = false; sweep(worker, end, moved); moved = false) {
      if (moved)
        idle = 0;
      else if (++idle > spins)
        std::this_thread::yield();
    }
  }
};

bool Wavefront::pays(std::int64_t rows, int threads) { return threads > 1 && rows < few_rows; }

Wavefront::Wavefront(std::vector<FusedRun*> runs, int threads) : runs_(std::move(runs)), stages_(std::make_shared<Stages>()) {
  std::int64_t total = 0;
  for (const auto& run : runs_) total += run->work();
  stages_->workers = static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(threads), runs_.size()));
  std::int64_t before = 0;
  for (const auto& run : runs_) {
    run->deal(1);
    auto stage = std::make_unique<Stages::Stage>();
    stage->run = run->state_;
    // Neighbours share a thread, and each thread gets about as much.
    const double middle =
        (static_cast<double>(before) + static_cast<double>(run->work()) / 2) / static_cast<double>(std::max<std::int64_t>(1, total));
    stage->worker = std::min(stages_->workers - 1, static_cast<int>(middle * stages_->workers));
    before += run->work();
    const std::int64_t least = (piece_rows + run->rows() - 1) / run->rows();
    stage->piece = std::max(least, run->iterations() / (pieces_of_thread * stages_->workers));
    for (const FusedRun::State::Feeder& feeder : run->state_->feeders)
      for (std::size_t i = 0; i < stages_->all.size(); ++i)
        if (stages_->all[i]->run == feeder.run) stage->before.push_back({i, feeder.shift});
    stages_->all.push_back(std::move(stage));
  }
}

Wavefront::~Wavefront() = default;

bool Wavefront::advance(std::int64_t limit) {
  const std::int64_t iterations = std::min(stages_->iterations(), limit);
  // The runs before the first one that is not at its end have ended.
  const auto left = std::find_if(runs_.begin(), runs_.end(), [](const auto& run) { return run->iterations_done() < run->iterations(); });
  const std::int64_t begin = left == runs_.end() ? iterations : (*left)->iterations_done();
  if (begin >= iterations || stages_->target(*stages_->all[static_cast<std::size_t>(left - runs_.begin())], iterations) <= begin)
    return false;
  std::int64_t end = begin;
  for (std::int64_t sum = 0; end < iterations && sum < slice_work * stages_->workers; ++end)
    for (const auto& stage : stages_->all)
      if (end < stage->run->operands.iterations) sum += stage->run->rows_of(end) * stage->run->work;
  // A thread that has all of the workers takes them in order: a worker that others wait for has come to `end` by then.
  runs_.front()->stream_.enqueue([kept = stages_, end](ThreadTeam& team) {
    team.parallel(kept->workers, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t worker = first; worker < last; ++worker) kept->work(static_cast<int>(worker), end);
    });
  });
  for (const auto& stage : stages_->all) stage->run->done = std::max(stage->run->done, stages_->target(*stage, end));
  return true;
}

std::int64_t Wavefront::stride() const { return iterations_of_a_run({runs_.begin(), runs_.end()}); }

}  // namespace millrace
