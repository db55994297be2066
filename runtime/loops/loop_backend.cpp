// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/loop_backend.h>

#include <algorithm>

namespace millrace {
namespace {

/// Each run in turn.
class InTurn final : public LoopStages {
 public:
  explicit InTurn(std::vector<LoopRun*> runs) : runs_(std::move(runs)) {}

  bool advance(std::int64_t end) override {
    return std::any_of(runs_.begin(), runs_.end(), [end](LoopRun* run) { return run->advance(end); });
  }
  std::int64_t stride() const override { return runs_.front()->stride(); }

 private:
  std::vector<LoopRun*> runs_;
};

}  // namespace

std::optional<DDim> LoopRun::stacked(std::size_t) const { return std::nullopt; }

const LoopForm* LoopBackend::form() {
  std::call_once(once_, [this] {
    try {
      form_ = &analyse();
    } catch (const Error& error) {
      reason_ = error.what();
    }
  });
  return form_;
}

std::unique_ptr<LoopRun> LoopBackend::prepare(LoopOperands operands, StreamRef stream, std::string& why) {
  try {
    return make_run(std::move(operands), stream);
  } catch (const Error& error) {
    if (is_fatal(error)) throw;
    why = error.what();
    return nullptr;
  }
}

bool LoopBackend::begins_early(const TensorArray&, const LoopOperands::Slots&, std::int64_t) const { return false; }

bool LoopBackend::runs_beside(const LoopBackend&) const noexcept { return false; }

bool LoopBackend::gains_from_others(const LoopRun&, int) const { return false; }

std::unique_ptr<LoopStages> LoopBackend::stages(std::vector<LoopRun*> runs, int) const { return std::make_unique<InTurn>(std::move(runs)); }

bool LoopBackend::is_fatal(const Error&) const noexcept { return false; }

}  // namespace millrace
