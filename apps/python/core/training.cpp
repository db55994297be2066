// SPDX-License-Identifier: Apache-2.0
// Gradients, optimizers, trainers and training jobs.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <set>

#include <nanobind/stl/set.h>

#include <fmt/format.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/autodiff/memory_policy_text.h>
#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/distributed/rank_environment.h>
#include <millrace/runtime/distributed/rank_world.h>
#include <millrace/runtime/executor/feeds.h>
#include <millrace/runtime/training/clipping.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/runtime/training/optimizer.h>
#include <millrace/runtime/training/schedule.h>
#include <millrace/runtime/training/train_job.h>
#include <millrace/runtime/training/trainer.h>

#include "build.h"
#include "engine.h"
#include "errors.h"
#include "gil.h"

namespace millrace::python {
namespace {

using training::Tensors;

// ---- Gradients ----

std::map<int, MemoryPolicy> policies_from(const std::map<int, std::string>& texts) {
  std::map<int, MemoryPolicy> made;
  for (const auto& [block, text] : texts) made.emplace(block, parse_memory_policy(text));
  return made;
}

VarId port_named(const std::vector<Program::Port>& ports, const std::string& name) {
  for (const Program::Port& port : ports)
    if (port.name == name) return port.var;
  return no_var;
}

/// An input or a weight.
VarId source_named(const Program& program, const std::string& name) {
  const VarId input = port_named(program.inputs(), name);
  if (input != no_var) return input;
  const VarId weight = program.find_var(name);
  if (weight != no_var && program.parameter(weight) != nullptr) return weight;
  throw ArgumentError(fmt::format("append_backward: expected an input or a weight of program '{}', found '{}'", program.title(), name));
}

std::string source_name(const Program& program, VarId var) {
  for (const Program::Port& port : program.inputs())
    if (port.var == var) return port.name;
  return program.var(var).name;
}

/// Gives the output of each gradient by the name of its input or weight.
std::map<std::string, std::string> append_outputs(const SharedProgram& self, const std::string& loss,
                                                  const std::optional<std::vector<std::string>>& with_respect_to, const std::string& memory,
                                                  const std::map<int, std::string>& per_loop, const std::string& prefix) {
  Program& program = *self.program;
  const VarId output = port_named(program.outputs(), loss);
  if (output == no_var)
    throw ArgumentError(fmt::format("append_backward: expected an output of program '{}', found '{}'", program.title(), loss));
  BackwardOptions options;
  options.memory = parse_memory_policy(memory);
  options.per_loop = policies_from(per_loop);
  if (with_respect_to)
    for (const std::string& name : *with_respect_to) options.with_respect_to.push_back(source_named(program, name));
  std::map<std::string, std::string> made;
  if (with_respect_to && with_respect_to->empty()) return made;
  for (const Gradient& gradient : append_backward(program, output, options)) {
    if (gradient.gradient == no_var) continue;
    const std::string name = source_name(program, gradient.var);
    program.add_output(prefix + name, gradient.gradient);
    made[name] = prefix + name;
  }
  return made;
}

nb::list gradients(const Var& loss, nb::handle of, nb::handle stop, const std::optional<Var>& seed, const std::string& memory) {
  BackwardOptions options;
  options.memory = parse_memory_policy(memory);
  for (const Var& var : vars_from(of)) options.with_respect_to.push_back(var.id());
  for (const Var& var : vars_from(stop)) options.stop_gradient.push_back(var.id());
  if (seed) options.seed = seed->id();
  nb::list made;
  if (options.with_respect_to.empty()) return made;
  for (const Gradient& gradient : append_backward(build::Guard::current().program(), loss.id(), options))
    made.append(gradient.gradient == no_var ? nb::object(nb::none()) : nb::cast(Var::of(gradient.gradient)));
  return made;
}

// ---- Programs as functions of PyTorch ----

nb::tuple with_fed_weights(const SharedProgram& self) {
  const Program fed = training::with_fed_weights(*self.program);
  std::map<std::string, std::string> names;
  for (const auto& [name, value] : training::weights_of(*self.program)) names[name] = training::fed_name(name);
  return nb::make_tuple(SharedProgram{std::make_shared<Program>(fed)}, names);
}

/// Two programs: one gives the outputs of `self`, and the values that the other takes as inputs, beside a gradient of each output of `floating` as the input
/// `seed/NAME`, for the gradients of `sources`. Without sources the other one is empty.
nb::tuple with_gradients(const SharedProgram& self, const std::vector<std::string>& sources, const std::vector<std::string>& outputs,
                         const std::vector<std::string>& floating, const std::string& memory) {
  auto made = std::make_shared<Program>(*self.program);
  std::vector<std::string> found;
  {
    const build::Guard guard(*made);
    std::vector<Seed> seeds;
    for (const std::string& name : floating) {
      const VarId output = port_named(made->outputs(), name);
      const VarType type = made->var(output).type;
      const VarType plain = type.shape ? VarType(type.dtype, *type.shape) : VarType::unranked(type.dtype);
      seeds.push_back({output, build::input("seed/" + name, plain).id()});
    }
    BackwardOptions options;
    options.memory = parse_memory_policy(memory);
    for (const std::string& name : sources) options.with_respect_to.push_back(source_named(*made, name));
    std::vector<Gradient> all;
    if (!sources.empty()) {
      options.seed = seeds.at(0).seed;
      options.more_seeds.assign(seeds.begin() + 1, seeds.end());
      all = append_backward(*made, seeds[0].var, options);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].gradient == no_var) continue;
      made->add_output("gradient/" + sources[i], all[i].gradient);
      found.push_back(sources[i]);
    }
  }
  std::vector<std::string> names;
  for (const std::string& name : found) names.push_back("gradient/" + name);
  training::Halves halves = training::split(*made, outputs, names);
  return nb::make_tuple(SharedProgram{std::make_shared<Program>(std::move(halves.first))},
                        SharedProgram{std::make_shared<Program>(std::move(halves.second))}, found, halves.handed);
}

// ---- Optimizers ----

training::OptimizerOptions sgd(double momentum, bool nesterov, double weight_decay) {
  training::OptimizerOptions made;
  made.kind = training::OptimizerOptions::Kind::sgd;
  made.momentum = momentum;
  made.nesterov = nesterov;
  made.weight_decay = weight_decay;
  return made;
}

training::OptimizerOptions adam(training::OptimizerOptions::Kind kind, std::pair<double, double> betas, double eps, double weight_decay) {
  training::OptimizerOptions made;
  made.kind = kind;
  made.beta1 = betas.first;
  made.beta2 = betas.second;
  made.epsilon = eps;
  made.weight_decay = weight_decay;
  return made;
}

Tensors tensors_from(const std::map<std::string, nb::object>& objects) {
  Tensors made;
  for (const auto& [name, value] : objects) made.emplace(name, tensor_from(value));
  return made;
}

/// Others may hold the elements that Python has.
Tensors own(const std::map<std::string, nb::object>& objects) {
  Tensors made;
  for (const auto& [name, value] : objects) made.emplace(name, copy_of(tensor_from(value)));
  return made;
}

void bind_optimizers(nb::module_& m) {
  using training::Optimizer;
  using Kind = training::OptimizerOptions::Kind;
  nb::class_<Optimizer> optimizer(
      m, "Optimizer", "Changes weights by their gradients, by the rules of torch.optim: make one by mr.SGD, mr.Adam or mr.AdamW.");
  optimizer
      .def(
          "update",
          [](Optimizer& self, const std::map<std::string, nb::object>& weights, const std::map<std::string, nb::object>& gradients,
             double learning_rate) {
            Tensors changed = own(weights);
            self.update(changed, tensors_from(gradients), learning_rate);
            return changed;
          },
          "weights"_a, "gradients"_a, "learning_rate"_a,
          nb::sig(
              "def update(self, weights: collections.abc.Mapping[str, TensorLike], gradients: collections.abc.Mapping[str, TensorLike], "
              "learning_rate: float) -> dict[str, Tensor]"),
          "One step: the new weights, by name. Those without a gradient stay.")
      .def_prop_ro("steps", &Optimizer::steps, "Steps so far.")
      .def("state", &Optimizer::state, "All that the next step depends on, beside the weights, by name.")
      .def(
          "restore", [](Optimizer& self, const std::map<std::string, nb::object>& state) { self.restore(own(state)); }, "state"_a,
          nb::sig("def restore(self, state: collections.abc.Mapping[str, TensorLike]) -> None"), "Goes on from what `state` gave.");
  m.def(
      "SGD", [](double momentum, bool nesterov, double weight_decay) { return Optimizer(sgd(momentum, nesterov, weight_decay)); },
      nb::kw_only(), "momentum"_a = 0.0, "nesterov"_a = false, "weight_decay"_a = 0.0, "Stochastic gradient descent, as torch.optim.SGD.");
  m.def(
      "Adam",
      [](std::pair<double, double> betas, double eps, double weight_decay) {
        return Optimizer(adam(Kind::adam, betas, eps, weight_decay));
      },
      nb::kw_only(), "betas"_a = std::pair(0.9, 0.999), "eps"_a = 1e-8, "weight_decay"_a = 0.0, "As torch.optim.Adam.");
  m.def(
      "AdamW",
      [](std::pair<double, double> betas, double eps, double weight_decay) {
        return Optimizer(adam(Kind::adamw, betas, eps, weight_decay));
      },
      nb::kw_only(), "betas"_a = std::pair(0.9, 0.999), "eps"_a = 1e-8, "weight_decay"_a = 0.01, "As torch.optim.AdamW.");
  m.def(
      "clip_gradients",
      [](const std::map<std::string, nb::object>& gradients, double norm, double value) {
        Tensors clipped = tensors_from(gradients);
        training::Clipping clipping;
        clipping.norm = norm;
        clipping.value = value;
        const double before = training::clip(clipped, clipping);
        return std::pair(clipped, before);
      },
      "gradients"_a, nb::kw_only(), "norm"_a = 0.0, "value"_a = 0.0,
      nb::sig("def clip_gradients(gradients: collections.abc.Mapping[str, TensorLike], *, norm: float = 0.0, value: float = 0.0) -> "
              "tuple[dict[str, Tensor], float]"),
      "Each element into [-value, value], then all together to this Euclidean norm at most, as torch.nn.utils.clip_grad_norm_; 0: no "
      "bound. Gives "
      "the\nclipped gradients, and the norm before.");
}

void bind_schedules(nb::module_& m) {
  using training::Schedule;
  nb::class_<Schedule>(
      m, "Schedule",
      "The learning rate as a function of the step: `mr.Schedule('cosine', 1e-3, warmup=100, decay_steps=10_000)`. After `warmup` "
      "steps, with n\n"
      "those behind it and d = decay_steps:\n\n"
      "    constant     base\n"
      "    step         base * factor ** (n // every)\n"
      "    exponential  base * factor ** (n / every)\n"
      "    linear       base + (least - base) * min(n / d, 1)\n"
      "    cosine       least + (base - least) * (1 + cos(pi * min(n / d, 1))) / 2")
      .def(
          "__init__",
          [](Schedule* self, const std::string& kind, double base, std::int64_t warmup, std::int64_t every, double factor,
             std::int64_t decay_steps, double least) {
            static const std::map<std::string, Schedule::Kind> kinds{{"constant", Schedule::Kind::constant},
                                                                     {"step", Schedule::Kind::step},
                                                                     {"exponential", Schedule::Kind::exponential},
                                                                     {"linear", Schedule::Kind::linear},
                                                                     {"cosine", Schedule::Kind::cosine}};
            const auto found = kinds.find(kind);
            if (found == kinds.end())
              throw ArgumentError(fmt::format("schedule: expected constant, step, exponential, linear or cosine, found '{}'", kind));
            Schedule made;
            made.kind = found->second;
            made.base = base;
            made.warmup = warmup;
            made.every = every;
            made.factor = factor;
            made.decay_steps = decay_steps;
            made.least = least;
            training::check(made);
            new (self) Schedule(made);
          },
          "kind"_a = "constant", "base"_a = 1e-3, nb::kw_only(), "warmup"_a = 0, "every"_a = 1, "factor"_a = 0.1, "decay_steps"_a = 1,
          "least"_a = 0.0)
      .def("at", &Schedule::at, "step"_a, "The rate of step 0, 1, 2, …")
      .def("__call__", &Schedule::at, "step"_a, "The same.");
}

// ---- Trainers ----

/// A trainer, whose threads are let go of without the GIL. Calls of several threads take effect one after the other.
struct TrainerObject {
  TrainerObject(const SharedProgram& program, const training::TrainerOptions& options)
      : inputs(std::make_shared<const Program>(*program.program)) {
    const GilReleased released;
    const SignalsBlocked blocked;
    trainer.emplace(*inputs, options);
  }
  ~TrainerObject() {
    without_gil([this] { trainer.reset(); });
  }
  TrainerObject(const TrainerObject&) = delete;
  TrainerObject& operator=(const TrainerObject&) = delete;

  Feeds feeds(nb::handle mapping, const nb::kwargs& named) const {
    Feeds made;
    const auto add = [&](nb::handle key, nb::handle value) {
      const auto name = argument<std::string>(key, "trainer", "the name of an input");
      const VarId input = port_named(inputs->inputs(), name);
      if (input == no_var) refuse_name(name);
      const VarType& type = inputs->var(input).type;
      const Value fed = value_from(value, name, type);
      check_feed(name, type, fed);
      if (!made.emplace(name, fed).second) throw ArgumentError(fmt::format("trainer: the input '{}' is fed twice", name));
    };
    if (!mapping.is_none())
      for (const auto& [key, value] : nb::borrow<nb::dict>(mapping)) add(key, value);
    for (const auto& [key, value] : named) add(key, value);
    for (const Program::Port& port : inputs->inputs())
      if (made.count(port.name) == 0) check_feed(port.name, inputs->var(port.var).type, Value());
    return made;
  }

  /// `f()` while no other thread uses the trainer. The lock is waited for without the GIL, which the end of a run under the lock may need.
  template <class F>
  auto alone(F f) const {
    const GilReleased released;
    const std::lock_guard lock(mutex_);
    return f();
  }

  std::shared_ptr<const Program> inputs;
  std::optional<training::Trainer> trainer;

 private:
  mutable std::mutex mutex_;
  [[noreturn]] void refuse_name(const std::string& name) const {
    std::string names;
    for (const Program::Port& port : inputs->inputs()) names += (names.empty() ? "" : ", ") + port.name;
    throw ArgumentError(
        fmt::format("trainer: expected the inputs {} of program '{}', found '{}'{}", names, inputs->title(), name, meant(name, names)));
  }
};

struct StepObject {
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  nb::object outputs;
};

/// The weights that `frozen` names: one name, or several. A text is never several names of one letter.
std::set<std::string> names_from(nb::handle frozen) {
  constexpr const char* expected = "the name of a weight, or names";
  if (nb::isinstance<nb::str>(frozen)) return {nb::cast<std::string>(frozen)};
  if (!nb::isinstance<nb::iterable>(frozen) || nb::isinstance<nb::bytes>(frozen)) refuse_argument(frozen, "trainer: frozen", expected);
  std::set<std::string> made;
  for (const nb::handle name : frozen) made.insert(argument<std::string>(name, "trainer: frozen", expected));
  return made;
}

StepObject one_step(TrainerObject& self, nb::handle mapping, const nb::kwargs& named) {
  Feeds feeds = self.feeds(mapping, named);
  training::Trainer::Step step = self.alone([&] { return self.trainer->step(std::move(feeds)); });
  return {step.loss, step.gradient_norm, step.learning_rate, result_object(std::move(step.outputs))};
}

#define MILLRACE_PYTHON_FED "feeds: collections.abc.Mapping[str, typing.Any] | None = None, /, **named: typing.Any)"

void bind_trainer(nb::module_& m) {
  using training::Trainer;
  nb::class_<StepObject>(m, "TrainStep", "What one step of a Trainer gave.")
      .def_ro("loss", &StepObject::loss, "Before the update.")
      .def_ro("gradient_norm", &StepObject::gradient_norm, "Of all gradients together, before they were clipped.")
      .def_ro("learning_rate", &StepObject::learning_rate)
      .def_ro("outputs", &StepObject::outputs, nb::sig("def outputs(self) -> Result"), "Those of the model, before the update.")
      .def("__repr__", [](const StepObject& self) {
        return fmt::format("<millrace.TrainStep: loss {:.6g}, gradient norm {:.6g}, learning rate {:.6g}>", self.loss, self.gradient_norm,
                           self.learning_rate);
      });
  nb::class_<TrainerObject>(m, "Trainer",
                            "Trains the weights of a program that has a loss among its outputs. Nothing is compiled again from step to "
                            "step; the same program, options and\n"
                            "feeds give the same bits, whatever `threads` is.\n\n"
                            "    trainer = mr.Trainer(program, mr.Adam(), learning_rate=1e-3, clip_norm=1.0)\n"
                            "    for batch in batches:\n"
                            "        print(trainer.step(x=batch.x, target=batch.target).loss)\n"
                            "    trained = trainer.trained(['scores'])\n\n"
                            "`learning_rate`: a number or a Schedule; `frozen`: the name of a weight that stays, or several; "
                            "`memory`: how backward loops get what their forward loops computed:\n"
                            "keep, spill, recompute, recompute(iterations), truncate(k1, k2). The optimizer's state begins anew.")
      .def(
          "__init__",
          [](TrainerObject* self, const SharedProgram& program, const training::Optimizer& optimizer, nb::object learning_rate,
             const std::string& loss, double clip_norm, double clip_value, nb::object frozen, const std::string& memory, int threads) {
            training::TrainerOptions options;
            options.optimizer = optimizer.options();
            if (nb::isinstance<training::Schedule>(learning_rate))
              options.schedule = nb::cast<training::Schedule>(learning_rate);
            else
              options.schedule.base = argument<double>(learning_rate, "trainer: learning_rate", "a number or a Schedule");
            options.loss = loss;
            options.clipping.norm = clip_norm;
            options.clipping.value = clip_value;
            options.frozen = names_from(frozen);
            options.memory = parse_memory_policy(memory);
            options.threads = threads_from(threads, "trainer");
            new (self) TrainerObject(program, options);
          },
          "program"_a, "optimizer"_a, "learning_rate"_a = 1e-3, nb::kw_only(), "loss"_a = "loss", "clip_norm"_a = 0.0, "clip_value"_a = 0.0,
          "frozen"_a.none() = nb::tuple(), "memory"_a = "keep", "threads"_a = 1,
          nb::sig(
              "def __init__(self, program: Program, optimizer: Optimizer, learning_rate: float | Schedule = 0.001, *, loss: str = 'loss', "
              "clip_norm: float = 0.0, clip_value: float = 0.0, frozen: str | collections.abc.Iterable[str] = ..., "
              "memory: str = 'keep', threads: int = 1) -> None"))
      .def(
          "step", [](TrainerObject& self, nb::handle feeds, nb::kwargs named) { return one_step(self, feeds, named); },
          "feeds"_a = nb::none(), "named"_a, nb::sig("def step(self, " MILLRACE_PYTHON_FED " -> TrainStep"),
          "Computes loss and gradients, clips them, and updates the weights. TrainingError for a loss or a gradient that is not finite: "
          "weights are as "
          "before.")
      .def(
          "gradients",
          [](TrainerObject& self, nb::handle mapping, nb::kwargs named) {
            Feeds feeds = self.feeds(mapping, named);
            Trainer::Gradients made = self.alone([&] { return self.trainer->compute(std::move(feeds)); });
            return std::pair(made.loss, made.by_name);
          },
          "feeds"_a = nb::none(), "named"_a, nb::sig("def gradients(self, " MILLRACE_PYTHON_FED " -> tuple[float, dict[str, Tensor]]"),
          "The loss, and the gradient of each weight by its name. `apply` is the other half of a step.")
      .def(
          "apply",
          [](TrainerObject& self, const std::map<std::string, nb::object>& of) {
            Tensors gradients = own(of);
            return self.alone([&] { return self.trainer->apply(std::move(gradients)); });
          },
          "gradients"_a, nb::sig("def apply(self, gradients: collections.abc.Mapping[str, TensorLike]) -> float"),
          "Clips the gradients and updates the weights. Gives the norm before clipping.")
      .def(
          "evaluate",
          [](TrainerObject& self, nb::handle mapping, nb::kwargs named) {
            Feeds feeds = self.feeds(mapping, named);
            return result_object(self.alone([&] { return self.trainer->evaluate(std::move(feeds)); }));
          },
          "feeds"_a = nb::none(), "named"_a, nb::sig("def evaluate(self, " MILLRACE_PYTHON_FED " -> Result"),
          "The model's outputs with the weights as they are now.")
      .def_prop_ro("steps", [](const TrainerObject& self) { return self.alone([&] { return self.trainer->steps(); }); })
      .def_prop_ro(
          "learning_rate", [](const TrainerObject& self) { return self.alone([&] { return self.trainer->learning_rate(); }); },
          "Of the next update.")
      .def_prop_rw(
          "weights",
          [](const TrainerObject& self) {
            const Tensors weights = self.alone([&] {
              Tensors made;
              for (const auto& [name, weight] : self.trainer->weights()) made.emplace(name, weight.read_only());
              return made;
            });
            return nb::module_::import_("types").attr("MappingProxyType")(nb::cast(weights));
          },
          [](TrainerObject& self, const std::map<std::string, nb::object>& weights) {
            Tensors values = own(weights);
            self.alone([&] { self.trainer->set_weights(std::move(values)); });
          },
          nb::for_getter(nb::sig("def weights(self, /) -> collections.abc.Mapping[str, Tensor]")),
          nb::for_setter(nb::sig("def weights(self, weights: collections.abc.Mapping[str, TensorLike], /) -> None")),
          "A read-only mapping by name; what you hold keeps its values. Setting the attribute changes the weights that the given mapping "
          "names.")
      .def(
          "trained",
          [](const TrainerObject& self, const std::optional<std::vector<std::string>>& outputs) {
            std::vector<std::string> names;
            if (outputs)
              names = *outputs;
            else
              for (const Program::Port& port : self.inputs->outputs()) names.push_back(port.name);
            return SharedProgram{self.alone([&] { return std::make_shared<Program>(self.trainer->trained(names)); })};
          },
          "outputs"_a = nb::none(), "The program with the weights as they are now, and with these of its outputs (all) and what they need.")
      .def(
          "save",
          [](const TrainerObject& self, const std::filesystem::path& folder) {
            training::Checkpoint checkpoint;
            self.alone([&] { self.trainer->save(checkpoint); });
            const GilReleased released;
            naming_file(folder, [&] { training::CheckpointFolder(folder).save(checkpoint); });
          },
          "folder"_a, "Writes a checkpoint; the two newest of a folder are kept. A crash leaves a whole one.")
      .def(
          "restore",
          [](TrainerObject& self, const std::filesystem::path& folder) {
            const std::optional<training::Checkpoint> found =
                naming_file(folder, [&] { return training::CheckpointFolder(folder).load(); });
            if (!found) throw FileError(fmt::format("{}: expected a checkpoint, found none", folder.string()), folder, ENOENT);
            self.alone([&] { self.trainer->restore(*found); });
          },
          "folder"_a, "Goes on from the newest whole checkpoint, to the same bits as if it had never stopped.");
}

// ---- Jobs ----

/// Hands what a job says to a Python function, and stops the job when that raises.
class Observer final : public training::TrainObserver {
 public:
  Observer(nb::object tell, std::atomic<bool>& stop) : tell_(std::move(tell)), stop_(stop) {}

  void begins(const std::string& description) override {
    say([&] { return nb::make_tuple("begins", description); });
  }
  void note(const std::string& text) override {
    say([&] { return nb::make_tuple("note", text); });
  }
  void after_batch(const Progress&) override {
    const GilTaken gil;
    if (!raised && PyErr_CheckSignals() != 0) stop();  // Ctrl-C
  }
  void after_epoch(const training::EpochMetrics& metrics, const Progress&) override {
    say([&] { return nb::make_tuple("epoch", epoch(metrics)); });
  }

  static nb::object score(const training::Score& of) {
    return nb::make_tuple(of.loss, of.accuracy ? nb::object(nb::float_(*of.accuracy)) : nb::object(nb::none()));
  }
  static nb::object score(const std::optional<training::Score>& of) { return of ? score(*of) : nb::object(nb::none()); }
  static nb::tuple epoch(const training::EpochMetrics& of) {
    return nb::make_tuple(of.epoch, of.step, score(of.train), score(of.validation), of.learning_rate, of.gradient_norm);
  }
  std::optional<nb::python_error> raised;

 private:
  template <class F>
  void say(F what) {
    const GilTaken gil;
    if (raised) return;
    try {
      const nb::object said = what();
      calling_python([&] { return tell_(said); });
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      stop_ = true;
    }
  }
  void stop() {
    raised.emplace();
    stop_ = true;
  }
  nb::object tell_;
  std::atomic<bool>& stop_;
};

nb::tuple run_job(const std::string& text, const std::string& name, const std::optional<std::filesystem::path>& data,
                  const std::optional<std::string>& output, bool resume, std::optional<std::uint64_t> seed,
                  std::optional<std::int64_t> epochs, int threads, nb::object tell) {
  threads_from(threads, "train");
  const training::TrainConfig config = training::parse_train_config(text, name);
  std::atomic<bool> stop{false};
  training::TrainJobOptions options;
  options.resume = resume;
  options.seed = seed;
  options.epochs = epochs;
  options.folder = output;
  options.data = data;
  options.threads = threads;
  options.build = "millrace for Python";
  options.stop = &stop;
  Observer observer(std::move(tell), stop);
  training::TrainResult made;
  std::exception_ptr error;
  {
    const GilReleased released;
    try {
      std::unique_ptr<RankWorld> ranks;
      {
        const SignalsBlocked blocked;  // for the threads between ranks
        ranks = RankWorld::join();
      }
      if (ranks != nullptr) options.ranks = &ranks->communicator();
      made = training::run_train_job(config, options, observer);
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (observer.raised) throw std::move(*observer.raised);
  if (error != nullptr) std::rethrow_exception(error);
  nb::list all;
  for (const training::EpochMetrics& one : made.epochs) all.append(Observer::epoch(one));
  const training::FinalMetrics& final = made.final;
  return nb::make_tuple(all, final.best_epoch, Observer::score(final.validation), Observer::score(final.test), made.folder, made.files);
}

// ---- Losses ----

void bind_losses(nb::module_& m) {
  m.def("mean_loss", &build::mean_loss, "losses"_a, "The mean of losses [rows, …] over all elements: [], 0 of none.");
  m.def("softmax_cross_entropy_loss", &build::softmax_cross_entropy_loss, "x"_a, "labels"_a, "ignore_index"_a = build::no_label,
        "The mean of -log softmax(x)[label] over the rows of x [rows, K], as torch.nn.functional.cross_entropy; labels i64 [rows].");
  m.def("mean_squared_error", &build::mean_squared_error, "x"_a, "target"_a, "The mean of (x - target) ** 2 over all elements.");
  m.def("mean_ctc_loss", &build::mean_ctc_loss, "log_probabilities"_a, "labels"_a, "blank"_a = 0, "zero_infinity"_a = false,
        "The mean over sequences of the loss of connectionist temporal classification.");
  m.def("mean_crf_loss", &build::mean_crf_loss, "emission"_a, "transition"_a, "labels"_a,
        "The mean over sequences of -log p(labels | emission) of a linear-chain conditional random field.");
}

}  // namespace

void bind_training(nb::module_& m) {
  bind_losses(m);
  m.def("append_backward", &append_outputs, "program"_a, "loss"_a = "loss", "with_respect_to"_a = nb::none(), nb::kw_only(),
        "memory"_a = "keep", "per_loop"_a = std::map<int, std::string>{}, "prefix"_a = "gradient/",
        "Appends to `program` the operations that compute the gradients of its output `loss`, of one element, with respect to the inputs "
        "and weights\n"
        "that are named (all weights), each as an output. Gives the names of these outputs by the names of the inputs and weights; one on "
        "which the\n"
        "loss does not depend has none. `memory`: how backward loops get what their forward loops computed: keep, spill, recompute, "
        "recompute(iterations),\n"
        "truncate(k1, k2); `per_loop`: the same for single loops, by the number of their body block.");
  m.def(
      "gradients", &gradients, "loss"_a, "of"_a, nb::kw_only(), "stop"_a = nb::make_tuple(), "seed"_a = nb::none(), "memory"_a = "keep",
      nb::sig("def gradients(loss: Var, of: Var | collections.abc.Sequence[Var], *, stop: collections.abc.Sequence[Var] = (), seed: Var | "
              "None = "
              "None, memory: str = 'keep') -> list[Var | None]"),
      "The gradients of `loss` with respect to variables, while a program is built; not inside of a loop's frame. None for one on which "
      "the loss does "
      "not\n"
      "depend. `seed`: the gradient of the loss, where it has more than one element; `stop`: variables through which nothing flows back.");
  const nb::object program = m.attr("Program");
  nb::borrow<nb::class_<SharedProgram>>(program).def(
      "with_weights",
      [](const SharedProgram& self, const std::map<std::string, nb::object>& weights) {
        std::vector<std::string> outputs;
        for (const Program::Port& port : self.program->outputs()) outputs.push_back(port.name);
        return SharedProgram{std::make_shared<Program>(training::extract(*self.program, outputs, own(weights)))};
      },
      "weights"_a, nb::sig("def with_weights(self, weights: collections.abc.Mapping[str, TensorLike]) -> Program"),
      "A copy in which the weights that the dict names have its values.");
  bind_optimizers(m);
  bind_schedules(m);
  bind_trainer(m);
  m.def("_train", &run_job, "text"_a, "name"_a, "data"_a.none(), "output"_a.none(), "resume"_a, "seed"_a.none(), "epochs"_a.none(),
        "threads"_a, "tell"_a,
        nb::sig("def _train(text: str, name: str, data: str | os.PathLike[str] | None, output: str | None, resume: bool, seed: int | None, "
                "epochs: int | None, threads: int, tell: typing.Any) -> typing.Any"));
  m.def("_in_ranks", [] {
    const std::optional<RankEnvironment> where = rank_environment();
    return where && where->world_size > 1;
  });
  m.def("_with_fed_weights", &with_fed_weights, "program"_a,
        nb::sig("def _with_fed_weights(program: Program) -> tuple[Program, dict[str, str]]"));
  m.def("_with_gradients", &with_gradients, "program"_a, "sources"_a, "outputs"_a, "floating"_a, "memory"_a,
        nb::sig("def _with_gradients(program: Program, sources: list[str], outputs: list[str], floating: list[str], memory: str) -> "
                "tuple[Program, Program, list[str], list[str]]"));
}

}  // namespace millrace::python
