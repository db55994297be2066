// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/loop.h>

#include <doctest/doctest.h>

#include "support/built.h"
#include "support/random.h"

using namespace millrace::build;
using millrace::DDim, millrace::DType, millrace::Feeds, millrace::Program, millrace::Tensor, millrace::VarType;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;
using Vars = std::vector<Var>;

Var both(const Var& a, const Var& b) { return concat({reshape(a, {1}), reshape(b, {1})}, 0); }

}  // namespace

TEST_CASE("the three forms of a loop give the same values") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t limit = random.between(0, 40), stride = random.between(1, 7), start = random.between(-5, 5);
    Ints wanted{start, 0};
    for (; wanted[0] < limit; wanted[0] += stride) wanted[1] += wanted[0] * wanted[0];
    const auto by_break = [&] {
      Var i = start, total = 0;
      {
        WhileLoop loop = while_loop({i, total});
        const auto frame = loop.frame();
        loop.break_if(greater_equal(i, limit));
        total.update(total + i * i);
        i.update(i + stride);
      }
      return both(i, total);
    };
    const auto by_condition = [&] {
      Var i = start, total = 0, more = less(i, limit);
      {
        WhileLoop loop = while_op(more, {i, total});
        const auto frame = loop.frame();
        total.update(total + i * i);
        i.update(i + stride);
        more.update(less(i, limit));
      }
      return both(i, total);
    };
    const auto by_functions = [&] {
      const Vars last = while_loop([&](const Vars& now) { return less(now[0], limit); },
                                   [&](const Vars& now) { return Vars{now[0] + stride, now[1] + now[0] * now[0]}; }, {start, 0});
      return both(last[0], last[1]);
    };
    CHECK(built_values<std::int64_t>(by_break) == wanted);
    CHECK(built_values<std::int64_t>(by_condition) == wanted);
    CHECK(built_values<std::int64_t>(by_functions) == wanted);
  }
}

TEST_CASE("a condition counts as carried whether it is listed or not, and stands for its last value behind the loop") {
  for (const bool listed : {true, false}) {
    CHECK(built_values<bool>([&] {
            Var i = 0, more = less(i, 3);
            {
              WhileLoop loop = listed ? while_op(more, {more, i}) : while_op(more, {i});
              const auto frame = loop.frame();
              i.update(i + 1);
              more.update(less(i, 3));
            }
            return more;
          }) == std::vector<bool>{false});
  }
}

TEST_CASE("break_if first, in the middle, last and twice: what stands before it in the iteration counts, what follows does not run") {
  const auto run = [](int place, bool second) {
    return built_values<std::int64_t>([&] {
      Var i = 0, before = 0, after = 0;
      {
        WhileLoop loop = while_loop({i, before, after});
        const auto frame = loop.frame();
        if (place == 0) loop.break_if(equal(i, 3));
        before.update(before + 1);
        if (place == 1) loop.break_if(equal(i, 3));
        if (second) loop.break_if(equal(i, 1));
        after.update(after + 1);
        i.update(i + 1);
        if (place == 2) loop.break_if(equal(i, 3));
      }
      return concat({reshape(i, {1}), reshape(before, {1}), reshape(after, {1})}, 0);
    });
  };
  CHECK(run(0, false) == Ints{3, 3, 3});
  CHECK(run(1, false) == Ints{3, 4, 3});
  CHECK(run(2, false) == Ints{3, 3, 3});
  CHECK(run(1, true) == Ints{1, 2, 1});
}

TEST_CASE("break_if leaves a loop that has a condition, and a functional loop is left by its condition") {
  CHECK(built_values<std::int64_t>([] {
          Var i = 0, more = true;
          {
            WhileLoop loop = while_op(more, {i});
            const auto frame = loop.frame();
            i.update(i + 1);
            loop.break_if(equal(i, 4));
            more.update(less(i, 9));
          }
          return i;
        }) == Ints{4});
  CHECK(built_values<std::int64_t>([] {
          return while_loop([](const Vars& now) { return logical_and(less(now[0], 9), not_equal(now[0], 4)); },
                            [](const Vars& now) { return Vars{now[0] + 1}; }, {0})[0];
        }) == Ints{4});
}

TEST_CASE("a loop of no iterations gives what it was given, and a trip limit ends one") {
  CHECK(built_values<std::int64_t>([] {
          return while_loop([](const Vars&) { return Var(false); }, [](const Vars& now) { return Vars{now[0] + 1}; }, {7},
                            {.max_trips = 9})[0];
        }) == Ints{7});
  CHECK(built_values<std::int64_t>([] {
          return while_loop([](const Vars& now) { return less(now[0], 10000); }, [](const Vars& now) { return Vars{now[0] + 1}; }, {0},
                            {.max_trips = 3})[0];
        }) == Ints{3});
}

TEST_CASE("loops nest: the inner doubles to 20 or more, the outer squares to 3000 or more") {
  CHECK(built_values<std::int64_t>([] {
          const auto inner = [](const Var& x) {
            return while_loop([](const Vars& now) { return less(now[0], 20); }, [](const Vars& now) { return Vars{now[0] * 2}; }, {x})[0];
          };
          return while_loop([](const Vars& now) { return less(now[0], 3000); },
                            [&](const Vars& now) {
                              const Var doubled = inner(now[0]);
                              return Vars{doubled * doubled};
                            },
                            {2})[0];
        }) == Ints{1048576});
}

TEST_CASE("the variables of a functional loop keep their values outside") {
  CHECK(built_values<std::int64_t>([] {
          const Var start = 1;
          const Vars last =
              while_loop([](const Vars& now) { return less(now[0], 5); }, [](const Vars& now) { return Vars{now[0] + 1}; }, {start});
          return both(start, last[0]);
        }) == Ints{1, 5});
}

TEST_CASE("a functional body that gives another number of values is refused") {
  CHECK(says(build_refusal([] { while_loop([](const Vars& now) { return less(now[0], 5); }, [](const Vars&) { return Vars{}; }, {0}); }),
             {"expected 1 values from the body, found 0"}));
}

TEST_CASE("a loop carries a variable once, has one frame, and is left from there") {
  CHECK(says(build_refusal([] {
               const Var i = 0;
               while_loop({i, i});
             }),
             {"is carried twice"}));
  CHECK(says(build_refusal([] { while_loop({Var(0)}).break_if(true); }),
             {"break_if", "expected the frame of its own loop, auto frame = loop.frame(), which was not opened yet"}));
  CHECK(says(build_refusal([] {
               Var i = 0, j = 0;
               WhileLoop outer = while_loop({i});
               const auto frame = outer.frame();
               outer.break_if(equal(i, 3));
               i.update(i + 1);
               WhileLoop inner = while_loop({j});
               const auto inside = inner.frame();
               outer.break_if(equal(j, 3));
             }),
             {"break_if", "block 1", "found block 2"}));
  CHECK(says(build_refusal([] {
               Var i = 0;
               WhileLoop loop = while_loop({i});
               for (int times = 0; times < 2; ++times) {
                 const auto frame = loop.frame();
                 loop.break_if(equal(i, 3));
                 i.update(i + 1);
               }
             }),
             {"has a frame already"}));
}

TEST_CASE("a body that can never end is refused in each form") {
  const std::string never = "the loop can never end";
  CHECK(says(build_refusal([] {
               Var i = 0;
               WhileLoop loop = while_loop({i});
               const auto frame = loop.frame();
               i.update(i + 1);
             }),
             {never}));
  CHECK(says(build_refusal([] {
               Var i = 0, more = true;
               WhileLoop loop = while_op(more, {i});
               const auto frame = loop.frame();
               i.update(i + 1);
             }),
             {never}));
  CHECK(
      says(build_refusal([] { while_loop([](const Vars&) { return Var(true); }, [](const Vars& now) { return Vars{now[0] + 1}; }, {0}); }),
           {never}));
  CHECK(says(build_refusal([] { while_loop([](const Vars& now) { return less(now[0], 3); }, [](const Vars& now) { return now; }, {0}); }),
             {never}));
}

TEST_CASE("a branch gives the values of the side that was taken, and only that side runs") {
  for (const bool which : {true, false}) {
    CHECK(built_values<std::int64_t>(
              [] {
                const TensorArray trace = TensorArray::growable();
                const Vars y = if_else(
                    input("which", VarType(DType::boolean, {})),
                    [&] {
                      trace.append(1);
                      return Vars{10, 20};
                    },
                    [&] {
                      trace.append(2);
                      return Vars{30, 40};
                    });
                return concat({reshape(y[0], {1}), reshape(y[1], {1}), trace.stack()}, 0);
              },
              {{"which", Tensor::scalar(which)}}) == (which ? Ints{10, 20, 1} : Ints{30, 40, 2}));
  }
}

TEST_CASE("branches of another kind, dtype, LoD or number are refused with both sides") {
  const auto branches = [](const std::function<Vars()>& then, const std::function<Vars()>& otherwise) {
    return build_refusal([&] { if_else(true, then, otherwise); });
  };
  const auto rows = [](const char* name, int levels) { return input(name, VarType(DType::f32, {DDim::unknown}, levels)); };
  CHECK(says(branches([] { return Vars{1}; }, [] { return Vars{1.0}; }), {"op if", "i64[]", "f32[]"}));
  CHECK(says(branches([] { return Vars{1}; }, [] { return Vars{}; }), {"op if", "expected 1 results", "found 0"}));
  CHECK(says(branches([&] { return Vars{rows("a", 1)}; }, [&] { return Vars{rows("b", 0)}; }), {"'a' of f32[?] lod=1", "'b' of f32[?]"}));
  CHECK(says(branches([] { return Vars{TensorArray(constant(2)).var()}; }, [] { return Vars{2}; }), {"array<?>", "i64[]"}));
  CHECK(says(build_refusal([] { if_else(1, [] { return Vars{}; }, [] { return Vars{}; }); }), {"a boolean scalar", "i64[]"}));
}

TEST_CASE("map_fn, fold and scan go through the rows of a tensor") {
  const Feeds feeds{{"x", Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 2})}};
  const auto x = [] { return input("x", VarType(DType::f32, {DDim::unknown, 2})); };
  const auto start = [] { return constant(Tensor::from<float>({10, 20})); };
  CHECK(built_values<float>([&] { return map_fn([](const Var& row) { return row * row; }, x()); }, feeds) ==
        std::vector<float>{1, 4, 9, 16, 25, 36});
  CHECK(built_values<float>([&] { return fold([](const Var& h, const Var& row) { return h - row; }, x(), start()); }, feeds) ==
        std::vector<float>{1, 8});
  CHECK(built_values<float>([&] { return scan([](const Var& h, const Var& row) { return h + row; }, x(), start()); }, feeds) ==
        std::vector<float>{11, 22, 14, 26, 19, 32});
}

TEST_CASE("map_fn, fold and scan of no rows give no rows, or what fold began with") {
  const Feeds feeds{{"x", Tensor::from(std::vector<float>{}, DDim{0, 2})}};
  const auto x = [] { return input("x", VarType(DType::f32, {DDim::unknown, 2})); };
  const auto start = [] { return constant(Tensor::from<float>({10, 20})); };
  const auto mapped = built([&] { return map_fn([](const Var& row) { return concat({row, row}, 0); }, x()); }, feeds);
  CHECK(mapped.dims() == DDim{0, 4});
  CHECK(mapped.tensor().dtype() == DType::f32);
  CHECK(built([&] { return map_fn([](const Var& row) { return cast(sum(row, {0}, false), DType::i64); }, x()); }, feeds).dims() == DDim{0});
  CHECK(built_values<float>([&] { return fold([](const Var& h, const Var& row) { return h - row; }, x(), start()); }, feeds) ==
        std::vector<float>{10, 20});
  CHECK(built([&] { return scan([](const Var& h, const Var& row) { return h + row; }, x(), start()); }, feeds).dims() == DDim{0, 2});
}

TEST_CASE("a fold whose state changes its shape, and rows with LoD, are refused") {
  CHECK(says(build_refusal([] {
               fold([](const Var& h, const Var& row) { return concat({h, row}, 0); }, input("x", VarType(DType::f32, {3, 2})),
                    constant(Tensor::from<float>({1, 2})));
             }),
             {"op while", "f32[2]", "f32[4]"}));
  CHECK(says(build_refusal([] { map_fn([](const Var& row) { return row; }, input("x", VarType(DType::f32, {DDim::unknown}, 1))); }),
             {"'x' of f32[?] lod=1", "use unpack, or drop_lod first"}));
}

TEST_CASE("a loop carries what grows where it was said to vary, and a body that may change a known extent is refused") {
  const auto grown = [](bool said) {
    return [said] {
      const Var more = input("more", VarType(DType::i64, {DDim::unknown}));
      Var i = 0, all = constant(Tensor::from(Ints{}, DDim{0}));
      if (said) all = varying(all, {0});
      {
        WhileLoop loop = while_loop({i, all});
        const auto frame = loop.frame();
        loop.break_if(equal(i, 3));
        all.update(concat({all, more}, 0));
        i.update(i + 1);
      }
      return all;
    };
  };
  CHECK(built_values<std::int64_t>(grown(true), {{"more", Tensor::from(Ints{7, 8}, DDim{2})}}) == Ints{7, 8, 7, 8, 7, 8});
  const std::string refused = build_refusal([&] { grown(false)(); });
  CHECK(says(refused, {"is carried as i64[0]", "its next value is i64[?]", "varying("}));
}
