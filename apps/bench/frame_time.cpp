// SPDX-License-Identifier: Apache-2.0
#include <bench/frame_time.h>

#include <memory>

#include <bench/library/lstm_problem.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/models/import/model.h>
#include <millrace/streaming/live/state_slab.h>

namespace millrace::bench {

Timer frame_timer(const std::string& model, const std::vector<std::pair<std::string, std::string>>& states, std::int64_t rows) {
  RecurrenceOptions options;
  options.states = states;
  const auto slab = std::make_shared<StateSlab>(std::make_shared<const Recurrence>(make_recurrence(load_model(model), options)));
  Tick tick;
  for (std::int64_t row = 0; row < rows; ++row) tick.slots.push_back(row);
  for (const Recurrence::Input& input : slab->recurrence().inputs)
    tick.inputs.push_back(random_tensor(input.dims.inserted(0, rows), 1, 0.1f));
  const Timer timer = timer_of([slab, tick] { slab->run(tick); });
  return [timer, rows](double seconds) { return timer(seconds) / static_cast<double>(rows); };
}

}  // namespace millrace::bench
