// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace {

/// The fused backend of a device whose analysis is a `Loop`: constructed from the site (an Error says why it does not fit), with `form`,
/// `begins_early` and `prepare`.
template <class Loop>
class KernelBackend final : public LoopBackend {
 public:
  using LoopBackend::LoopBackend;

  Backend kind() const noexcept override { return Backend::fused; }
  bool begins_early(const TensorArray& array, const LoopOperands::Slots& slots, std::int64_t iterations) const override {
    return loop_->begins_early(array, slots, iterations);
  }

 private:
  const LoopForm& analyse() override {
    try {
      loop_ = std::make_unique<const Loop>(site());
    } catch (const Error& error) {
      throw UnsupportedError("there is no fused kernel for it on " + site().device->place().to_string() + ": " + error.what());
    }
    return loop_->form();
  }
  std::unique_ptr<LoopRun> make_run(LoopOperands operands, StreamRef stream) override {
    return loop_->prepare(std::move(operands), stream);
  }
  /// A kernel that the device does not start is a reason to do without it; a device that is lost is not.
  bool is_fatal(const Error& error) const noexcept override {
    const auto* of_device = dynamic_cast<const CudaError*>(&error);
    return of_device != nullptr && of_device->is_sticky();
  }

  std::unique_ptr<const Loop> loop_;
};

}  // namespace millrace
