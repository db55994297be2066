// SPDX-License-Identifier: Apache-2.0
// The functions that append operations.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/op_registry.h>

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
  const auto integers = [&]<class T>(std::type_identity<T>) {
    return argument<T>(x, fmt::format("call: attribute '{}'", name), "integers that fit i64");
  };
  if (PyLong_Check(x.ptr()) != 0) return integers(std::type_identity<std::int64_t>());
  if (PyFloat_Check(x.ptr()) != 0) return nb::cast<double>(x);
  if (nb::isinstance<nb::str>(x)) return nb::cast<std::string>(x);
  if (nb::isinstance<nb::list>(x) || nb::isinstance<nb::tuple>(x)) {
    if (all_are<nb::int_>(x)) return integers(std::type_identity<std::vector<std::int64_t>>());
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

/// The builder refuses them, too, but knows no name that is close.
void expect_attributes(const std::string& op, const Attributes& given) {
  const OpDef* const def = build::Guard::current().program().registry().find(op);
  if (def == nullptr) return;  // the builder names it
  for (const auto& [name, value] : given) {
    if (def->takes_attribute(name)) continue;
    const std::string names = fmt::format("{}", fmt::join(def->attributes, ", "));
    throw ArgumentError(fmt::format("call: op {}: expected the attributes {}, found '{}'{}", op, names.empty() ? "(none)" : names, name,
                                    meant(name, names)));
  }
}

nb::object call(const std::string& op, nb::args inputs, const std::vector<std::string>& names, nb::kwargs attributes) {
  std::vector<Var> vars;
  for (const nb::handle input : inputs) vars.push_back(operand_from(input));
  Attributes made;
  for (const auto& [key, value] : attributes) {
    const auto name = nb::cast<std::string>(key);
    made.set(name, attribute_from(name, value));
  }
  expect_attributes(op, made);
  const std::vector<Var> outputs = build::call(op, vars, made, names);
  if (outputs.size() == 1) return operand_object(outputs.front());
  nb::list all;
  for (const Var& output : outputs) all.append(operand_object(output));
  return nb::tuple(all);
}

using Unary = Var (*)(const Var&);
using Binary = Var (*)(const Var&, const Var&);

/// Binds an operation as a function of the module, `mr.relu(x)`, and as a method of Var, `x.relu()`, from one line.
class Operations {
 public:
  explicit Operations(nb::module_& m) : module_(m), var_(nb::borrow<nb::class_<Var>>(m.attr("Var"))) {}

  /// `f(x, …)`. `extra` are the arguments behind x.
  template <class F, class... Extra>
  void def(const char* name, F f, const char* doc, const Extra&... extra) {
    module_.def(name, f, "x"_a, extra..., doc);
    method(name, f, doc, extra...);
  }
  /// The same with a written signature of what is behind x, as "axis: int".
  template <class F, class... Extra>
  void typed(const std::string& name, const std::string& arguments, F f, const char* doc, const Extra&... extra) {
    module_.def(name.c_str(), f, "x"_a, extra..., nb::sig(("def " + name + "(x: VarLike, " + arguments + ") -> Var").c_str()), doc);
    typed_method(name, arguments, f, doc, extra...);
  }
  void unary(const char* name, Unary f, const char* doc) { def(name, f, doc); }
  void unary(const char* op, const char* doc) {
    def(op, [op](const Var& x) { return build::call1(op, {x}); }, doc);
  }
  void binary(const char* name, Binary f, const char* doc) {
    module_.def(name, f, "a"_a, "b"_a, doc);
    var_.def(name, f, "other"_a, doc);
  }
  template <class F, class... Extra>
  void method(const char* name, F f, const char* doc, const Extra&... extra) {
    var_.def(name, f, extra..., doc);
  }
  template <class F, class... Extra>
  void typed_method(const std::string& name, const std::string& arguments, F f, const char* doc, const Extra&... extra) {
    var_.def(name.c_str(), f, extra..., nb::sig(("def " + name + "(self, " + arguments + ") -> Var").c_str()), doc);
  }
  nb::class_<Var>& var() noexcept { return var_; }

 private:
  nb::module_& module_;
  nb::class_<Var> var_;
};

/// Whether `x` is a number that was written as a Var: a constant without axes, and no weight.
bool is_literal(const Var& x) {
  const Program& program = build::Guard::current().program();
  const Tensor* value = program.constant(x.id());
  return value != nullptr && value->rank() == 0 && program.parameter(x.id()) == nullptr;
}

Var literal_as(const Var& x, DType dtype) {
  if (!is_literal(x) || x.type().dtype == dtype || (is_floating(x.type().dtype) && !is_floating(dtype))) return x;
  return x.exact() && dtype == DType::f64 ? build::constant(Tensor::scalar(*x.exact())) : build::cast(x, dtype);
}

/// `min` and `max` of a clip take the dtype of `x`; None is no bound.
Var clipped(const Var& x, nb::handle min, nb::handle max) {
  const auto bound = [&x](nb::handle of) { return of.is_none() ? Var() : beside(x.type().dtype, of); };
  return build::call1("clip", {x, bound(min), bound(max)});
}

void bind_elementwise(nb::module_& m, Operations& operations) {
  const auto unary = [&](const char* name, Unary f, const char* doc) { operations.unary(name, f, doc); };
  const auto binary = [&](const char* name, Binary f, const char* doc) { operations.binary(name, f, doc); };
  binary("add", &build::add, "a + b, with NumPy's broadcasting.");
  binary("sub", &build::sub, "a - b");
  binary("mul", &build::mul, "a * b");
  binary("div", &build::div, "a / b");
  binary("minimum", &build::minimum, "The lesser of each pair.");
  binary("maximum", &build::maximum, "The greater of each pair.");
  binary("pow", &build::pow, "a ** b");
  m.def("equal", static_cast<Binary>(&build::equal), "a"_a, "b"_a, "a == b: bool");  // `equal` of a tensor of PyTorch is one bool
  binary("not_equal", &build::not_equal, "a != b: bool");
  binary("less", &build::less, "a < b: bool");
  binary("less_equal", &build::less_equal, "a <= b: bool");
  binary("greater", &build::greater, "a > b: bool");
  binary("greater_equal", &build::greater_equal, "a >= b: bool");
  binary("logical_and", &build::logical_and, "Whether both bools hold: a & b.");
  binary("logical_or", &build::logical_or, "Whether one of two bools holds: a | b.");
  unary("logical_not", &build::logical_not, "The negation of bools: ~x.");
  unary("neg", &build::neg, "-x");
  unary("sigmoid", &build::sigmoid, "1 / (1 + exp(-x))");
  unary("tanh", &build::tanh, "The hyperbolic tangent of each element.");
  unary("relu", &build::relu, "max(x, 0)");
  unary("exp", &build::exp, "e ** x of each element.");
  unary("log", &build::log, "The natural logarithm of each element.");
  unary("sqrt", &build::sqrt, "The square root of each element.");
  unary("abs", &build::abs, "|x| of each element.");
  operations.unary("erf", "The error function.");
  operations.unary("floor", "The greatest whole number that is not above.");
  operations.unary("ceil", "The least whole number that is not below.");
  operations.unary("round", "The nearest whole number; of two the even one.");
  operations.unary("sign", "-1, 0 or 1.");
  operations.unary("sin", "The sine of each element, in radians.");
  operations.unary("cos", "The cosine of each element, in radians.");
  operations.unary("atan", "The angle between -pi/2 and pi/2 whose tangent is each element, in radians.");
  operations.unary("reciprocal", "1 / x");
  constexpr const char* bounds = "min: VarLike | None = None, max: VarLike | None = None";
  constexpr const char* clip_doc = "min where x is less, max where it is greater; None: no bound.";
  operations.typed("clip", bounds, &clipped, clip_doc, "min"_a = nb::none(), "max"_a = nb::none());
  operations.typed_method("clamp", bounds, &clipped, clip_doc, "min"_a = nb::none(), "max"_a = nb::none());
  m.def("identity", &build::identity, "x"_a, "x under another name.");
  m.def("drop_lod", &build::drop_lod, "x"_a, "The rows without their sequences, on purpose.");
  m.def(
      "where",
      [](const Var& condition, nb::handle a, nb::handle b) {
        const std::vector<Var> values = of_one_dtype({a, b});
        return build::where(condition, values[0], values[1]);
      },
      "condition"_a, "a"_a, "b"_a, nb::sig("def where(condition: VarLike, a: VarLike, b: VarLike) -> Var"),
      "a where `condition` (bool) holds, else b. A number takes the dtype of the other.");
}

void bind_activations(nb::module_& m) {
  const auto unary = [&](const char* op, const char* doc) { m.def(op, [op](const Var& x) { return build::call1(op, {x}); }, "x"_a, doc); };
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
      "stack",
      [](nb::handle xs, int axis) {
        std::vector<nb::handle> operands;
        if (is_list(xs))
          for (const nb::handle x : xs) operands.push_back(x);
        else
          operands.push_back(xs);
        std::vector<Var> parts;
        for (const Var& x : of_one_dtype(operands)) parts.push_back(build::unsqueeze(x, {axis}));
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

void reduction(Operations& operations, const std::string& kind, const char* doc) {
  operations.typed(
      kind, "axis: int | collections.abc.Sequence[int] | None = None, keepdims: bool = False",
      [kind](const Var& x, nb::handle axis, bool keepdims) { return build::reduce(x, kind, axes_from(axis), keepdims); }, doc,
      "axis"_a = nb::none(), "keepdims"_a = false);
}

Var with_axis(const char* op, const Var& x, int axis, Attributes attributes) {
  attributes.set("axis", std::int64_t{axis});
  return build::call1(op, {x}, attributes);
}

Var argmin(const Var& x, int axis, bool keepdims) { return with_axis("argmin", x, axis, {{"keepdims", keepdims}}); }

Var transposed(const Var& x) {
  if (!x.type().shape)
    throw ProgramError(fmt::format("builder: expected a Var of known rank to transpose, found '{}' of {}", x.name(), x.type().to_string()));
  std::vector<std::int64_t> perm;
  for (int axis = x.type().rank() - 1; axis >= 0; --axis) perm.push_back(axis);
  return build::transpose(x, perm);
}

/// `axes` as the arguments of `permute`: the axis of x that each axis of the result is, as numbers or as a sequence.
Var permuted(const Var& x, const nb::args& axes) { return build::transpose(x, extents_from(axes, "permute: axes")); }

/// `transpose` of PyTorch and of NumPy: two numbers exchange these axes; more numbers or a sequence are a permutation; without any the axes are reversed.
Var transposed_by(const Var& x, const nb::args& axes) {
  if (axes.empty()) return transposed(x);
  if (axes.size() != 2) return permuted(x, axes);
  if (!x.type().shape) return permuted(x, axes);
  const std::int64_t rank = x.type().rank();
  std::vector<std::int64_t> perm, exchanged = extents_from(axes, "transpose: axes");
  for (std::int64_t& axis : exchanged) {
    if (axis < -rank || axis >= rank)
      throw ShapeError(fmt::format("builder: expected axes of '{}' of {}, found {}", x.name(), x.type().to_string(), axis));
    if (axis < 0) axis += rank;
  }
  for (std::int64_t axis = 0; axis < rank; ++axis)
    perm.push_back(axis == exchanged[0] ? exchanged[1] : axis == exchanged[1] ? exchanged[0] : axis);
  return build::transpose(x, perm);
}

/// The functions and methods that change extents, axes or the dtype.
void bind_shapes(nb::module_& m, Operations& operations) {
  const auto cast = [](const Var& x, nb::handle to) { return build::cast(x, dtype_from(to)); };
  const auto reshaped = [](const Var& x, nb::args shape) { return build::reshape(x, extents_from(shape, "reshape: shape")); };
  constexpr const char* extents = "*shape: int | collections.abc.Sequence[int]";
  constexpr const char* axes = "axes: int | collections.abc.Sequence[int]";
  m.def("cast", cast, "x"_a, "to"_a, nb::sig("def cast(x: VarLike, to: DTypeLike) -> Var"), "Another dtype.");
  operations.typed_method("astype", "dtype: DTypeLike", cast, "Another dtype: mr.cast(x, dtype).", "dtype"_a);
  operations.typed_method("to", "dtype: DTypeLike", cast, "Another dtype: mr.cast(x, dtype).", "dtype"_a);
  m.def("reshape", &build::reshape, "x"_a, "shape"_a, "The same elements with other extents; one may be -1.");
  operations.typed_method("reshape", extents, reshaped, "The same elements with other extents; one may be -1.", "shape"_a);
  operations.typed_method("view", extents, reshaped, "The same as `reshape`.", "shape"_a);
  operations.typed(
      "squeeze", axes, [](const Var& x, nb::handle of) { return build::squeeze(x, axes_from(of)); },
      "Without `axes`, a number or several, whose extents are 1.", "axes"_a);
  operations.typed(
      "unsqueeze", axes, [](const Var& x, nb::handle of) { return build::unsqueeze(x, axes_from(of)); },
      "With axes of extent 1 at `axes`, a number or several, of the result.", "axes"_a);
  m.def(
      "transpose",
      [](const Var& x, const std::optional<std::vector<std::int64_t>>& perm) { return perm ? build::transpose(x, *perm) : transposed(x); },
      "x"_a, "perm"_a = nb::none(), "Axis i of the result is axis perm[i]; without `perm`, the axes in reverse order.");
  operations.typed_method("transpose", "*axes: int | collections.abc.Sequence[int]", &transposed_by,
                          "x.transpose(0, 1) exchanges two axes; x.transpose([1, 2, 0]): axis i of the result is axis perm[i]; "
                          "x.transpose(): the axes in reverse order.",
                          "axes"_a);
  operations.typed_method("permute", "*axes: int | collections.abc.Sequence[int]", &permuted, "Axis i of the result is axis axes[i].",
                          "axes"_a);
  operations.var().def_prop_ro("T", &transposed, "With the axes in reverse order.");
}

void bind_rows(nb::module_& m, Operations& operations) {
  operations.def("softmax", &build::softmax, "Along `axis`: positive, with the sum 1.", "axis"_a = -1);
  operations.def("log_softmax", &build::log_softmax, "The logarithm of softmax.", "axis"_a = -1);
  constexpr const char* arg_max_doc = "The place of the greatest along `axis`, the first of equal ones: i64.";
  constexpr const char* arg_min_doc = "The place of the least along `axis`, the first of equal ones: i64.";
  // A tensor of PyTorch has its argmax over all elements unless an axis is named, so that the methods take none for granted.
  m.def("argmax", &build::argmax, "x"_a, "axis"_a = -1, "keepdims"_a = false, arg_max_doc);
  operations.method("argmax", &build::argmax, arg_max_doc, "axis"_a, "keepdims"_a = false);
  m.def("argmin", &argmin, "x"_a, "axis"_a = -1, "keepdims"_a = false, arg_min_doc);
  operations.method("argmin", &argmin, arg_min_doc, "axis"_a, "keepdims"_a = false);
  m.def("layer_norm", &build::layer_norm, "x"_a, "scale"_a, "bias"_a, "axis"_a = -1, "epsilon"_a = 1e-5,
        "(x - mean) / sqrt(variance + epsilon) * scale + bias");
  operations.binary("matmul", static_cast<Binary>(&build::matmul),
                    "a [.., n, k] times b [.., k, m]: [.., n, m]. Rows are the batch: matmul(x, W).");
  m.def("reduce", &build::reduce, "x"_a, "kind"_a, "axes"_a = std::vector<std::int64_t>{}, "keepdims"_a = false,
        "`kind`: sum, mean, max, min, prod, …, along `axes`; none: all.");
  reduction(operations, "sum", "Along `axis`, a number or several; None: all.");
  reduction(operations, "mean", "Along `axis`, a number or several; None: all.");
  reduction(operations, "max", "The greatest along `axis`, a number or several; None: of all.");
  reduction(operations, "min", "The least along `axis`, a number or several; None: of all.");
  reduction(operations, "prod", "The product along `axis`, a number or several; None: of all.");
  operations.def(
      "cumsum", [](const Var& x, int axis, bool reverse) { return with_axis("cumsum", x, axis, {{"reverse", reverse}}); },
      "The sums of all up to each element along `axis`; `reverse`: from the end.", "axis"_a, nb::kw_only(), "reverse"_a = false);
  m.def("varying", &build::varying, "x"_a, "axes"_a = std::vector<std::int64_t>{},
        "x, of whose extents along `axes` (none: all) nothing counts as known: a loop may then carry others.");
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

std::vector<std::int64_t> axes_from(nb::handle axes) {
  if (axes.is_none()) return {};
  constexpr const char* expected = "an integer, or a list of integers";
  if (PyIndex_Check(axes.ptr()) != 0) return {argument<std::int64_t>(axes, "axis", expected)};
  return argument<std::vector<std::int64_t>>(axes, "axis", expected);
}

Var beside(DType dtype, nb::handle x) {
  if (is_list(x) || (is_number(x) && (is_floating(dtype) || PyFloat_Check(x.ptr()) == 0))) return build::constant(tensor_from(x, dtype));
  return literal_as(var_from(x), dtype);
}

Var written_beside(DType dtype, nb::handle x) {
  if (!is_number(x) && !is_list(x)) return var_from(x);
  const DType written = tensor_from(x).dtype();
  const bool takes = is_floating(dtype) ? written != DType::boolean : written == DType::i64 && dtype != DType::boolean;
  return takes ? beside(dtype, x) : var_from(x);
}

DType dtype_of_numbers(const std::vector<nb::handle>& numbers) {
  if (std::any_of(numbers.begin(), numbers.end(), is_sized_float)) return DType::f64;
  nb::list all;
  for (const nb::handle number : numbers) all.append(number);
  return tensor_from(all).dtype();
}

std::vector<Var> of_one_dtype(const std::vector<nb::handle>& operands) {
  std::vector<Var> made(operands.size());
  std::optional<DType> dtype;
  std::size_t written = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (is_number(operands[i])) {
      ++written;
      continue;
    }
    made[i] = var_from(operands[i]);
    if (!dtype && made[i].type().is_tensor() && !is_literal(made[i])) dtype = made[i].type().dtype;
  }
  if (!dtype && written == operands.size()) dtype = dtype_of_numbers(operands);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (made[i].defined())
      made[i] = dtype ? literal_as(made[i], *dtype) : made[i];
    else
      made[i] = dtype ? beside(*dtype, operands[i]) : var_from(operands[i]);
  }
  return made;
}

VarType type_from(nb::handle dtype, nb::handle shape, int lod) {
  constexpr int most_levels = 64;
  if (lod < 0 || lod > most_levels) throw ArgumentError(fmt::format("input: expected lod from 0 to {}, found {}", most_levels, lod));
  if (lod > 0 && nb::len(shape) == 0)
    throw ArgumentError(fmt::format("input: expected axis 0, of the rows, with lod {}, found the shape []", lod));
  std::vector<std::int64_t> extents;
  for (const nb::handle extent : shape)
    extents.push_back(extent.is_none() ? DDim::unknown : argument<std::int64_t>(extent, "input: shape", "integers or None"));
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
  Operations operations(m);
  bind_elementwise(m, operations);
  bind_activations(m);
  bind_shapes(m, operations);
  bind_rows(m, operations);
}

}  // namespace millrace::python
