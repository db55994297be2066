// SPDX-License-Identifier: Apache-2.0
// Compiled programs and their runs.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <set>

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <fmt/format.h>

#include <millrace/runtime/executor/feeds.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/straight_program.h>
#include <millrace/runtime/task/cpu_count.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/device.h>

#include "build.h"

namespace millrace::python {
namespace {

/// Threads that are made while one lives take no signals: those are for the thread that Python handles them on.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  const sigset_t& before() const noexcept { return before_; }

 private:
  sigset_t before_;
};

/// How many forks are between this process and the one that loaded the module: threads do not come along.
std::atomic<int> forks{0};

/// A run that was started: its end, and its result.
struct PendingRun {
  PendingRun() = default;
  ~PendingRun() {
    if (event >= 0) close(event);
  }
  PendingRun(const PendingRun&) = delete;
  PendingRun& operator=(const PendingRun&) = delete;

  Ref<Run> run;
  Outcome<RunResult> outcome;
  std::atomic<bool> ended{false};
  int event = -1;       ///< an eventfd, for a caller that waits
  nb::object schedule;  ///< an event loop's call_soon_threadsafe, for one that does not
  nb::object callback;
};

/// The threads that runs are on. Made when a program with loops is first run, and again in a child process; ended by `shut_down`.
class Engine {
 public:
  Engine() : executor_(make()) {}
  static Engine& current() {
    if (shut_down_) throw CancelledError("run: the interpreter is going away");
    if (engine_ == nullptr || forks_of_engine_ != forks.load()) {
      engine_ = new Engine();  // one of a parent process is left alone: its threads are not here to end
      forks_of_engine_ = forks.load();
    }
    return *engine_;
  }

  void start(task<RunResult> work, const std::shared_ptr<PendingRun>& pending) {
    pending->run = Ref<Run>(new Run("run"));
    {
      const std::lock_guard lock(mutex_);
      live_.insert(pending->run.get());
    }
    RootTask<RunResult, Done>::start(*executor_, pending->run, std::move(work), Done(this, pending));
  }

  std::size_t live() const {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }

  static std::size_t live_runs() { return engine_ != nullptr && forks_of_engine_ == forks.load() ? engine_->live() : 0; }
  /// Cancels all runs, waits for their ends, and ends the threads. Nothing can be run any more.
  static void shut_down() {
    shut_down_ = true;
    if (engine_ == nullptr || forks_of_engine_ != forks.load()) return;
    const nb::gil_scoped_release released;
    engine_->end();
    delete engine_;
    engine_ = nullptr;
  }

 private:
  class Done {
   public:
    Done(Engine* engine, std::shared_ptr<PendingRun> pending) noexcept : engine_(engine), pending_(std::move(pending)) {}
    void operator()(Outcome<RunResult> outcome) noexcept {
      const Ref<Run> run = pending_->run;  // who ends all runs looks at those that are not removed
      pending_->outcome = std::move(outcome);
      pending_->ended = true;
      if (pending_->event >= 0) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(pending_->event, &one, sizeof one);
        pending_.reset();
      } else {
        notify();
      }
      engine_->remove(run.get());
    }

   private:
    void notify() noexcept {
      const nb::gil_scoped_acquire gil;
      try {
        pending_->schedule(pending_->callback);
      } catch (nb::python_error& error) {
        // A loop that was closed with the run under way is a RuntimeError: nobody waits there any more.
        if (!error.matches(PyExc_RuntimeError)) error.discard_as_unraisable("millrace: the end of a run");
      }
      pending_->schedule.reset();
      pending_->callback.reset();
      pending_.reset();
    }
    Engine* engine_;
    std::shared_ptr<PendingRun> pending_;
  };

  static std::unique_ptr<ThreadExecutor> make() {
    const SignalsBlocked blocked;
    return std::make_unique<ThreadExecutor>(usable_cpus());
  }

  void remove(Run* run) noexcept {
    const std::lock_guard lock(mutex_);
    live_.erase(run);
    if (live_.empty()) none_.notify_all();
  }

  void end() {
    std::unique_lock lock(mutex_);
    for (Run* run : live_) run->cancel();
    none_.wait(lock, [this] { return live_.empty(); });
  }

  static inline Engine* engine_ = nullptr;  // used with the GIL held
  static inline int forks_of_engine_ = 0;
  static inline bool shut_down_ = false;

  mutable std::mutex mutex_;
  std::condition_variable none_;
  std::set<Run*> live_;
  std::unique_ptr<ThreadExecutor> executor_;
};

/// Waits with the GIL released. A signal whose handler raises, as Ctrl-C does, cancels the run, and its exception goes on once the run has ended.
RunResult wait_for(PendingRun& pending) {
  const SignalsBlocked blocked;  // until ppoll: one that comes in between is not missed
  std::optional<nb::python_error> raised;
  if (PyErr_CheckSignals() != 0) {
    raised.emplace();
    pending.run->cancel();
  }
  for (;;) {
    int ready = 0, why = 0;
    {
      const nb::gil_scoped_release released;
      pollfd at{pending.event, POLLIN, 0};
      ready = ppoll(&at, 1, nullptr, raised ? nullptr : &blocked.before());
      why = errno;
    }
    if (ready > 0) break;
    if (ready < 0 && why != EINTR) throw IoError(fmt::format("run: waiting failed with the error {}", why));
    if (!raised && PyErr_CheckSignals() != 0) {
      raised.emplace();
      pending.run->cancel();
    }
  }
  if (raised) throw std::move(*raised);
  return pending.outcome.take();
}

struct Result {
  std::vector<std::pair<std::string, Value>> outputs;
  std::int64_t iterations = 0;
  std::int64_t fused_loops = 0;
  std::int64_t captured_loops = 0;
  std::set<std::string> notes = {};

  Result(std::vector<std::pair<std::string, Value>> of) : outputs(std::move(of)) {}
  explicit Result(RunResult run)
      : outputs(run.outputs()),
        iterations(run.iterations),
        fused_loops(run.fused_loops),
        captured_loops(run.captured_loops),
        notes(run.iteration_by_iteration) {}
};

/// A program made ready, with what is asked for again at each call.
struct Compiled {
  struct Input {
    std::string name;
    nb::object key;
    const VarType* type;
  };

  Compiled(const Program& program, int threads, const std::string& backend, bool backend_required, std::optional<double> deadline)
      : source(std::make_shared<const Program>(program)), made_after_forks(forks.load()) {
    if (threads < 1) throw ArgumentError(fmt::format("compile: expected 1 thread or more, found {}", threads));
    make(threads);
    const std::optional<Backend> chosen = backend_of(backend);
    if (!chosen)
      throw ArgumentError(fmt::format("compile: expected the backend auto, interpreted, captured or fused, found '{}'", backend));
    options.backend = *chosen;
    options.backend_required = backend_required;
    if (deadline) {
      if (!(*deadline > 0)) throw ArgumentError(fmt::format("compile: expected a deadline of more than 0 seconds, found {}", *deadline));
      options.deadline = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*deadline));
    }
    for (const Program::Port& port : source->inputs())
      inputs.push_back({port.name, nb::steal(PyUnicode_InternFromString(port.name.c_str())), &source->var(port.var).type});
  }

  void make(int threads) {
    const nb::gil_scoped_release released;
    const SignalsBlocked blocked;
    device = make_cpu_device(threads, 4);
    try {
      straight.emplace(*source, device);
    } catch (const UnsupportedError&) {
      executable();
    }
  }

  /// Made when it is first wanted: calls of a straight-line program do without it, and without a second copy of its packed weights.
  const Executable& executable() const {
    std::call_once(lazy->once, [this] { lazy->made.emplace(*source, device); });
    return *lazy->made;
  }

  struct Lazy {
    std::once_flag once;
    std::optional<Executable> made;
  };
  std::shared_ptr<const Program> source;
  std::shared_ptr<Device> device;
  std::optional<StraightProgram> straight;
  std::shared_ptr<Lazy> lazy = std::make_shared<Lazy>();
  RunOptions options;
  std::vector<Input> inputs;
  int made_after_forks;
};

[[noreturn]] void refuse_name(const Compiled& compiled, const std::string& name) {
  std::string names;
  for (const Compiled::Input& input : compiled.inputs) names += (names.empty() ? "" : ", ") + input.name;
  throw ArgumentError(fmt::format("run: expected the inputs {} of program '{}', found '{}'", names.empty() ? "(none)" : names,
                                  compiled.source->title(), name));
}

/// The fed values in the order of the program's inputs, checked against them.
std::vector<Value> values_of(const Compiled& compiled, nb::handle mapping, const nb::kwargs& named) {
  std::vector<Value> values;
  values.reserve(compiled.inputs.size());
  const bool by_mapping = !mapping.is_none();
  if (by_mapping && PyDict_Check(mapping.ptr()) == 0)
    throw ArgumentError("run: expected the inputs by name, or a dict of them, found another positional argument");
  Py_ssize_t used = 0;
  for (const Compiled::Input& input : compiled.inputs) {
    PyObject* fed = PyDict_GetItemWithError(named.ptr(), input.key.ptr());
    if (fed == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (fed == nullptr && by_mapping) fed = PyDict_GetItemWithError(mapping.ptr(), input.key.ptr());
    if (fed != nullptr) ++used;
    values.push_back(fed != nullptr ? value_from(fed, input.name, *input.type) : Value());
    check_feed(input.name, *input.type, values.back());
  }
  const Py_ssize_t given = PyDict_Size(named.ptr()) + (by_mapping ? PyDict_Size(mapping.ptr()) : 0);
  if (given == used) return values;
  const auto known = [&](nb::handle key) {
    for (const Compiled::Input& input : compiled.inputs)
      if (input.key.equal(key)) return true;
    return false;
  };
  for (const nb::handle key : named.keys())
    if (!known(key)) refuse_name(compiled, nb::cast<std::string>(nb::str(key)));
  for (const nb::handle key : nb::borrow<nb::dict>(mapping).keys())
    if (!known(key)) refuse_name(compiled, nb::cast<std::string>(nb::str(key)));
  throw ArgumentError("run: an input is fed twice: in the dict, and by its name");
}

Feeds feeds_of(const Compiled& compiled, std::vector<Value> values) {
  Feeds feeds;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!values[i].empty()) feeds.emplace(compiled.inputs[i].name, std::move(values[i]));
  return feeds;
}

void expect_own_process(const Compiled& compiled) {
  if (compiled.made_after_forks != forks.load())
    throw UnsupportedError("run: the program was compiled before this process was forked, whose threads it lacks: compile it again here");
}

Result run_compiled(const Compiled& compiled, nb::handle mapping, const nb::kwargs& named) {
  expect_own_process(compiled);
  std::vector<Value> values = values_of(compiled, mapping, named);
  if (compiled.straight && !compiled.options.deadline) {
    std::vector<Value> outputs;
    {
      const nb::gil_scoped_release released;
      outputs = compiled.straight->run(values);
    }
    std::vector<std::pair<std::string, Value>> named_outputs;
    named_outputs.reserve(outputs.size());
    const std::vector<Program::Port>& ports = compiled.source->outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) named_outputs.emplace_back(ports[i].name, std::move(outputs[i]));
    return Result(std::move(named_outputs));
  }
  const auto pending = std::make_shared<PendingRun>();
  pending->event = eventfd(0, EFD_CLOEXEC);
  if (pending->event < 0) throw IoError(fmt::format("run: no event descriptor, error {}", errno));
  Engine::current().start(millrace::run(compiled.executable(), feeds_of(compiled, std::move(values)), compiled.options), pending);
  return Result(wait_for(*pending));
}

/// The run that millrace._async awaits.
std::shared_ptr<PendingRun> start(const Compiled& compiled, nb::handle mapping, const nb::kwargs& named, nb::object schedule,
                                  nb::object callback) {
  expect_own_process(compiled);
  std::vector<Value> values = values_of(compiled, mapping, named);
  auto pending = std::make_shared<PendingRun>();
  pending->schedule = std::move(schedule);
  pending->callback = std::move(callback);
  Engine::current().start(millrace::run(compiled.executable(), feeds_of(compiled, std::move(values)), compiled.options), pending);
  return pending;
}

Compiled compile(const SharedProgram& program, int threads, const std::string& backend, bool backend_required,
                 std::optional<double> deadline) {
  return Compiled(*program.program, threads, backend, backend_required, deadline);
}

struct PendingObject {
  std::shared_ptr<PendingRun> pending;
};

#define MILLRACE_PYTHON_FEEDS "feeds: collections.abc.Mapping[str, typing.Any] | None = None, /, **named: typing.Any)"

void bind_result(nb::module_& m) {
  const auto find = [](const Result& self, const std::string& name) -> const Value* {
    for (const auto& [held, value] : self.outputs)
      if (held == name) return &value;
    return nullptr;
  };
  nb::class_<Result>(
      m, "Result", "The outputs of a run by name: `result['y']` is a Tensor, or a LoDTensor where there are sequences. Nothing is copied.")
      .def(
          "__getitem__",
          [find](const Result& self, const std::string& name) {
            const Value* value = find(self, name);
            if (value != nullptr) return object_from(*value);
            std::string names;
            for (const auto& [held, of] : self.outputs) names += (names.empty() ? "" : ", ") + held;
            throw IndexError(fmt::format("run result: expected one of the outputs {}, found '{}'", names, name));
          },
          "name"_a, nb::sig("def __getitem__(self, name: str) -> typing.Any"))
      .def(
          "__contains__", [find](const Result& self, const std::string& name) { return find(self, name) != nullptr; }, "name"_a)
      .def("__len__", [](const Result& self) { return self.outputs.size(); })
      .def("keys",
           [](const Result& self) {
             std::vector<std::string> names;
             for (const auto& [name, value] : self.outputs) names.push_back(name);
             return names;
           })
      .def(
          "values",
          [](const Result& self) {
            nb::list made;
            for (const auto& [name, value] : self.outputs) made.append(object_from(value));
            return made;
          },
          nb::sig("def values(self) -> list[typing.Any]"))
      .def(
          "items",
          [](const Result& self) {
            nb::list made;
            for (const auto& [name, value] : self.outputs) made.append(nb::make_tuple(name, object_from(value)));
            return made;
          },
          nb::sig("def items(self) -> list[tuple[str, typing.Any]]"))
      .def(
          "__iter__",
          [](const Result& self) {
            nb::list made;
            for (const auto& [name, value] : self.outputs) made.append(name);
            return nb::iter(made);
          },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[str]"))
      .def_ro("iterations", &Result::iterations, "Iterations of all loops together.")
      .def_ro("fused_loops", &Result::fused_loops, "Loops that ran in one piece.")
      .def_ro("captured_loops", &Result::captured_loops, "Loops that ran as graphs of a device.")
      .def_prop_ro(
          "notes", [](const Result& self) { return std::vector<std::string>(self.notes.begin(), self.notes.end()); },
          "Why loops ran iteration by iteration though another backend was tried.")
      .def("__repr__", [](const Result& self) {
        std::string text;
        for (const auto& [name, value] : self.outputs)
          text += (text.empty() ? "" : ", ") + name + ": " +
                  (value.is_tensor() ? static_cast<const LoDTensor&>(value.tensor()).to_string() : "…");
        return "<millrace.Result " + text + ">";
      });
}

nb::object run_later(nb::handle compiled, nb::handle feeds, const nb::kwargs& named) {
  return nb::module_::import_("millrace._async").attr("run")(compiled, feeds, named);
}

void bind_compiled(nb::module_& m) {
  nb::class_<PendingObject>(m, "_Pending", "A run under way, for millrace._async.")
      .def("cancel", [](const PendingObject& self) { self.pending->run->cancel(); })
      .def("result", [](const PendingObject& self) {
        if (!self.pending->ended) throw NotReadyError("run: it has not ended yet");
        return Result(self.pending->outcome.take());
      });
  nb::class_<Compiled>(m, "Compiled",
                       "A program made ready to run, by `program.compile()`. `compiled(x=…)` runs it, with the GIL released, from any "
                       "number of threads at a time.\n"
                       "Arrays are not copied: leave them alone until the run has ended.")
      .def(
          "__call__", [](const Compiled& self, nb::handle feeds, nb::kwargs named) { return run_compiled(self, feeds, named); },
          "feeds"_a = nb::none(), "named"_a, nb::sig("def __call__(self, " MILLRACE_PYTHON_FEEDS " -> Result"),
          "Runs the program: inputs by name, or in a dict. Numbers and lists take the dtype of the input; a list of sequences is ragged "
          "where it has\n"
          "levels. Ctrl-C cancels the run.")
      .def(
          "run", [](const Compiled& self, nb::handle feeds, nb::kwargs named) { return run_compiled(self, feeds, named); },
          "feeds"_a = nb::none(), "named"_a, nb::sig("def run(self, " MILLRACE_PYTHON_FEEDS " -> Result"), "The same as calling it.")
      .def(
          "run_async", [](nb::handle self, nb::handle feeds, nb::kwargs named) { return run_later(self, feeds, named); },
          "feeds"_a = nb::none(), "named"_a,
          nb::sig("def run_async(self, " MILLRACE_PYTHON_FEEDS " -> collections.abc.Coroutine[typing.Any, typing.Any, Result]"),
          "The same for asyncio: the event loop goes on; cancelling the awaiting task cancels the run.")
      .def(
          "_start",
          [](const Compiled& self, nb::handle feeds, nb::dict named, nb::object schedule, nb::object callback) {
            return PendingObject{start(self, feeds, nb::borrow<nb::kwargs>(named), std::move(schedule), std::move(callback))};
          },
          "feeds"_a.none(), "named"_a, "schedule"_a, "callback"_a,
          nb::sig(
              "def _start(self, feeds: typing.Any, named: dict[str, typing.Any], schedule: typing.Any, callback: typing.Any) -> _Pending"))
      .def_prop_ro(
          "inputs",
          [](const Compiled& self) {
            std::map<std::string, std::string> made;
            for (const Compiled::Input& input : self.inputs) made[input.name] = input.type->to_string();
            return made;
          },
          "Names, with types such as 'f32[?, 2] lod=1'.")
      .def_prop_ro(
          "straight_line", [](const Compiled& self) { return self.straight.has_value(); },
          "Without loops, branches and arrays: it runs in the calling thread.")
      .def("__repr__", [](const Compiled& self) { return fmt::format("<millrace.Compiled '{}'>", self.source->title()); });
}

}  // namespace

void bind_running(nb::module_& m) {
  pthread_atfork(nullptr, nullptr, [] { ++forks; });
  bind_result(m);
  bind_compiled(m);
  const nb::object program = m.attr("Program");
  auto cls = nb::borrow<nb::class_<SharedProgram>>(program);
  cls.def(
      "compile", &compile, nb::kw_only(), "threads"_a = 1, "backend"_a = "auto", "backend_required"_a = false, "deadline"_a = nb::none(),
      "Makes the program ready. `threads`: how many one operation may split over; results do not depend on it. `backend`: how loops run: "
      "auto,\n"
      "interpreted, captured, fused; `backend_required`: an UnsupportedError where a loop cannot. `deadline`: seconds that a run may take\n"
      "(DeadlineError).");
  cls.def(
      "run",
      [](const SharedProgram& self, nb::handle feeds, nb::kwargs named) {
        return run_compiled(compile(self, 1, "auto", false, {}), feeds, named);
      },
      "feeds"_a = nb::none(), "named"_a, nb::sig("def run(self, " MILLRACE_PYTHON_FEEDS " -> Result"),
      "Compiles the program and runs it once; to run more often, keep `compile()`.");
  cls.def(
      "run_async",
      [](const SharedProgram& self, nb::handle feeds, nb::kwargs named) {
        return run_later(nb::cast(compile(self, 1, "auto", false, {})), feeds, named);
      },
      "feeds"_a = nb::none(), "named"_a,
      nb::sig("def run_async(self, " MILLRACE_PYTHON_FEEDS " -> collections.abc.Coroutine[typing.Any, typing.Any, Result]"),
      "The same for asyncio.");
  m.def(
      "run",
      [](nb::handle program_or_compiled, nb::handle feeds, nb::kwargs named) {
        if (nb::isinstance<Compiled>(program_or_compiled))
          return run_compiled(nb::cast<const Compiled&>(program_or_compiled), feeds, named);
        if (!nb::isinstance<SharedProgram>(program_or_compiled))
          throw ArgumentError("run: expected a Program or a Compiled as the first argument");
        return run_compiled(compile(nb::cast<const SharedProgram&>(program_or_compiled), 1, "auto", false, {}), feeds, named);
      },
      "program"_a, "feeds"_a = nb::none(), "named"_a,
      nb::sig("def run(program: Program | Compiled, feeds: collections.abc.Mapping[str, typing.Any] | None = None, /, **named: typing.Any) "
              "-> Result"),
      "Runs a program once: `mr.run(program, x=…)['y']`. Inputs by name, or in a dict.");
  m.def("live_runs", &Engine::live_runs,
        "Runs that have not ended: those of `run_async`, and the cancelled ones that still come to their end.");
  m.def("_shut_down", &Engine::shut_down);
}

}  // namespace millrace::python
