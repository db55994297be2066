// SPDX-License-Identifier: Apache-2.0
// The classes Program and Var.
#include <fmt/format.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/program/text.h>

#include "build.h"
#include "errors.h"
#include "scopes.h"

namespace millrace::python {
namespace {

/// In the program's order.
nb::dict ports(const Program& program, const std::vector<Program::Port>& of) {
  nb::dict made;
  for (const Program::Port& port : of) made[port.name.c_str()] = program.var(port.var).type.to_string();
  return made;
}

std::map<std::string, Tensor> parameters(const SharedProgram& self) {
  const Program& program = *self.program;
  std::map<std::string, Tensor> made;
  for (const auto& [var, value] : program.parameters()) made.emplace(program.var(var).name, value);
  return made;
}

/// An output, an input, or a weight.
Var var_named(const SharedProgram& self, const std::string& name) {
  const Program& program = *self.program;
  if (&build::Guard::current().program() != &program)
    throw ProgramError(fmt::format("program.var: expected `with` of program '{}', found that of '{}'", program.title(),
                                   build::Guard::current().program().title()));
  std::string names;
  for (const auto* ports : {&program.outputs(), &program.inputs()})
    for (const Program::Port& port : *ports) {
      if (port.name == name) return Var::of(port.var);
      names += (names.empty() ? "" : ", ") + port.name;
    }
  const VarId weight = program.find_var(name);
  if (weight != no_var && program.parameter(weight) != nullptr) return Var::of(weight);
  throw KeyError(fmt::format("program.var: expected one of {}, or a weight, found '{}'{}", names, name, meant(name, names)));
}

void bind_program_class(nb::module_& m) {
  nb::class_<SharedProgram>(
      m, "Program",
      "A program: blocks of operations over variables, as plain data. `with program:` makes the functions of this module append to it.\n\n"
      "    program = mr.Program()\n"
      "    with program:\n"
      "        x = mr.input('x', mr.f32, [None, 2], lod=1)\n"
      "        mr.output('y', mr.sigmoid(x))\n"
      "    y = program.run(x=mr.ragged([[[1, 2]], [[3, 4], [5, 6]]], dtype=mr.f32))['y']")
      .def(
          "__init__",
          [](SharedProgram* self, const std::string& title) {
            new (self) SharedProgram{std::make_shared<Program>()};
            self->program->set_title(title);
          },
          "title"_a = "program")
      .def_prop_rw(
          "title", [](const SharedProgram& self) { return self.program->title(); },
          [](const SharedProgram& self, const std::string& title) { self.program->set_title(title); })
      .def_prop_ro(
          "inputs", [](const SharedProgram& self) { return ports(*self.program, self.program->inputs()); },
          nb::sig("def inputs(self) -> dict[str, str]"), "What is fed: names, with types such as 'f32[?, 2] lod=1'.")
      .def_prop_ro(
          "outputs", [](const SharedProgram& self) { return ports(*self.program, self.program->outputs()); },
          nb::sig("def outputs(self) -> dict[str, str]"), "What a run gives: names, with types.")
      .def_prop_ro("parameters", &parameters, "The weights by name, read-only and without a copy.")
      .def("var", &var_named, "name"_a,
           "The Var of an output, an input or a weight, in the `with` of this program: what was loaded can be built upon. mr.KeyError.")
      .def_prop_ro(
          "text", [](const SharedProgram& self) { return print(*self.program); },
          "The printed form, which `mr.parse` reads; weights are named, not held.")
      .def(
          "check", [](const SharedProgram& self) { check(*self.program); }, "ProgramError unless the program is whole.")
      .def(
          "save",
          [](const SharedProgram& self, const std::filesystem::path& path) {
            naming_file(path, [&] { save_program(*self.program, path); });
          },
          "path"_a, "Writes NAME.mr, the text, and NAME.safetensors, the weights, beside it.")
      .def("__copy__", [](const SharedProgram& self) { return SharedProgram{std::make_shared<Program>(*self.program)}; })
      .def(
          "__deepcopy__", [](const SharedProgram& self, nb::handle) { return SharedProgram{std::make_shared<Program>(*self.program)}; },
          "memo"_a)
      .def(
          "__getstate__", [](const SharedProgram& self) { return std::pair(print(*self.program), parameters(self)); },
          "For pickle: text, parameters.")
      .def("__setstate__",
           [](SharedProgram& self, const std::pair<std::string, std::map<std::string, Tensor>>& state) {
             new (&self) SharedProgram{std::make_shared<Program>(parse_program(state.first, state.second))};
           })
      .def(
          "__enter__",
          [](nb::object self) {
            auto& program = nb::cast<SharedProgram&>(self);
            program.open.push_back(open_scope(std::make_unique<ScopeOf<build::Guard, Program>>(program.program)));
            return self;
          },
          nb::sig("def __enter__(self) -> Program"))
      .def(
          "__exit__",
          [](SharedProgram& self, nb::handle type, nb::handle, nb::handle) {
            if (self.open.empty()) throw ProgramError("program: expected a `with` that is open, found none");
            const std::size_t number = self.open.back();
            self.open.pop_back();
            close_scope(number, !type.is_none());
          },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object, /) -> None"))
      .def("__str__", [](const SharedProgram& self) { return print(*self.program); })
      .def("__repr__", [](const SharedProgram& self) {
        return fmt::format("<millrace.Program '{}' of {} blocks: {} inputs, {} outputs, {} weights>", self.program->title(),
                           self.program->blocks().size(), self.program->inputs().size(), self.program->outputs().size(),
                           self.program->parameters().size());
      });
  m.def(
      "parse",
      [](const std::string& text, const std::map<std::string, Tensor>& weights) {
        return SharedProgram{std::make_shared<Program>(parse_program(text, weights))};
      },
      "text"_a, "weights"_a = std::map<std::string, Tensor>{}, "Reads the printed form of a program; `weights` holds the values by name.");
}

std::string describe(const Var& var) {
  if (!var.defined()) return "<millrace.Var, empty>";
  try {
    return fmt::format("<millrace.Var '{}': {}>", var.name(), var.type().to_string());
  } catch (const ProgramError&) {
    return "<millrace.Var of a program that is not open>";
  }
}

nb::object extents_of(const Var& var) {
  const std::optional<DDim>& shape = var.type().shape;
  if (!shape) return nb::none();
  nb::list made;
  for (const std::int64_t extent : *shape) made.append(extent < 0 ? nb::object(nb::none()) : nb::object(nb::int_(extent)));
  return nb::tuple(made);
}

using Binary = Var (*)(const Var&, const Var&);

Var mod(const Var& a, const Var& b) { return build::call1("mod", {a, b}); }
/// The whole number below the quotient, as Python has it. NaN of an infinite dividend, whose difference with itself is NaN.
Var floor_div(const Var& a, const Var& b) {
  if (!is_floating(a.type().dtype)) return build::div(build::sub(a, mod(a, b)), b);
  return build::call1("floor", {build::sub(build::div(a, b), build::sub(a, a))});
}
void whole_division(nb::class_<Var>& c, const std::string& name, Var (*f)(const Var&, const Var&)) {
  c.def(("__" + name + "__").c_str(), [f](const Var& a, nb::handle b) { return f(a, beside(a.type().dtype, b)); },
        nb::sig(("def __" + name + "__(self, arg: VarLike, /) -> Var").c_str()));
  c.def(("__r" + name + "__").c_str(), [f](const Var& a, nb::handle b) { return f(beside(a.type().dtype, b), a); },
        nb::sig(("def __r" + name + "__(self, arg: VarLike, /) -> Var").c_str()));
}

/// Whether an operator of a Var takes `x`. Python tries the other operand's operator beside anything else.
bool is_operand(nb::handle x) {
  return nb::isinstance<Var>(x) || nb::isinstance<Tensor>(x) || is_number(x) || is_list(x) || exports_memory(x);
}
nb::object not_implemented() { return nb::borrow(Py_NotImplemented); }

/// `name` as an operator of two operands.
template <class F>
void operation(nb::class_<Var>& c, const std::string& name, F f) {
  c.def(
      name.c_str(),
      [f](const Var& a, nb::handle b) { return is_operand(b) ? nb::cast(f(a, beside(a.type().dtype, b))) : not_implemented(); },
      nb::is_operator(), nb::sig(("def " + name + "(self, arg: VarLike, /) -> Var").c_str()));
}

/// `a op b`, `b op a` and, where Python has one, `a op= b`, which updates a.
void arithmetic(nb::class_<Var>& c, const std::string& name, Binary f, bool in_place = true) {
  operation(c, "__" + name + "__", f);
  operation(c, "__r" + name + "__", [f](const Var& a, const Var& b) { return f(b, a); });
  if (!in_place) return;
  c.def(("__i" + name + "__").c_str(),
        [f](nb::object self, nb::handle b) -> nb::object {
          if (!is_operand(b)) return not_implemented();
          Var& a = nb::cast<Var&>(self);
          a.update(f(a, beside(a.type().dtype, b)));
          return self;
        },
        nb::is_operator(), nb::sig(("def __i" + name + "__(self, arg: VarLike, /) -> Var").c_str()));
}

void bind_var(nb::module_& m) {
  nb::class_<Var> var(m, "Var",
                      "A value of the program that is being built: it has a dtype and a shape, and elements only when the program runs. `+ "
                      "- * / // % @ ** < <= > >= == !=`\n"
                      "append operations. A number is a literal: i64, f32 or bool without axes. In a loop's frame `step.update(step + 1)` "
                      "(or `step += 1`)\n"
                      "says what the next iteration sees.");
  var.def(
         "__init__", [](Var* self, nb::object value) { new (self) Var(var_from(value)); }, "value"_a.none(),
         nb::sig("def __init__(self, value: VarLike) -> None"))
      .def_prop_ro("name", [](const Var& self) { return self.name(); })
      .def_prop_ro("dtype", [](const Var& self) { return self.type().dtype; })
      .def_prop_ro("shape", &extents_of, nb::sig("def shape(self) -> tuple[int | None, ...] | None"),
                   "None for an extent that only a run knows, or for no known rank.")
      .def_prop_ro(
          "lod", [](const Var& self) { return self.type().lod_depth; }, "Levels of sequences above the rows.")
      .def_prop_ro(
          "type", [](const Var& self) { return self.type().to_string(); }, "As the program prints it: 'f32[?, 2] lod=1'.")
      .def(
          "update", [](Var& self, nb::handle value) { self.update(written_beside(self.type().dtype, value)); }, "value"_a,
          nb::sig("def update(self, value: VarLike) -> None"),
          "From here on this variable stands for `value`. In a frame: a variable that the loop carries.")
      .def("__neg__", [](const Var& x) { return build::neg(x); })
      .def("__abs__", [](const Var& x) { return build::abs(x); })
      .def("__invert__", [](const Var& x) { return build::logical_not(x); })
      .def("__bool__",
           [](const Var& self) -> bool {
             throw ProgramError("builder: a Var has no value while the program is built, found " + describe(self) +
                                " as a condition: use mr.cond, mr.where or break_if");
           })
      .def("__len__",
           [](const Var& self) -> std::size_t {
             throw ProgramError("builder: a Var has no length while the program is built, found " + describe(self) +
                                ": use mr.call('shape', …) or TensorArray.size()");
           })
      .def(
          "__iter__",
          [](const Var& self) -> nb::object {
            throw ProgramError("builder: a Var cannot be iterated over while the program is built, found " + describe(self) +
                               ": use mr.map_fn or a loop");
          },
          nb::sig("def __iter__(self) -> typing.Never"))
      .def("__hash__", [](nb::handle self) { return static_cast<Py_hash_t>(reinterpret_cast<std::uintptr_t>(self.ptr()) >> 4); })
      .def("__repr__", &describe);
  arithmetic(var, "add", &build::add);
  arithmetic(var, "sub", &build::sub);
  arithmetic(var, "mul", &build::mul);
  arithmetic(var, "truediv", &build::div);
  whole_division(var, "mod", &mod);
  whole_division(var, "floordiv", &floor_div);
  arithmetic(var, "pow", &build::pow, false);
  arithmetic(var, "matmul", static_cast<Binary>(&build::matmul), false);
  arithmetic(var, "and", &build::logical_and, false);
  arithmetic(var, "or", &build::logical_or, false);
  operation(var, "__lt__", static_cast<Binary>(&build::less));
  operation(var, "__le__", static_cast<Binary>(&build::less_equal));
  operation(var, "__gt__", static_cast<Binary>(&build::greater));
  operation(var, "__ge__", static_cast<Binary>(&build::greater_equal));
  operation(var, "__eq__", static_cast<Binary>(&build::equal));
  operation(var, "__ne__", static_cast<Binary>(&build::not_equal));
  var.attr("__array_ufunc__") = nb::none();  // so that NumPy leaves `array + var` to us
  nb::implicitly_convertible<VarLike, Var>();
}

}  // namespace

Var var_from(nb::handle x) {
  if (nb::isinstance<Var>(x)) return nb::cast<Var>(x);
  if (PyBool_Check(x.ptr()) != 0) return Var(x.ptr() == Py_True);
  if (PyLong_Check(x.ptr()) != 0) return Var(argument<std::int64_t>(x, "Var", "an integer that fits i64"));
  if (PyFloat_Check(x.ptr()) != 0 && !is_sized_float(x)) return Var(nb::cast<double>(x));
  return build::constant(copy_of(tensor_from(x)));
}

std::vector<Var> vars_from(nb::handle x) {
  if (!nb::isinstance<nb::list>(x) && !nb::isinstance<nb::tuple>(x)) return {var_from(x)};
  std::vector<Var> made;
  for (const nb::handle one : x) made.push_back(var_from(one));
  return made;
}

nb::object object_from(const std::vector<Var>& vars) { return vars.size() == 1 ? nb::cast(vars.front()) : nb::object(tuple_from(vars)); }

nb::tuple tuple_from(const std::vector<Var>& vars) {
  nb::list made;
  for (const Var& var : vars) made.append(nb::cast(var));
  return nb::tuple(made);
}

void bind_program(nb::module_& m) {
  bind_program_class(m);
  bind_var(m);
}

}  // namespace millrace::python
