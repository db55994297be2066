// SPDX-License-Identifier: Apache-2.0
// Compiled programs and their runs.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <mutex>
#include <set>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <fmt/format.h>

#include <millrace/runtime/executor/feeds.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/runtime/program/straight_program.h>
#include <millrace/runtime/task/caller_executor.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/tensor/device.h>

#include "borrowed.h"
#include "build.h"
#include "engine.h"
#include "errors.h"
#include "event_loop.h"
#include "gil.h"

namespace millrace::python {
namespace {

/// A run that a thread waits for: its end, and its result.
struct PendingRun {
  PendingRun() : run(new Run("run")), event(eventfd(0, EFD_CLOEXEC)) {
    if (event < 0) throw IoError(fmt::format("run: no event descriptor, error {}", errno));
  }
  ~PendingRun() { close(event); }
  PendingRun(const PendingRun&) = delete;
  PendingRun& operator=(const PendingRun&) = delete;

  const Ref<Run> run;
  const int event;
  Outcome<RunResult> outcome;
};

struct Finish {
  std::shared_ptr<PendingRun> pending;
  void operator()(Outcome<RunResult> outcome) noexcept {
    pending->outcome = std::move(outcome);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(pending->event, &one, sizeof one);
    pending.reset();
  }
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
      const GilReleased released;
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

/// Whether the calling thread is the one that Python handles signals on. With the GIL held.
bool is_main_thread() {
  static unsigned long main = 0;
  static int known_at = -1;
  if (known_at != forks()) {
    main = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    known_at = forks();
  }
  return PyThread_get_thread_ident() == main;
}

/// Runs on the calling thread, with the GIL released. Signals as in `wait_for`; Python handles them on its main thread alone.
RunResult run_here(task<RunResult> work) {
  constexpr auto patience = std::chrono::milliseconds(20);  // between looks at signals
  const bool handles_signals = is_main_thread();            // no other thread takes the GIL before the run has ended
  const Ref<Run> run(new Run("run"));
  Outcome<RunResult> outcome;
  bool ended = false;
  CallerExecutor executor;
  std::optional<nb::python_error> raised;
  Engine::current().start_on(executor, run, std::move(work), [&](Outcome<RunResult> made) noexcept {
    outcome = std::move(made);
    ended = true;
  });
  {
    const GilReleased released;
    auto looked = std::chrono::steady_clock::now();
    while (!ended) {
      executor.drive_for(patience);
      if (ended || !handles_signals || raised || std::chrono::steady_clock::now() - looked < patience) continue;
      const GilTaken taken;
      if (PyErr_CheckSignals() != 0) {
        raised.emplace();
        run->cancel();
      }
      looked = std::chrono::steady_clock::now();
    }
  }
  if (raised) throw std::move(*raised);
  return outcome.take();
}

/// Runs on the threads of the engine.
RunResult run_elsewhere(task<RunResult> work) {
  const auto pending = std::make_shared<PendingRun>();
  Engine::current().start(pending->run, std::move(work), Finish{pending});
  return wait_for(*pending);
}

bool is_borrowed(const Tensor& x) {
  return x.storage() != nullptr && dynamic_cast<const BorrowedMemory*>(&x.storage()->resource()) != nullptr;
}

/// `x` with elements of its own where they lie in the memory of a fed array, which its owner may fill again. Orders hold no elements.
Value owned(const Value& x) {
  if (x.is_tensor()) {
    const LoDTensor& held = x.tensor();
    return is_borrowed(held.tensor()) ? Value(LoDTensor(copy_of(held.tensor()), held.lod())) : x;
  }
  if (x.is_list()) {
    std::vector<Tensor> elements(x.list().elements().begin(), x.list().elements().end());
    if (std::none_of(elements.begin(), elements.end(), &is_borrowed)) return x;
    for (Tensor& element : elements)
      if (is_borrowed(element)) element = copy_of(element);
    return TensorList(std::move(elements));
  }
  if (!x.is_array()) return x;
  const TensorArray& array = x.array();
  bool borrowed = false;
  for (std::int64_t i = 0; i < array.size() && !borrowed; ++i)
    if (const std::optional<LoDTensor> slot = array.peek(i)) borrowed = is_borrowed(slot->tensor());
  if (!borrowed) return x;
  const TensorArray made = array.order()      ? TensorArray(array.size(), *array.order())
                           : array.is_fixed() ? TensorArray(array.size())
                                              : TensorArray::growable();
  for (std::int64_t i = 0; i < array.size(); ++i)
    if (const std::optional<LoDTensor> slot = array.peek(i)) (void)made.write(i, owned(Value(*slot)).tensor());
  made.close();
  return made;
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

  void own_outputs() {
    for (auto& [name, value] : outputs)
      if (!value.is_tensor() || is_borrowed(value.tensor().tensor())) value = owned(value);
  }
};

/// The arguments of `program.compile()`.
struct CompileOptions {
  int threads = 1;
  std::string backend = "auto";
  bool backend_required = false;
  std::optional<double> deadline = {};  // seconds
};

/// A program made ready, with what is asked for again at each call.
struct Compiled {
  struct Input {
    std::string name;
    nb::object key;
    const VarType* type;
  };

  explicit Compiled(const Program& program, const CompileOptions& asked = {})
      : source(std::make_shared<const Program>(program)), threads(asked.threads), made_after_forks(forks()) {
    threads_from(threads, "compile");
    const std::optional<Backend> chosen = backend_of(asked.backend);
    if (!chosen)
      throw ArgumentError(fmt::format("compile: expected the backend auto, interpreted, captured or fused, found '{}'", asked.backend));
    options.backend = *chosen;
    options.backend_required = asked.backend_required;
    make();
    if (asked.deadline) {
      const double seconds = *asked.deadline;
      if (!(seconds > 0)) throw ArgumentError(fmt::format("compile: expected a deadline of more than 0 seconds, found {}", seconds));
      options.deadline = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    }
    for (const Program::Port& port : source->inputs())
      inputs.push_back({port.name, nb::steal(PyUnicode_InternFromString(port.name.c_str())), &source->var(port.var).type});
  }

  Compiled(Compiled&&) noexcept = default;
  ~Compiled() {
    if (device && made_after_forks != forks())
      static_cast<void>(new std::shared_ptr<Device>(device));  // its threads are the parent's: none to end
  }

  void make() {
    const GilReleased released;
    const SignalsBlocked blocked;
    device = make_cpu_device(threads, 4);
    try {
      Program lowered = *source;
      lower_for_runs(lowered, device->place(), options.backend == Backend::automatic);  // a backend is for loops
      straight.emplace(std::move(lowered), device);
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
  int threads;
  int made_after_forks;
};

[[noreturn]] void refuse_name(const Compiled& compiled, const std::string& name) {
  std::string names;
  for (const Compiled::Input& input : compiled.inputs) names += (names.empty() ? "" : ", ") + input.name;
  throw ArgumentError(fmt::format("run: expected the inputs {} of program '{}', found '{}'{}", names.empty() ? "(none)" : names,
                                  compiled.source->title(), name, meant(name, names)));
}

/// ArgumentError of a fed name that is no input.
void expect_known_names(const Compiled& compiled, nb::handle mapping, const nb::kwargs& named) {
  const auto expect_known = [&](const nb::dict& fed) {
    for (const nb::handle key : fed.keys())
      if (std::none_of(compiled.inputs.begin(), compiled.inputs.end(), [&](const Compiled::Input& input) { return input.key.equal(key); }))
        refuse_name(compiled, nb::cast<std::string>(nb::str(key)));
  };
  expect_known(named);
  if (!mapping.is_none()) expect_known(nb::borrow<nb::dict>(mapping));
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
    if (fed != nullptr)
      ++used;
    else
      expect_known_names(compiled, mapping, named);  // a misspelled name tells more than a missing input
    values.push_back(fed != nullptr ? value_from(fed, input.name, *input.type) : Value());
    check_feed(input.name, *input.type, values.back());
  }
  const Py_ssize_t given = PyDict_Size(named.ptr()) + (by_mapping ? PyDict_Size(mapping.ptr()) : 0);
  if (given == used) return values;
  expect_known_names(compiled, mapping, named);
  throw ArgumentError("run: an input is fed twice: in the dict, and by its name");
}

Feeds feeds_of(const Compiled& compiled, std::vector<Value> values) {
  Feeds feeds;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!values[i].empty()) feeds.emplace(compiled.inputs[i].name, std::move(values[i]));
  return feeds;
}

void expect_own_process(const Compiled& compiled) {
  if (compiled.made_after_forks != forks())
    throw UnsupportedError("run: the program was compiled before this process was forked, whose threads it lacks: compile it again here");
}

/// `sharing`: outputs may lie in the memory of fed arrays.
Result run_compiled(const Compiled& compiled, nb::handle mapping, const nb::kwargs& named, bool sharing = false) {
  expect_own_process(compiled);
  std::vector<Value> values = values_of(compiled, mapping, named);
  if (compiled.straight && !compiled.options.deadline) {
    std::vector<Value> outputs;
    {
      const GilReleased released;
      outputs = compiled.straight->run(values);
    }
    std::vector<std::pair<std::string, Value>> named_outputs;
    named_outputs.reserve(outputs.size());
    const std::vector<Program::Port>& ports = compiled.source->outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) named_outputs.emplace_back(ports[i].name, std::move(outputs[i]));
    Result made(std::move(named_outputs));
    if (!sharing) made.own_outputs();
    return made;
  }
  task<RunResult> work = millrace::run(compiled.executable(), feeds_of(compiled, std::move(values)), compiled.options);
  Result made(compiled.threads == 1 ? run_here(std::move(work)) : run_elsewhere(std::move(work)));
  if (!sharing) made.own_outputs();
  return made;
}

/// The run that millrace._async awaits.
OperationObject start(const Compiled& compiled, const LoopObject& loop, nb::handle mapping, const nb::kwargs& named) {
  expect_own_process(compiled);
  std::vector<Value> values = values_of(compiled, mapping, named);
  task<RunResult> work = millrace::run(compiled.executable(), feeds_of(compiled, std::move(values)), compiled.options);
  const auto begin = [&work](const Ref<Run>& run, auto done) { Engine::current().start(run, std::move(work), std::move(done)); };
  return start_elsewhere<RunResult>(loop, "run", &result_object, begin, nullptr);
}

/// The program as `compile()` makes it ready; anew where it has changed since, or the process was forked.
nb::object ready(SharedProgram& self) {
  const std::uint64_t revision = self.program->revision();
  if (self.ready.is_valid() && self.ready_revision == revision && nb::cast<const Compiled&>(self.ready).made_after_forks == forks())
    return self.ready;
  self.ready.reset();
  nb::object made = nb::cast(Compiled(*self.program));
  self.ready = made;
  self.ready_revision = revision;
  return made;
}

Result run_ready(SharedProgram& self, nb::handle feeds, const nb::kwargs& named) {
  const nb::object compiled = ready(self);
  return run_compiled(nb::cast<const Compiled&>(compiled), feeds, named);
}

/// The storages that a value has its elements in.
void add_storages(const Value& value, std::set<const Allocation*>& to) {
  const auto add = [&](const Tensor& tensor) { to.insert(tensor.storage().get()); };
  if (value.is_tensor()) add(value.tensor().tensor());
  if (value.is_list())
    for (const Tensor& element : value.list().elements()) add(element);
  if (!value.is_array()) return;
  for (std::int64_t i = 0; i < value.array().size(); ++i)
    if (const std::optional<LoDTensor> slot = value.array().peek(i)) add(slot->tensor());
}

/// The outputs `handed` as they are, for another run; and those of `outputs` whose elements are also theirs.
nb::tuple handed_values(const Result& self, const std::vector<std::string>& handed, const std::vector<std::string>& outputs) {
  nb::dict values;
  std::set<const Allocation*> storages;
  std::vector<std::string> sharing;
  for (const auto& [name, value] : self.outputs) {
    if (std::find(handed.begin(), handed.end(), name) == handed.end()) continue;
    values[name.c_str()] = nb::cast(ValueObject{value});
    add_storages(value, storages);
  }
  for (const auto& [name, value] : self.outputs) {
    if (std::find(outputs.begin(), outputs.end(), name) == outputs.end()) continue;
    std::set<const Allocation*> own;
    add_storages(value, own);
    if (std::any_of(own.begin(), own.end(), [&](const Allocation* each) { return storages.contains(each); })) sharing.push_back(name);
  }
  return nb::make_tuple(values, sharing);
}

#define MILLRACE_PYTHON_FEEDS "feeds: collections.abc.Mapping[str, typing.Any] | None = None, /, **named: typing.Any)"

void bind_result(nb::module_& m) {
  const auto find = [](const Result& self, const std::string& name) -> const Value* {
    for (const auto& [held, value] : self.outputs)
      if (held == name) return &value;
    return nullptr;
  };
  static_cast<void>(nb::class_<ValueObject>(m, "_Value", "A value of a run for another run.", nb::is_weak_referenceable()));
  nb::class_<Result>(
      m, "Result", "The outputs of a run by name: `result['y']` is a Tensor, or a LoDTensor where there are sequences. Nothing is copied.")
      .def(
          "__getitem__",
          [find](const Result& self, const std::string& name) {
            const Value* value = find(self, name);
            if (value != nullptr) return object_from(*value);
            std::string names;
            for (const auto& [held, of] : self.outputs) names += (names.empty() ? "" : ", ") + held;
            throw KeyError(fmt::format("run result: expected one of the outputs {}, found '{}'{}", names, name, meant(name, names)));
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
      .def("_handed", &handed_values, "handed"_a, "outputs"_a,
           nb::sig("def _handed(self, handed: list[str], outputs: list[str]) -> tuple[dict[str, _Value], list[str]]"))
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
  nb::class_<OperationObject>(m, "_Operation", "Work that millrace._async waits for.")
      .def_prop_ro("ended", [](const OperationObject& self) { return self.operation->ended(); })
      .def(
          "wake_by", [](const OperationObject& self, nb::object wake) { self.operation->wake_by(std::move(wake)); }, "wake"_a)
      .def("cancel", [](const OperationObject& self) { self.operation->cancel(); })
      .def("result", [](const OperationObject& self) { return self.operation->result(); }, nb::sig("def result(self) -> typing.Any"));
  nb::class_<LoopObject>(m, "_EventLoop", "The side of an event loop that millrace._async has it watch.")
      .def("__init__", [](LoopObject* self) { new (self) LoopObject{std::make_shared<LoopExecutor>()}; })
      .def("fileno", [](const LoopObject& self) { return self.executor->fileno(); })
      .def("drive", [](const LoopObject& self) { self.executor->on_readable(); })
      .def("close", [](const LoopObject& self) { self.executor->close(); });
  nb::class_<Compiled>(m, "Compiled",
                       "A program made ready to run, by `program.compile()`. `compiled(x=…)` runs it, with the GIL released, from any "
                       "number of threads at a time.\n"
                       "Arrays are not copied: leave them alone until the run has ended. Outputs share no memory with them.")
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
          "_run_sharing",
          [](const Compiled& self, nb::dict feeds) { return run_compiled(self, feeds, nb::borrow<nb::kwargs>(nb::dict()), true); },
          "feeds"_a, nb::sig("def _run_sharing(self, feeds: dict[str, typing.Any]) -> Result"),
          "The same, whose outputs may lie in the memory of fed arrays.")
      .def(
          "run_async", [](nb::handle self, nb::handle feeds, nb::kwargs named) { return run_later(self, feeds, named); },
          "feeds"_a = nb::none(), "named"_a,
          nb::sig("def run_async(self, " MILLRACE_PYTHON_FEEDS " -> collections.abc.Coroutine[typing.Any, typing.Any, Result]"),
          "The same for asyncio: the event loop goes on; cancelling the awaiting task cancels the run.")
      .def(
          "_start",
          [](const Compiled& self, const LoopObject& loop, nb::handle feeds, nb::dict named) {
            return start(self, loop, feeds, nb::borrow<nb::kwargs>(named));
          },
          "loop"_a, "feeds"_a.none(), "named"_a,
          nb::sig("def _start(self, loop: _EventLoop, feeds: typing.Any, named: dict[str, typing.Any]) -> _Operation"))
      .def_prop_ro(
          "inputs",
          [](const Compiled& self) {
            nb::dict made;
            for (const Compiled::Input& input : self.inputs) made[input.key] = input.type->to_string();
            return made;
          },
          nb::sig("def inputs(self) -> dict[str, str]"), "Names, with types such as 'f32[?, 2] lod=1'.")
      .def_prop_ro(
          "straight_line", [](const Compiled& self) { return self.straight.has_value(); },
          "Without loops, branches and arrays: it runs in the calling thread.")
      .def(
          "__copy__", [](nb::object self) { return self; }, nb::sig("def __copy__(self) -> Compiled"))
      .def(
          "__deepcopy__", [](nb::object self, nb::handle) { return self; }, "memo"_a,
          nb::sig("def __deepcopy__(self, memo: typing.Any) -> Compiled"))
      .def(
          "__reduce__",
          [](nb::handle) -> nb::object {
            throw UnsupportedError(
                "pickle: expected data, found a compiled program: pickle the Program, and of a module of millrace.torch.function "
                "its program() or state_dict()");
          },
          nb::sig("def __reduce__(self) -> typing.Never"))
      .def("__repr__", [](const Compiled& self) { return fmt::format("<millrace.Compiled '{}'>", self.source->title()); });
}

}  // namespace

nb::object result_object(RunResult run) {
  Result made(std::move(run));
  made.own_outputs();
  return nb::cast(std::move(made));
}

void bind_running(nb::module_& m) {
  count_forks();
  bind_result(m);
  bind_compiled(m);
  const nb::object program = m.attr("Program");
  auto cls = nb::borrow<nb::class_<SharedProgram>>(program);
  const CompileOptions usual;
  cls.def(
      "compile",
      [](const SharedProgram& self, int threads, std::string backend, bool backend_required, std::optional<double> deadline) {
        return Compiled(*self.program, {threads, std::move(backend), backend_required, deadline});
      },
      nb::kw_only(), "threads"_a = usual.threads, "backend"_a = usual.backend, "backend_required"_a = usual.backend_required,
      "deadline"_a = usual.deadline,
      "Makes the program ready. `threads`: how many one operation may split over; results do not depend on it. `backend`: how loops run: "
      "auto,\n"
      "interpreted, captured, fused; `backend_required`: an UnsupportedError where a loop cannot. `deadline`: seconds that a run may take\n"
      "(DeadlineError).");
  cls.def(
      "run", [](SharedProgram& self, nb::handle feeds, nb::kwargs named) { return run_ready(self, feeds, named); }, "feeds"_a = nb::none(),
      "named"_a, nb::sig("def run(self, " MILLRACE_PYTHON_FEEDS " -> Result"),
      "Runs the program, which is compiled first where it is new or has changed since the last run.");
  cls.def(
      "run_async", [](SharedProgram& self, nb::handle feeds, nb::kwargs named) { return run_later(ready(self), feeds, named); },
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
        return run_ready(nb::cast<SharedProgram&>(program_or_compiled), feeds, named);
      },
      "program"_a, "feeds"_a = nb::none(), "named"_a,
      nb::sig("def run(program: Program | Compiled, feeds: collections.abc.Mapping[str, typing.Any] | None = None, /, **named: typing.Any) "
              "-> Result"),
      "Runs a program: `mr.run(program, x=…)['y']`. Inputs by name, or in a dict.");
  m.def(
      "live_runs", [] { return Engine::live_runs() + LoopExecutor::live_operations(); },
      "Runs that have not ended: those of `run_async`, those of live programs, operations of live sessions, and the cancelled ones that "
      "still come "
      "to their end.");
  m.def("_shut_down", &Engine::shut_down);
}

}  // namespace millrace::python
