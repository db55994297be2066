// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cpu_fused/fused_backend.h>

#include <algorithm>

#include <millrace/runtime/loops/cpu_fused/fused_loop.h>
#include <millrace/runtime/loops/cpu_fused/wavefront.h>

namespace millrace {
namespace {

/// Each loop in turn, its rows dealt to all threads.
class DealtRows final : public LoopStages {
 public:
  DealtRows(std::vector<FusedRun*> runs, int threads) : runs_(std::move(runs)) {
    for (FusedRun* run : runs_) run->deal(threads);
  }
  bool advance(std::int64_t end) override {
    return std::any_of(runs_.begin(), runs_.end(), [end](FusedRun* run) { return run->advance(end); });
  }
  std::int64_t stride() const override { return iterations_of_a_run({runs_.begin(), runs_.end()}); }

 private:
  std::vector<FusedRun*> runs_;
};

class FusedBackend final : public LoopBackend {
 public:
  using LoopBackend::LoopBackend;

  Backend kind() const noexcept override { return Backend::fused; }
  bool on_host() const noexcept override { return true; }

  bool runs_beside(const LoopBackend& other) const noexcept override { return dynamic_cast<const FusedBackend*>(&other) != nullptr; }

  bool gains_from_others(const LoopRun& first, int threads) const override {
    return Wavefront::pays(static_cast<const FusedRun&>(first).rows(), threads);
  }

  std::unique_ptr<LoopStages> stages(std::vector<LoopRun*> runs, int threads) const override {
    std::vector<FusedRun*> all;
    for (LoopRun* run : runs) all.push_back(static_cast<FusedRun*>(run));
    if (all.size() > 1 && gains_from_others(*all.front(), threads)) return std::make_unique<Wavefront>(std::move(all), threads);
    return std::make_unique<DealtRows>(std::move(all), threads);
  }

 private:
  const LoopForm& analyse() override {
    loop_ = std::make_shared<const FusedLoop>(*site().program, site().block, *site().op);
    return loop_->form();
  }
  std::unique_ptr<LoopRun> make_run(LoopOperands operands, StreamRef stream) override {
    return std::make_unique<FusedRun>(loop_, std::move(operands), stream);
  }

  std::shared_ptr<const FusedLoop> loop_;
};

}  // namespace

std::shared_ptr<LoopBackend> make_fused_backend(LoopSite site) { return std::make_shared<FusedBackend>(std::move(site)); }

}  // namespace millrace
