// SPDX-License-Identifier: Apache-2.0
// The functions that append operations.
#include <fmt/format.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/ops.h>

#include "build.h"

namespace millrace::python {
namespace {

template <class T>
bool all_are(nb::handle list) {
  for (const nb::handle element : list)
    if (!nb::isinstance<T>(element)) return false;
  return true;
}

Attribute attribute_from(const std::string& name, nb::handle x) {
  if (nb::isinstance<DType>(x)) return nb::cast<DType>(x);
  if (PyBool_Check(x.ptr()) != 0) return nb::cast<bool>(x);
  if (PyLong_Check(x.ptr()) != 0) return nb::cast<std::int64_t>(x);
  if (PyFloat_Check(x.ptr()) != 0) return nb::cast<double>(x);
  if (nb::isinstance<nb::str>(x)) return nb::cast<std::string>(x);
  if (nb::isinstance<nb::list>(x) || nb::isinstance<nb::tuple>(x)) {
    if (all_are<nb::int_>(x)) return nb::cast<std::vector<std::int64_t>>(x);
    if (all_are<nb::float_>(x)) return nb::cast<std::vector<double>>(x);
    if (all_are<nb::str>(x)) return nb::cast<std::vector<std::string>>(x);
    throw ArgumentError(fmt::format("call: attribute '{}': expected a list of integers, of floats or of text", name));
  }
  return copy_of(tensor_from(x));
}

Var operand_from(nb::handle x) {
  if (x.is_none()) return {};
  if (nb::isinstance<build::ArrayVar>(x)) return nb::cast<const build::ArrayVar&>(x).var();
  if (nb::isinstance<build::Order>(x)) return nb::cast<const build::Order&>(x).var();
  return var_from(x);
}

nb::object operand_object(const Var& var) {
  if (var.type().is_array()) return nb::cast(build::ArrayVar::of(var));
  if (var.type().kind == VarKind::order) return nb::cast(build::Order(var));
  return nb::cast(var);
}

nb::object call(const std::string& op, nb::args inputs, const std::vector<std::string>& names, nb::kwargs attributes) {
  std::vector<Var> vars;
  for (const nb::handle input : inputs) vars.push_back(operand_from(input));
  Attributes made;
  for (const auto& [key, value] : attributes) {
    const auto name = nb::cast<std::string>(key);
    made.set(name, attribute_from(name, value));
  }
  const std::vector<Var> outputs = build::call(op, vars, made, names);
  if (outputs.size() == 1) return operand_object(outputs.front());
  nb::list all;
  for (const Var& output : outputs) all.append(operand_object(output));
  return nb::tuple(all);
}

using Unary = Var (*)(const Var&);
using Binary = Var (*)(const Var&, const Var&);

void bind_elementwise(nb::module_& m) {
  const auto unary = [&](const char* name, Unary f, const char* doc) { m.def(name, f, "x"_a, doc); };
  const auto binary = [&](const char* name, Binary f, const char* doc) { m.def(name, f, "a"_a, "b"_a, doc); };
  binary("add", &build::add, "a + b, with NumPy's broadcasting.");
  binary("sub", &build::sub, "a - b");
  binary("mul", &build::mul, "a * b");
  binary("div", &build::div, "a / b");
  binary("minimum", &build::minimum, "The lesser of each pair.");
  binary("maximum", &build::maximum, "The greater of each pair.");
  binary("pow", &build::pow, "a ** b");
  binary("equal", &build::equal, "a == b: bool");
  binary("not_equal", &build::not_equal, "a != b: bool");
  binary("less", &build::less, "a < b: bool");
  binary("less_equal", &build::less_equal, "a <= b: bool");
  binary("greater", &build::greater, "a > b: bool");
  binary("greater_equal", &build::greater_equal, "a >= b: bool");
  binary("logical_and", &build::logical_and, "Of bools.");
  binary("logical_or", &build::logical_or, "Of bools.");
  unary("logical_not", &build::logical_not, "Of bools.");
  unary("neg", &build::neg, "-x");
  unary("sigmoid", &build::sigmoid, "1 / (1 + exp(-x))");
  unary("tanh", &build::tanh, "Of each element.");
  unary("relu", &build::relu, "max(x, 0)");
  unary("exp", &build::exp, "Of each element.");
  unary("log", &build::log, "Of each element.");
  unary("sqrt", &build::sqrt, "Of each element.");
  unary("abs", &build::abs, "Of each element.");
  unary("identity", &build::identity, "x under another name.");
  unary("drop_lod", &build::drop_lod, "The rows without their sequences, on purpose.");
  m.def("where", &build::where, "condition"_a, "a"_a, "b"_a, "a where `condition` (bool) holds, else b.");
}

void bind_activations(nb::module_& m) {
  const auto unary = [&](const char* op, const char* doc) { m.def(op, [op](const Var& x) { return build::call1(op, {x}); }, "x"_a, doc); };
  unary("erf", "The error function.");
  unary("floor", "The greatest whole number that is not above.");
  unary("ceil", "The least whole number that is not below.");
  unary("round", "The nearest whole number; of two the even one.");
  unary("sign", "-1, 0 or 1.");
  unary("sin", "Of each element, in radians.");
  unary("cos", "Of each element, in radians.");
  unary("reciprocal", "1 / x");
  unary("softplus", "log(1 + exp(x))");
  unary("softsign", "x / (1 + |x|)");
  unary("mish", "x * tanh(softplus(x))");
  m.def(
      "gelu",
      [](const Var& x, const std::string& approximate) { return build::call1("gelu", {x}, Attributes{{"approximate", approximate}}); },
      "x"_a, "approximate"_a = "none", "x times the normal distribution at x; `approximate`: none, or tanh.");
  const auto slope = [&](const char* op, double alpha, const char* doc) {
    m.def(
        op, [op](const Var& x, double value) { return build::call1(op, {x}, Attributes{{"alpha", value}}); }, "x"_a, "alpha"_a = alpha,
        doc);
  };
  slope("leaky_relu", 0.01, "x where it is positive, else alpha * x.");
  slope("elu", 1.0, "x where it is positive, else alpha * (exp(x) - 1).");
  m.def(
      "clip",
      [](const Var& x, nb::handle min, nb::handle max) {
        const auto bound = [](nb::handle of, DType dtype) {
          return of.is_none() ? Var() : nb::isinstance<Var>(of) ? var_from(of) : build::constant(tensor_from(of, dtype));
        };
        return build::call1("clip", {x, bound(min, x.type().dtype), bound(max, x.type().dtype)});
      },
      "x"_a, "min"_a = nb::none(), "max"_a = nb::none(),
      nb::sig("def clip(x: VarLike, min: VarLike | None = None, max: VarLike | None = None) -> Var"),
      "min where x is less, max where it is greater.");
  m.def(
      "stack",
      [](nb::handle xs, int axis) {
        std::vector<Var> parts;
        for (const Var& x : vars_from(xs)) parts.push_back(build::unsqueeze(x, {axis}));
        return build::concat(parts, axis);
      },
      "xs"_a, "axis"_a = 0, nb::sig("def stack(xs: collections.abc.Sequence[VarLike], axis: int = 0) -> Var"),
      "Side by side along a new `axis`.");
  m.def(
      "one_hot",
      [](const Var& index, std::int64_t depth, nb::handle dtype) {
        const DType of = dtype_from(dtype);
        const Var values = build::cast(build::constant(Tensor::from<float>({0, 1})), of);
        return build::call1("one_hot", {index, build::constant(depth), values}, Attributes{{"axis", std::int64_t{-1}}});
      },
      "index"_a, "depth"_a, "dtype"_a = "f32", nb::sig("def one_hot(index: VarLike, depth: int, dtype: DTypeLike = 'f32') -> Var"),
      "index [..] gives [.., depth]: 1 at `index`, else 0.");
}

void reduction(nb::module_& m, const std::string& kind, const char* doc) {
  m.def(
      kind.c_str(), [kind](const Var& x, nb::handle axis, bool keepdims) { return build::reduce(x, kind, axes_from(axis), keepdims); },
      "x"_a, "axis"_a = nb::none(), "keepdims"_a = false,
      nb::sig(
          ("def " + kind + "(x: VarLike, axis: int | collections.abc.Sequence[int] | None = None, keepdims: bool = False) -> Var").c_str()),
      doc);
}

Var with_axis(const char* op, const Var& x, int axis, Attributes attributes) {
  attributes.set("axis", std::int64_t{axis});
  return build::call1(op, {x}, attributes);
}

void bind_rows(nb::module_& m) {
  m.def("softmax", &build::softmax, "x"_a, "axis"_a = -1, "Along `axis`: positive, with the sum 1.");
  m.def("log_softmax", &build::log_softmax, "x"_a, "axis"_a = -1, "The logarithm of softmax.");
  m.def("argmax", &build::argmax, "x"_a, "axis"_a = -1, "keepdims"_a = false, "The place of the greatest, the first of equal ones: i64.");
  m.def("layer_norm", &build::layer_norm, "x"_a, "scale"_a, "bias"_a, "axis"_a = -1, "epsilon"_a = 1e-5,
        "(x - mean) / sqrt(variance + epsilon) * scale + bias");
  m.def("matmul", static_cast<Binary>(&build::matmul), "a"_a, "b"_a,
        "a [.., n, k] times b [.., k, m]: [.., n, m]. Rows are the batch: matmul(x, W).");
  m.def("reduce", &build::reduce, "x"_a, "kind"_a, "axes"_a = std::vector<std::int64_t>{}, "keepdims"_a = false,
        "`kind`: sum, mean, max, min, prod, …, along `axes`; none: all.");
  reduction(m, "sum", "Along `axis`, a number or several; None: all.");
  reduction(m, "mean", "Along `axis`, a number or several; None: all.");
  reduction(m, "max", "The greatest along `axis`, a number or several; None: of all.");
  reduction(m, "min", "The least along `axis`, a number or several; None: of all.");
  reduction(m, "prod", "The product along `axis`, a number or several; None: of all.");
  m.def(
      "argmin", [](const Var& x, int axis, bool keepdims) { return with_axis("argmin", x, axis, {{"keepdims", keepdims}}); }, "x"_a,
      "axis"_a = -1, "keepdims"_a = false, "The place of the least, the first of equal ones: i64.");
  m.def(
      "cumsum", [](const Var& x, int axis, bool reverse) { return with_axis("cumsum", x, axis, {{"reverse", reverse}}); }, "x"_a, "axis"_a,
      nb::kw_only(), "reverse"_a = false, "The sums of all up to each element along `axis`; `reverse`: from the end.");
  m.def(
      "cast", [](const Var& x, nb::handle to) { return build::cast(x, dtype_from(to)); }, "x"_a, "to"_a,
      nb::sig("def cast(x: VarLike, to: DTypeLike) -> Var"), "Another dtype.");
  m.def("varying", &build::varying, "x"_a, "axes"_a = std::vector<std::int64_t>{},
        "x, of whose extents along `axes` (none: all) nothing counts as known: a loop may then carry others.");
  m.def("reshape", &build::reshape, "x"_a, "shape"_a, "The same elements with other extents; one may be -1.");
  m.def("squeeze", &build::squeeze, "x"_a, "axes"_a, "Without `axes`, whose extents are 1.");
  m.def("unsqueeze", &build::unsqueeze, "x"_a, "axes"_a, "With axes of extent 1.");
  m.def("transpose", &build::transpose, "x"_a, "perm"_a, "Axis i of the result is axis perm[i].");
  m.def(
      "concat", [](nb::handle xs, int axis) { return build::concat(vars_from(xs), axis); }, "xs"_a, "axis"_a,
      nb::sig("def concat(xs: collections.abc.Sequence[VarLike], axis: int) -> Var"), "One behind the other along `axis`.");
  m.def(
      "split", [](const Var& x, int axis, const std::vector<std::int64_t>& sizes) { return tuple_from(build::split(x, axis, sizes)); },
      "x"_a, "axis"_a, "sizes"_a, nb::sig("def split(x: VarLike, axis: int, sizes: collections.abc.Sequence[int]) -> tuple[Var, ...]"),
      "Parts of these sizes along `axis`.");
  m.def("slice", &build::slice, "x"_a, "axis"_a, "begin"_a, "end"_a, "[begin, end) of `axis`.");
  m.def("gather", &build::gather, "x"_a, "index"_a, "axis"_a = 0, "Indices `index` of `axis`.");
  m.def("embedding", &build::embedding, "table"_a, "index"_a, "Rows of `table` [V, C] by number: index [..] gives [.., C].");
  m.def("shrink", &build::shrink, "state"_a, "step_input"_a,
        "The rows of `state` whose sequences still live at the step that `step_input` was read at.");
}

}  // namespace

VarType type_from(nb::handle dtype, nb::handle shape, int lod) {
  std::vector<std::int64_t> extents;
  for (const nb::handle extent : shape) extents.push_back(extent.is_none() ? DDim::unknown : nb::cast<std::int64_t>(extent));
  for (const std::int64_t extent : extents)
    if (extent < DDim::unknown)
      throw ShapeError(fmt::format("input: expected extents from 0 on, or None (-1) for one that a run knows, found {}", extent));
  return VarType(dtype_from(dtype), make_ddim(extents), lod);
}

void bind_ops(nb::module_& m) {
  m.def(
      "input",
      [](const std::string& name, nb::handle dtype, nb::handle shape, int lod) { return build::input(name, type_from(dtype, shape, lod)); },
      "name"_a, "dtype"_a, "shape"_a, "lod"_a = 0,
      nb::sig("def input(name: str, dtype: DTypeLike, shape: collections.abc.Sequence[int | None], lod: int = 0) -> Var"),
      "What is fed to a run under `name`. An extent that is None is known at run time alone; `lod` levels of sequences over the rows (axis "
      "0).");
  m.def("output", &build::output, "name"_a, "var"_a, "What a run gives under `name`.");
  m.def(
      "parameter", [](const std::string& name, nb::handle value) { return build::parameter(name, copy_of(tensor_from(value))); }, "name"_a,
      "value"_a.none(), nb::sig("def parameter(name: str, value: TensorLike) -> Var"),
      "A weight, copied: it never changes under the program.");
  m.def(
      "constant", [](nb::handle value) { return var_from(value); }, "value"_a.none(), nb::sig("def constant(value: VarLike) -> Var"),
      "A literal: a number, or a small tensor.");
  m.def("call", &call, "op"_a, "inputs"_a, nb::kw_only(), "names"_a = std::vector<std::string>{}, "attributes"_a,
        nb::sig("def call(op: str, *inputs: VarLike | TensorArray | Order | None, names: collections.abc.Sequence[str] = ..., "
                "**attributes: typing.Any) -> typing.Any"),
        "Any operation by its name (docs/ops.md): inputs in their order, None for an optional one that is absent; attributes by name. One "
        "output\n"
        "alone, several as a tuple. Arrays and orders are TensorArrays and Orders.");
  bind_elementwise(m);
  bind_activations(m);
  bind_rows(m);
}

}  // namespace millrace::python
