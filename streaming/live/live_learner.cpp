// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_learner.h>

#include <future>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace millrace {
namespace {

using Kind = training::OptimizerOptions::Kind;

Kind kind_of(LearnConfig::Optimizer optimizer) {
  if (optimizer == LearnConfig::Optimizer::sgd) return Kind::sgd;
  return optimizer == LearnConfig::Optimizer::adam ? Kind::adam : Kind::adamw;
}

std::vector<std::string> outputs_of(const Program& program) {
  std::vector<std::string> names;
  for (const Program::Port& port : program.outputs()) names.push_back(port.name);
  return names;
}

training::Tensors states_of(const Recurrence& recurrence, const Tick::Start& start) {
  training::Tensors states;
  for (std::size_t i = 0; i < start.given.size(); ++i)
    if (const Recurrence::Given& given = recurrence.given[i]; start.given[i].elements() > 0)
      states.emplace(given.name, start.given[i].reshape(given.dims));
  return states;
}

}  // namespace

Learning make_learning(const Program& program, const LearnConfig& config, const RecurrenceOptions& recurrence) {
  if (!recurrence.states.empty())
    throw UnsupportedError("[learn]: expected a program over sequences, found a graph that is one step (states of the config or --state)");
  if (!recurrence.constants.empty())
    throw UnsupportedError(fmt::format("[learn]: expected inputs that arrive with each row, found '{}', which never changes",
                                       recurrence.constants.begin()->first));
  Learning made{program, recurrence, {}, config.sessions};
  made.trainer.losses = config.losses;
  made.trainer.states = config.states;
  made.trainer.k1 = config.k1;
  made.trainer.k2 = config.k2;
  made.trainer.trainer.optimizer.kind = kind_of(config.optimizer);
  made.trainer.trainer.schedule.base = config.learning_rate;
  made.trainer.trainer.clipping.norm = config.clip_norm;
  static_cast<void>(training::LiveTrainer(program, made.trainer));  // a refusal comes before a session begins
  return made;
}

std::shared_ptr<const Recurrence> LiveLearner::learn(const Recurrence& recurrence, const Tick& tick) {
  const auto go_on = [&]() -> std::optional<training::Trainer::Step> {
    if (!trainer_) trainer_.emplace(how_->program, how_->trainer);
    for (const Tick::Start& start : tick.starts) trainer_->reset(states_of(recurrence, start));
    if (tick.slots.empty()) return std::nullopt;
    training::LiveTrainer::Row row;
    for (std::size_t i = 0; i < tick.inputs.size(); ++i)
      row.emplace(recurrence.inputs[i].name, tick.inputs[i].reshape(recurrence.inputs[i].row));
    return trainer_->push(row);
  };
  // A thread that runs tasks may not block. Making the gradients of the program takes milliseconds, as an update does: neither is done where sockets are read.
  const bool updates = !trainer_ || (trainer_->rows() + 1) % how_->trainer.k1 == 0;
  const auto step = updates ? std::async(std::launch::async, go_on).get() : go_on();
  if (!step) return nullptr;
  const Program learned = trainer_->trainer().trained(outputs_of(how_->program));
  return std::make_shared<const Recurrence>(make_recurrence(learned, how_->recurrence));
}

}  // namespace millrace
