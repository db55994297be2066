// SPDX-License-Identifier: Apache-2.0
// Refusals of `check`, of programs that were put together by hand, as rewriting does; text_test.cpp has those that were read.
#include <millrace/runtime/program/check.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>

using namespace millrace;

namespace {

/// x: f32[2], y = relu(x), and what `change` does to it.
template <class F>
std::string refusal(F&& change) {
  Program program;
  const VarId x = program.add_input("x", VarType(DType::f32, {2}));
  const VarId y = program.append(0, Op{"relu", {x}, {}, {}, {}}, {"y"})[0];
  try {
    change(program, x, y);
    check(program);
  } catch (const ProgramError& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a program that was built passes, and so does an empty one") {
  CHECK(refusal([](Program& program, VarId, VarId y) { program.add_output("y", y); }) == "");
  check(Program());
}

TEST_CASE("a var that is written twice is named, with the second writer") {
  const std::string twice = refusal([](Program& program, VarId x, VarId y) { program.append_raw(0, Op{"tanh", {x}, {y}, {}, {}}); });
  CHECK(contains(twice, "'y': written twice, the second time by block 0, op tanh"));
  CHECK(contains(refusal([](Program& program, VarId x, VarId) { program.append_raw(0, Op{"tanh", {x}, {x}, {}, {}}); }),
                 "'x': written twice"));
}

TEST_CASE("a var that is read before it is written is named, with the reader") {
  const std::string early = refusal([](Program& program, VarId, VarId) {
    const VarId late = program.add_var("late", VarType(DType::f32, {2}));
    const VarId out = program.add_var("out", VarType(DType::f32, {2}));
    program.append_raw(0, Op{"tanh", {late}, {out}, {}, {}});
  });
  CHECK(contains(early, "block 0, op tanh: reads 'late', which is not written before it"));
  const std::string never =
      refusal([](Program& program, VarId, VarId) { program.add_output("y", program.add_var("never", VarType(DType::f32, {2}))); });
  CHECK(contains(never, "output 'y': reads 'never'"));
}

TEST_CASE("outputs of another type, or another number of them, are named") {
  const auto with_outputs = [](const std::vector<VarType>& types) {
    return refusal([&](Program& program, VarId x, VarId) {
      Op op{"tanh", {x}, {}, {}, {}};
      for (const VarType& type : types) op.outputs.push_back(program.add_var("z", type));
      program.append_raw(0, op);
    });
  };
  CHECK(with_outputs({VarType(DType::f32, {DDim::unknown})}) == "");
  CHECK(contains(with_outputs({VarType(DType::f64, {2})}), "'z' is declared f64[2], expected f32[2]"));
  CHECK(contains(with_outputs({VarType(DType::f32, {2}, 1)}), "'z' is declared f32[2] lod=1, expected f32[2]"));
  CHECK(contains(with_outputs({}), "expected 1 outputs, found 0"));
}

TEST_CASE("ids that are no vars of the program are refused and never looked up") {
  for (const VarId id : {-7, 1000}) {
    CHECK(contains(refusal([&](Program& program, VarId, VarId) { program.append_raw(0, Op{"tanh", {id}, {}, {}, {}}); }),
                   "expected a var of this program"));
    CHECK(contains(refusal([&](Program& program, VarId x, VarId) { program.append_raw(0, Op{"tanh", {x}, {id}, {}, {}}); }),
                   "expected a var of this program"));
    CHECK(contains(refusal([&](Program& program, VarId, VarId) { program.add_output("y", id); }), "expected a var of this program"));
  }
  CHECK(contains(refusal([](Program& program, VarId x, VarId) { program.append_raw(0, Op{"tanh", {x}, {no_var}, {}, {}}); }),
                 "expected a var of this program"));
}

TEST_CASE("a block without an owner, with two, or with another parent's op is refused") {
  const auto with_loops = [](int loops, bool nested) {
    return refusal([&](Program& program, VarId x, VarId) {
      const int body = program.add_block(0);
      const VarId param = program.add_var("p", VarType(DType::f32, {2}), body);
      program.block(body).params = program.block(body).results = {param};
      const int from = nested ? program.add_block(0) : 0;
      for (int i = 0; i < loops; ++i)
        program.append(from, Op{"while", {x}, {}, {{"sub_block", BlockId{body}}, {"max_trips", std::int64_t{1}}}, {}});
      if (nested) program.append(0, Op{"while", {}, {}, {{"sub_block", BlockId{from}}, {"max_trips", std::int64_t{1}}}, {}});
    });
  };
  CHECK(with_loops(1, false) == "");
  CHECK(contains(with_loops(0, false), "block 1: expected one op that owns it, found 0"));
  CHECK(contains(with_loops(2, false), "block 1: expected one op that owns it, found 2"));
  CHECK(contains(with_loops(1, true), "block 1 is not a child of block 2"));
}

TEST_CASE("blocks nest 256 deep and no deeper") {
  Program program;
  int block = 0;
  for (int depth = 0; depth < 256; ++depth) block = program.add_block(block);
  CHECK_THROWS_WITH_AS(program.add_block(block), doctest::Contains("256 deep"), ProgramError);
}
