// SPDX-License-Identifier: Apache-2.0
// Results depend on every wait of one stream for another: when a wait is left out, some schedule shows it.
#include <millrace/runtime/executor/run_program.h>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <support/program_runs.h>

using namespace millrace;
using testing::bits, testing::on_cpu, testing::on_sim, testing::Schedule, testing::SimDevice;

namespace {

/// Iterations take turns on the streams, so that each reads what the other stream made.
Program across_streams() {
  Program program;
  program.set_title("across streams");
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {4}));
  const build::TensorArray states = build::TensorArray::typed(build::constant(6), VarType(DType::f32, {4}), "states");
  build::Var step = build::constant(0);
  build::WhileLoop loop = build::while_loop({step});
  {
    const auto frame = loop.frame();
    loop.break_if(equal(step, build::constant(6)));
    states.write(step, states.read(step - 1, x) * 0.5 + x);
    step.update(step + 1);
  }
  // Not all of them: that the last one is there says so of those before.
  build::output("last", states.read(build::constant(5)));
  return program;
}

const Feeds feeds{{"x", Tensor::from<float>({1, 2, 3, 4})}};

/// Whether some schedule of `seeds` seeds shows that the n-th wait is missing. `waits`: how many there are.
bool noticed(const Program& program, const std::string& wanted, std::size_t dropped, std::uint64_t seeds, std::size_t* waits) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SimDevice::Options options;
    options.drop_wait = dropped;
    Schedule schedule(seed, SeededExecutor::Policy::random, options);
    try {
      const RunResult result = on_sim(schedule, program, feeds);
      *waits = schedule.device.waits();
      if (bits(result) != wanted) return true;
    } catch (const Error&) {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("each wait of one stream for another is needed: without it some schedule gives other bits, or an error") {
  const Program program = across_streams();
  const std::string wanted = bits(on_cpu(program, feeds));
  std::size_t waits = 0;
  CHECK_FALSE(noticed(program, wanted, 0, 40, &waits));
  REQUIRE(waits >= 6);
  std::size_t needed = 0;
  for (std::size_t n = 1; n <= waits; ++n) {
    std::size_t ignored = 0;
    if (noticed(program, wanted, n, 40, &ignored)) ++needed;
  }
  INFO(needed, " of ", waits, " waits");
  CHECK(needed == waits);
}
