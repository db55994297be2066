// SPDX-License-Identifier: Apache-2.0
// Results of loops, nested and with branches: on the CPU and, with the same bits, under any schedule of `sim:0`.
#include <millrace/runtime/executor/run_program.h>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <millrace/kernels/cpu/float_functions.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>
#include <support/built.h>
#include <support/program_runs.h>

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Feeds, millrace::LoD, millrace::LoDTensor, millrace::Program, millrace::RunResult,
    millrace::Tensor, millrace::VarType;
using millrace::testing::built_program, millrace::testing::everywhere, millrace::testing::on_cpu;
using Floats = std::vector<float>;

namespace {

const VarType scalar(DType::f32, {});

Floats floats(const RunResult& result, const std::string& name) { return result[name].tensor().to_vector<float>(); }
float number(const RunResult& result, const std::string& name) { return static_cast<float>(result[name].tensor().item()); }

/// Looks at a number below 2^-126, again and again between turns of other tasks.
millrace::task<void> small_numbers(int looks) {
  int lost = 0;
  for (int look = 0; look < looks; ++look) {
    volatile float least = std::numeric_limits<float>::min();
    if (!(least * 0.5f > 0)) ++lost;
    co_await millrace::this_task::yield();
  }
  CHECK(lost == 0);
}

millrace::task<void> beside_small_numbers(millrace::Executable executable, Feeds feeds, millrace::RunOptions options) {
  millrace::TaskInfo& me = co_await millrace::this_task::info();
  millrace::Scope scope(me);
  scope.spawn(small_numbers(500), "small numbers");
  const RunResult result = co_await millrace::run(executable, feeds, options);
  CHECK(result.iterations == 1000);
  co_await scope.join();
}

Tensor rows(std::initializer_list<float> values, std::int64_t columns) {
  return Tensor::from(Floats(values), {static_cast<std::int64_t>(values.size()) / columns, columns});
}

}  // namespace

TEST_CASE("outputs that gather rows of a changing memory have the values of case 16") {
  const Program program = built_program([] {
    const Var v0 = input("v0", VarType(DType::f32, {3, 5}));
    const Var var = input("var", VarType(DType::f32, {5}));
    Var s = input("s", VarType(DType::f32, {5}));
    Var step = constant(0);
    const TensorArray items = TensorArray::unstack(v0);
    const TensorArray out(constant(3), "out");
    WhileLoop loop = while_loop({step, s});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, constant(3)));
      const Var item = items.read(step);
      out.write(step, item + var + s);
      s.update(s + item);
      step.update(step + 1);
    }
    output("out", out.stack());
  });
  const Tensor v0 = rows({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, 5);
  const Feeds feeds{{"v0", v0}, {"var", Tensor::from<float>({100, 101, 102, 103, 104})}, {"s", Tensor::from<float>({1, 1, 1, 1, 1})}};
  CHECK(floats(everywhere(program, feeds), "out") == Floats{101, 103, 105, 107, 109, 106, 109, 112, 115, 118, 116, 120, 124, 128, 132});
}

TEST_CASE("a loop counts to 10000") {
  const Program program = built_program([] {
    Var step = constant(0);
    WhileLoop loop = while_loop({step});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, constant(10000)));
      step.update(step + 1);
    }
    output("step", step);
  });
  const RunResult result = everywhere(program, {}, 3);
  CHECK(result["step"].tensor().item_int() == 10000);
  CHECK(result.iterations == 10000);
}

TEST_CASE("a trip limit of 3 makes three iterations, and one of 0 none") {
  for (const std::int64_t limit : {0, 3}) {
    const Program program = built_program([&] {
      Var x = input("x", VarType(DType::f32, {2}));
      WhileLoop loop = while_loop({x}, {.max_trips = limit});
      {
        const auto frame = loop.frame();
        x.update(x + x);
      }
      output("x", x);
    });
    const RunResult result = everywhere(program, {{"x", Tensor::from<float>({1, 5})}});
    CHECK(result.iterations == limit);
    CHECK(floats(result, "x") == (limit == 3 ? Floats{8, 40} : Floats{1, 5}));
  }
}

TEST_CASE("zero iterations return the inputs") {
  const Program program = built_program([] {
    Var x = input("x", VarType(DType::f32, {2}));
    Var more = input("more", VarType(DType::boolean, {}));
    WhileLoop loop = while_op(more, {x, more});
    {
      const auto frame = loop.frame();
      x.update(x + x);
      more.update(less(sum(x), Var(40.0)));
    }
    output("x", x);
  });
  const Tensor x = Tensor::from<float>({1, 5});
  CHECK(floats(everywhere(program, {{"x", x}, {"more", Tensor::scalar(false)}}), "x") == Floats{1, 5});
  const RunResult turned = everywhere(program, {{"x", x}, {"more", Tensor::scalar(true)}});
  CHECK(floats(turned, "x") == Floats{8, 40});
  CHECK(turned.iterations == 3);
}

TEST_CASE("nested loops take 2 to 1048576: the inner doubles to 20, the outer squares to 3000") {
  const Program program = built_program([] {
    Var x = input("x", scalar);
    WhileLoop outer = while_loop({x});
    {
      const auto frame = outer.frame();
      outer.break_if(greater_equal(x, Var(3000.0)));
      WhileLoop inner = while_loop({x});
      {
        const auto iteration = inner.frame();
        inner.break_if(greater_equal(x, Var(20.0)));
        x.update(x * 2.0);
      }
      x.update(x * x);
    }
    output("x", x);
  });
  const RunResult result = everywhere(program, {{"x", Tensor::scalar(2.f)}});
  CHECK(number(result, "x") == 1048576.f);
  CHECK(result.iterations == 2 + 4);
}

TEST_CASE("loops that square, multiply and double have the values of case 18") {
  const Program program = built_program([] {
    const Var two = input("two", scalar);
    const Var a = input("a", scalar);
    Var squared = Var::of(two.id());
    WhileLoop squares = while_loop({squared});
    {
      const auto frame = squares.frame();
      squares.break_if(greater_equal(squared, Var(100.0)));
      squared.update(squared * squared);
    }
    Var product = Var::of(two.id());
    WhileLoop products = while_loop({product});
    {
      const auto frame = products.frame();
      products.break_if(greater_equal(product, Var(100.0)));
      product.update(product * a);
    }
    Var twice = constant(1.0);
    for (int i = 0; i < 2; ++i) {
      Var step = constant(0);
      WhileLoop doubling = while_loop({step, twice});
      const auto frame = doubling.frame();
      doubling.break_if(equal(step, constant(5)));
      twice.update(twice * two);
      step.update(step + 1);
    }
    output("squared", squared);
    output("product", product);
    output("twice", twice);
  });
  const RunResult result = everywhere(program, {{"two", Tensor::scalar(2.f)}, {"a", Tensor::scalar(3.f)}});
  CHECK(number(result, "squared") == 256);
  CHECK(number(result, "product") == 162);
  CHECK(number(result, "twice") == 1024);
}

TEST_CASE("loops whose condition reads what they carry have the values of case 19") {
  const Program program = built_program([] {
    Var i = input("i", scalar);
    Var x = Var::of(i.id());
    Var square = Var::of(i.id());
    Var count = Var::of(i.id());
    WhileLoop loop = while_loop({i, x});
    {
      const auto frame = loop.frame();
      loop.break_if(greater_equal(i, Var(3.0)));
      x.update(x * i);
      i.update(i + 1);
    }
    WhileLoop squares = while_loop({count, square});
    {
      const auto frame = squares.frame();
      squares.break_if(equal(count, Var(11.0)));
      square.update(count * count);
      count.update(count + 1);
    }
    output("x", x);
    output("square", square);
  });
  const RunResult result = everywhere(program, {{"i", Tensor::scalar(1.f)}});
  CHECK(number(result, "x") == 2);
  CHECK(number(result, "square") == 100);
}

TEST_CASE("a memory that is halved has the values of cases 20 and 22") {
  const Program program = built_program([] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown}));
    const Var h0 = input("h0", scalar);
    const Var half_of_both = scan([](const Var& h, const Var& item) { return (h + item) / 2.0; }, x, h0);
    const Var decayed = scan([](const Var& h, const Var& item) { return h * 0.5 + item; }, x, constant(0.0));
    output("h", half_of_both);
    output("decayed", decayed);
    output("L", sum(decayed));
  });
  const RunResult twenty = everywhere(program, {{"x", Tensor::from<float>({1, 2, 3})}, {"h0", Tensor::scalar(4.f)}});
  CHECK(floats(twenty, "h") == Floats{2.5f, 2.25f, 2.625f});
  const RunResult ones = everywhere(program, {{"x", Tensor::from<float>({1, 1, 1, 1})}, {"h0", Tensor::scalar(0.f)}});
  CHECK(floats(ones, "decayed") == Floats{1, 1.5f, 1.75f, 1.875f});
  CHECK(number(ones, "L") == 6.125f);
}

TEST_CASE("a memory that fades to nothing becomes zeros in every backend, and the thread that ran it keeps small numbers") {
  for (const bool branches : {false, true}) {
    CAPTURE(branches);
    const Program program = built_program([&] {
      Var x = input("x", VarType(DType::f32, {2}));
      Var step = constant(0);
      WhileLoop loop = while_loop({step, x});
      {
        const auto frame = loop.frame();
        loop.break_if(equal(step, constant(130)));
        Var next = x * 0.5;
        if (branches)
          next =
              if_else(equal(step, constant(1000)), [&] { return std::vector<Var>{x * 2.0}; }, [&] { return std::vector<Var>{x * 0.5}; })[0];
        x.update(next);
        step.update(step + 1);
      }
      output("x", x);
    });
    const Feeds feeds{{"x", Tensor::from<float>({1, -3})}};
    const auto halved = [](float number) {
      for (int i = 0; i < 130; ++i) number = millrace::cpu::flushed(number * 0.5f);
      return number;
    };
    const Floats expected{halved(1), halved(-3)};
    const RunResult result = everywhere(program, feeds);
    CHECK(floats(result, "x") == expected);
    CHECK(std::signbit(floats(result, "x")[1]));
    millrace::RunOptions interpreted;
    interpreted.backend = millrace::Backend::interpreted;
    CHECK(floats(on_cpu(program, feeds, interpreted), "x") == expected);
    volatile float least = std::numeric_limits<float>::min();
    CHECK(least * 0.5f > 0);
  }
}

TEST_CASE("tasks beside an interpreted loop, and the threads behind it, keep small numbers") {
  const Program program = built_program([] {
    Var x = input("x", VarType(DType::f32, {2}));
    Var step = constant(0);
    WhileLoop loop = while_loop({step, x});
    {
      const auto frame = loop.frame();
      loop.break_if(equal(step, constant(1000)));
      x.update(x * 0.5);
      step.update(step + 1);
    }
    output("x", x);
  });
  const millrace::Executable executable(program);
  millrace::RunOptions interpreted;
  interpreted.backend = millrace::Backend::interpreted;
  const Feeds feeds{{"x", Tensor::from<float>({1, -3})}};
  millrace::sync_wait(beside_small_numbers(executable, feeds, interpreted));
  millrace::ThreadExecutor threads(2);
  for (int again = 0; again < 10; ++again) {
    millrace::sync_wait(threads, beside_small_numbers(executable, feeds, interpreted));
    millrace::sync_wait(threads, small_numbers(4));
  }
}

TEST_CASE("map_fn, fold and scan of no, one and many rows") {
  const Program program = built_program([] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 2}));
    const Var zero = input("zero", VarType(DType::f32, {2}));
    output("mapped", map_fn([](const Var& row) { return row * row + 1.0; }, x));
    output("folded", fold([](const Var& state, const Var& row) { return state * 2.0 + row; }, x, zero));
    output("scanned", scan([](const Var& state, const Var& row) { return state + row; }, x, zero));
  });
  const auto run = [&](const Tensor& x) { return everywhere(program, {{"x", x}, {"zero", Tensor::from<float>({0, 0})}}, 70); };
  const RunResult many = run(rows({1, 2, 3, 4, 5, 6}, 2));
  CHECK(floats(many, "mapped") == Floats{2, 5, 10, 17, 26, 37});
  CHECK(floats(many, "folded") == Floats{15, 22});
  CHECK(floats(many, "scanned") == Floats{1, 2, 4, 6, 9, 12});
  CHECK(floats(run(rows({7, 8}, 2)), "scanned") == Floats{7, 8});
  const RunResult none = run(Tensor::from(Floats{}, {0, 2}));
  CHECK(none["mapped"].dims() == DDim{0, 2});
  CHECK(floats(none, "folded") == Floats{0, 0});
  CHECK(none["scanned"].dims() == DDim{0, 2});
}

TEST_CASE("what follows a break_if in the middle of an iteration does not run, and what stands before it counts") {
  const Program program = built_program([] {
    Var step = constant(0);
    Var before = constant(0);
    Var after = constant(0);
    const TensorArray first = TensorArray::growable("first");
    const TensorArray second = TensorArray::growable("second");
    const Var n = input("n", VarType(DType::i64, {}));
    WhileLoop loop = while_loop({step, before, after});
    {
      const auto frame = loop.frame();
      before.update(before + 10);
      first.append(before);
      loop.break_if(equal(step, n));
      after.update(after + 100);
      second.append(after);
      step.update(step + 1);
    }
    output("before", before);
    output("after", after);
    output("first", first.stack());
    output("writes after", second.size());
  });
  const RunResult result = everywhere(program, {{"n", Tensor::scalar(std::int64_t{3})}});
  CHECK(result["before"].tensor().item_int() == 40);
  CHECK(result["after"].tensor().item_int() == 300);
  CHECK(result["first"].tensor().to_vector<std::int64_t>() == std::vector<std::int64_t>{10, 20, 30, 40});
  CHECK(result["writes after"].tensor().item_int() == 3);
  CHECK(result.iterations == 4);
}

TEST_CASE("break_if leaves the innermost loop alone") {
  const Program program = built_program([] {
    Var i = constant(0);
    Var total = constant(0);
    WhileLoop outer = while_loop({i, total});
    {
      const auto frame = outer.frame();
      outer.break_if(equal(i, constant(4)));
      Var j = constant(0);
      WhileLoop inner = while_loop({j, total});
      {
        const auto iteration = inner.frame();
        total.update(total + i);  // i is seen from the outer iteration
        inner.break_if(equal(j, i));
        total.update(total + 100);
        j.update(j + 1);
      }
      i.update(i + 1);
    }
    output("total", total);
  });
  // Iteration i of the outer loop adds i · (i + 1) and 100 · i.
  CHECK(everywhere(program)["total"].tensor().item_int() == 0 + 2 + 6 + 12 + 600);
}

TEST_CASE("outer vars are seen from any depth, and a var that the body never uses passes through") {
  const Program program = built_program([] {
    const Var x = input("x", VarType(DType::f32, {2}));
    Var unused = input("unused", VarType(DType::f32, {3}));
    Var i = constant(0);
    Var acc = x * 0.0;
    WhileLoop outer = while_loop({i, acc, unused});
    {
      const auto frame = outer.frame();
      outer.break_if(equal(i, constant(3)));
      const Var scaled = x * 2.0;
      Var j = constant(0);
      WhileLoop inner = while_loop({j, acc});
      {
        const auto iteration = inner.frame();
        inner.break_if(equal(j, constant(2)));
        acc.update(acc + scaled + x);
        j.update(j + 1);
      }
      i.update(i + 1);
    }
    output("acc", acc);
    output("unused", unused);
  });
  const RunResult result = everywhere(program, {{"x", Tensor::from<float>({1, 2})}, {"unused", Tensor::from<float>({7, 8, 9})}});
  CHECK(floats(result, "acc") == Floats{18, 36});
  CHECK(floats(result, "unused") == Floats{7, 8, 9});
}

TEST_CASE("branches inside loops and loops inside branches") {
  const Program program = built_program([] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown}));
    const Var flip = input("flip", VarType(DType::boolean, {}));
    const Var signs = map_fn(
        [](const Var& item) {
          return if_else(
              less(item, Var(0.0)), [&] { return std::vector<Var>{item * -10.0}; }, [&] { return std::vector<Var>{item + 1.0}; })[0];
        },
        x);
    const std::vector<Var> chosen = if_else(
        flip,
        [&] {
          return std::vector<Var>{fold([](const Var& state, const Var& item) { return state * 2.0 + item; }, signs, constant(0.0)),
                                  constant(1)};
        },
        [&] { return std::vector<Var>{sum(signs), constant(2)}; });
    output("signs", signs);
    output("value", chosen[0]);
    output("branch", chosen[1]);
  });
  const Tensor x = Tensor::from<float>({1, -2, 3});
  const RunResult then = everywhere(program, {{"x", x}, {"flip", Tensor::scalar(true)}});
  CHECK(floats(then, "signs") == Floats{2, 20, 4});
  CHECK(number(then, "value") == 2 * 4 + 20 * 2 + 4);
  CHECK(then["branch"].tensor().item_int() == 1);
  const RunResult otherwise = everywhere(program, {{"x", x}, {"flip", Tensor::scalar(false)}});
  CHECK(number(otherwise, "value") == 26);
  CHECK(otherwise["branch"].tensor().item_int() == 2);
  CHECK(otherwise.iterations == 3);
}

TEST_CASE("ragged rows are added up in the caller's order, as in case 21") {
  for (const bool sorted : {true, false}) {
    const Program program = built_program([&] {
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, 1}, 1));
      const Var boot = input("boot", VarType(DType::f32, {DDim::unknown, 1}));
      auto [steps, order] = unpack(x, 0, sorted);
      const Var n = steps.size();
      const TensorArray states(n, order, "states");
      Var step = constant(0);
      WhileLoop loop = while_loop({step});
      {
        const auto frame = loop.frame();
        loop.break_if(equal(step, n));
        const Var row = steps.read(step);
        states.write(step, shrink(states.read(step - 1, boot), row) + row);
        step.update(step + 1);
      }
      output("h", pack(states, 0, order));
    });
    const LoDTensor x(rows({1, 2, 3, 4, 5, 6}, 1), LoD::from_lengths({{3, 1, 2}}));
    const RunResult result = everywhere(program, {{"x", x}, {"boot", rows({10, 20, 30}, 1)}});
    CHECK(floats(result, "h") == Floats{11, 13, 16, 24, 35, 41});
    CHECK(result["h"].lod() == LoD::from_lengths({{3, 1, 2}}));
    CHECK(result.iterations == 3);
  }
}
