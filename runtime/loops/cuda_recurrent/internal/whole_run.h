// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/gather.h>
#include <millrace/runtime/loops/cuda_recurrent/internal/device_rows.h>
#include <millrace/runtime/loops/last_state.h>
#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/tensor/watermark.h>

namespace millrace {

/// All iterations by one `advance`, which writes the arrays too; none of it is awaited.
class WholeRun : public LoopRun {
 public:
  const LoopForm& form() const noexcept final { return rows_.form; }
  std::int64_t iterations() const noexcept final { return operands_.iterations; }
  std::int64_t iterations_done() const noexcept final { return done_ ? iterations() : 0; }
  std::vector<std::pair<TensorArray, LoopOperands::Slots>> marked_slots() const final { return written_slots(operands_); }
  std::string reason() const final { return reason_; }

  bool advance(std::int64_t) final {
    if (done_ || failed_) return false;
    done_ = unless_refused(reason_, [this] {
      enqueue();
      return true;
    });
    failed_ = !done_;
    return done_;
  }

 protected:
  /// UnsupportedError where the operands do not fit. `form` outlives the run.
  WholeRun(const LoopForm& form, LoopOperands operands, StreamRef stream)
      : operands_(std::move(operands)), stream_(stream), rows_{operands_, form, stream, {}, {}, {}, {}, {}, {}, {}, {}} {
    rows_.read();
  }

  /// Enqueues all iterations and writes the outputs.
  virtual void enqueue() = 0;

  /// `whole`: the rows of all iterations, in the order of the slots that they read. With a watermark, slot t of them is ready at (watermark, t + 1).
  void write(std::size_t output, const Tensor& whole, const std::shared_ptr<Watermark>& watermark) {
    const TensorArray& array = operands_.outputs[output];
    const auto [first, stride] = operands_.written[output];
    const detail::FilledSlots slots{whole, rows_.offsets, false, watermark};
    const bool in_order = stride == rows_.stride() && first == rows_.slot_of(0);
    if (array.is_fixed() && in_order && array.size() == operands_.iterations) {
      array.fill(slots.whole, slots.offsets, slots.watermark);
      return;
    }
    for (std::int64_t t = 0; t < operands_.iterations; ++t) array.write(first + stride * t, LoDTensor(slots.slot(rows_.slot_of(t))));
  }

  LoopOperands operands_;
  StreamRef stream_;
  DeviceRows rows_;

 private:
  bool done_ = false, failed_ = false;
  std::string reason_;
};

/// The rows of `state`, which has one for each sequence and is number `index`, that belong to the sequences of iteration `last`.
inline SlotValue last_state(const DeviceRows& rows, std::size_t index, const Tensor& state, std::int64_t last, StreamRef stream) {
  const std::vector<std::int64_t> places = rows.stayed(last);
  const std::int64_t count = rows.counts[static_cast<std::size_t>(last)];
  const Tensor stayed = places.empty() ? state.rows(0, count) : gather_rows(state, places, stream);
  return last_state(rows.form, rows.operands, index, last + 1, LoDTensor(stayed));
}

}  // namespace millrace
