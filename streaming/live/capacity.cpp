// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/capacity.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <millrace/streaming/live/live_learner.h>
#include <millrace/streaming/live/served_model.h>
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

Capacity measure_capacity(const std::shared_ptr<const Recurrence>& recurrence, const std::shared_ptr<const Learning>& learning,
                          const std::shared_ptr<Device>& device, Backend backend, Seconds budget) {
  StateSlab slab(recurrence, device, backend);
  LiveLearner learner(learning);
  const auto k1 = learning->trainer.k1;
  const auto run_to_update = [&](Tick tick) {
    for (std::int64_t row = 0; row < k1; ++row) {
      run(slab, tick);
      if (auto changed = learner.learn(*recurrence, tick)) slab.renew_weights(std::move(changed));
      tick.starts.clear();
    }
  };
  try {
    Tick tick = tick_of(*recurrence, 1);
    Tick first = tick;
    first.starts.push_back({0, std::vector<Tensor>(recurrence->given.size())});
    run_to_update(std::move(first));
    auto begun = Clock::now();
    // Gradients reach as far back as they will once k2 rows have come.
    for (std::int64_t rows = k1; rows < learning->trainer.k2 && Clock::now() - begun < budget / 2; rows += k1) run_to_update(tick);
    begun = Clock::now();
    std::int64_t rows = 0;
    do {
      run_to_update(tick);
      rows += k1;
    } while (Clock::now() - begun < budget / 2);
    return {static_cast<double>(rows) / Seconds(Clock::now() - begun).count(), 1};
  } catch (const Error& error) {
    return {0, 0, error.what()};
  }
}

ServedCapacity measure_capacity(const ServedModel& model, const std::vector<std::shared_ptr<Device>>& devices, Backend backend,
                                std::size_t max_rows, Seconds deadline, Seconds budget) {
  if (const auto& learning = model.learning()) {
    const Capacity one = measure_capacity(model.recurrence(), learning, devices.front(), backend, budget);
    return {one.steps_per_second, one.why.empty() ? fmt::format("measured of one session that learns every {} rows", learning->trainer.k1)
                                                  : "not measured: " + one.why};
  }
  ServedCapacity all;
  for (const auto& device : devices) {
    const Capacity one =
        measure_capacity(model.recurrence(), device, backend, max_rows, deadline, budget / static_cast<double>(devices.size()));
    all.steps_per_second += one.steps_per_second;
    all.how = one.why.empty() ? fmt::format("measured in ticks of {} rows", one.rows) : "not measured: " + one.why;
  }
  return all;
}

}  // namespace millrace
