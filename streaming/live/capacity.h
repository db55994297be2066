// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/tensor/device.h>

namespace millrace {

struct Learning;
class ServedModel;

/// The number of steps a second that a device makes of a recurrence, in ticks that end within a deadline.
struct Capacity {
  double steps_per_second = 0;  ///< 0: `why` says why it is not known
  std::size_t rows = 0;         ///< of the ticks that gave it
  std::string why{};
};

/// Measures that, in about `budget`: ticks of 1, 4, 16 … `max_rows` rows of numbers, until one takes longer than `deadline`. The states it takes are gone
/// afterwards. Errors as StateSlab's constructor; a step that fails is `why`.
Capacity measure_capacity(const std::shared_ptr<const Recurrence>& recurrence, const std::shared_ptr<Device>& device, Backend backend,
                          std::size_t max_rows, std::chrono::duration<double> deadline,
                          std::chrono::duration<double> budget = std::chrono::seconds(1));

/// Measures the capacity for sessions that learn: a learner runs alone, ticks of one row and its updates, on weights that are dropped behind it. All learners of a server share a
/// thread, and this capacity. Two updates at the least, however long they take: the first one makes the gradients, and is not counted.
Capacity measure_capacity(const std::shared_ptr<const Recurrence>& recurrence, const std::shared_ptr<const Learning>& learning,
                          const std::shared_ptr<Device>& device, Backend backend,
                          std::chrono::duration<double> budget = std::chrono::seconds(1));

/// The capacity of a server for the model, and in words how it was measured. It is the sum over the devices, which share the budget; where sessions learn, it is that
/// of the first device, where all learners live.
struct ServedCapacity {
  double steps_per_second = 0;
  std::string how;
};
ServedCapacity measure_capacity(const ServedModel& model, const std::vector<std::shared_ptr<Device>>& devices, Backend backend,
                                std::size_t max_rows, std::chrono::duration<double> deadline,
                                std::chrono::duration<double> budget = std::chrono::seconds(1));

}  // namespace millrace
