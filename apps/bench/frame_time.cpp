// SPDX-License-Identifier: Apache-2.0
#include <bench/frame_time.h>

#include <chrono>
#include <random>

#include <millrace/runtime/import/model.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/streaming/live/state_slab.h>

namespace millrace::bench {

double frame_time(const std::string& model, const std::vector<std::pair<std::string, std::string>>& states, std::int64_t rows,
                  double seconds) {
  RecurrenceOptions options;
  options.states = states;
  StateSlab slab(std::make_shared<const Recurrence>(make_recurrence(load_model(model), options)));
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.1f);
  Tick tick;
  for (std::int64_t row = 0; row < rows; ++row) tick.slots.push_back(row);
  for (const Recurrence::Input& input : slab.recurrence().inputs) {
    Tensor values(DType::f32, input.dims.inserted(0, rows));
    float* to = values.mutable_data<float>();
    for (std::int64_t i = 0; i < values.elements(); ++i) to[i] = normal(random);
    tick.inputs.push_back(values);
  }
  using Clock = std::chrono::steady_clock;
  for (int warm = 0; warm < 10; ++warm) slab.run(tick);
  const auto start = Clock::now();
  std::int64_t ticks = 0;
  double passed = 0;
  for (; passed < seconds; passed = std::chrono::duration<double>(Clock::now() - start).count(), ++ticks) slab.run(tick);
  return passed / static_cast<double>(ticks * rows);
}

}  // namespace millrace::bench
