// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/prepared_op.h>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/static_rnn.h>

using namespace millrace;
using namespace millrace::build;

TEST_CASE("numbers that are computed from extents alone are the host's") {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}));
  const Var rows = call1("shape", {x}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
  const Var twice = rows + rows;
  const Var elements = call1("size", {x});
  const Var largest = call1("argmax", {x}, {{"axis", std::int64_t{1}}});
  const Var first = call1("cast", {reduce(x, "max", {0, 1}, false)}, {{"to", DType::i64}});
  output("largest", largest);
  const std::shared_ptr<Device> device = std::make_shared<CpuDevice>();
  const OpPreparer preparer(program, device);
  const auto is_host = [&](const Var& var) { return preparer.on_host().at(static_cast<std::size_t>(var.id())); };
  CHECK(is_host(rows));
  CHECK(is_host(twice));
  CHECK(is_host(elements));
  CHECK(!is_host(x));
  CHECK(!is_host(largest));
  CHECK(!is_host(first));
}

TEST_CASE("each loop of a program has a stream of its own, also where it carries the host's numbers alone") {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, 3}));
  for (const char* name : {"forward", "backward"}) {
    StaticRNN rnn;
    {
      const auto block = rnn.block();
      const Var now = rnn.step_input(x);
      const Var before = rnn.memory(DType::f32, {3});
      const Var next = tanh(now + before);
      rnn.update_memory(before, next);
      rnn.output(next);
    }
    output(name, rnn.outputs()[0]);
  }
  const std::shared_ptr<Device> device = std::make_shared<CpuDevice>();
  OpPreparer preparer(program, device);
  OpPreparer::Chains chains;
  std::vector<std::size_t> streams;
  for (const Op& op : program.block(0).ops) {
    const PreparedOp made = preparer.prepare(op, chains);
    if (op.type != "while") continue;
    CHECK(made.on_host);
    streams.push_back(made.stream);
  }
  REQUIRE(streams.size() == 2);
  CHECK(streams[0] != streams[1]);
}
