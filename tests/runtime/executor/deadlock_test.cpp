// SPDX-License-Identifier: Apache-2.0
// Programs that wait for what nobody will do: named at once, with array, slot, waiter, loop and iteration. No clock is asked.
#include <millrace/runtime/executor/run_program.h>

#include <doctest/doctest.h>

#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/errors.h>
#include <support/built.h>
#include <support/loop_over.h>
#include <support/program_runs.h>

using namespace millrace::build;
using millrace::DDim, millrace::DeadlockError, millrace::DType, millrace::Error, millrace::Feeds, millrace::NeverWrittenError,
    millrace::Program, millrace::run, millrace::Tensor, millrace::VarType;
using millrace::testing::built_program, millrace::testing::loop_over, millrace::testing::on_cpu, millrace::testing::on_sim,
    millrace::testing::Schedule;

namespace {

const VarType scalar(DType::f32, {});

void check_says(const std::string& message, const std::vector<std::string>& parts) {
  INFO(message);
  for (const std::string& part : parts) {
    INFO("expected: ", part);
    CHECK(message.find(part) != std::string::npos);
  }
}

/// The message of the error E that the program ends with, under any schedule; the clock stands still, nothing is left.
template <class E>
std::string ends_with(const Program& program, std::uint64_t count = 100) {
  std::string message;
  for (const std::uint64_t seed : millrace::testing::seeds(count)) {
    INFO("seed ", seed);
    Schedule schedule(seed, millrace::testing::policy_of(seed));
    bool failed = false;
    try {
      on_sim(schedule, program);
    } catch (const E& error) {
      failed = true;
      message = error.what();
    }
    CHECK(failed);
    CHECK(schedule.executor.now() == millrace::TimePoint{});
    CHECK(schedule.device.idle());
    CHECK(schedule.device.sim_memory().live_bytes() == 0);
    CHECK(millrace::live_frames() == 0);
  }
  return message;
}

}  // namespace

TEST_CASE("two loops that read each other's unwritten slots are a deadlock that names arrays, slot, waiters, loops and iteration") {
  const std::string message = ends_with<DeadlockError>(built_program([] {
    const TensorArray a = TensorArray::typed(constant(3), scalar, "a");
    const TensorArray b = TensorArray::typed(constant(3), scalar, "b");
    loop_over(constant(3), [&](const Var& t) { a.write(t, b.read(t) + 1.0); });
    loop_over(constant(3), [&](const Var& t) { b.write(t, a.read(t) + 1.0); });
    output("a", a.stack());
  }));
  check_says(message, {"slot 0 of array 'a' of 3 slots", "slot 0 of array 'b' of 3 slots", "while 1 (", "while 2 (", "iteration 0"});
}

TEST_CASE("a loop that reads a slot which it writes only later in the same iteration is named") {
  const std::string message = ends_with<DeadlockError>(built_program([] {
    const TensorArray states = TensorArray::typed(constant(3), scalar, "states");
    loop_over(constant(3), [&](const Var& t) { states.write(t, states.read(t) * 0.5); });
    output("states", states.stack());
  }));
  check_says(message, {"slot 0 of array 'states' of 3 slots", "while 1 (", "iteration 0", "tensor_array_read"});
}

TEST_CASE("a read of a slot that nobody writes is named, with the last writer where there was one") {
  const std::string never = ends_with<DeadlockError>(built_program([] {
    const TensorArray states = TensorArray::typed(constant(3), scalar, "states");
    output("x", states.read(constant(2)));
  }));
  check_says(never, {"'tensor_array_read'", "slot 2 of array 'states' of 3 slots"});
  const std::string missed = ends_with<NeverWrittenError>(built_program([] {
    const TensorArray states = TensorArray::typed(constant(3), scalar, "states");
    output("x", states.read(constant(2)));
    loop_over(constant(2), [&](const Var& t) { states.write(t, cast(t, DType::f32)); });
  }));
  check_says(missed, {"slot 2 of array 'states' of 3 slots", "'while 1 (", "tensor_array_read"});
}

TEST_CASE("a loop that starts at step 1 leaves slot 0 unwritten, and stack fails by its name") {
  const std::string message = ends_with<NeverWrittenError>(built_program([] {
    const TensorArray states = TensorArray::typed(constant(3), scalar, "states");
    Var step = constant(1);
    WhileLoop loop = while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, constant(3)));
      states.write(step, constant(1.0));
      step.update(step + 1);
    }
    output("y", states.stack());
  }));
  check_says(message, {"slot 0 of array 'states' of 3 slots", "tensor_array_stack"});
}

TEST_CASE("a read inside nested loops and a branch says in which iteration of each") {
  const std::string message = ends_with<DeadlockError>(built_program([] {
    const TensorArray absent = TensorArray::typed(constant(9), scalar, "absent");
    Var total = constant(0.0);
    Var i = constant(0);
    WhileLoop outer = while_loop({i, total});
    {
      const auto frame = outer.frame();
      outer.break_if(equal(i, constant(3)));
      loop_over(constant(2), [&](const Var& j) {
        if_else(
            equal(i * 2 + j, constant(3)), [&] { return std::vector<Var>{absent.read(constant(7))}; },
            [&] { return std::vector<Var>{constant(0.0)}; });
      });
      i.update(i + 1);
    }
    output("i", i);
  }));
  check_says(message, {"slot 7 of array 'absent' of 9 slots", "iteration 1, iteration 1 of while 1",
                       "(op tensor_array_read of block 3, iteration 1 of block 2, iteration 1 of block 1)"});
}

TEST_CASE("a window whose reader is gone is a deadlock that names window, capacity and slot") {
  const std::string message = ends_with<DeadlockError>(built_program([] {
    const TensorArray window = TensorArray::window(2, "window");
    loop_over(constant(9), [&](const Var& t) { window.append(t); });
    loop_over(constant(3), [&](const Var& t) { static_cast<void>(window.read(t)); });
  }));
  check_says(message, {"window 'window' (capacity 2", "room for slot 5", "while 1 ("});
}

TEST_CASE("a deadlock in one run leaves other runs of the executor alone") {
  const Program stuck = built_program([] { output("x", TensorArray::typed(constant(1), scalar, "absent").read(constant(0))); });
  const Program fine = built_program([] {
    const TensorArray states = TensorArray::typed(constant(20), scalar, "states");
    loop_over(constant(20), [&](const Var& t) { states.write(t, states.read(t - 1, constant(0.0)) + 1.0); });
    output("y", states.read(constant(19)));
  });
  for (const std::uint64_t seed : millrace::testing::seeds(50)) {
    INFO("seed ", seed);
    Schedule schedule(seed, millrace::testing::policy_of(seed));
    auto first = millrace::start_run(schedule.executor, run(stuck, {}), "stuck");
    auto second = millrace::start_run(schedule.executor, run(fine, {}), "fine");
    schedule.executor.run();
    CHECK_THROWS_AS(first.get(), DeadlockError);
    CHECK(second.get()["y"].tensor().item() == 20);
  }
}
