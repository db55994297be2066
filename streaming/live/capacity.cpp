// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/capacity.h>

#include <algorithm>
#include <utility>

#include <millrace/streaming/live/state_slab.h>

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Floats from -1 to 1, integers 0: an index that every table has.
Tensor some_rows(const Recurrence::Input& input, std::size_t rows) {
  Tensor made(input.dtype, input.dims.inserted(0, static_cast<std::int64_t>(rows)));
  made.storage()->mark_written();
  visit_dtype(input.dtype, [&]<class T>(std::type_identity<T>) {
    T* to = made.mutable_data<T>();
    std::uint32_t number = 1;
    for (std::int64_t i = 0; i < made.elements(); ++i) {
      number = number * 1664525u + 1013904223u;
      const double value =
          is_integer(input.dtype) || input.dtype == DType::boolean ? 0.0 : static_cast<double>(number) / 2147483648.0 - 1.0;
      to[i] = convert_element<T>(value);
    }
  });
  return made;
}

Tick tick_of(const Recurrence& recurrence, std::size_t rows) {
  Tick tick;
  for (std::size_t row = 0; row < rows; ++row) tick.slots.push_back(static_cast<Slot>(row));
  for (const Recurrence::Input& input : recurrence.inputs) tick.inputs.push_back(some_rows(input, rows));
  return tick;
}

void run(StateSlab& slab, const Tick& tick) {
  const TickResult result = slab.run(tick);
  if (result.lost) std::rethrow_exception(result.lost);
  if (!result.failures.empty()) std::rethrow_exception(result.failures.front().error);
}

/// The time of a tick, from as many as fit into `slice`, the first not counted: it makes room and starts the slots.
Seconds tick_time(StateSlab& slab, Tick tick, Seconds slice) {
  Tick first = tick;
  for (const Slot slot : tick.slots) first.starts.push_back({slot, {}});
  run(slab, first);
  const auto begun = Clock::now();
  std::size_t count = 0;
  do {
    run(slab, tick);
    ++count;
  } while (Clock::now() - begun < slice);
  return Seconds(Clock::now() - begun) / static_cast<double>(count);
}

}  // namespace

Capacity measure_capacity(const std::shared_ptr<const Recurrence>& recurrence, const std::shared_ptr<Device>& device, Backend backend,
                          std::size_t max_rows, Seconds deadline, Seconds budget) {
  StateSlab slab(recurrence, device, backend);
  Capacity best;
  const auto begun = Clock::now();
  try {
    for (std::size_t rows = 1; rows <= std::max<std::size_t>(max_rows, 1); rows *= 4) {
      const Seconds time = tick_time(slab, tick_of(*recurrence, rows), budget / 8);
      if (rows > 1 && time > deadline) break;
      const double rate = static_cast<double>(rows) / time.count();
      if (rate > best.steps_per_second) best = {rate, rows};
      if (Clock::now() - begun >= budget) break;
    }
  } catch (const Error& error) {
    best = {0, 0, error.what()};
  }
  return best;
}

}  // namespace millrace
