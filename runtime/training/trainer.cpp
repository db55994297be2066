// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/trainer.h>

#include <algorithm>
#include <cmath>

#include <millrace/runtime/lowering/skip_repacking.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/runtime/training/fed_program.h>
#include <millrace/runtime/training/gradient_sum.h>
#include <millrace/tensor/cpu_stream.h>

namespace millrace::training {
namespace {

std::string gradient_name(const std::string& weight) { return "gradient/" + weight; }

VarId loss_of(const Program& program, const std::string& name) {
  const auto port = std::find_if(program.outputs().begin(), program.outputs().end(), [&](const auto& each) { return each.name == name; });
  if (port == program.outputs().end()) throw ArgumentError("trainer: expected an output '" + name + "' of the model, found none");
  const VarType& type = program.var(port->var).type;
  if (!type.is_tensor() || !is_floating(type.dtype) || !type.is_scalar())
    throw ProgramError("trainer: expected a loss that is floating, of one element, found '" + name + "' of " + type.to_string());
  return port->var;
}

/// The sign of a NaN says nothing.
std::string text(double number) { return std::isnan(number) ? "nan" : std::to_string(number); }

/// The weights that have a gradient.
struct Differentiated {
  Program program;
  std::vector<std::string> trained;
};

Differentiated differentiate(const Program& model, const TrainerOptions& options) {
  check(options.clipping);
  check(options.schedule);
  Differentiated made{with_fed_weights(model), {}};
  Program& program = made.program;
  const VarId loss = loss_of(program, options.loss);
  BackwardOptions backward;
  backward.memory = options.memory;
  for (const std::string& name : options.frozen)
    if (model.parameter(model.find_var(name)) == nullptr)
      throw ArgumentError("trainer: expected a weight of the model to freeze, found '" + name + "'");
  for (const auto& [var, value] : model.parameters()) {
    const std::string& name = model.var(var).name;
    if (is_floating(value.dtype()) && !options.frozen.contains(name)) backward.with_respect_to.push_back(program.find_var(name));
  }
  if (backward.with_respect_to.empty()) throw ProgramError("trainer: expected a model with a weight to train, found none");
  for (const Gradient& gradient : append_backward(program, loss, backward)) {
    if (gradient.gradient == no_var) continue;
    const std::string name = program.var(gradient.var).name;
    program.add_output(gradient_name(name), gradient.gradient);
    made.trained.push_back(name);
  }
  if (made.trained.empty()) throw ProgramError("trainer: expected a loss that depends on a weight, found '" + options.loss + "'");
  return made;
}

}  // namespace

struct Trainer::State {
  State(const Program& model_of, const TrainerOptions& options_of, Differentiated made)
      : model(model_of),
        options(options_of),
        trained(std::move(made.trained)),
        device(make_cpu_device(options.threads)),
        differentiated(std::move(made.program)),
        optimizer(options.optimizer),
        weights(weights_of(model)) {}

  std::string place() const { return "step " + std::to_string(optimizer.steps()) + ": "; }

  void check_loss(double loss) const {
    if (std::isfinite(loss)) return;
    const char* const advice = optimizer.steps() == 0 ? "nothing was learnt yet: smaller features, targets or first weights may help"
                                                      : "a smaller learning rate or clipping may help";
    throw TrainingError(place() + "expected a finite loss, found " + text(loss) + ": " + advice);
  }

  /// Backward makes the gradients of the last layers first.
  std::vector<GradientSum::Item> gradient_items() const {
    std::vector<GradientSum::Item> made;
    for (auto name = trained.rbegin(); name != trained.rend(); ++name) {
      const Tensor& weight = weights.at(*name);
      made.push_back({gradient_name(*name), weight.dtype(), weight.dims()});
    }
    return made;
  }

  Program model;
  TrainerOptions options;
  std::vector<std::string> trained;
  std::shared_ptr<Device> device;
  Program differentiated;
  // Each is compiled when it first runs.
  std::unique_ptr<FedProgram> alone;        ///< backward loops of neighbouring layers run side by side, and end together
  std::unique_ptr<FedProgram> among_ranks;  ///< gradients of an upper layer are complete, and leave, before the loop below begins
  std::unique_ptr<FedProgram> evaluation;
  Optimizer optimizer;
  Tensors weights;
};

Trainer::Trainer(const Program& model, const TrainerOptions& options)
    : state_(std::make_unique<State>(model, options, differentiate(model, options))) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

Trainer::State& Trainer::state() const {
  if (state_ == nullptr) throw ArgumentError("trainer: expected a trainer, found one that was moved from");
  return *state_;
}

Trainer::Gradients Trainer::compute(Feeds feeds) {
  if (!state().alone) {
    Program program = state().differentiated;
    skip_repacking(program, true);
    state().alone = std::make_unique<FedProgram>(std::move(program), state().device);
  }
  Gradients made;
  made.outputs = state().alone->run(state().weights, std::move(feeds), state().options.run);
  made.loss = made.outputs[state().options.loss].tensor().item();
  state().check_loss(made.loss);
  for (const std::string& name : state().trained) made.by_name.emplace(name, made.outputs[gradient_name(name)].tensor());
  return made;
}

Trainer::Gradients Trainer::compute(Feeds feeds, Communicator& ranks, double share) {
  const auto sum = std::make_shared<GradientSum>(ranks, state().gradient_items(), share);
  Gradients made;
  double loss = 0;
  if (share > 0) {
    if (!state().among_ranks) state().among_ranks = std::make_unique<FedProgram>(state().differentiated, state().device);
    made.outputs = state().among_ranks->run(state().weights, std::move(feeds), state().options.run, sum);
    loss = made.outputs[state().options.loss].tensor().item() * share;
  } else {
    sum->send_zeros();
  }
  const Tensors sums = sum->sums();
  CpuStream stream(std::make_shared<ThreadTeam>(1));
  Tensor total = Tensor::scalar(loss);
  ranks.all_reduce(total, total, Reduce::sum, stream).wait();
  made.loss = total.item();
  state().check_loss(made.loss);  // the same on all ranks
  for (const std::string& name : state().trained) made.by_name.emplace(name, sums.at(gradient_name(name)));
  return made;
}

double Trainer::apply(Tensors gradients) {
  const double norm = clip(gradients, state().options.clipping);
  if (!std::isfinite(norm))
    throw TrainingError(state().place() + "expected finite gradients, found a norm of " + text(norm) +
                        ": a smaller learning rate or clipping by value may help");
  state().optimizer.update(state().weights, gradients, state().options.schedule.at(state().optimizer.steps()));
  return norm;
}

Trainer::Step Trainer::step(Feeds feeds) {
  Gradients computed = compute(std::move(feeds));
  Step made;
  made.loss = computed.loss;
  made.learning_rate = learning_rate();
  made.gradient_norm = apply(std::move(computed.by_name));
  made.outputs = std::move(computed.outputs);
  return made;
}

RunResult Trainer::evaluate(Feeds feeds) {
  if (!state().evaluation) state().evaluation = std::make_unique<FedProgram>(with_fed_weights(state().model), state().device);
  return state().evaluation->run(state().weights, std::move(feeds), state().options.run);
}

double Trainer::learning_rate() const { return state().options.schedule.at(steps()); }
std::int64_t Trainer::steps() const { return state().optimizer.steps(); }
const Tensors& Trainer::weights() const { return state().weights; }

void Trainer::set_weights(const Tensors& weights) {
  static_cast<void>(extract(state().model, {}, weights));  // checks names and types
  for (const auto& [name, value] : weights) state().weights.at(name) = value.copy_to(CpuPlace{});
}

Program Trainer::trained(const std::vector<std::string>& outputs) const { return extract(state().model, outputs, state().weights); }

void Trainer::save(Checkpoint& checkpoint) const {
  checkpoint.step = steps();
  checkpoint.tensors["weights"] = state().weights;
  checkpoint.tensors["optimizer"] = state().optimizer.state();
}

void Trainer::restore(const Checkpoint& checkpoint) {
  State& mine = state();
  const auto weights = checkpoint.tensors.find("weights"), optimizer = checkpoint.tensors.find("optimizer");
  if (weights == checkpoint.tensors.end() || optimizer == checkpoint.tensors.end())
    throw ArgumentError("trainer: expected weights and optimizer in the checkpoint, found a part of them");
  for (const auto& [name, value] : mine.weights)
    if (!weights->second.contains(name)) throw ArgumentError("trainer: expected a weight '" + name + "' in the checkpoint, found none");
  Optimizer restored(mine.options.optimizer);
  restored.restore(optimizer->second);
  set_weights(weights->second);
  mine.optimizer = std::move(restored);
}

}  // namespace millrace::training
