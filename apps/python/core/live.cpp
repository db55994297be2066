// SPDX-License-Identifier: Apache-2.0
// Live models, sessions and programs: the side of C++ of millrace.live.
#include <algorithm>

#include <fmt/format.h>

#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/runtime.h>
#include <millrace/streaming/live/live_model.h>
#include <millrace/streaming/live/live_program.h>

#include "build.h"
#include "engine.h"
#include "event_loop.h"
#include "gil.h"
#include "live_arguments.h"
#include "results_wait.h"

namespace millrace::python {
namespace {

// ---- Models and sessions ----

/// Operations run on the event loops of those who ask for them; on the runtime itself nothing does.
class Model {
 public:
  Model(const Program& program, LiveOptions options, int threads) : forks_(forks()), queued_in_(options.queued_in) {
    const GilReleased released;
    const SignalsBlocked blocked;
    RuntimeOptions how;
    how.threads = 1;
    how.kernel_threads = static_cast<std::size_t>(threads);
    runtime_ = std::make_unique<Runtime>(how);
    model_ = std::make_unique<LiveModel>(*runtime_, program, std::move(options));
    const auto add = [this](const Recurrence::Input& input, int levels) {
      arriving_.push_back({input.name, VarType(input.dtype, input.row.inserted(0, DDim::unknown), levels)});
    };
    for (const Recurrence::Input& input : recurrence().inputs) add(input, recurrence().levels - 1);
    for (const Recurrence::Boundary& boundary : recurrence().boundaries)
      for (const Recurrence::Input& input : boundary.inputs) add(input, boundary.level - 1);
  }
  ~Model() {
    if (!nb::is_alive())
      for (nb::str& name : outputs_) static_cast<void>(name.release());
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

  /// An input that takes rows, and the type of several rows of one session.
  struct Arriving {
    std::string name;
    VarType type;
  };
  const std::vector<Arriving>& arriving() const noexcept { return arriving_; }

  /// The names of the outputs of a step, then of each boundary. With the GIL held.
  const std::vector<nb::str>& outputs() const {
    if (!outputs_.empty()) return outputs_;
    const auto add = [this](const std::vector<Recurrence::Output>& of) {
      for (const Recurrence::Output& output : of) outputs_.emplace_back(output.name.c_str());
    };
    add(recurrence().outputs);
    for (const Recurrence::Boundary& boundary : recurrence().boundaries) add(boundary.outputs);
    return outputs_;
  }

  /// The gathered pushes, which an event loop ends behind the callbacks that are due now.
  struct Gathering {
    std::shared_ptr<LiveGathering> rows;
  };
  /// `try_push` of a session of this model: False; True; or the first push's Gathering. With the GIL held.
  template <class Rows>
  nb::object try_push(const LiveSession& session, const Rows& rows) const {
    if (!may_fit(rows)) return nb::bool_(false);  // `push` takes them piece by piece
    std::shared_ptr<LiveGathering> made;
    if (gathering_.expired()) gathering_ = made = std::make_shared<LiveGathering>(get().gather());
    if (!session.try_push(rows)) return nb::bool_(false);
    return made ? nb::cast(Gathering{std::move(made)}) : nb::bool_(true);
  }

 private:
  /// Whether a session's queues ever have room for all of it at once.
  bool may_fit(const LiveRows& rows) const {
    return std::all_of(rows.begin(), rows.end(), [this](const auto& named) {
      const Tensor& value = named.second.tensor();
      return value.bytes() <= queued_in_ || value.dim(0) <= 1;
    });
  }
  bool may_fit(std::span<const std::byte> rows) const {
    const VarType& type = arriving_.front().type;
    return rows.size() <= std::max(queued_in_, static_cast<std::size_t>(type.shape->erased(0).elements()) * size_of(type.dtype));
  }

  int forks_;
  std::size_t queued_in_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<LiveModel> model_;
  std::vector<Arriving> arriving_;
  mutable std::vector<nb::str> outputs_;
  mutable std::weak_ptr<LiveGathering> gathering_;
};

struct ModelObject {
  std::shared_ptr<const Model> model;
};

struct SessionObject {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const LiveSession> session;
  std::shared_ptr<ResultsNews> news;  // for the event loop that opened it
  /// The ends that the Python object knows of.
  struct Ends {
    bool finished = false;  ///< `finish` took effect
    bool closed = false;    ///< the `async with` was left
    std::string reason;     ///< why `fail` cancelled the session, or empty
  };
  std::shared_ptr<Ends> ends = std::make_shared<Ends>();
};

/// ClosedError unless rows and commands may still follow.
void expect_open(const SessionObject& self) {
  if (self.ends->closed) throw ClosedError(fmt::format("session {}: the session is closed: its `async with` was left", self.session->id()));
  if (self.ends->finished)
    throw ClosedError(fmt::format("session {}: the session is finished: only `next` follows `finish`", self.session->id()));
}

/// The way in which `found` becomes rows of `expected`, which have one axis more: ": one row is rows[None]". Empty where no axis of one element is what lacks.
std::string missing_axis(const DDim& expected, const DDim& found) {
  if (found == expected.erased(0)) return ": one row is rows[None]";
  for (int axis = 1; axis < expected.rank(); ++axis)
    if (found.rank() > 0 && expected[axis] == 1 && found.inserted(axis, 1).erased(0) == expected.erased(0))
      return fmt::format(": an axis of one element lacks, as numpy.expand_dims(rows, {}) has it", axis);
  return "";
}

/// Arriving values by the name of their input: rows, of which `outer` more levels of sequences say whose they are.
LiveRows rows_of(const Model& model, nb::handle alone, const nb::dict& named, int outer) {
  using Arriving = Model::Arriving;
  const std::vector<Arriving>& inputs = model.arriving();
  LiveRows made;
  const auto add = [&](const Arriving& input, nb::handle rows) {
    VarType type = input.type;
    type.lod_depth += outer;
    const Value value = value_from(rows, input.name, type);
    if (!value.is_tensor()) throw ArgumentError(fmt::format("live session, input '{}': expected rows of {}", input.name, type.to_string()));
    const Tensor& found = value.tensor().tensor();
    if (found.rank() == type.rank() - 1)
      throw ShapeError(fmt::format("live session, input '{}': expected rows, {}, found {}{}", input.name, type.to_string(),
                                   found.to_string(), missing_axis(*type.shape, found.dims())));
    if (!made.emplace(input.name, value.tensor()).second)
      throw ArgumentError(fmt::format("live session: expected the rows of '{}' once, found them twice", input.name));
  };
  if (!alone.is_none()) {
    if (inputs.size() != 1)
      throw ArgumentError(fmt::format("live session: expected rows by name for {} inputs, found rows alone", inputs.size()));
    add(inputs.front(), alone);
  }
  for (const auto& [key, rows] : named) {
    const auto name = argument<std::string>(key, "live session", "the name of an input");
    const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const Arriving& input) { return input.name == name; });
    if (found == inputs.end()) {
      std::string names;
      for (const Arriving& input : inputs) names += (names.empty() ? "" : ", ") + input.name;
      throw ArgumentError(fmt::format("live session: expected rows of {}, found '{}'{}", names, name, meant(name, names)));
    }
    add(*found, rows);
  }
  if (made.empty()) throw ArgumentError("live session: expected rows, found none");
  return made;
}

nb::object none() { return nb::none(); }

nb::object take_results(nb::handle session) {
  const SessionObject& self = *nb::inst_ptr<SessionObject>(session);
  self.model->get();
  std::optional<std::vector<Tensor>> made;
  try {
    if (!self.session->try_next(made, self.news)) return {};
  } catch (const CancelledError&) {
    if (self.ends->reason.empty()) throw;
    throw CancelledError(self.ends->reason);
  }
  if (!made) return nb::none();
  nb::dict rows;
  for (std::size_t i = 0; i < made->size(); ++i)
    if (i < self.model->recurrence().outputs.size() || (*made)[i].dim(0) > 0)
      rows[self.model->outputs()[i]] = nb::cast(std::move((*made)[i]));
  return rows;
}

/// The same behind the `async with`: the end of a sequence whose results were all taken, ClosedError for one that leaving cancelled.
nb::object take_after_close(nb::handle session) {
  try {
    return take_results(session);
  } catch (const CancelledError&) {
    expect_open(*nb::inst_ptr<SessionObject>(session));
    throw;
  }
}

/// Rows that lie as the session's queue takes them, of a model with one input, need no tensor.
nb::object try_push(const SessionObject& self, nb::handle rows, const nb::dict& named) {
  expect_open(self);
  const Model& model = *self.model;
  model.get();
  if (model.arriving().size() == 1 && model.recurrence().levels == 1 && named.empty()) {
    const PlainRows plain(rows, model.arriving().front().type.dtype, *model.arriving().front().type.shape);
    if (plain.valid()) return model.try_push(*self.session, plain.bytes());
  }
  return model.try_push(*self.session, rows_of(model, rows, named, 0));
}

nb::object batch_object(std::optional<LiveBatch> batch) {
  if (!batch) return nb::none();
  nb::dict outputs;
  for (auto& [name, value] : batch->outputs) outputs[name.c_str()] = nb::cast(value);
  nb::list failed;
  for (const auto& [id, error] : batch->failed) failed.append(nb::make_tuple(id, exception_of(error)));
  return nb::make_tuple(nb::cast(batch->ids), outputs, nb::cast(batch->ended), failed);
}

/// The Python object of a session that was opened, or forked from another.
auto session_object(std::shared_ptr<const Model> model, const LoopObject& loop) {
  return [model = std::move(model), executor = loop.executor](LiveSession session) {
    return nb::cast(SessionObject{model, std::make_shared<const LiveSession>(std::move(session)), std::make_shared<ResultsNews>(executor)});
  };
}

OperationObject open_session(const ModelObject& self, const LoopObject& loop, const std::string& name,
                             const std::map<std::string, nb::object>& given, const std::optional<nb::bytes>& state) {
  LiveStart start;
  start.name = name;
  if (state) start.state.assign(state->c_str(), state->size());
  // Copied: the thread of the ticks lets go of them, without the GIL.
  for (const auto& [called, value] : given) {
    std::optional<DType> dtype;
    for (const Recurrence::Given& wanted : self.model->recurrence().given)
      if (wanted.name == called) dtype = wanted.dtype;
    start.given.emplace(called, copy_of(tensor_from(value, dtype)));
  }
  return start_on(loop, self.model->get().open(std::move(start)), "open", session_object(self.model, loop));
}

/// A session lives while one of its operations is under way.
template <class T>
OperationObject say(const SessionObject& self, const LoopObject& loop, task<T> work, const char* name) {
  expect_open(self);
  if constexpr (std::is_void_v<T>)
    return start_on(loop, std::move(work), name, [kept = self.session] { return nb::none(); });
  else
    return start_on(loop, std::move(work), name, [kept = self.session](T made) { return nb::cast(made); });
}

ModelObject make_model(const SharedProgram& program, LiveArguments live, std::size_t queued_in, std::size_t queued_out) {
  LiveOptions options;
  options.backend = live.backend;
  options.max_rows = live.max_rows;
  options.sessions = live.sessions;
  options.queued_in = queued_in;
  options.queued_out = queued_out;
  options.recurrence.states = std::move(live.states);
  options.recurrence.constants = std::move(live.constants);
  options.recurrence.rows = std::move(live.rows);
  options.state_key = std::move(live.state_key);
  return {std::make_shared<const Model>(*program.program, std::move(options), live.threads)};
}

void bind_model(nb::module_& m) {
  nb::class_<ModelObject> model(m, "_LiveModel", "The side of C++ of millrace.live.LiveModel.");
  model
      .def(
          "__init__",
          [](ModelObject* self, const SharedProgram& program, const nb::dict& live, std::size_t queued_in, std::size_t queued_out) {
            new (self) ModelObject(make_model(program, live_arguments("live model", *program.program, live), queued_in, queued_out));
          },
          "program"_a, "live"_a, "queued_in"_a, "queued_out"_a)
      .def("open", &open_session, "loop"_a, "name"_a, "given"_a, "state"_a.none())
      .def(
          "push",
          [](const ModelObject& self, const LoopObject& loop, std::vector<std::uint64_t> ids, nb::handle rows, nb::dict named) {
            LiveRows all = rows_of(*self.model, rows, named, 1);
            return start_on(loop, self.model->get().push(std::move(ids), std::move(all)), "push", &none);
          },
          "loop"_a, "ids"_a, "rows"_a.none(), "named"_a)
      .def(
          "next",
          [](const ModelObject& self, const LoopObject& loop) { return start_on(loop, self.model->get().next(), "next", &batch_object); },
          "loop"_a);
  bind_live_figures(
      model, [](const ModelObject& self) -> const Recurrence& { return self.model->recurrence(); },
      [](const ModelObject& self) { return self.model->get().live_sessions(); },
      [](const ModelObject& self) { return self.model->get().stats(); });
}

void bind_session(nb::module_& m) {
  nb::class_<Model::Gathering>(m, "_Gathering", "Rows of sessions of a model share a step until it ends.")
      .def("end", [](Model::Gathering& self) { self.rows.reset(); });
  nb::class_<SessionObject>(m, "_LiveSession", "The side of C++ of millrace.live.LiveSession.")
      .def_prop_ro("id", [](const SessionObject& self) { return self.session->id(); })
      .def_prop_ro("steps", [](const SessionObject& self) { return self.session->steps(); })
      .def(
          "push",
          [](const SessionObject& self, const LoopObject& loop, nb::handle rows, nb::dict named) {
            expect_open(self);
            self.model->get();
            LiveRows all = rows_of(*self.model, rows, named, 0);
            return say(self, loop, self.session->push(std::move(all)), "push");
          },
          "loop"_a, "rows"_a.none(), "named"_a)
      .def("try_push", &try_push, "rows"_a.none(), "named"_a,
           nb::sig("def try_push(self, rows: typing.Any, named: dict[str, typing.Any]) -> bool | _Gathering"),
           "Whether all rows were queued at once; else none.")
      .def(
          "next",
          [](nb::handle_t<SessionObject> self, nb::handle loop, nb::handle waits, bool anext) {
            const SessionObject& session = *nb::inst_ptr<SessionObject>(self);
            return session.news->next(self, session.ends->closed ? &take_after_close : &take_results, loop, waits, anext);
          },
          "loop"_a, "waits"_a, "anext"_a,
          nb::sig("def next(self, loop: typing.Any, waits: set[typing.Any], anext: bool) -> collections.abc.Coroutine[typing.Any, "
                  "typing.Any, typing.Any]"),
          "The coroutine that gives the next results.")
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
          "save",
          [](const SessionObject& self, const LoopObject& loop) {
            expect_open(self);
            return start_on(loop, self.session->save(), "save",
                            [kept = self.session](const std::string& made) { return nb::bytes(made.data(), made.size()); });
          },
          "loop"_a)
      .def(
          "fork",
          [](const SessionObject& self, const LoopObject& loop) {
            expect_open(self);
            return start_on(loop, self.session->fork(), "fork", session_object(self.model, loop));
          },
          "loop"_a)
      .def(
          "finish",
          [](const SessionObject& self, const LoopObject& loop) {
            expect_open(self);
            return start_on(loop, self.session->finish(), "finish", [kept = self.session, ends = self.ends] {
              ends->finished = true;
              return nb::none();
            });
          },
          "loop"_a)
      .def("cancel", [](const SessionObject& self) { self.session->cancel(); })
      .def(
          "fail",
          [](const SessionObject& self, std::string reason) {
            self.ends->reason = std::move(reason);
            self.session->cancel();
          },
          "reason"_a, "Cancels the session; `reason` is the message of the CancelledError.")
      .def(
          "close",
          [](const SessionObject& self) {
            self.ends->closed = true;
            self.session->cancel();
          },
          "Cancels the session, whose `async with` is left.")
      .def("expect_open", &expect_open, "ClosedError of a session that is finished or closed.");
}

// ---- Any program ----

/// A run over arrays that are open, on a thread of its own.
class AnyProgram {
 public:
  AnyProgram(std::shared_ptr<const Program> program, LiveProgramOptions options) : source(std::move(program)), forks_(forks()) {
    const GilReleased released;
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
  throw ArgumentError(fmt::format("{}: expected one of the inputs {}, found '{}'{}", who, names, name, meant(name, names)));
}

AnyProgramObject start_program(const SharedProgram& program, std::int64_t window, std::int64_t output_window, const nb::dict& feeds) {
  LiveProgramOptions options;
  options.window = window;
  options.output_window = output_window;
  const auto source = std::make_shared<const Program>(*program.program);
  for (const auto& [key, value] : feeds) {
    const auto name = argument<std::string>(key, "live program", "the name of an input");
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
            const Value given = type.is_array() ? slot_from(slot, input, type) : value_from(slot, input, VarType::unranked(type.dtype));
            const LoDTensor& rows = given.tensor();
            // Copied: the run lets go of it on a thread without the GIL.
            task<void> work = self.program->get().push(input, LoDTensor(copy_of(rows.tensor()), rows.lod()));
            return start_on(loop, std::move(work), "push", [kept = self.program] { return nb::none(); });
          },
          "loop"_a, "input"_a, "slot"_a)
      .def(
          "expect_input",
          [](const AnyProgramObject& self, const std::string& name) { (void)type_of(*self.program->source, name, "live program"); },
          "name"_a, "ArgumentError unless the program has an input of this name.")
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
  make_results_types();
  bind_model(m);
  bind_session(m);
  bind_any_program(m);
}

}  // namespace millrace::python
