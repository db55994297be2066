// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/prepared_op.h>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>

#include <millrace/runtime/builder/ops.h>

using namespace millrace;
using namespace millrace::build;

TEST_CASE("numbers that come of extents alone are the host's, and no op that needs them waits for the device") {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}));
  const Var rows = call1("shape", {x}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
  const Var twice = rows + rows;
  const Var elements = call1("size", {x});
  const Var largest = call1("argmax", {x}, {{"axis", std::int64_t{1}}});
  const Var first = call1("cast", {reduce(x, "max", {0, 1}, false)}, {{"to", DType::i64}});
  output("largest", largest);
  const OpPreparer preparer(program, std::make_shared<CpuDevice>());
  const auto is_host = [&](const Var& var) { return preparer.on_host().at(static_cast<std::size_t>(var.id())); };
  CHECK(is_host(rows));
  CHECK(is_host(twice));
  CHECK(is_host(elements));
  CHECK(!is_host(x));
  CHECK(!is_host(largest));
  CHECK(!is_host(first));
}
