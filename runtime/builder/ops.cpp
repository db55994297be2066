// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/ops.h>

#include <millrace/runtime/program/op_registry.h>

namespace millrace::build {

Var input(const std::string& name, const VarType& type) { return Var::of(Guard::current().program().add_input(name, type)); }
void output(const std::string& name, const Var& var) { Guard::current().program().add_output(name, var.id()); }
Var parameter(const std::string& name, const Tensor& value) { return Var::of(Guard::current().program().add_parameter(name, value)); }

Var constant(const Tensor& value) {
  const Tensor own = value.copy_to(CpuPlace{}).read_only();
  return call1("constant", {}, {{"value", own}});
}
Var constant(std::int64_t value) { return constant(Tensor::scalar(value)); }
Var constant(int value) { return constant(static_cast<std::int64_t>(value)); }
Var constant(double value) { return constant(Tensor::scalar(static_cast<float>(value))); }
Var constant(bool value) { return constant(Tensor::scalar(value)); }

std::vector<Var> call(const std::string& op, const std::vector<Var>& inputs, const Attributes& attributes,
                      const std::vector<std::string>& names) {
  const Guard& guard = Guard::current();
  Op made{op, {}, {}, attributes, {}};
  for (const Var& var : inputs) made.inputs.push_back(var.defined() ? var.id() : no_var);
  std::vector<Var> outputs;
  for (const VarId id : guard.program().append(guard.block(), std::move(made), names)) outputs.push_back(Var::of(id));
  return outputs;
}

Var call1(const std::string& op, const std::vector<Var>& inputs, const Attributes& attributes, const std::string& name) {
  std::vector<Var> outputs = call(op, inputs, attributes, {name});
  if (outputs.size() != 1) throw ProgramError("op " + op + ": expected one output, found " + std::to_string(outputs.size()));
  return outputs[0];
}

namespace {

/// The value of a written number: a constant without axes. Null for weights and for constants with axes.
const Tensor* literal_value(const Program& program, const Var& x) {
  const Tensor* value = program.constant(x.id());
  return value != nullptr && value->rank() == 0 && program.parameter(x.id()) == nullptr ? value : nullptr;
}

/// A literal beside a tensor, a weight or a constant with axes takes its dtype: `x * 2` and `h / 2.0` mean the same for f64 rows as for f32 rows. Of two
/// literals a whole number takes the dtype of a floating one, and a written float that of a floating constant.
Var binary(const std::string& op, const Var& a, const Var& b) {
  const Program& program = Guard::current().program();
  const auto adapt = [&](const Var& literal, const Var& other) {
    const Tensor* value = literal_value(program, literal);
    if (value == nullptr || !other.type().is_tensor() || other.type().dtype == value->dtype()) return literal;
    const bool two_literals = literal_value(program, other) != nullptr;
    if (is_floating(value->dtype()) && (!is_floating(other.type().dtype) || (two_literals && !literal.exact()))) return literal;
    if (two_literals && !is_floating(other.type().dtype)) return literal;
    if (literal.exact() && other.type().dtype == DType::f64) return constant(Tensor::scalar(*literal.exact()));
    return cast(literal, other.type().dtype);
  };
  return call1(op, {adapt(a, b), adapt(b, a)});
}

}  // namespace

Var add(const Var& a, const Var& b) { return binary("add", a, b); }
Var sub(const Var& a, const Var& b) { return binary("sub", a, b); }
Var mul(const Var& a, const Var& b) { return binary("mul", a, b); }
Var div(const Var& a, const Var& b) { return binary("div", a, b); }
Var neg(const Var& x) { return call1("neg", {x}); }
Var minimum(const Var& a, const Var& b) { return binary("minimum", a, b); }
Var maximum(const Var& a, const Var& b) { return binary("maximum", a, b); }
Var pow(const Var& a, const Var& b) { return binary("pow", a, b); }

Var equal(const Var& a, const Var& b) { return binary("equal", a, b); }
Var not_equal(const Var& a, const Var& b) { return binary("not_equal", a, b); }
Var less(const Var& a, const Var& b) { return binary("less", a, b); }
Var less_equal(const Var& a, const Var& b) { return binary("less_equal", a, b); }
Var greater(const Var& a, const Var& b) { return binary("greater", a, b); }
Var greater_equal(const Var& a, const Var& b) { return binary("greater_equal", a, b); }
Var logical_and(const Var& a, const Var& b) { return call1("logical_and", {a, b}); }
Var logical_or(const Var& a, const Var& b) { return call1("logical_or", {a, b}); }
Var logical_not(const Var& x) { return call1("logical_not", {x}); }
Var where(const Var& condition, const Var& a, const Var& b) { return call1("where", {condition, a, b}); }

Var sigmoid(const Var& x) { return call1("sigmoid", {x}); }
Var tanh(const Var& x) { return call1("tanh", {x}); }
Var relu(const Var& x) { return call1("relu", {x}); }
Var exp(const Var& x) { return call1("exp", {x}); }
Var log(const Var& x) { return call1("log", {x}); }
Var sqrt(const Var& x) { return call1("sqrt", {x}); }
Var abs(const Var& x) { return call1("abs", {x}); }
Var softmax(const Var& x, int axis) { return call1("softmax", {x}, {{"axis", std::int64_t{axis}}}); }
Var log_softmax(const Var& x, int axis) { return call1("log_softmax", {x}, {{"axis", std::int64_t{axis}}}); }
Var argmax(const Var& x, int axis, bool keepdims) { return call1("argmax", {x}, {{"axis", std::int64_t{axis}}, {"keepdims", keepdims}}); }
Var layer_norm(const Var& x, const Var& scale, const Var& bias, int axis, double epsilon) {
  return call1("layer_norm", {x, scale, bias}, {{"axis", std::int64_t{axis}}, {"epsilon", epsilon}});
}

Var matmul(const Var& a, const Var& b) { return call1("matmul", {a, b}); }
Var matmul(const Var& a, const Var& b, DType to) { return call1("matmul", {a, b}, {{"to", to}}); }
Quantized quantize_rows(const Var& x) {
  const std::vector<Var> made = call("quantize_rows", {x}, {}, {"values", "scales"});
  return {made[0], made[1]};
}
Var matmul_int8(const Quantized& x, const Var& w, const Var& w_scales) { return call1("matmul_int8", {x.values, x.scales, w, w_scales}); }
Var reduce(const Var& x, const std::string& kind, const std::vector<std::int64_t>& axes, bool keepdims) {
  return call1("reduce", {x}, {{"kind", kind}, {"axes", axes}, {"keepdims", keepdims}});
}
Var cast(const Var& x, DType to) { return call1("cast", {x}, {{"to", to}}); }
Var identity(const Var& x) { return call1("identity", {x}); }
Var varying(const Var& x, const std::vector<std::int64_t>& axes) { return call1("identity", {x}, {{"varying", axes}}, x.name()); }
Var reshape(const Var& x, const std::vector<std::int64_t>& shape) { return call1("reshape", {x}, {{"shape", shape}}); }
Var squeeze(const Var& x, const std::vector<std::int64_t>& axes) { return call1("squeeze", {x}, {{"axes", axes}}); }
Var unsqueeze(const Var& x, const std::vector<std::int64_t>& axes) { return call1("unsqueeze", {x}, {{"axes", axes}}); }
Var transpose(const Var& x, const std::vector<std::int64_t>& perm) { return call1("transpose", {x}, {{"perm", perm}}); }
Var concat(const std::vector<Var>& xs, int axis) { return call1("concat", xs, {{"axis", std::int64_t{axis}}}); }
std::vector<Var> split(const Var& x, int axis, const std::vector<std::int64_t>& sizes) {
  return call("split", {x}, {{"axis", std::int64_t{axis}}, {"sizes", sizes}});
}
Var slice(const Var& x, int axis, std::int64_t begin, std::int64_t end) {
  using Ints = std::vector<std::int64_t>;
  return call1("slice", {x}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{axis}}, {"steps", Ints{1}}});
}
Var gather(const Var& x, const Var& index, int axis) { return call1("gather", {x, index}, {{"axis", std::int64_t{axis}}}); }
Var embedding(const Var& table, const Var& index) { return call1("embedding", {table, index}); }
Var conv1d(const Var& x, const Var& w, const Var& bias, std::int64_t stride, std::int64_t dilation, const std::vector<std::int64_t>& pads,
           std::int64_t group) {
  return call1("conv1d", {x, w, bias}, {{"group", group}, {"stride", stride}, {"dilation", dilation}, {"pads", pads}});
}
LstmState lstm_cell(const Var& x, const LstmState& state, const Var& w, const Var& r, const Var& bias) {
  const std::vector<Var> next = call("lstm_cell", {x, state.h, state.c, w, r, bias}, {}, {"h", "c"});
  return {next[0], next[1]};
}

Var drop_lod(const Var& x) { return call1("drop_lod", {x}); }
Var shrink(const Var& state, const Var& step_input) { return call1("shrink", {state, step_input}); }

}  // namespace millrace::build
