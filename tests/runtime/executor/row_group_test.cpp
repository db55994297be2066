// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/row_group.h>

#include <doctest/doctest.h>

#include <vector>

#include <millrace/runtime/builder/ops.h>
#include <millrace/tensor/device.h>
#include <support/built.h>

using namespace millrace;
using namespace millrace::build;
using millrace::testing::built_program;

namespace {

/// "y" = tanh(x) * 0.5 and "due" = k + 1 == 3, of x of `shape` and k of i64[2].
Program two_values(const VarType& type) {
  return built_program([&] {
    const Var x = input("x", type), k = input("k", VarType(DType::i64, {2}));
    output("y", build::tanh(x) * 0.5f);
    output("due", equal(k + constant(1), constant(3)));
  });
}

std::vector<const Op*> ops_of(const Program& program) {
  std::vector<const Op*> ops;
  for (const Op& op : program.block(0).ops)
    if (op.type != "constant") ops.push_back(&op);
  return ops;
}

}  // namespace

TEST_CASE("an op has the form that all its tensors have: one row, rows, or none") {
  const auto form = [](const VarType& type) {
    const Program program = two_values(type);
    return RowGroup::form_of(program, *ops_of(program).front());
  };
  CHECK(form(VarType(DType::f32, {2, 3})) == RowGroup::Form::one);
  CHECK(form(VarType(DType::f64, {})) == RowGroup::Form::one);
  CHECK(form(VarType(DType::f32, {DDim::unknown, 3})) == RowGroup::Form::rows);
  CHECK(form(VarType(DType::f32, {2, DDim::unknown})) == RowGroup::Form::none);
  CHECK(form(VarType(DType::f32, {DDim::unknown, 3}, 1)) == RowGroup::Form::none);
  CHECK(form(VarType(DType::f32, {RowGroup::most_elements + 1})) == RowGroup::Form::none);
  CHECK(form(VarType(DType::f16, {2, 3})) == RowGroup::Form::none);
}

TEST_CASE("values fit that have the types of the group and small integers; then its outputs are those of its ops") {
  const Program program = two_values(VarType(DType::f32, {2}));
  const std::vector<const Op*> ops = ops_of(program);
  std::vector<VarId> outputs;
  for (const Program::Port& port : program.outputs()) outputs.push_back(port.var);
  const auto group = std::make_shared<const RowGroup>(program, ops, RowGroup::Form::one, outputs);
  const auto device = make_cpu_device(1);
  const auto fits = [&](Tensor x, Tensor k) {
    const Value values[] = {std::move(x), std::move(k)};
    const Value* const given[] = {&values[0], &values[1]};
    return group->fits(given);
  };
  REQUIRE(group->inputs().size() == 2);
  CHECK(fits(Tensor::from<float>({0, 1}), Tensor::from<std::int64_t>({2, 3})));
  CHECK_FALSE(fits(Tensor::from<float>({0, 1, 2}), Tensor::from<std::int64_t>({2, 3})));
  CHECK_FALSE(fits(Tensor::from<double>({0, 1}), Tensor::from<std::int64_t>({2, 3})));
  CHECK_FALSE(fits(Tensor::from<float>({0, 1}), Tensor::from<std::int64_t>({2, RowKernel::most_given + 1})));
  const Value x(Tensor::from<float>({0, 1})), k(Tensor::from<std::int64_t>({2, 3}));
  const Value* const given[] = {&x, &k};
  Value made[2];
  OpContext context(*ops.front(), given, made, device->stream(0));
  group->run(context);
  const RunResult wanted = testing::run_fifo(run(program, {{"x", x.tensor()}, {"k", k.tensor()}}));
  CHECK(made[0].tensor().tensor().to_vector<float>() == wanted["y"].tensor().to_vector<float>());
  CHECK(made[1].tensor().tensor().to_vector<bool>() == std::vector<bool>{true, false});
}
