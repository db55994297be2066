// SPDX-License-Identifier: Apache-2.0
// Live models, sessions and programs: the side of C++ of millrace.live.
#include <fmt/format.h>

#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/runtime.h>
#include <millrace/streaming/live/live_model.h>
#include <millrace/streaming/live/live_program.h>

#include "build.h"
#include "engine.h"
#include "event_loop.h"

namespace millrace::python {
namespace {

Backend backend_named(const std::string& name) {
  const std::optional<Backend> chosen = backend_of(name);
  if (!chosen) throw ArgumentError(fmt::format("live model: expected the backend auto, interpreted, captured or fused, found '{}'", name));
  return *chosen;
}

// ---- Models and sessions ----

/// Operations run on the event loops of those who ask for them; on the runtime itself nothing does.
class Model {
 public:
  Model(const Program& program, LiveOptions options, int threads) : forks_(forks()) {
    if (threads < 1) throw ArgumentError(fmt::format("live model: expected 1 thread or more, found {}", threads));
    const nb::gil_scoped_release released;
    const SignalsBlocked blocked;
    RuntimeOptions how;
    how.threads = 1;
    how.kernel_threads = static_cast<std::size_t>(threads);
    runtime_ = std::make_unique<Runtime>(how);
    model_ = std::make_unique<LiveModel>(*runtime_, program, std::move(options));
  }
  ~Model() {
    if (forks_ != forks()) {  // threads that are not here cannot be waited for
      static_cast<void>(model_.release());
      static_cast<void>(runtime_.release());
      return;
    }
    without_gil([this] {
      model_.reset();
      runtime_.reset();
    });
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const LiveModel& get() const {
    if (forks_ != forks())
      throw UnsupportedError("live model: it was made before this process was forked, whose threads it lacks: make it again here");
    return *model_;
  }
  const Recurrence& recurrence() const { return model_->recurrence(); }

 private:
  int forks_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<LiveModel> model_;
};

struct ModelObject {
  std::shared_ptr<const Model> model;
};

struct SessionObject {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const LiveSession> session;
};

/// Arriving values by the name of their input: rows, of which `outer` more levels of sequences say whose they are.
LiveRows rows_of(const Recurrence& recurrence, nb::handle alone, const nb::dict& named, int outer) {
  struct Known {
    const Recurrence::Input* input;
    int levels;
  };
  std::vector<Known> inputs;
  for (const Recurrence::Input& input : recurrence.inputs) inputs.push_back({&input, recurrence.levels - 1});
  for (const Recurrence::Boundary& boundary : recurrence.boundaries)
    for (const Recurrence::Input& input : boundary.inputs) inputs.push_back({&input, boundary.level - 1});
  LiveRows made;
  const auto add = [&](const Known& known, nb::handle rows) {
    const VarType type(known.input->dtype, known.input->row.inserted(0, DDim::unknown), known.levels + outer);
    const Value value = value_from(rows, known.input->name, type);
    if (!value.is_tensor())
      throw ArgumentError(fmt::format("live session, input '{}': expected rows of {}", known.input->name, type.to_string()));
    const Tensor& tensor = value.tensor().tensor();
    if (tensor.rank() == known.input->row.rank())
      throw ShapeError(fmt::format("live session, input '{}': expected rows, {}, found {}: one row is rows[None]", known.input->name,
                                   type.to_string(), value.tensor().to_string()));
    made.insert_or_assign(known.input->name, value.tensor());
  };
  if (!alone.is_none()) {
    if (inputs.size() != 1)
      throw ArgumentError(fmt::format("live session: expected rows by name for {} inputs, found rows alone", inputs.size()));
    add(inputs.front(), alone);
  }
  for (const auto& [key, rows] : named) {
    const auto name = nb::cast<std::string>(key);
    std::string names;
    const Known* found = nullptr;
    for (const Known& known : inputs) {
      names += (names.empty() ? "" : ", ") + known.input->name;
      if (known.input->name == name) found = &known;
    }
    if (found == nullptr) throw ArgumentError(fmt::format("live session: expected rows of {}, found '{}'", names, name));
    if (made.count(name) > 0) throw ArgumentError(fmt::format("live session: expected the rows of '{}' once, found them twice", name));
    add(*found, rows);
  }
  if (made.empty()) throw ArgumentError("live session: expected rows, found none");
  return made;
}

nb::object none() { return nb::none(); }

/// Of one sequence: its rows are all there are.
nb::object rows_object(std::optional<LiveRows> rows) {
  if (!rows) return nb::none();
  nb::dict made;
  for (auto& [name, value] : *rows) made[name.c_str()] = nb::cast(value.tensor());
  return made;
}

nb::object batch_object(std::optional<LiveBatch> batch) {
  if (!batch) return nb::none();
  nb::dict outputs;
  for (auto& [name, value] : batch->outputs) outputs[name.c_str()] = nb::cast(value);
  nb::list failed;
  for (const auto& [id, error] : batch->failed) failed.append(nb::make_tuple(id, exception_of(error)));
  return nb::make_tuple(nb::cast(batch->ids), outputs, nb::cast(batch->ended), failed);
}

OperationObject open_session(const ModelObject& self, const LoopObject& loop, const std::string& name,
                             const std::map<std::string, nb::object>& given) {
  LiveStart start;
  start.name = name;
  // Copied: the thread of the ticks lets go of them, without the GIL.
  for (const auto& [called, value] : given) {
    std::optional<DType> dtype;
    for (const Recurrence::Given& wanted : self.model->recurrence().given)
      if (wanted.name == called) dtype = wanted.dtype;
    start.given.emplace(called, copy_of(tensor_from(value, dtype)));
  }
  const auto convert = [model = self.model](LiveSession session) {
    return nb::cast(SessionObject{model, std::make_shared<const LiveSession>(std::move(session))});
  };
  return start_on(loop, self.model->get().open(std::move(start)), "open", convert);
}

/// A session lives while one of its operations is under way.
template <class T>
OperationObject say(const SessionObject& self, const LoopObject& loop, task<T> work, const char* name) {
  if constexpr (std::is_void_v<T>)
    return start_on(loop, std::move(work), name, [kept = self.session] { return nb::none(); });
  else
    return start_on(loop, std::move(work), name, [kept = self.session](T made) { return nb::cast(made); });
}

nb::dict ports(const Recurrence& recurrence, bool inputs) {
  nb::dict made;
  const auto add = [&](const std::string& name, DType dtype, const DDim& row) {
    made[name.c_str()] = std::string(name_of(dtype)) + row.to_string();
  };
  const auto add_all = [&](const auto& of) {
    if (inputs)
      for (const auto& port : of.inputs) add(port.name, port.dtype, port.row);
    else
      for (const auto& port : of.outputs) add(port.name, port.dtype, port.row);
  };
  add_all(recurrence);
  for (const Recurrence::Boundary& boundary : recurrence.boundaries) add_all(boundary);
  return made;
}

ModelObject make_model(const SharedProgram& program, int threads, const std::string& backend, std::size_t max_rows, std::size_t sessions,
                       std::size_t queued_in, std::size_t queued_out, const std::map<std::string, std::string>& states,
                       const std::map<std::string, nb::object>& constants, const std::map<std::string, std::vector<std::int64_t>>& rows) {
  LiveOptions options;
  options.backend = backend_named(backend);
  options.max_rows = max_rows;
  options.sessions = sessions;
  options.queued_in = queued_in;
  options.queued_out = queued_out;
  options.recurrence.states.assign(states.begin(), states.end());
  for (const auto& [name, value] : constants) options.recurrence.constants.emplace(name, copy_of(tensor_from(value)));
  for (const auto& [name, row] : rows) options.recurrence.rows.emplace(name, DDim(std::span<const std::int64_t>(row)));
  return {std::make_shared<const Model>(*program.program, std::move(options), threads)};
}

void bind_model(nb::module_& m) {
  nb::class_<ModelObject>(m, "_LiveModel", "The side of C++ of millrace.live.LiveModel.")
      .def(
          "__init__",
          [](ModelObject* self, const SharedProgram& program, int threads, const std::string& backend, std::size_t max_rows,
             std::size_t sessions, std::size_t queued_in, std::size_t queued_out, const std::map<std::string, std::string>& states,
             const std::map<std::string, nb::object>& constants, const std::map<std::string, std::vector<std::int64_t>>& rows) {
            new (self)
                ModelObject(make_model(program, threads, backend, max_rows, sessions, queued_in, queued_out, states, constants, rows));
          },
          "program"_a, "threads"_a, "backend"_a, "max_rows"_a, "sessions"_a, "queued_in"_a, "queued_out"_a, "states"_a, "constants"_a,
          "rows"_a)
      .def("open", &open_session, "loop"_a, "name"_a, "given"_a)
      .def(
          "push",
          [](const ModelObject& self, const LoopObject& loop, std::vector<std::uint64_t> ids, nb::handle rows, nb::dict named) {
            LiveRows all = rows_of(self.model->recurrence(), rows, named, 1);
            return start_on(loop, self.model->get().push(std::move(ids), std::move(all)), "push", &none);
          },
          "loop"_a, "ids"_a, "rows"_a.none(), "named"_a)
      .def(
          "next",
          [](const ModelObject& self, const LoopObject& loop) { return start_on(loop, self.model->get().next(), "next", &batch_object); },
          "loop"_a)
      .def_prop_ro("live_sessions", [](const ModelObject& self) { return self.model->get().live_sessions(); })
      .def_prop_ro("stats",
                   [](const ModelObject& self) {
                     const Batcher::Stats stats = self.model->get().stats();
                     return std::map<std::string, std::uint64_t>{{"ticks", stats.ticks}, {"rows", stats.rows}, {"largest", stats.largest}};
                   })
      .def_prop_ro(
          "inputs", [](const ModelObject& self) { return ports(self.model->recurrence(), true); },
          nb::sig("def inputs(self) -> dict[str, str]"))
      .def_prop_ro(
          "outputs", [](const ModelObject& self) { return ports(self.model->recurrence(), false); },
          nb::sig("def outputs(self) -> dict[str, str]"))
      .def_prop_ro("levels", [](const ModelObject& self) { return self.model->recurrence().levels; })
      .def("__str__", [](const ModelObject& self) { return self.model->recurrence().to_string(); });
}

void bind_session(nb::module_& m) {
  nb::class_<SessionObject>(m, "_LiveSession", "The side of C++ of millrace.live.LiveSession.")
      .def_prop_ro("id", [](const SessionObject& self) { return self.session->id(); })
      .def_prop_ro("steps", [](const SessionObject& self) { return self.session->steps(); })
      .def(
          "push",
          [](const SessionObject& self, const LoopObject& loop, nb::handle rows, nb::dict named) {
            self.model->get();
            LiveRows all = rows_of(self.model->recurrence(), rows, named, 0);
            return say(self, loop, self.session->push(std::move(all)), "push");
          },
          "loop"_a, "rows"_a.none(), "named"_a)
      .def(
          "next",
          [](const SessionObject& self, const LoopObject& loop) { return start_on(loop, self.session->next(), "next", &rows_object); },
          "loop"_a)
      .def(
          "open_level",
          [](const SessionObject& self, const LoopObject& loop, int level) {
            return say(self, loop, self.session->open_level(level), "open_level");
          },
          "loop"_a, "level"_a)
      .def(
          "close_level",
          [](const SessionObject& self, const LoopObject& loop, int level) {
            return say(self, loop, self.session->close_level(level), "close_level");
          },
          "loop"_a, "level"_a)
      .def(
          "flush", [](const SessionObject& self, const LoopObject& loop) { return say(self, loop, self.session->flush(), "flush"); },
          "loop"_a)
      .def(
          "reset", [](const SessionObject& self, const LoopObject& loop) { return say(self, loop, self.session->reset(), "reset"); },
          "loop"_a)
      .def(
          "finish", [](const SessionObject& self, const LoopObject& loop) { return say(self, loop, self.session->finish(), "finish"); },
          "loop"_a)
      .def("cancel", [](const SessionObject& self) { self.session->cancel(); });
}

// ---- Any program ----

/// A run over arrays that are open, on a thread of its own.
class AnyProgram {
 public:
  AnyProgram(std::shared_ptr<const Program> program, LiveProgramOptions options) : source(std::move(program)), forks_(forks()) {
    const nb::gil_scoped_release released;
    const SignalsBlocked blocked;
    RuntimeOptions how;
    how.threads = 1;
    how.kernel_threads = 1;
    runtime_ = std::make_unique<Runtime>(how);
    program_ = std::make_unique<LiveProgram>(*runtime_, *source, std::move(options));
  }
  ~AnyProgram() {
    if (forks_ != forks()) {
      static_cast<void>(program_.release());
      static_cast<void>(runtime_.release());
      return;
    }
    without_gil([this] { end(); });
  }
  AnyProgram(const AnyProgram&) = delete;
  AnyProgram& operator=(const AnyProgram&) = delete;

  const LiveProgram& get() const {
    if (forks_ != forks())
      throw UnsupportedError("live program: it was started before this process was forked, whose threads it lacks: start it again here");
    return *program_;
  }
  const std::shared_ptr<const Program> source;

 private:
  /// The runtime's threads end after the run.
  void end() noexcept {
    program_->finish();
    program_->cancel();
    try {
      start_run(runtime_->executor(), program_->result(), "end of a live program").get();
    } catch (...) {  // how it ended is known to who asked
    }
    program_.reset();
    runtime_.reset();
  }

  int forks_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<LiveProgram> program_;
};

struct AnyProgramObject {
  std::shared_ptr<const AnyProgram> program;
};

VarType type_of(const Program& program, const std::string& name, const char* who) {
  std::string names;
  for (const Program::Port& port : program.inputs()) {
    if (port.name == name) return program.var(port.var).type;
    names += (names.empty() ? "" : ", ") + port.name;
  }
  throw ArgumentError(fmt::format("{}: expected one of the inputs {}, found '{}'", who, names, name));
}

AnyProgramObject start_program(const SharedProgram& program, std::int64_t window, std::int64_t output_window, const nb::dict& feeds) {
  LiveProgramOptions options;
  options.window = window;
  options.output_window = output_window;
  const auto source = std::make_shared<const Program>(*program.program);
  for (const auto& [key, value] : feeds) {
    const auto name = nb::cast<std::string>(key);
    options.feeds.emplace(name, value_from(value, name, type_of(*source, name, "live program")));
  }
  return {std::make_shared<const AnyProgram>(source, std::move(options))};
}

void bind_any_program(nb::module_& m) {
  nb::class_<AnyProgramObject>(m, "_LiveProgram", "The side of C++ of millrace.live.LiveProgram.")
      .def(
          "__init__",
          [](AnyProgramObject* self, const SharedProgram& program, std::int64_t window, std::int64_t output_window, nb::dict feeds) {
            new (self) AnyProgramObject(start_program(program, window, output_window, feeds));
          },
          "program"_a, "window"_a, "output_window"_a, "feeds"_a)
      .def(
          "push",
          [](const AnyProgramObject& self, const LoopObject& loop, const std::string& input, nb::handle slot) {
            const VarType type = type_of(*self.program->source, input, "live program");
            const LoDTensor rows = value_from(slot, input, VarType::unranked(type.dtype)).tensor();
            // Copied: the run lets go of it on a thread without the GIL.
            task<void> work = self.program->get().push(input, LoDTensor(copy_of(rows.tensor()), rows.lod()));
            return start_on(loop, std::move(work), "push", [kept = self.program] { return nb::none(); });
          },
          "loop"_a, "input"_a, "slot"_a)
      .def("finish", [](const AnyProgramObject& self) { self.program->get().finish(); })
      .def(
          "next",
          [](const AnyProgramObject& self, const LoopObject& loop, std::string output) {
            return start_on(
                loop, self.program->get().next(std::move(output)), "next",
                [kept = self.program](std::optional<LoDTensor> slot) { return slot ? object_from(*slot) : nb::object(nb::none()); });
          },
          "loop"_a, "output"_a)
      .def(
          "result",
          [](const AnyProgramObject& self, const LoopObject& loop) {
            return start_on(loop, self.program->get().result(), "result",
                            [kept = self.program](RunResult made) { return result_object(std::move(made)); });
          },
          "loop"_a)
      .def("cancel", [](const AnyProgramObject& self) { self.program->get().cancel(); });
}

}  // namespace

void bind_live(nb::module_& m) {
  bind_model(m);
  bind_session(m);
  bind_any_program(m);
}

}  // namespace millrace::python
