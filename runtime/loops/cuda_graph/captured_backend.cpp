// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_graph/captured_backend.h>

#include <millrace/runtime/loops/cuda_graph/captured_loop.h>

namespace millrace {
namespace {

class CapturedBackend final : public LoopBackend {
 public:
  using LoopBackend::LoopBackend;

  Backend kind() const noexcept override { return Backend::captured; }

 private:
  const LoopForm& analyse() override {
    loop_ = std::make_unique<CapturedLoop>(*site().program, site().block, *site().op, site().device, site().stream);
    return loop_->form();
  }
  std::unique_ptr<LoopRun> make_run(LoopOperands operands, StreamRef) override { return loop_->prepare(std::move(operands)); }

  std::unique_ptr<CapturedLoop> loop_;
};

}  // namespace

std::shared_ptr<LoopBackend> make_captured_backend(LoopSite site) { return std::make_shared<CapturedBackend>(std::move(site)); }

}  // namespace millrace
