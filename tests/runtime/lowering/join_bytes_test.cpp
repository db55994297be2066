// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_bytes.h>

#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/lowering/join_arithmetic.h>
#include <millrace/runtime/program/straight_program.h>

#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Words = std::vector<std::string>;

const DDim dims{2, 3, 7};

Var floats_of(Var bytes, float zero, float scale) { return (call1("cast", {bytes}, {{"to", DType::f32}}) - zero) * scale; }
Var bytes_of(Var x, float scale, DType to = DType::u8) {
  return call1("cast", {call1("round", {x / scale}) + (to == DType::u8 ? 100.0f : -5.0f)}, {{"to", to}});
}
/// x · sigmoid(x) as quantized graphs have it, whose sigmoid is bytes, too.
Var silu_of(Var x, DType to) {
  const Var gate = bytes_of(sigmoid(x), 1.0f / 255, DType::u8);
  return bytes_of(floats_of(gate, 100, 1.0f / 255) * x, 0.02f, to);
}

/// The ops of a program over two inputs of bytes after both passes, which keep the bits.
template <class F>
Words joined(F body, DType given = DType::u8, VarType type = VarType(DType::u8, {DDim::unknown, 3, 7})) {
  Program program;
  {
    const Guard guard(program);
    type.dtype = given;
    const Var a = input("a", type), b = input("b", type);
    body(a, b);
  }
  Program made = program;
  join_arithmetic(made);
  join_bytes(made);
  Random random(4);
  std::vector<Tensor> inputs;
  for (int i = 0; i < 2; ++i) {
    inputs.emplace_back(given, dims);
    Tensor& x = inputs.back();
    auto* const to = given == DType::i8 ? reinterpret_cast<std::uint8_t*>(x.mutable_data<std::int8_t>()) : x.mutable_data<std::uint8_t>();
    for (std::int64_t at = 0; at < dims.elements(); ++at) to[at] = static_cast<std::uint8_t>(random.between(0, 255));
  }
  const auto wanted = StraightProgram(program).run({inputs[0], inputs[1]}), found = StraightProgram(made).run({inputs[0], inputs[1]});
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Tensor x = wanted[i].tensor().tensor().copy_to(CpuPlace{}), y = found[i].tensor().tensor().copy_to(CpuPlace{});
    REQUIRE(x.dims() == y.dims());
    REQUIRE(x.dtype() == y.dtype());
    CHECK(std::memcmp(x.raw(), y.raw(), x.bytes()) == 0);
  }
  Words words;
  for (const Op& op : made.block(0).ops)
    if (op.type != "constant") words.push_back(op.type);
  return words;
}

}  // namespace

TEST_CASE("Bytes that several formulas make of one byte are one table, of bytes with a sign and without") {
  for (const DType given : {DType::u8, DType::i8})
    for (const DType to : {DType::u8, DType::i8})
      CHECK(joined([&](Var a, Var) { output("y", silu_of(floats_of(a, 3, 0.05f), to)); }, given) == Words{"byte_map"});
}

TEST_CASE("Formulas of a table are one table with it") {
  CHECK(joined([](Var a, Var) {
          const Var once = silu_of(floats_of(a, 3, 0.05f), DType::i8);
          output("y", silu_of(floats_of(once, -5, 0.02f), DType::u8));
        }) == Words{"byte_map"});
}

TEST_CASE("Floats and bytes on the way stay where something else reads them") {
  CHECK(joined([](Var a, Var b) {
          const Var x = floats_of(a, 3, 0.05f), gate = bytes_of(sigmoid(x), 1.0f / 255);
          output("y", bytes_of(floats_of(gate, 100, 1.0f / 255) * x, 0.02f));
          output("gate", gate);
          output("sum", x + floats_of(b, 7, 0.1f));
        }) == Words{"arithmetic", "byte_map", "byte_map", "arithmetic"});
}

TEST_CASE("Formulas of two bytes, of operands of several numbers, and of one byte alone stay") {
  CHECK(joined([](Var a, Var b) { output("y", bytes_of(floats_of(a, 3, 0.05f) * sigmoid(floats_of(b, 5, 0.1f)), 0.02f)); }) ==
        Words{"arithmetic", "arithmetic"});
  CHECK(joined([](Var a, Var) {
          const Var each = call1("cast", {a}, {{"to", DType::f32}}) * parameter("f", Tensor::from<float>({1, 2, 3, 4, 5, 6, 7}));
          output("y", bytes_of(sigmoid(each) * each, 0.02f));
        }) == Words{"arithmetic", "arithmetic"});
  CHECK(joined([](Var a, Var) { output("y", bytes_of(floats_of(a, 3, 0.05f), 0.02f)); }) == Words{"arithmetic"});
}
