// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

// [headers of the listing]
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
// [headers of the listing]
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>

namespace built {

// [listing by builder]
using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Program, millrace::Tensor, millrace::VarType;

Program listing(bool sorted, const Tensor& u, const Tensor& w) {
  Program program;
  program.set_title("listing");
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, w.dim(0)}, 1));
  const Var boot_state = input("boot", VarType(DType::f32, {DDim::unknown, u.dim(0)}));
  const Var U = parameter("U", u);
  const Var W = parameter("W", w);

  auto [steps, order] = unpack(x, 0, sorted);
  auto n = steps.size();
  TensorArray states(n, order, "states"), outputs(n, order, "outputs");
  Var step = constant(0);
  auto loop = while_loop({step});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    auto step_input = steps.read(step);
    auto pre_state = shrink(states.read(step - 1, boot_state), step_input);
    auto state = sigmoid(matmul(pre_state, U) + matmul(step_input, W));
    states.write(step, state);
    outputs.write(step, state, share);
    step.update(step + 1);
  }
  auto y = pack(outputs, 0, order);

  output("y", y);
  return program;
}
// [listing by builder]

}  // namespace built

using namespace millrace;

namespace {

Program case_25(bool sorted) {
  return built::listing(sorted, Tensor::from<float>({0.7f}).reshape({1, 1}), Tensor::from<float>({-0.3f}).reshape({1, 1}));
}

Feeds feeds_25() {
  const LoDTensor x(Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({6, 1}), LoD::from_lengths({{2, 1, 3, 0}}));
  return {{"x", x}, {"boot", Tensor::from<float>({.1f, .2f, .3f, .4f}).reshape({4, 1})}};
}

}  // namespace

TEST_CASE("the canonical listing, built, gives the values of case 25, sorted and unsorted") {
  for (const bool sorted : {true, false}) {
    SeededExecutor executor(1);
    const RunResult result = sync_wait(executor, run(case_25(sorted), feeds_25()));
    const LoDTensor& y = result["y"];
    CHECK(y.lod() == LoD::from_lengths({{2, 1, 3, 0}}));
    const std::vector<float> values = y.tensor().to_vector<float>();
    const std::vector<float> wanted{.442752f, .427986f, .318646f, .270912f, .212426f, .160933f};
    REQUIRE(values.size() == wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(values[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
  }
}

TEST_CASE("the printed listing parses to a program that prints the same") {
  const Program program = case_25(true);
  check(program);
  const std::string text = print(program);
  std::map<std::string, Tensor> weights;
  for (const auto& [var, value] : program.parameters()) weights.emplace(program.var(var).name, value);
  CHECK(print(parse_program(text, weights)) == text);
}

TEST_CASE("the listing has the text that the Python module builds") {
  // tests/python_module/programs_test.py compares what Python builds with the same file.
  const char* named = std::getenv("MILLRACE_SOURCE");
  const std::filesystem::path source =
      named != nullptr ? std::filesystem::path(named) : std::filesystem::path(__FILE__).parent_path() / "../../..";
  std::ifstream file(source / "tests/python_module/listing.mr");
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  const std::string built = print(case_25(true));
  const std::string wanted = text.str();
  CHECK(std::count(built.begin(), built.end(), '\n') == std::count(wanted.begin(), wanted.end(), '\n'));
#if defined( \
    __clang__)  // the order in which operands of `matmul(…) + matmul(…)` are evaluated is the compiler's choice; Python's is from the left
  CHECK(built == wanted);
#endif
}
