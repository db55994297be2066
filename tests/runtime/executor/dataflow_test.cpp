// SPDX-License-Identifier: Apache-2.0
// Programs whose loops and ops meet in the slots of arrays: who writes first does not matter, and the bits never change.
#include <millrace/runtime/executor/run_program.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/tensor/sanitized.h>
#include <support/built.h>
#include <support/loop_over.h>
#include <support/program_runs.h>

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Executable, millrace::Feeds, millrace::Program, millrace::run, millrace::RunResult,
    millrace::Tensor, millrace::VarType;
using millrace::testing::built_program, millrace::testing::loop_over, millrace::testing::everywhere, millrace::testing::on_cpu,
    millrace::testing::on_sim, millrace::testing::Schedule;
using Floats = std::vector<float>;
using Ints = std::vector<std::int64_t>;

namespace {

const VarType scalar(DType::f32, {});

Floats floats(const RunResult& result, const std::string& name) { return result[name].tensor().to_vector<float>(); }
Ints ints(const RunResult& result, const std::string& name) { return result[name].tensor().to_vector<std::int64_t>(); }

/// The host's memory, counted.
struct CountingMemory final : millrace::MemoryResource {
  void* allocate(std::size_t bytes) override {
    live += bytes;
    peak = std::max(peak, live);
    return millrace::host_memory()->allocate(bytes);
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    live -= bytes;
    millrace::host_memory()->deallocate(pointer, bytes);
  }
  millrace::Place place() const override { return millrace::CpuPlace{}; }
  bool host_accessible() const noexcept override { return true; }
  std::size_t live = 0;
  std::size_t peak = 0;
};

constexpr std::int64_t many = millrace::sanitized ? 4000 : 50000;

/// Two loops that read each other's previous iteration.
Program mutual(std::int64_t iterations) {
  return built_program([&] {
    const Var x = input("x", scalar);
    const Var y = input("y", scalar);
    const TensorArray a = TensorArray::typed(constant(iterations), scalar, "a");
    const TensorArray b = TensorArray::typed(constant(iterations), scalar, "b");
    loop_over(constant(iterations), [&](const Var& t) { a.write(t, a.read(t - 1, x) * 0.6 + b.read(t - 1, y) * 0.3 + 1.0); });
    loop_over(constant(iterations), [&](const Var& t) { b.write(t, b.read(t - 1, y) * 0.7 - a.read(t - 1, x) * 0.2); });
    output("a", a.stack());
    output("b", b.stack());
  });
}

}  // namespace

TEST_CASE("two loops that read each other's previous iteration give equal bits over 1000 seeds and at least 100 schedules") {
  std::size_t schedules = 0;
  const Feeds feeds{{"x", Tensor::scalar(.5f)}, {"y", Tensor::scalar(2.f)}};
  const RunResult result = everywhere(mutual(6), feeds, 1000, &schedules);
  if (millrace::testing::seeds(1000).size() == 1000) CHECK(schedules >= 100);
  float a = .5f;
  float b = 2.f;
  for (std::size_t t = 0; t < 6; ++t) {
    const float next = a * .6f + b * .3f + 1.f;
    b = b * .7f - a * .2f;
    a = next;
    CHECK(floats(result, "a")[t] == doctest::Approx(a));
    CHECK(floats(result, "b")[t] == doctest::Approx(b));
  }
}

TEST_CASE("a reader that is built before its writer gets every slot") {
  const Program program = built_program([] {
    const TensorArray late = TensorArray::typed(constant(9), VarType(DType::i64, {}), "late");
    const TensorArray doubled(constant(9), "doubled");
    output("early", late.read(constant(8)));
    loop_over(constant(9), [&](const Var& t) { doubled.write(t, late.read(t) * 2); });
    loop_over(constant(9), [&](const Var& t) { late.write(constant(8) - t, t * t); });
    output("doubled", doubled.stack());
  });
  const RunResult result = everywhere(program, {}, 300);
  CHECK(ints(result, "doubled") == Ints{128, 98, 72, 50, 32, 18, 8, 2, 0});
  CHECK(result["early"].tensor().item_int() == 0);
}

TEST_CASE("a loop starts while what it carries is still under way") {
  const Program program = built_program([] {
    const TensorArray first = TensorArray::typed(constant(1), scalar, "first");
    Var carried = first.read(constant(0));
    const TensorArray seen = TensorArray::typed(constant(4), scalar, "seen");
    Var step = constant(0);
    WhileLoop loop = while_loop({step, carried});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, constant(4)));
      seen.write(step, cast(step, DType::f32));
      carried.update(carried + 1.0);
      step.update(step + 1);
    }
    first.write(constant(0), seen.read(constant(3)) * 10.0);  // what the loop itself writes
    output("carried", carried);
  });
  CHECK(everywhere(program, {}, 300)["carried"].tensor().item() == 34);
}

TEST_CASE("several ops wait for what the iteration before left, and outlive it") {
  const Program program = built_program([] {
    const TensorArray late = TensorArray::typed(constant(6), scalar, "late");
    const TensorArray more(constant(6), "more");
    const TensorArray twice(constant(6), "twice");
    Var last = constant(0.0);
    Var step = constant(0);
    WhileLoop loop = while_loop({step, last});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, constant(6)));
      more.write(step, last + 1.0);
      twice.write(step, last * 2.0);
      last.update(late.read(step));
      step.update(step + 1);
    }
    loop_over(constant(6), [&](const Var& t) { late.write(t, cast(t, DType::f32)); });
    output("more", more.stack());
    output("twice", twice.stack());
  });
  const RunResult result = everywhere(program, {}, 300);
  CHECK(floats(result, "more") == Floats{1, 1, 2, 3, 4, 5});
  CHECK(floats(result, "twice") == Floats{0, 0, 2, 4, 6, 8});
}

TEST_CASE("what is appended keeps the program's order, whatever had to wait") {
  const Program program = built_program([] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown}));
    const TensorArray items = TensorArray::unstack(x);
    const Var n = items.size();
    const TensorArray backwards = TensorArray::typed(constant(6), scalar, "backwards");
    const TensorArray all = TensorArray::growable("all");
    loop_over(n, [&](const Var& t) {
      all.append(backwards.read(t));  // the slot of iteration 0 comes last
      loop_over(t, [&](const Var& u) { all.append(items.read(u)); });
      if_else(
          equal(t, constant(2)), [&] { return all.append(constant(-1.0)), std::vector<Var>{t}; },
          [&] { return std::vector<Var>{constant(0)}; });
    });
    all.append(constant(-2.0));
    loop_over(n, [&](const Var& t) { backwards.write(n - 1 - t, items.read(t) * 100.0); });
    output("all", all.stack());
    output("size", all.size());
  });
  const RunResult result = everywhere(program, {{"x", Tensor::from<float>({1, 2, 3, 4, 5, 6})}}, 300);
  Floats wanted;
  for (int t = 0; t < 6; ++t) {
    wanted.push_back(100.f * static_cast<float>(6 - t));
    for (int u = 0; u < t; ++u) wanted.push_back(static_cast<float>(u + 1));
    if (t == 2) wanted.push_back(-1);
  }
  wanted.push_back(-2);
  CHECK(floats(result, "all") == wanted);
  CHECK(std::cmp_equal(result["size"].tensor().item_int(), wanted.size()));
}

TEST_CASE("an array that a loop carries is the same array inside and outside") {
  const Program program = built_program([] {
    const TensorArray slow = TensorArray::typed(constant(5), scalar, "slow");
    Var carried = TensorArray::growable("carried").var();
    ArrayVar::of(carried).append(constant(-1.0));
    Var step = constant(0);
    WhileLoop loop = while_loop({step, carried});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, constant(5)));
      ArrayVar::of(carried).append(slow.read(step));
      step.update(step + 1);
    }
    ArrayVar::of(carried).append(constant(7.0));
    loop_over(constant(5), [&](const Var& t) { slow.write(constant(4) - t, cast(t, DType::f32)); });
    output("size", ArrayVar::of(carried).size());
    output("all", ArrayVar::of(carried).stack());
  });
  const RunResult result = everywhere(program, {}, 300);
  CHECK(floats(result, "all") == Floats{-1, 4, 3, 2, 1, 0, 7});
  CHECK(result["size"].tensor().item_int() == 7);
}

TEST_CASE("an array whose size comes late is written by several loops, each when it can") {
  const Program program = built_program([] {
    const TensorArray sizes = TensorArray::typed(constant(1), VarType(DType::i64, {}), "sizes");
    const TensorArray slow = TensorArray::typed(constant(6), scalar, "slow");
    const TensorArray late = TensorArray::typed(sizes.read(constant(0)), scalar, "late");
    loop_over(constant(3), [&](const Var& t) { late.write(t, slow.read(t)); });
    loop_over(constant(3), [&](const Var& t) { late.write(t + 3, slow.read(constant(5) - t)); });
    loop_over(constant(6), [&](const Var& t) { slow.write(constant(5) - t, cast(t, DType::f32)); });
    sizes.write(constant(0), constant(6));
    output("late", late.stack());
  });
  CHECK(floats(everywhere(program, {}, 300), "late") == Floats{5, 4, 3, 0, 1, 2});
}

TEST_CASE("an array that somebody else fills is read while it grows") {
  const Program program = built_program([] {
    const Var fed = input("fed", VarType::array_of(DType::f32, DDim{}, false));
    const ArrayVar items = ArrayVar::of(fed);
    const TensorArray sums = TensorArray::typed(constant(4), scalar, "sums");
    loop_over(constant(4), [&](const Var& t) { sums.write(t, sums.read(t - 1, constant(0.0)) + items.read(t)); });
    output("sums", sums.stack());
  });
  for (const std::uint64_t seed : millrace::testing::seeds(100)) {
    INFO("seed ", seed);
    Schedule schedule(seed, millrace::testing::policy_of(seed));
    const millrace::TensorArray fed = millrace::TensorArray::growable();
    const Executable executable(program, millrace::testing::borrow(schedule.device));
    auto running = millrace::start_run(schedule.executor, run(executable, {{"fed", fed}}), "reader");
    const millrace::ExternalHold hold(running.run());
    for (int i = 0; i < 4; ++i) {
      schedule.executor.run();
      CHECK_FALSE(running.ended());
      fed.append(Tensor::scalar(static_cast<float>(i + 1)));
    }
    schedule.executor.run();
    CHECK(floats(running.get(), "sums") == Floats{1, 3, 6, 10});
  }
}

TEST_CASE("slots of several arrays are chosen by what another array holds") {
  const Program program = built_program([] {
    const Var where = input("where", VarType(DType::i64, {6}));
    const TensorArray places = TensorArray::unstack(where);
    const TensorArray chain = TensorArray::typed(constant(6), VarType(DType::i64, {}), "chain");
    loop_over(constant(6), [&](const Var& t) {
      const Var place = places.read(t);
      const Var before = if_else(
          equal(place, constant(0)), [&] { return std::vector<Var>{constant(1)}; },
          [&] { return std::vector<Var>{chain.read(place - 1)}; })[0];
      chain.write(place, before * 3);
    });
    output("chain", chain.stack());
  });
  const Feeds feeds{{"where", Tensor::from<std::int64_t>({4, 2, 5, 0, 3, 1})}};
  CHECK(ints(everywhere(program, feeds, 300), "chain") == Ints{3, 9, 27, 81, 243, 729});
}

TEST_CASE("a window carries any number of items from loop to loop in constant memory") {
  const auto pump = [](std::int64_t count, bool append) {
    return built_program([&] {
      const TensorArray window = TensorArray::window(4, "window");
      const Var n = constant(count);
      loop_over(n, [&](const Var& t) { append ? window.append(t) : window.write(t, t); });
      Var step = constant(0);
      Var total = constant(0);
      WhileLoop reader = while_loop({step, total});
      {
        const auto frame = reader.frame();
        reader.break_if(equal(step, n));
        const Var item = window.read(step);
        total.update(total + item * (step - item + 1));  // out of order it would be another sum
        step.update(step + 1);
      }
      output("total", total);
    });
  };
  const auto peak_bytes = [&](std::int64_t items, bool append) {
    const auto memory = std::make_shared<CountingMemory>();
    {
      const Executable executable(pump(items, append), std::make_shared<millrace::CpuDevice>(1, 1, memory));
      const RunResult result = millrace::testing::run_fifo(run(executable, {}));
      CHECK(result["total"].tensor().item_int() == items * (items - 1) / 2);
      CHECK(result.peak_step_scopes() <= 2 * 8);
    }
    CHECK(memory->live == 0);
    return memory->peak;
  };
  for (const bool append : {true, false}) CHECK(everywhere(pump(60, append), {}, 60)["total"].tensor().item_int() == 60 * 59 / 2);
  CHECK(peak_bytes(many, true) == peak_bytes(1000, true));
  CHECK(peak_bytes(10000, false) == peak_bytes(1000, false));
}

TEST_CASE("a result of no run has no outputs and counts no step scopes") {
  const RunResult none;
  CHECK(none.outputs().empty());
  CHECK(none.peak_step_scopes() == 0);
  CHECK(none.live_step_scopes() == 0);
}
