// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include <millrace/runtime/loops/backend.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/tensor/device.h>

namespace millrace {

/// How many steps a second a device makes of a recurrence, in ticks that end within a deadline.
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

}  // namespace millrace
