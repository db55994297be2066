// SPDX-License-Identifier: Apache-2.0
// Arrays, loops, recurrent blocks, and generation.
#include <fmt/format.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/generation.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>

#include "build.h"
#include "gil.h"
#include "scopes.h"

namespace millrace::python {
namespace {

using build::ArrayVar;
using build::LoopOptions;
using build::Order;
using build::RnnBlock;
using build::WhileLoop;

/// A function of Python that describes a part of the program; it is called while the program is built, never when it runs.
class Described {
 public:
  Described(const char* what, nb::callable f) : what_(what), f_(std::move(f)) {}
  template <class... Args>
  nb::object operator()(Args&&... args) const {
    const CallDepth depth(what_);
    nb::object made = calling_python([&] { return f_(std::forward<Args>(args)...); });
    depth.expect_closed();
    return made;
  }

 private:
  const char* what_;
  nb::callable f_;
};

/// The values that a function gives, as Python has them: one, or several in a list or tuple.
std::vector<nb::object> several(nb::handle given) {
  if (!is_list(given)) return {nb::borrow(given)};
  std::vector<nb::object> made;
  for (const nb::handle one : given) made.push_back(nb::borrow(one));
  return made;
}

/// The states that a loop begins with. A written float takes the dtype of the first floating Var or array among them; whole numbers count, and stay i64.
std::vector<Var> begin_states(nb::handle initial) {
  const std::vector<nb::object> given = several(initial);
  std::vector<Var> made(given.size());
  std::optional<DType> dtype;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (is_number(given[i])) continue;
    made[i] = var_from(given[i]);
    if (!dtype && made[i].type().is_tensor() && is_floating(made[i].type().dtype)) dtype = made[i].type().dtype;
  }
  for (std::size_t i = 0; i < given.size(); ++i)
    if (!made[i].defined()) made[i] = dtype && PyFloat_Check(given[i].ptr()) != 0 ? beside(*dtype, given[i]) : var_from(given[i]);
  return made;
}

/// The next values of `states`: written numbers take the dtype of the state.
std::vector<Var> next_states(const std::vector<Var>& states, nb::handle next) {
  const std::vector<nb::object> given = several(next);
  std::vector<Var> made;
  for (std::size_t i = 0; i < given.size(); ++i)
    made.push_back(i < states.size() && states[i].type().is_tensor() ? written_beside(states[i].type().dtype, given[i])
                                                                     : var_from(given[i]));
  return made;
}

/// The values that one function of `cond` gives, in the block where it was called.
struct Branch {
  int block = 0;
  std::vector<nb::object> given;
  std::vector<Var> values = {};  ///< undefined for a written number
};

Branch branch_of(const Described& f) {
  build::Guard& guard = build::Guard::current();
  Branch made{guard.program().add_block(guard.block()), {}};
  const build::BlockGuard inside(guard, made.block);
  made.given = several(f());
  for (const nb::object& one : made.given) made.values.push_back(is_number(one) ? Var() : var_from(one));
  return made;
}

/// Value `i` of `branch`. A written number takes the dtype of the other branch's, or that of both numbers together.
Var branch_value(const Branch& branch, const Branch& other, std::size_t i) {
  const nb::object& given = branch.given[i];
  if (branch.values[i].defined()) return branch.values[i];
  if (i >= other.given.size()) return var_from(given);
  if (!other.values[i].defined()) return written_beside(dtype_of_numbers({given, other.given[i]}), given);
  const VarType type = other.values[i].type();
  return type.is_tensor() ? written_beside(type.dtype, given) : var_from(given);
}

void finish_branch(const Branch& branch, const Branch& other) {
  build::Guard& guard = build::Guard::current();
  const build::BlockGuard inside(guard, branch.block);
  std::vector<VarId> results;
  for (std::size_t i = 0; i < branch.given.size(); ++i) results.push_back(branch_value(branch, other, i).id());
  guard.program().block(branch.block).results = results;
}

LoopOptions options(std::int64_t max_trips, std::int64_t parallel_iterations) {
  LoopOptions made;
  made.max_trips = max_trips;
  made.parallel_iterations = parallel_iterations;
  return made;
}

// ---- Arrays ----

/// The designs spell arrays with keywords: a size, or what is taken apart.
ArrayVar make_array(const std::optional<Var>& size, const std::optional<Order>& order, const std::optional<Var>& unstack_from,
                    const std::string& name) {
  if (size.has_value() == unstack_from.has_value())
    throw ArgumentError("TensorArray: expected either a size or unstack_from: TensorArray.growable() and .window() have none");
  if (unstack_from) {
    if (order) throw ArgumentError("TensorArray: an order goes with a size, not with unstack_from: see mr.unpack");
    return ArrayVar::unstack(*unstack_from);
  }
  return order ? ArrayVar(*size, *order, name) : ArrayVar(*size, name);
}

TensorArray::Mode mode(bool data_shared) { return data_shared ? TensorArray::share : TensorArray::copy; }

void bind_arrays(nb::module_& m) {
  static_cast<void>(nb::class_<Order>(m, "Order", "What `unpack` hands to `pack`, and to arrays that are made with an order."));
  nb::class_<ArrayVar>(m, "TensorArray",
                       "Numbered slots, each written once: the steps of a sequence, the states of a loop. What is read in a loop waits for "
                       "what is written.\n\n"
                       "    states = mr.TensorArray(n, order)              # n slots, whose rows follow an order\n"
                       "    steps = mr.TensorArray(unstack_from=x)         # slot i is x[i]\n"
                       "    previous = states.read(step - 1, boot)         # boot for -1\n"
                       "    states.write(step, state)")
      .def(
          "__init__",
          [](ArrayVar* self, const std::optional<Var>& size, const std::optional<Order>& order, const std::optional<Var>& unstack_from,
             const std::string& name) { new (self) ArrayVar(make_array(size, order, unstack_from, name)); },
          "size"_a = nb::none(), "order"_a = nb::none(), nb::kw_only(), "unstack_from"_a = nb::none(), "name"_a = "")
      .def_static("growable", &ArrayVar::growable, "name"_a = "", "As many slots as get written.")
      .def_static("window", &ArrayVar::window, "capacity"_a, "name"_a = "", "At most `capacity` unread slots at a time.")
      .def_static("unstack", &ArrayVar::unstack, "x"_a, "axis"_a = 0, "Slot i is index i of `axis` of x.")
      .def_static(
          "input",
          [](const std::string& name, nb::handle dtype, nb::handle shape, int lod) {
            const VarType slot = type_from(dtype, shape, lod);
            VarType type = VarType::array_of(slot.dtype, slot.shape, false);
            type.lod_depth = lod;
            return ArrayVar::of(build::input(name, type));
          },
          "name"_a, "dtype"_a, "shape"_a, "lod"_a = 0,
          nb::sig("def input(name: str, dtype: DTypeLike, shape: collections.abc.Sequence[int | None], lod: int = 0) -> TensorArray"),
          "An array that is fed to a run under `name`, as a list with the value of each slot, of this shape. A mr.LiveProgram keeps it "
          "open: slots "
          "arrive,\n"
          "or are read, while the program runs.")
      .def("size", &ArrayVar::size, "Number of slots, i64.")
      .def("has", &ArrayVar::has, "index"_a,
           "`index < size` of an array that may still grow: true once the slot is written, false once there will be none.")
      .def("read", static_cast<Var (ArrayVar::*)(const Var&) const>(&ArrayVar::read), "index"_a)
      .def(
          "read",
          [](const ArrayVar& self, const Var& index, nb::handle boot) {
            const VarType& type = self.var().type();
            return self.read(index, type.open ? var_from(boot) : beside(type.dtype, boot));
          },
          "index"_a, "boot"_a, nb::sig("def read(self, index: VarLike, boot: VarLike) -> Var"),
          "The value of slot `index`; for -1 `boot` [sequences, ...], re-ordered like the batch.")
      .def(
          "write",
          [](const ArrayVar& self, const Var& index, const Var& value, bool data_shared) { self.write(index, value, mode(data_shared)); },
          "index"_a, "value"_a, "data_shared"_a = true,
          "Once for each slot. `data_shared`: the slot shares the memory of `value`, else it has a copy.")
      .def(
          "append", [](const ArrayVar& self, const Var& value, bool data_shared) { self.append(value, mode(data_shared)); }, "value"_a,
          "data_shared"_a = true, "Writes the slot behind the highest written.")
      .def("stack", &ArrayVar::stack, "axis"_a = 0, "All slots in one tensor with a new `axis`.")
      .def("concat", &ArrayVar::concat, "The rows of all slots, one behind the other.")
      .def("gather", &ArrayVar::gather, "index"_a, "The named slots, stacked.")
      .def(
          "__getitem__", [](const ArrayVar& self, const Var& index) { return self.read(index); }, "index"_a, "array[i] reads.")
      .def(
          "__setitem__", [](const ArrayVar& self, const Var& index, const Var& value) { self.write(index, value); }, "index"_a, "value"_a,
          "array[i] = v writes.")
      .def("__repr__", [](const ArrayVar& self) { return fmt::format("<millrace.TensorArray '{}'>", self.var().name()); });
  m.def("unpack", &build::unpack, "x"_a, "level"_a = 0, "sort_by_length"_a = true,
        "Takes sequences apart: (array, order). Slot t holds item t of every sequence of `level` that still lives, longest first when "
        "sorted.");
  m.def("pack", &build::pack, "array"_a, "level"_a, "order"_a, "Puts them together again, in the caller's order.");
}

// ---- Loops ----

struct LoopObject {
  std::shared_ptr<WhileLoop> loop;
};
struct FrameObject {
  std::shared_ptr<WhileLoop> loop;
  std::size_t number = 0;
};

void bind_while(nb::module_& m) {
  nb::class_<FrameObject>(m, "Frame", "The body of a loop, for `with`.")
      .def(
          "__enter__",
          [](nb::object self) {
            auto& frame = nb::cast<FrameObject&>(self);
            frame.number = open_scope(std::make_unique<ScopeOf<WhileLoop::Frame, WhileLoop>>(frame.loop));
            return self;
          },
          nb::sig("def __enter__(self) -> Frame"))
      .def(
          "__exit__", [](FrameObject& self, nb::handle type, nb::handle, nb::handle) { close_scope(self.number, !type.is_none()); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object, /) -> None"));
  nb::class_<LoopObject>(m, "WhileLoop",
                         "A loop that is being built. In `with loop.frame():` the variables that it carries stand for the values of the "
                         "iteration; `update` sets those\n"
                         "of the next. Behind the frame they stand for the last.")
      .def("frame", [](const LoopObject& self) { return FrameObject{self.loop}; })
      .def(
          "break_if", [](const LoopObject& self, const Var& condition) { self.loop->break_if(condition); }, "condition"_a,
          "Leaves the loop here when `condition`, a bool scalar, is true: what follows in this iteration does not run; updates made before "
          "count.");
  m.def(
      "while_loop",
      [](const std::vector<Var>& loop_vars, std::int64_t max_trips, std::int64_t parallel_iterations) {
        return LoopObject{std::make_shared<WhileLoop>(build::while_loop(loop_vars, options(max_trips, parallel_iterations)))};
      },
      "loop_vars"_a, nb::kw_only(), "max_trips"_a = -1, "parallel_iterations"_a = 8);
  m.def(
      "while_loop",
      [](nb::callable condition, nb::callable body, nb::handle initial, std::int64_t max_trips, std::int64_t parallel_iterations) {
        const Described more("while_loop", condition), next("while_loop", body);
        const std::vector<Var> last =
            build::while_loop([&](const std::vector<Var>& now) { return var_from(more(*tuple_from(now))); },
                              [&](const std::vector<Var>& now) { return next_states(now, next(*tuple_from(now))); }, begin_states(initial),
                              options(max_trips, parallel_iterations));
        return tuple_from(last);
      },
      "condition"_a, "body"_a, "initial"_a, nb::kw_only(), "max_trips"_a = -1, "parallel_iterations"_a = 8,
      nb::sig("def while_loop(condition: collections.abc.Callable[..., VarLike], body: collections.abc.Callable[..., typing.Any], initial: "
              "collections.abc.Sequence[VarLike], *, "
              "max_trips: int = -1, parallel_iterations: int = 8) -> tuple[Var, ...]"),
      "`while_loop([step, …])` is a loop with a frame, left by `break_if`. `while_loop(condition, body, initial)` is the functional form: "
      "both functions\n"
      "take the variables, `body` gives as many; the last values come back. A written float takes the dtype of the floating variables "
      "beside it. `max_trips`: at most so many iterations; -1: no limit.\n"
      "`parallel_iterations`: how many may be under way at once.");
  m.def(
      "while_op",
      [](const Var& condition, const std::vector<Var>& loop_vars, std::int64_t max_trips, std::int64_t parallel_iterations) {
        return LoopObject{std::make_shared<WhileLoop>(build::while_op(condition, loop_vars, options(max_trips, parallel_iterations)))};
      },
      "condition"_a, "loop_vars"_a, nb::kw_only(), "max_trips"_a = -1, "parallel_iterations"_a = 8,
      "The designs' form: iterations while `condition`, a bool scalar that the body updates, is true.");
}

void bind_functional(nb::module_& m) {
  m.def(
      "cond",
      [](const Var& condition, nb::callable then, nb::callable otherwise) {
        const Described yes("cond", then), no("cond", otherwise);
        const Branch first = branch_of(yes), second = branch_of(no);
        finish_branch(first, second);
        finish_branch(second, first);
        return object_from(build::call("if", {condition}, {{"then_block", BlockId{first.block}}, {"else_block", BlockId{second.block}}}));
      },
      "condition"_a, "then"_a, "otherwise"_a,
      nb::sig("def cond(condition: VarLike, then: collections.abc.Callable[[], typing.Any], otherwise: collections.abc.Callable[[], "
              "typing.Any]) -> typing.Any"),
      "then() or otherwise(), of which one runs; both give as many values, of the same dtypes: one Var, or a tuple. A written number takes "
      "the dtype of the other's.");
  m.def(
      "map_fn",
      [](nb::callable f, const Var& x) {
        const Described one("map_fn", f);
        return build::map_fn([&](const Var& row) { return var_from(one(row)); }, x);
      },
      "f"_a, "x"_a, nb::sig("def map_fn(f: collections.abc.Callable[[Var], VarLike], x: VarLike) -> Var"),
      "f of each index of axis 0 of x, stacked.");
  m.def(
      "fold",
      [](nb::callable f, const Var& x, nb::handle initial) {
        const Described one("fold", f);
        const auto next = [&](const Var& state, const Var& row) { return written_beside(state.type().dtype, one(state, row)); };
        return build::fold(next, x, written_beside(x.type().dtype, initial));
      },
      "f"_a, "x"_a, "initial"_a, nb::sig("def fold(f: collections.abc.Callable[[Var, Var], VarLike], x: VarLike, initial: VarLike) -> Var"),
      "f(…f(f(initial, x[0]), x[1])…). A written number as `initial` takes the dtype of x; mr.constant(0) keeps its own.");
  m.def(
      "scan",
      [](nb::callable f, const Var& x, nb::handle initial) {
        const Described one("scan", f);
        const auto next = [&](const Var& state, const Var& row) { return written_beside(state.type().dtype, one(state, row)); };
        return build::scan(next, x, written_beside(x.type().dtype, initial));
      },
      "f"_a, "x"_a, "initial"_a, nb::sig("def scan(f: collections.abc.Callable[[Var, Var], VarLike], x: VarLike, initial: VarLike) -> Var"),
      "All the intermediate values of `fold`, stacked; `initial` as there.");
}

// ---- Recurrent blocks ----

struct RnnObject {
  std::shared_ptr<RnnBlock> rnn;
  std::size_t number = 0;
};
struct DynamicRnnObject : RnnObject {};
struct StaticRnnObject : RnnObject {};

void bind_rnn_blocks(nb::module_& m) {
  nb::class_<RnnObject>(m, "RnnBlock", "One step of a recurrent network, described once in `with rnn:` (or `with rnn.block():`).")
      .def(
          "__enter__",
          [](nb::object self) {
            auto& rnn = nb::cast<RnnObject&>(self);
            rnn.number = open_scope(std::make_unique<ScopeOf<RnnBlock::Block, RnnBlock>>(rnn.rnn));
            return self;
          },
          nb::sig("def __enter__(self) -> typing.Self"))
      .def(
          "__exit__", [](RnnObject& self, nb::handle type, nb::handle, nb::handle) { close_scope(self.number, !type.is_none()); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object, /) -> None"))
      .def(
          "block", [](nb::object self) { return self; }, nb::sig("def block(self) -> typing.Self"), "The designs' spelling of `with rnn:`.")
      .def(
          "step_input", [](RnnObject& self, const Var& x) { return self.rnn->step_input(x); }, "x"_a,
          "This step of x, which belongs to the program around the block.")
      .def(
          "static_input", [](RnnObject& self, const Var& x) { return self.rnn->static_input(x); }, "x"_a,
          "The same x at each step, for the sequences that still live.")
      .def(
          "memory", [](RnnObject& self, const Var& boot) { return self.rnn->memory(boot); }, "boot"_a)
      .def(
          "memory",
          [](RnnObject& self, const std::vector<std::int64_t>& shape, double value, nb::handle dtype) {
            return self.rnn->memory(dtype_from(dtype), shape, value);
          },
          nb::kw_only(), "shape"_a, "value"_a = 0.0, "dtype"_a = "f32",
          nb::sig("def memory(self, *, shape: collections.abc.Sequence[int], value: float = 0.0, dtype: DTypeLike = 'f32') -> Var"),
          "The value that the step before gave to `update_memory`; at the first step `boot` [sequences, ...], or rows of `shape` full of "
          "`value`.")
      .def(
          "update_memory", [](RnnObject& self, const Var& memory, const Var& next) { self.rnn->update_memory(memory, next); }, "memory"_a,
          "next"_a, "Once for each memory: its value at the next step.")
      .def(
          "output",
          [](RnnObject& self, nb::args ys) {
            for (const nb::handle y : ys) self.rnn->output(var_from(y));
          },
          "ys"_a, nb::sig("def output(self, *ys: VarLike) -> None"), "Outputs; each step gives a row for each sequence that lives.")
      .def_prop_ro(
          "outputs", [](const RnnObject& self) { return tuple_from(self.rnn->outputs()); }, nb::sig("def outputs(self) -> tuple[Var, ...]"),
          "After the block.")
      .def(
          "__call__", [](const RnnObject& self) { return object_from(self.rnn->outputs()); }, nb::sig("def __call__(self) -> typing.Any"),
          "After the block: the output, or a tuple of them.")
      .def(
          "last", [](const RnnObject& self, const Var& memory) { return self.rnn->last(memory); }, "memory"_a,
          "After the block: the memory behind the last step of each sequence, in the caller's order.");
  nb::class_<DynamicRnnObject, RnnObject>(
      m, "DynamicRNN",
      "A loop over the steps of sequences of different lengths, without padding; outputs have the sequences of the input.\n\n"
      "    with mr.DynamicRNN() as rnn:\n"
      "        x_t = rnn.step_input(x)                   # x [rows, C], lod=1\n"
      "        h = rnn.memory(shape=[H])\n"
      "        next = mr.tanh(x_t @ W + h @ U)\n"
      "        rnn.update_memory(h, next)\n"
      "        rnn.output(next)\n"
      "    y, last = rnn(), rnn.last(h)                  # [rows, H], [sequences, H]")
      .def(
          "__init__",
          [](DynamicRnnObject* self, int level, bool sort_by_length, bool reverse, std::int64_t parallel_iterations) {
            build::DynamicRNNOptions chosen;
            chosen.level = level;
            chosen.sort_by_length = sort_by_length;
            chosen.reverse = reverse;
            chosen.parallel_iterations = parallel_iterations;
            new (self) DynamicRnnObject();
            self->rnn = std::make_shared<build::DynamicRNN>(chosen);
          },
          nb::kw_only(), "level"_a = 0, "sort_by_length"_a = true, "reverse"_a = false, "parallel_iterations"_a = 8);
  nb::class_<StaticRnnObject, RnnObject>(m, "StaticRNN", "The same for sequences of equal lengths: tensors [T, B, ...], time first.")
      .def(
          "__init__",
          [](StaticRnnObject* self, bool reverse, std::int64_t parallel_iterations) {
            build::StaticRNNOptions chosen;
            chosen.reverse = reverse;
            chosen.parallel_iterations = parallel_iterations;
            new (self) StaticRnnObject();
            self->rnn = std::make_shared<build::StaticRNN>(chosen);
          },
          nb::kw_only(), "reverse"_a = false, "parallel_iterations"_a = 8);
}

// ---- Generation ----

build::Model model_from(nb::callable f) {
  return [step_of = Described("generation", std::move(f))](const Var& tokens, const std::vector<Var>& states, const Var& step) {
    const nb::object made = step_of(tokens, tuple_from(states), step);
    if (!nb::isinstance<nb::tuple>(made) || nb::len(made) != 2)
      throw ArgumentError("generation: expected the model to give (scores, states)");
    return build::ModelStep{var_from(made[0]), vars_from(made[1])};
  };
}

build::GenerationOptions generation_options(std::int64_t end_token, std::int64_t max_length, double length_penalty, nb::handle dtype,
                                            nb::object hook) {
  build::GenerationOptions made;
  made.end_token = end_token;
  made.max_length = max_length;
  made.length_penalty = length_penalty;
  made.dtype = dtype_from(dtype);
  if (!hook.is_none() && !nb::isinstance<nb::callable>(hook))
    refuse_argument(hook, "generation: hook", "a function (scores, tokens, step)");
  if (!hook.is_none())
    made.hook = [change = Described("generation", nb::cast<nb::callable>(hook))](const Var& scores, const Var& tokens, const Var& step) {
      return var_from(change(scores, tokens, step));
    };
  return made;
}

#define MILLRACE_PYTHON_GENERATION_SIG                                                                       \
  "end_token: int = 0, max_length: int = 100, length_penalty: float = 0.0, dtype: DTypeLike = 'f32', hook: " \
  "collections.abc.Callable[[Var, Var, Var], VarLike] | None = None) -> Generated"
#define MILLRACE_PYTHON_MODEL_SIG                                                                                                     \
  "model: collections.abc.Callable[[Var, tuple[Var, ...], Var], tuple[VarLike, collections.abc.Sequence[VarLike]]], start: VarLike, " \
  "states: collections.abc.Sequence[VarLike]"

void bind_generation(nb::module_& m) {
  nb::class_<build::Generated>(m, "Generated", "Token sequences that a model wrote.")
      .def_ro("tokens", &build::Generated::tokens,
              "i64 [M, 1], two levels: source, hypothesis (best first), its tokens, the end token among them, the start not.")
      .def_ro("scores", &build::Generated::scores, "[M, 1], the same levels: the score up to each token.")
      .def_ro("totals", &build::Generated::totals, "[hypotheses, 1] with one level.");
  m.def(
      "beam_search",
      [](nb::callable model, const Var& start, nb::handle states, std::int64_t width, std::int64_t end_token, std::int64_t max_length,
         double length_penalty, nb::handle dtype, nb::object hook) {
        return build::generate_beam(model_from(model), start, vars_from(states), width,
                                    generation_options(end_token, max_length, length_penalty, dtype, hook));
      },
      "model"_a, "start"_a, "states"_a, nb::kw_only(), "width"_a = 4, "end_token"_a = 0, "max_length"_a = 100, "length_penalty"_a = 0.0,
      "dtype"_a = "f32", "hook"_a = nb::none(),
      nb::sig("def beam_search(" MILLRACE_PYTHON_MODEL_SIG ", *, width: int = 4, " MILLRACE_PYTHON_GENERATION_SIG),
      "The best sequences of tokens by a beam of `width`, for N sources at once. `model(tokens, states, step)` describes one step: from "
      "i64 [P, 1], the\n"
      "states [P, ...] and the number of the step to (log-probabilities [P, K], next states); it is called once. `start`: i64 [N] or [N, "
      "1]; `states`:\n"
      "[N, ...] each. Hypotheses are ranked by score / length ** length_penalty. `hook(scores, tokens, step)` may change scores.");
  m.def(
      "greedy_search",
      [](nb::callable model, const Var& start, nb::handle states, std::int64_t end_token, std::int64_t max_length, double length_penalty,
         nb::handle dtype, nb::object hook) {
        return build::generate_greedy(model_from(model), start, vars_from(states),
                                      generation_options(end_token, max_length, length_penalty, dtype, hook));
      },
      "model"_a, "start"_a, "states"_a, nb::kw_only(), "end_token"_a = 0, "max_length"_a = 100, "length_penalty"_a = 0.0, "dtype"_a = "f32",
      "hook"_a = nb::none(), nb::sig("def greedy_search(" MILLRACE_PYTHON_MODEL_SIG ", *, " MILLRACE_PYTHON_GENERATION_SIG),
      "The best token at each step; of equal ones the lowest.");
  m.def(
      "sample",
      [](nb::callable model, const Var& start, nb::handle states, const Var& keys, std::int64_t seed, double temperature, std::int64_t top,
         std::int64_t end_token, std::int64_t max_length, double length_penalty, nb::handle dtype, nb::object hook) {
        build::Sampling sampling;
        sampling.seed = seed;
        sampling.temperature = temperature;
        sampling.top = top;
        return build::generate_sampled(model_from(model), start, vars_from(states), keys, sampling,
                                       generation_options(end_token, max_length, length_penalty, dtype, hook));
      },
      "model"_a, "start"_a, "states"_a, "keys"_a, nb::kw_only(), "seed"_a = 0, "temperature"_a = 1.0, "top"_a = 0, "end_token"_a = 0,
      "max_length"_a = 100, "length_penalty"_a = 0.0, "dtype"_a = "f32", "hook"_a = nb::none(),
      nb::sig("def sample(" MILLRACE_PYTHON_MODEL_SIG
              ", keys: VarLike, *, seed: int = 0, temperature: float = 1.0, top: int = 0, " MILLRACE_PYTHON_GENERATION_SIG),
      "A token at random, of the `top` best (0: all). `keys`: i64 [N], one for each source: (seed, key, step) decide, not the batch.");
}

}  // namespace

void bind_loops(nb::module_& m) {
  bind_arrays(m);
  bind_while(m);
  bind_functional(m);
  bind_rnn_blocks(m);
  bind_generation(m);
}

}  // namespace millrace::python
