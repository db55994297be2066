// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/runtime/task/gate.h>
#include <millrace/runtime/task/task.h>

namespace millrace {

class Tracer;

/// A loop of a group (lowering/loop_groups.h) but the first, in one run of a program. It waits until the first loop of the group, the
/// leader, has decided whether it runs its iterations too.
struct LoopStage {
  LoopStage(const Op* loop, const std::set<VarId>& of_group) : op(loop), behind(of_group) {}
  const Op* op;
  const std::set<VarId>& behind;  ///< vars that come of the stacked slots of the group
  Gate decided{"the loop that leads its group"};
  Gate ended{"the end of a loop that may have written slots that this one reads"};
  /// It, or a stage before it, needs values that another rank may make of slots that the leader writes: the leader must not wait for it.
  bool late = false;
  std::shared_ptr<LoopStage> before;  ///< null: the leader is before it
  std::unique_ptr<LoopRun> run;       ///< its iterations are done, all or as many as there could be; null: it runs by itself
};

/// The groups of one run of a program.
class ConcurrentLoops {
 public:
  /// `group` holds the loops in order, the leader first; `late[i]`: loop i needs values that the leader does not and that come late. `behind`
  /// outlives this.
  void add(const std::vector<const Op*>& group, const std::vector<bool>& late, const std::set<VarId>& behind);

  /// Null: the loop is in no group, or leads one.
  std::shared_ptr<LoopStage> stage(const Op* op) const;
  /// The stages behind a leader.
  const std::vector<std::shared_ptr<LoopStage>>& led_by(const Op* leader) const;

  /// Whether the loop waits for no other: it is in no group, or leads one, or its leader did not take it along and every stage before has ended.
  bool may_start(const Op* op) const;

  /// Waits until the leader has decided; gives the run that it made, or null: then every stage before has ended if `waits`.
  static task<std::unique_ptr<LoopRun>> taken_along(std::shared_ptr<LoopStage> stage, bool waits);

  /// While it lives, the stages of a leader wait for its decision.
  class Decision {
   public:
    explicit Decision(const std::vector<std::shared_ptr<LoopStage>>& stages) : stages_(stages) {}
    ~Decision() {
      for (const auto& stage : stages_) stage->decided.open();
    }
    Decision(const Decision&) = delete;
    Decision& operator=(const Decision&) = delete;
    const std::vector<std::shared_ptr<LoopStage>>& stages() const noexcept { return stages_; }

   private:
    std::vector<std::shared_ptr<LoopStage>> stages_;
  };

  /// Opens `ended` of a stage when it goes out of scope.
  class End {
   public:
    explicit End(std::shared_ptr<LoopStage> stage) : stage_(std::move(stage)) {}
    ~End() {
      if (stage_ != nullptr) stage_->ended.open();
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;

   private:
    std::shared_ptr<LoopStage> stage_;
  };

 private:
  std::map<const Op*, std::shared_ptr<LoopStage>> stages_;
  std::map<const Op*, std::vector<std::shared_ptr<LoopStage>>> led_by_;
};

/// Where the iterations of a loop are traced; without a tracer nowhere.
struct LoopTrace {
  Tracer* tracer = nullptr;
  std::string name;
  std::uint64_t track = 0;
};

/// The size of the thread team of a host stream. Nothing: other work is on the stream, and `team_size` would wait for it.
std::optional<int> team_size_now(StreamRef stream);
task<int> team_size(StreamRef stream);

/// Runs the iterations of `runs`, in the order in which they feed one another, until all are at their ends or no iteration can go on: a slot
/// that arrives is missing or does not fit, or the device refuses. Where slots pass from or to other ranks or kernels, `stages->stride()`
/// iterations go at a time. Timers, cancellation and other runs get their turn between pieces. `runs` and `stages` outlive the task.
task<void> run_stages(const std::vector<std::unique_ptr<LoopRun>>* runs, LoopStages* stages, bool on_host, LoopTrace trace);

}  // namespace millrace
