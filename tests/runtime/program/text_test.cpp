// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/text.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/training/extract.h>

#include "support/random_program.h"
#include "support/straight_line.h"

using namespace millrace;

namespace {

using testing::Random;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The standard ops, and "free", which takes any attributes.
std::shared_ptr<const OpRegistry> with_free() {
  auto ops = std::make_shared<OpRegistry>(*standard_ops());
  OpDef def = standard_ops()->at("relu");
  def.name = "free";
  def.attributes = {"..."};
  ops->add(std::move(def));
  return ops;
}

/// Parses, and gives the error's text. An error of another kind, or one that names no line of the text, fails.
std::string refusal(const std::string& text, const std::map<std::string, Tensor>& weights = {}) {
  std::string what;
  try {
    const Program program = parse_program(text, weights, with_free());
    check(program);
    return {};
  } catch (const ParseError& error) {
    what = error.what();
  } catch (const ProgramError& error) {
    what = error.what();
  } catch (const UnsupportedError& error) {
    what = error.what();
  }
  const std::string start = "program text, line ";
  const bool begins = what.starts_with(start);
  CHECK_MESSAGE(begins, what);
  const bool one_line = what.find('\n') == std::string::npos;
  CHECK_MESSAGE(one_line, what);
  const auto lines = 1 + std::count(text.begin(), text.end(), '\n');
  const long line = begins ? std::strtol(what.c_str() + start.size(), nullptr, 10) : 0;
  const bool there = line >= 1 && line <= lines;
  CHECK_MESSAGE(there, what);
  return what;
}

/// A text with `body` as block 0.
std::string with_ops(const std::string& body) {
  return "millrace 1 \"t\"\ninput \"x\" = x: f32[2]\nblock { idx: 0 parent_idx: -1\n" + body + "}\noutput \"y\" = x\n";
}

/// Loops, branches, arrays, LoD, literals, labels: something of everything that the text form has.
Program of_everything() {
  namespace b = build;
  Program program;
  program.set_title("every \"thing\"");
  const b::Guard guard(program);
  const b::Var x = b::input("x", VarType(DType::f32, {DDim::unknown, 2}, 1));
  const b::Var boot = b::input("boot state", VarType(DType::f32, {DDim::unknown, 2}));
  const b::Var u = b::parameter("U", Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2}));
  const auto [steps, order] = b::unpack(x, 0, true);
  const b::Var n = steps.size();
  const b::TensorArray states(n, order, "states");
  b::Var step = b::constant(0);
  b::WhileLoop loop = b::while_loop({step}, {.parallel_iterations = 3});
  {
    const auto frame = loop.frame();
    loop.break_if(b::equal(step, n));
    const b::Var item = steps.read(step);
    const b::Var state = b::tanh(b::matmul(b::shrink(states.read(step - 1, boot), item), u) + item * 0.1);
    states.write(step, b::if_else(b::less(step, 3), [&] { return std::vector{state}; }, [&] { return std::vector{b::relu(state)}; })[0]);
    step.update(step + 1);
  }
  b::output("y", b::pack(states, 0, order));
  b::output("sum", b::reduce(b::constant(Tensor::from<double>({1, -0.0, 1e300})), "sum", {0}));
  return program;
}

}  // namespace

TEST_CASE("a printed program reads back to the same program, bit for bit, and prints the same") {
  const auto ops = testing::ops_and_any();
  for (const std::uint64_t seed : testing::seeds(400)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = testing::random_program(random);
    check(program);
    const std::string text = print(program);
    INFO(text);
    const Program back = parse_program(text, training::weights_of(program), ops);
    CHECK(testing::difference(program, back) == "");
    CHECK(print(back) == text);
  }
}

TEST_CASE("a program with something of everything reads back") {
  const Program program = of_everything();
  const Program back = parse_program(print(program), training::weights_of(program));
  CHECK(testing::difference(program, back) == "");
  CHECK(program.to_string() == print(back));
}

TEST_CASE("the names of an input's extents read back") {
  Program program;
  program.add_output("y", program.add_input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, 3}), {"batch", "2*t \"\n+1", ""}));
  program.add_input("z", VarType(DType::f32, {DDim::unknown}));
  const Program back = parse_program(print(program), {});
  CHECK(back.inputs()[0].extents == program.inputs()[0].extents);
  CHECK(back.inputs()[1].extents.empty());
  CHECK(print(back) == print(program));
  CHECK_THROWS_AS(program.add_input("w", VarType(DType::f32, {2}), {"a", "b"}), ArgumentError);
}

TEST_CASE("characters that a terminal obeys or hides, and bytes that are no UTF-8, are escaped in names and read back") {
  Program program;
  const std::string odd =
      "a\xe2\x80\xae"
      "b\xe2\x81\xa6"
      "c\xc2\x85\x7f\x1b\xe2\x80\xa8\xd8\x9c\xef\xbb\xbf\xff\"\\\n"
      "d\xc3\xa9\xe6\x97\xa5";
  program.set_title(odd);
  program.add_output(odd + "y", program.add_input(odd, VarType(DType::f32, {DDim::unknown}), {odd}));
  const std::string text = print(program);
  CHECK(
      text.starts_with("millrace 1 "
                       "\"a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6c\\xc2\\x85\\x7f\\x1b\\xe2\\x80\\xa8\\xd8\\x9c\\xef\\xbb\\xbf\\xff\\\"\\\\\\nd"
                       "\xc3\xa9\xe6\x97\xa5\"\n"));
  for (const std::string hidden : {"\xe2\x80\xae", "\xe2\x81\xa6", "\xc2\x85", "\x1b", "\xff"}) CHECK_FALSE(contains(text, hidden));
  const Program back = parse_program(text, {});
  CHECK(back.title() == odd);
  CHECK(back.inputs()[0].name == odd);
  CHECK(back.inputs()[0].extents == std::vector<std::string>{odd});
  CHECK(back.outputs()[0].name == odd + "y");
  CHECK(print(back) == text);
}

TEST_CASE("a text cut at any byte is an error that names a line, or a program that holds together") {
  const Program program = of_everything();
  const std::string text = print(program);
  const auto weights = training::weights_of(program);
  std::size_t refused = 0;
  for (std::size_t size = 0; size < text.size(); ++size) refused += !refusal(text.substr(0, size), weights).empty();
  CHECK(refused > text.size() * 9 / 10);
}

TEST_CASE("a text with any byte changed is an error that names a line, or a program that holds together") {
  const Program program = of_everything();
  const std::string text = print(program);
  const auto weights = training::weights_of(program);
  Random random(1);
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const int kind : {0, 1, 2, 3}) {
      std::string mutant = text;
      if (kind == 0) mutant[at] = static_cast<char>(mutant[at] ^ (1 << random.between(0, 7)));
      if (kind == 1) mutant[at] = static_cast<char>(random.next());
      if (kind == 2) mutant.erase(at, 1);
      if (kind == 3) mutant.insert(at, 1, "{}[]()<>=,:@\"\\?*-0129_. \n"[random.between(0, 23)]);
      INFO("byte ", at, ", kind ", kind);
      refusal(mutant, weights);
    }
  }
}

TEST_CASE("a text with words exchanged, numbers blown up and lines moved is an error that names a line, or a program that holds together") {
  const auto ops = testing::ops_and_any();
  static const std::string numbers[] = {"0",     "-1",  "1", "9223372036854775807", "-9223372036854775808", "4294967297", "2147483648",
                                        "1e999", "nan", "?"};
  for (const std::uint64_t seed : testing::seeds(3000)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = of_everything();
    std::string text = print(program);
    std::vector<std::pair<std::size_t, std::size_t>> words;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = at;
      while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) ++end;
      if (end > at) words.emplace_back(at, end - at);
      at = std::max(end, at + 1);
    }
    const auto pick = [&] { return words[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(words.size()) - 1))]; };
    const auto [at, size] = pick();
    const auto [from, length] = pick();
    text.replace(at, size, random.coin() ? text.substr(from, length) : numbers[random.between(0, 9)]);
    if (random.between(0, 3) == 0) {
      const std::size_t begin = text.find(
          '\n', text.size() / 2 * static_cast<std::size_t>(random.between(0, 1)) + static_cast<std::size_t>(random.between(0, 200)));
      const std::size_t end = begin == std::string::npos ? begin : text.find('\n', begin + 1);
      if (end != std::string::npos) {
        const std::string line = text.substr(begin, end - begin);
        if (random.coin()) text.erase(begin, line.size());
        text.insert(text.find('\n', static_cast<std::size_t>(random.between(0, 300))), line);
      }
    }
    refusal(text, training::weights_of(program));
  }
}

TEST_CASE("errors name the line, what was expected and what was found") {
  const std::map<std::string, std::vector<std::string>> cases = {
      {"", {"line 1", "'millrace'", "the end"}},
      {"millrace 2 \"t\"", {"line 1", "format 1", "'2'"}},
      {"millrace 1 t", {"a quoted string", "'t'"}},
      {"millrace 1 \"t", {"line 1", "the end of a quoted string"}},
      {"millrace 1 \"a\\qb\"", {"line 1", "\\x with two hexadecimal digits"}},
      {"millrace 1 \"a\\x4\"", {"line 1", "\\x with two hexadecimal digits"}},
      {"millrace 1 \"t\"\n\nfoo", {"line 3", "input, weight, block or output", "'foo'"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f33[2]", {"line 2", "f33", "f32"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f32[-5]", {"line 2", "an integer from 0", "'-5'"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f32[99999999999999999999]", {"line 2", "an integer from 0"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f32[1,1,1,1,1,1,1,1,1,1]", {"line 2", "at most 9 axes"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f32[2] lod=4294967297", {"line 2", "an integer from 0 to 64"}},
      {"millrace 1 \"t\"\ninput \"x\" = a-b: f32[2]", {"line 2", "a name", "'a-b'"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f32[2]\ninput \"x\" = z: f32[2]", {"line 3", "input 'x'", "taken"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f32[2]\ninput \"z\" = x: f32[2]", {"line 3", "'x'", "a second"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f32[?] {names=strings[]}", {"line 2", "'extents'", "'names'"}},
      {"millrace 1 \"t\"\ninput \"x\" = x: f32[?] {extents=strings[\"a\", \"b\"]}",
       {"line 2", "a name for each axis of f32[?]", "found 2"}},
      {"millrace 1 \"t\"\nweight W: f32[2]", {"line 2", "weight 'W'", "values of f32[2]", "none"}},
      {"millrace 1 \"t\"\noutput \"y\" = y", {"line 2", "a var that is declared", "'y'"}},
      {"millrace 1 \"t\"\noutput \"y\" = _", {"line 2", "a var that is declared", "'_'"}},
      {"millrace 1 \"t\"\nblock { idx: 1 parent_idx: -1\n}", {"line 2", "an integer from 0 to 0", "'1'"}},
      {with_ops("") + "block { idx: 1 parent_idx: 1\n}", {"line 6", "an integer from 0 to 0", "'1'"}},
      {with_ops("") + "block { idx: 1 parent_idx: 0\n}", {"block 1", "one op that owns it", "found 0"}},
      {with_ops("  params p: f32[2]\n"), {"block 0", "neither parameters nor results"}},
      {with_ops("  results x\n"), {"block 0", "neither parameters nor results"}},
      {with_ops("  y: f32[2] = relu(X=z)\n"), {"line 4", "a var that is declared", "'z'"}},
      {with_ops("  y: f32[2] = relu(X=z)\n  z: f32[2] = relu(X=x)\n"), {"line 4", "reads 'z'", "not written before"}},
      {with_ops("  y: f32[2] = relu(X=x)\n  y: f32[2] = relu(X=x)\n"), {"line 5", "var 'y'", "a second"}},
      {with_ops("  y: f32[3] = relu(X=x)\n"), {"line 4", "op relu", "'y' is declared f32[3]", "expected f32[2]"}},
      {with_ops("  y: f32[2], z: f32[2] = relu(X=x)\n"), {"line 4", "op relu", "expected 1 outputs, found 2"}},
      {with_ops("  y: f32[2] = relu()\n"), {"line 4", "op relu", "expected input X, found none"}},
      {with_ops("  y: f32[2] = add(B=x, A=x)\n"), {"line 4", "the inputs of add in their order (A, B)", "'A'"}},
      {with_ops("  y: f32[2] = add(A=x, B=x, C=x)\n"), {"line 4", "the inputs of add", "'C'"}},
      {with_ops("  y: f32[2] = softmax(X=x) {axis=\"a\"}\n"), {"line 4", "'axis'", "expected an integer, found a string"}},
      {with_ops("  y: f32[2] = softmax(X=x) {dim=0}\n"), {"line 4", "expected the attributes axis, found 'dim'"}},
      {with_ops("  y: f32[2] = softmax(X=x) {axis=1.0}\n"), {"line 4", "'axis'", "expected an integer, found a float"}},
      {with_ops("  y: f32[2] = softmax(X=x) {axis=99999999999999999999}\n"), {"line 4", "a value of i64"}},
      {with_ops("  y: f32[2] = softmax(X=x) {axis=0, axis=0}\n"), {"line 4", "each attribute once", "'axis'"}},
      {with_ops("  y: f32[2] = softmax(X=x) {axis=7}\n"), {"line 4", "op softmax", "7"}},
      {with_ops("  y: f32[] = constant() {value=f32[2](1, 2, 3)}\n"), {"line 4", "expected 2 values, found 3"}},
      {with_ops("  y: f32[] = constant() {value=f32[](1e999)}\n"), {"line 4", "a value of f32"}},
      {with_ops("  y: f32[] = constant() {value=f32[](nan:3f800000)}\n"), {"line 4", "a value of f32"}},
      {with_ops("  y: i8[] = constant() {value=i8[](300)}\n"), {"line 4", "a value of i8", "'300'"}},
      {with_ops("  y: f32[] = constant() {value=f32[4000000000, 4000000000, 4000000000]()}\n"), {"line 4", "does not fit"}},
      {with_ops("  y: f32[] = constant() {value=f32[1000000000000]()}\n"), {"line 4", "expected 1000000000000 values, found 0"}},
      {with_ops("  y: f32[] = constant() {value=f32[?]()}\n"), {"line 4", "not negative"}},
      {with_ops("  y: f32[2] = constant() {value=3}\n"), {"line 4", "'value'", "expected a tensor, found an integer"}},
  };
  for (const auto& [text, parts] : cases) {
    INFO(text);
    const std::string what = refusal(text);
    INFO(what);
    for (const std::string& part : parts) CHECK(contains(what, part));
  }
}

TEST_CASE("all unknown ops are listed at once, with their lines") {
  const std::string what = refusal(
      with_ops("  a: f32[2] = warp(X=x, Ys=[x, _])\n  b: f32[2] = relu(X=a)\n  c: f32[2] = weft(Z=b) {k=1}\n  d: f32[2] = warp(X=c)\n"));
  INFO(what);
  CHECK(contains(what, "line 4"));
  CHECK(contains(what, "'warp' (lines 4, 7); 'weft' (line 6)"));
  CHECK(!contains(what, "'relu'"));
}

namespace {

/// Block 0 with a loop over block 1, whose parts are given.
std::string looping(const std::string& op, const std::string& body, const std::string& more = "") {
  return "millrace 1 \"t\"\ninput \"x\" = x: f32[2]\ninput \"go\" = go: bool[]\nblock { idx: 0 parent_idx: -1\n" + op +
         "}\nblock { idx: 1 parent_idx: 0\n" + body + "}\n" + more;
}

const std::string while_op = "  y: f32[2] = while(Carried=[x]) {sub_block=@1, max_trips=3}\n";

}  // namespace

TEST_CASE("blocks belong to one op of their parent, and see what is around them") {
  CHECK(refusal(looping(while_op, "  params p: f32[2]\n  q: f32[2] = relu(X=p)\n  results q\n")) == "");
  const std::map<std::string, std::vector<std::string>> cases = {
      {looping(while_op, "  params p: f32[2]\n  results p, _\n"), {"line 9", "a var that is declared", "'_'"}},
      {looping("  y: f32[2] = while(Carried=[x]) {sub_block=@7, max_trips=3}\n", "  params p: f32[2]\n  results p\n"),
       {"line 5", "block 7 is not a child"}},
      {looping("  y: f32[2] = while(Carried=[x]) {sub_block=@0, max_trips=3}\n", "  params p: f32[2]\n  results p\n"),
       {"line 5", "block 0 is not a child"}},
      {looping("  y: f32[2] = while(Carried=[x]) {sub_block=@4294967297}\n", "  params p: f32[2]\n  results p\n"),
       {"line 5", "an integer from 0"}},
      {looping("  y: f32[2] = while(Carried=[x]) {sub_block=1}\n", "  params p: f32[2]\n  results p\n"),
       {"line 5", "expected a block, found an integer"}},
      {looping(while_op, "  params p: f32[2]\n  q: f32[2] = while(Carried=[p]) {sub_block=@1, max_trips=3}\n  results q\n"),
       {"line 9", "block 1 is not a child of block 1"}},
      {looping(while_op, "  params p: f32[2]\n  q: f32[2] = while(Carried=[p]) {sub_block=@0, max_trips=3}\n  results q\n"),
       {"line 9", "block 0 is not a child of block 1"}},
      {looping(while_op + "  z: f32[2] = while(Carried=[x]) {sub_block=@1, max_trips=3}\n", "  params p: f32[2]\n  results p\n"),
       {"block 1", "found 2"}},
      {looping(while_op + "  z: f32[2] = relu(X=p)\n", "  params p: f32[2]\n  results p\n"),
       {"line 6", "'p' belongs to block 1", "not visible in block 0"}},
      {looping(while_op, "  params p: f32[2]\n  results p\n", "output \"y\" = p\n"), {"line 11", "output 'y'", "'p' belongs to block 1"}},
      {looping(while_op, "  params p: f32[2]\n  q: f32[2] = relu(X=y)\n  results q\n"), {"line 9", "reads 'y'", "not written before"}},
  };
  for (const auto& [text, parts] : cases) {
    INFO(text);
    const std::string what = refusal(text);
    INFO(what);
    for (const std::string& part : parts) CHECK(contains(what, part));
  }
}

TEST_CASE("a branch cannot hand back what another branch made, take parameters, or hold a break_if") {
  const auto branches = [](const std::string& then, const std::string& otherwise) {
    return refusal(looping("  y: f32[2] = if(Condition=go) {then_block=@1, else_block=@2}\n", then,
                           "block { idx: 2 parent_idx: 0\n" + otherwise + "}\n"));
  };
  const std::string plain = "  b: f32[2] = relu(X=x)\n  results b\n";
  CHECK(branches("  a: f32[2] = relu(X=x)\n  results a\n", plain) == "");
  CHECK(contains(branches("  a: f32[2] = relu(X=x)\n  results a\n", "  results a\n"), "'a' belongs to block 1"));
  CHECK(contains(branches("  params a: f32[2]\n  results a\n", plain), "parameters of a branch"));
  CHECK(contains(branches("  break_if(Condition=go)\n  a: f32[2] = relu(X=x)\n  results a\n", plain), "break_if in the body of a loop"));
}

TEST_CASE("blocks nest to a limit, and braces, names and numbers of any length are refused without delay") {
  std::string deep = "millrace 1 \"t\"\ninput \"x\" = x: f32[2]\nblock { idx: 0 parent_idx: -1\n";
  for (int block = 1; block < 100000; ++block)
    deep += "  while() {sub_block=@" + std::to_string(block) + ", max_trips=1}\n}\nblock { idx: " + std::to_string(block) +
            " parent_idx: " + std::to_string(block - 1) + "\n";
  CHECK(contains(refusal(deep + "}\n"), "256 deep"));
  CHECK(contains(refusal(with_ops(std::string(100000, '{'))), "line 4"));
  CHECK(contains(refusal("millrace 1 \"t\"\ninput \"x\" = x: f32" + std::string(100000, '[')), "line 2"));
  CHECK(contains(refusal(with_ops(std::string(1000000, 'a') + "\n")), "expected ':'"));
  CHECK(contains(refusal(with_ops("  y: f32[2] = softmax(X=x) {axis=" + std::string(1000000, '9') + "}\n")), "a value of i64"));
}

TEST_CASE("many ports, vars and attributes are read in the time that their number asks for") {
  std::string ports = "millrace 1 \"t\"\n";
  for (int i = 0; i < 20000; ++i) ports += "input \"p" + std::to_string(i) + "\" = v" + std::to_string(i) + ": f32[]\n";
  std::string many = "  y: f32[2] = free(X=x) {";
  for (int i = 0; i < 20000; ++i) many += (i == 0 ? "a" : ", a") + std::to_string(i) + "=1";
  CHECK(refusal(ports) == "");
  CHECK(refusal(with_ops(many + "}\n")) == "");
}

TEST_CASE("vars named like words of the text, and ops and attributes named oddly, read back") {
  for (const std::string name :
       {"nan", "params", "results", "lod", "ordered", "order", "array", "_", "true", "input", "block", "f32", "1e5", "inf"}) {
    INFO(name);
    Program program(with_free());
    const VarId x = program.add_input("x", VarType(DType::f32, {2}));
    const VarId y = program.append(0, Op{"free", {x}, {}, {{name, std::int64_t{1}}, {"two words", 0.5}, {"", true}}, {}}, {name})[0];
    program.append(0, Op{"relu", {y}, {}, {}, {}}, {name});
    CHECK(testing::difference(program, parse_program(print(program), {}, program.shared_registry())) == "");
  }
}

TEST_CASE("text written by hand may leave out what has a default, and hold any blanks") {
  const Program program = parse_program(
      "millrace 1 \"t\"\r\n\tinput \"x\"=nan:f32[ ? ,2]lod=1 block{idx:0 parent_idx:-1 y:f32[?,2] lod=1=relu(X=nan){}}output \"y\"=y", {});
  CHECK(contains(print(program), "  y: f32[?, 2] lod=1 = relu(X=nan)\n"));
}
