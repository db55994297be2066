// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/static_rnn.h>

#include <millrace/kernels/fill.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/tensor/device.h>

namespace millrace::build {

StaticRNN::StaticRNN(Options options) : RnnBlock("StaticRNN", {.parallel_iterations = options.parallel_iterations}), options_(options) {}

Var StaticRNN::turned(const Var& x) const { return options_.reverse ? call1("reverse", {x}, {{"axis", std::int64_t{0}}}) : x; }

Var StaticRNN::step_input(const Var& input) {
  expect_inside("step_input");
  const Var x = outer("step_input", input);
  const ArrayVar steps = outside([&] {
    const Var agreed = has_steps() ? call1("same_steps", {x, source_}, {{"level", std::int64_t{-1}}}, x.name()) : x;
    return ArrayVar::unstack(turned(agreed));
  });
  if (!has_steps()) {
    source_ = Var::of(x.id());
    const VarType& type = source_.type();
    if (type.rank() > 1 && (*type.shape)[1] < 0) sequences_ = outside([&] { return sequences(); });
  }
  return this_step(steps);
}

Var StaticRNN::static_input(const Var& input) {
  expect_behind("static_input");
  const Var x = outer("static_input", input);
  return x;
}

Var StaticRNN::sequences() const { return call1("shape", {source_}, {{"start", std::int64_t{1}}, {"end", std::int64_t{2}}}, "sequences"); }

ArrayVar StaticRNN::make_array(const std::string& name) const {
  return sequences_.defined() ? ArrayVar::with_extents(steps(), sequences_, name) : ArrayVar(steps(), name);
}

Var StaticRNN::boot_rows(DType dtype, const std::vector<std::int64_t>& row_shape, double value) const {
  if (source_.type().rank() >= 0 && source_.type().rank() < 2)
    refuse("memory: expected a first step input of [T, B, …] to know how many sequences there are, found '" + source_.name() + "' of " +
           source_.type().to_string() + ": give a boot");
  const Var count = sequences_.defined() ? sequences_ : sequences();
  const Var extents =
      row_shape.empty() ? count : concat({count, constant(Tensor::from(row_shape, DDim{static_cast<std::int64_t>(row_shape.size())}))}, 0);
  // Old operator sets of ONNX fill no bf16.
  const DType made = dtype == DType::bf16 ? DType::f32 : dtype;
  CpuDevice host;
  const Var filled = cast(call1("constant_of_shape", {extents}, {{"value", full(DDim{}, value, made, host.stream(0))}}), dtype);
  // Known extents of the row stay, for later inference.
  std::vector<std::int64_t> shape{0};
  shape.insert(shape.end(), row_shape.begin(), row_shape.end());
  return call1("reshape", {filled}, {{"shape", shape}}, "boot");
}

Var StaticRNN::joined(const ArrayVar& array) const { return turned(array.stack()); }
Var StaticRNN::last_of(const Memory& memory) const { return memory.states.read(steps() - 1, memory.boot); }

}  // namespace millrace::build
