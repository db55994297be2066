// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/program.h>

#include <functional>
#include <set>

#include <doctest/doctest.h>

#include <millrace/runtime/program/op_registry.h>

using namespace millrace;

namespace {

const VarType two(DType::f32, {2});

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class F>
std::string refusal(F&& work) {
  try {
    work();
  } catch (const ProgramError& error) {
    return error.what();
  }
  return {};
}

Op relu(VarId x, const std::string& label = {}) { return {"relu", {x}, {}, {}, label}; }

}  // namespace

TEST_CASE("names are made unique, and words that a name may not be") {
  Program program;
  const auto named = [&](const std::string& name) { return program.var(program.add_var(name, two)).name; };
  CHECK(named("h") == "h");
  CHECK(named("h") == "h_1");
  CHECK(named("h") == "h_2");
  CHECK(named("h_1") == "h_1_1");
  CHECK(named("two words") == "two_words");
  CHECK(named("7up") == "_7up");
  CHECK(named("a.b/c") == "a.b/c");
  CHECK(named("") == "v_1");
  CHECK(named("_") == "__1");
  CHECK(named("results") == "results_1");
  for (const VarDef& var : program.vars()) CHECK(Program::is_name(var.name));
  CHECK(program.find_var("h_2") == 2);
  CHECK(program.find_var("none") == no_var);
}

TEST_CASE("a program that was moved from says so in each member that needs one") {
  Program moved;
  const VarId x = moved.add_input("x", two);
  moved.append(0, relu(x));
  Program program = std::move(moved);
  const char* const why = "program: expected a program, found one that was moved from";
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_THROWS_WITH_AS(moved.registry(), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.shared_registry(), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.var(x), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.block(0), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.add_var("y", two), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.add_block(-1), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.append(0, relu(x)), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.append_raw(0, relu(x)), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.rename(x, "y"), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.add_input("y", two), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.add_parameter("w", Tensor::from<float>({1})), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.add_output("y", x), why, ProgramError);
  CHECK_THROWS_WITH_AS(moved.to_string(), why, ProgramError);
  CHECK(moved.vars().empty());
  CHECK(moved.find_var("x") == no_var);
  // NOLINTEND(bugprone-use-after-move)
  moved = std::move(program);
  CHECK(moved.var(x).name == "x");
  CHECK_THROWS_WITH_AS(moved.var(7), "program: expected one of 2 vars, found var 7", IndexError);
  CHECK_THROWS_WITH_AS(moved.block(-1), "program: expected one of 1 blocks, found block -1", IndexError);
}

TEST_CASE("a var is renamed to a free name that the text form can hold") {
  Program program;
  const VarId a = program.add_var("a", two);
  program.add_var("b", two);
  program.rename(a, "c");
  CHECK(program.find_var("c") == a);
  CHECK(program.find_var("a") == no_var);
  program.rename(a, "c");
  for (const char* name : {"b", "two words", "", "lod", "_"})
    CHECK(contains(refusal([&] { program.rename(a, name); }), "'c': cannot be named"));
}

TEST_CASE("an op that is refused leaves the program as it was, and the error names block, op, label, expected and found") {
  Program program;
  const VarId x = program.add_input("x", two);
  const std::string before = program.to_string();
  CHECK(refusal([&] { program.append(0, Op{"add", {x}, {}, {}, "node\n1"}); }) ==
        "block 0, op add ('node?1'): expected input B, found none");
  CHECK(contains(refusal([&] { program.append(0, Op{"relu", {x, x}, {}, {}, {}}); }), "expected at most 1 inputs, found 2"));
  CHECK(contains(refusal([&] { program.append(0, relu(99)); }), "expected a var of this program, found id 99"));
  CHECK(contains(refusal([&] { program.append(0, Op{"warp", {}, {}, {}, {}}); }), "'warp'"));
  CHECK(program.to_string() == before);
}

TEST_CASE("a block sees its own vars and those of the blocks around it, no others") {
  Program program;
  const VarId x = program.add_input("x", two);
  const int outer = program.add_block(0);
  const int inner = program.add_block(outer);
  const int beside = program.add_block(0);
  const VarId h = program.append(outer, relu(x), {"h"})[0];
  program.append(inner, relu(h));
  CHECK(program.visible(x, inner));
  CHECK(program.visible(h, inner));
  CHECK_FALSE(program.visible(h, beside));
  CHECK(contains(refusal([&] { program.append(beside, relu(h)); }), "'h' belongs to block 1 and is not visible in block 3"));
  CHECK(contains(refusal([&] { program.append(0, relu(h)); }), "not visible in block 0"));
  CHECK(contains(refusal([&] { program.add_output("y", h); }), "output 'y': 'h' belongs to block 1"));
}

TEST_CASE("inputs and outputs have names of their own, each once") {
  Program program;
  const VarId x = program.add_input("x of\nmine", two);
  CHECK(program.var(x).name == "x_of_mine");
  CHECK(contains(refusal([&] { program.add_input("x of\nmine", two); }), "input 'x of?mine': the name is taken"));
  program.add_output("y", x);
  program.add_output("z", x);
  CHECK(contains(refusal([&] { program.add_output("y", x); }), "output 'y': the name is taken"));
  CHECK(contains(refusal([&] { program.add_output("w", no_var); }), "output 'w': expected a var"));
  CHECK(program.inputs().size() == 1);
  CHECK(program.outputs().size() == 2);
}

TEST_CASE("an input or output with an empty name, or a name with NUL, is refused") {
  Program program;
  const VarId x = program.add_input("x", two);
  const std::string nul("a\0b", 3);
  CHECK_THROWS_WITH_AS(program.add_input("", two), "input: expected a name that is not empty and has no NUL, found ''", ArgumentError);
  CHECK_THROWS_WITH_AS(program.add_input(nul, two), "input: expected a name that is not empty and has no NUL, found 'a?b'", ArgumentError);
  CHECK_THROWS_WITH_AS(program.add_output("", x), "output: expected a name that is not empty and has no NUL, found ''", ArgumentError);
  CHECK_THROWS_WITH_AS(program.add_output(nul, x), "output: expected a name that is not empty and has no NUL, found 'a?b'", ArgumentError);
  CHECK(program.inputs().size() == 1);
  CHECK(program.outputs().empty());
}

TEST_CASE("a weight is frozen, contiguous, and shared by copies of the program") {
  Program program;
  const Tensor strided = Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2}).permute({1, 0});
  const VarId w = program.add_parameter("W", strided);
  CHECK(program.parameter(w)->to_vector<float>() == std::vector<float>{1, 3, 2, 4});
  CHECK(program.parameter(w)->is_contiguous());
  CHECK(program.parameter(w)->is_read_only());
  const Program copy = program;
  CHECK(copy.parameter(w)->shares_storage_with(*program.parameter(w)));
  CHECK_THROWS_AS(program.add_parameter("unwritten", Tensor(DType::f32, {2})), UninitializedError);
}

TEST_CASE("what never changes is known by its var: weights and literals") {
  Program program;
  const VarId x = program.add_input("x", two);
  const VarId w = program.add_parameter("W", Tensor::from<float>({1, 2}));
  const VarId c = program.append(0, Op{"constant", {}, {}, {{"value", Tensor::scalar(3.0f)}}, {}})[0];
  CHECK(program.constant(x) == nullptr);
  CHECK(program.constant(w) == program.parameter(w));
  CHECK(program.constant(c)->item() == 3);
  CHECK(program.parameter(c) == nullptr);
}

TEST_CASE("the LoD of rows goes to outputs with as many rows, and losing it or mixing two is refused") {
  Program program;
  const VarId x = program.add_input("x", VarType(DType::f32, {DDim::unknown, 2}, 1));
  const VarId z = program.add_input("z", VarType(DType::f32, {DDim::unknown, 2}, 2));
  CHECK(program.var(program.append(0, relu(x))[0]).type.lod_depth == 1);
  const auto reduce = [](VarId of) {
    return Op{"reduce", {of}, {}, {{"kind", std::string("sum")}, {"axes", std::vector<std::int64_t>{0}}}, {}};
  };
  CHECK(contains(refusal([&] { program.append(0, reduce(x)); }), "silently lose the LoD of 'x' of f32[?, 2] lod=1: use drop_lod first"));
  const std::string two_lods = refusal([&] { program.append(0, Op{"add", {x, z}, {}, {}, {}}); });
  CHECK(contains(two_lods, "'x' of f32[?, 2] lod=1"));
  CHECK(contains(two_lods, "'z' of f32[?, 2] lod=2"));
  const VarId plain = program.append(0, Op{"drop_lod", {x}, {}, {}, {}})[0];
  CHECK(program.var(program.append(0, reduce(plain))[0]).type == VarType(DType::f32, {1, 2}));
}

TEST_CASE("each change gives a program a number that no program had, and a copy has the number of its original") {
  Program program;
  std::set<std::uint64_t> numbers{program.revision(), Program().revision()};
  VarId x = no_var, y = no_var;
  const std::vector<std::function<void()>> changes{
      [&] { x = program.add_input("x", two); },
      [&] { y = program.append(0, relu(x))[0]; },
      [&] { program.add_output("y", y); },
      [&] { program.add_parameter("W", Tensor::from<float>({1, 2})); },
      [&] { program.add_block(0); },
      [&] { program.block(0).ops.clear(); },
      [&] { program.var(y).type = two; },
      [&] { program.rename(y, "z"); },
      [&] { program.remove_constant(program.find_var("W")); },
      [&] { program.set_title("another"); },
  };
  for (const auto& change : changes) {
    change();
    CHECK(numbers.insert(program.revision()).second);
  }
  const Program same = program;
  CHECK(same.revision() == program.revision());
  CHECK(same.block(0).ops.empty());
  CHECK(same.revision() == program.revision());
  program.set_title("a third");
  CHECK(same.revision() != program.revision());
}

TEST_CASE("an op's place is taken by constants, one for each output") {
  Program program;
  const VarId x = program.add_parameter("x", Tensor::from<float>({-1, 2}));
  const VarId y = program.append(0, relu(x))[0];
  CHECK_THROWS_AS(program.replace_with_constants(0, 0, {}), ProgramError);
  program.replace_with_constants(0, 0, {Tensor::from<float>({0, 2})});
  CHECK(program.block(0).ops.at(0).type == "constant");
  CHECK(program.constant(y)->to_vector<float>() == std::vector<float>{0, 2});
}

TEST_CASE("the storage of a weight and of a literal is frozen, through every tensor that shares it") {
  Tensor weight = Tensor::from<float>({1, 2});
  Tensor literal = Tensor::from<float>({3, 4});
  Tensor whole = Tensor::from<float>(std::vector<float>{1, 2, 3, 4}, {2, 2});
  Program program;
  program.add_parameter("W", weight);
  program.add_parameter("row", whole.rows(0, 1));
  program.append(0, {"constant", {}, {}, {{"value", literal}}, {}});
  CHECK_THROWS_AS(weight.mutable_data<float>(), ReadOnlyError);
  CHECK_THROWS_AS(weight[make_ddim({0})] = 5.0, ReadOnlyError);
  CHECK_THROWS_AS(literal.mutable_data<float>(), ReadOnlyError);
  CHECK_THROWS_AS(whole.mutable_data<float>(), ReadOnlyError);

  Tensor late = Tensor::from<float>({7, 8});
  program.replace_with_constants(0, 0, {late});
  CHECK_THROWS_AS(late.mutable_data<float>(), ReadOnlyError);
  // A copy can be written, and changes nothing of the program.
  Tensor copy = weight.copy_to(CpuPlace{});
  copy.mutable_data<float>()[0] = 9;
  CHECK(program.parameter(program.find_var("W"))->to_vector<float>() == std::vector<float>{1, 2});
}

TEST_CASE("a weight that would fit transposed, as PyTorch keeps it, gets a hint, and others get none") {
  Program program;
  const VarId x = program.add_input("x", VarType(DType::f32, {DDim::unknown, 3}));
  const VarId turned = program.add_parameter("W", Tensor::from<float>(std::vector<float>(12, 1.0f), {4, 3}));
  const VarId other = program.add_parameter("V", Tensor::from<float>(std::vector<float>(10, 1.0f), {2, 5}));
  const auto said = [&](VarId weight) { return refusal([&] { program.append(0, {"matmul", {x, weight}, {}, {}, {}}); }); };
  CHECK(contains(said(turned), "'W' of f32[4, 3]"));
  CHECK(contains(said(turned), "PyTorch's are [out, in], see layers::transposed"));
  CHECK(contains(said(other), "expected operands that multiply"));
  CHECK_FALSE(contains(said(other), "PyTorch"));
}
