// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/array_ops.h>

#include <doctest/doctest.h>

#include <limits>

#include <functional>

#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/op_registry.h>

#include "support/drive.h"
#include "support/straight_line.h"

using namespace millrace;

namespace {

using Ints = std::vector<std::int64_t>;
namespace b = millrace::build;

/// Builds a program that gives `y`, and runs it.
LoDTensor built(const std::function<b::Var()>& make, Feeds feeds = {}) {
  Program program;
  {
    const b::Guard guard(program);
    b::output("y", make());
  }
  RunResult result = testing::run_fifo(run(std::move(program), std::move(feeds)));
  return result["y"];
}

Ints integers(const LoDTensor& y) { return y.tensor().to_vector<std::int64_t>(); }
std::vector<float> floats(const LoDTensor& y) { return y.tensor().to_vector<float>(); }

b::Var rows(const DDim& shape, int levels = 0) { return b::input("x", VarType(DType::f32, shape, levels)); }
Tensor six() { return Tensor::from<float>({1, 2, 3, 4, 5, 6}); }

/// Squares of 0 … n − 1, written by a loop.
void write_squares(const b::TensorArray& array, int n, bool appends) {
  b::Var step = b::constant(0);
  b::WhileLoop loop = b::while_loop({step});
  const auto frame = loop.frame();
  loop.break_if(b::equal(step, b::constant(n)));
  if (appends)
    array.append(step * step);
  else
    array.write(step, step * step);
  step.update(step + b::constant(1));
}

/// The context of one op on given values, for asking whether it may wait.
bool waits(const std::string& type, const std::vector<Value>& inputs) {
  Op op;
  op.type = type;
  std::vector<const Value*> read;
  for (const Value& value : inputs) read.push_back(&value);
  CpuDevice device;
  return may_suspend(OpContext(op, read, {}, device.stream(0)));
}

Value place(std::int64_t index) { return Tensor::scalar(index); }

}  // namespace

TEST_CASE("every op without a kernel is run by the executor or as a task") {
  const auto registry = standard_ops();
  for (const std::string& name : registry->names()) {
    CAPTURE(name);
    const bool control = name == "while" || name == "break_if" || name == "if";
    CHECK((registry->at(name).prepare == nullptr) == (control || find_async_op(name) != nullptr));
  }
  const bool found = find_async_op("no such op") != nullptr;
  CHECK_FALSE(found);
}

TEST_CASE("what a loop writes is stacked, along any axis") {
  const auto squares = [](std::int64_t axis) {
    return built([axis] {
      const b::TensorArray array(b::constant(4));
      b::Var step = b::constant(0);
      {
        b::WhileLoop loop = b::while_loop({step});
        const auto frame = loop.frame();
        loop.break_if(b::equal(step, b::constant(4)));
        array.write(step, b::concat({b::reshape(step, {1}), b::reshape(step * step, {1})}, 0));
        step.update(step + b::constant(1));
      }
      return array.stack(static_cast<int>(axis));
    });
  };
  CHECK(squares(0).dims() == DDim{4, 2});
  CHECK(integers(squares(0)) == Ints{0, 0, 1, 1, 2, 4, 3, 9});
  CHECK(squares(-1).dims() == DDim{2, 4});
  CHECK(integers(squares(-1)) == Ints{0, 1, 2, 3, 0, 1, 4, 9});
}

TEST_CASE("a growable array ends when nobody can write to it any more") {
  const auto grown = [](const std::function<b::Var(const b::TensorArray&)>& ask) {
    return integers(built([&] {
      const b::TensorArray array = b::TensorArray::growable();
      write_squares(array, 5, true);
      return ask(array);
    }));
  };
  CHECK(grown([](const b::TensorArray& array) { return array.stack(); }) == Ints{0, 1, 4, 9, 16});
  CHECK(grown([](const b::TensorArray& array) { return array.size(); }) == Ints{5});
}

TEST_CASE("a slot that was never written fails the stack by name") {
  const auto stack = [] {
    return built([] {
      const b::TensorArray array(b::constant(3), "holes");
      array.write(b::constant(1), b::constant(7));
      array.write(b::constant(2), b::constant(7));
      return array.stack();
    });
  };
  CHECK_THROWS_WITH_AS(stack(), doctest::Contains("slot 0 of array 'holes'"), NeverWrittenError);
}

TEST_CASE("an array whose size is any that a feed says fails at its first slot without a value") {
  const std::int64_t many = std::int64_t{1} << 40;
  using Joined = b::Var (*)(const b::TensorArray&);
  for (const Joined join : {Joined{[](const b::TensorArray& array) { return array.stack(); }},
                            Joined{[](const b::TensorArray& array) { return array.concat(); }}}) {
    const auto joined = [&] {
      return built(
          [&] {
            const b::TensorArray array(b::input("n", VarType(DType::i64, {})), "long");
            array.write(b::constant(0), b::constant(six()));
            return join(array);
          },
          {{"n", Tensor::scalar(many)}});
    };
    CHECK_THROWS_WITH_AS(joined(), doctest::Contains("slot 1 of array 'long'"), NeverWrittenError);
  }
  const TensorArray array(many);
  array.write(0, six());
  CHECK(waits("tensor_array_stack", {array}));
  array.close();
  CHECK_FALSE(waits("tensor_array_stack", {array}));
  const TensorArray ends(many);
  ends.write(many - 1, six());
  CHECK(waits("tensor_array_stack", {ends}));
}

TEST_CASE("gather picks slots, concat joins their rows, split and unstack make them") {
  const Feeds feeds{{"x", six()}};
  CHECK(floats(built([] { return b::TensorArray::unstack(rows({6})).gather(b::constant(Tensor::from<std::int64_t>({4, 0}))); }, feeds)) ==
        std::vector<float>{5, 1});
  CHECK(floats(built(
            [] {
              const b::Var lengths = b::constant(Tensor::from<std::int64_t>({2, 0, 4}));
              const b::TensorArray parts = b::TensorArray::of(b::call1("tensor_array_split", {rows({6}), lengths}));
              const b::Var third = parts.read(b::constant(2));
              return b::concat({third, parts.concat()}, 0);
            },
            feeds)) == std::vector<float>{3, 4, 5, 6, 1, 2, 3, 4, 5, 6});
  CHECK(floats(built(
            [] {
              const b::Var places = b::constant(Tensor::from<std::int64_t>({2, 0, 1}));
              return b::TensorArray::of(b::call1("tensor_array_scatter", {places, rows({3})})).stack();
            },
            {{"x", Tensor::from<float>({1, 2, 3})}})) == std::vector<float>{2, 3, 1});
  CHECK_THROWS_AS(built(
                      [] {
                        const b::Var places = b::constant(Tensor::from<std::int64_t>({2, 0}));
                        return b::TensorArray::of(b::call1("tensor_array_scatter", {places, rows({2})})).stack();
                      },
                      {{"x", Tensor::from<float>({1, 2})}}),
                  NeverWrittenError);
  CHECK_THROWS_AS(built(
                      [] {
                        const b::Var places = b::constant(Tensor::from<std::int64_t>({std::numeric_limits<std::int64_t>::max(), 0}));
                        return b::TensorArray::of(b::call1("tensor_array_scatter", {places, rows({2})})).stack();
                      },
                      {{"x", Tensor::from<float>({1, 2})}}),
                  OverflowError);
}

TEST_CASE("an array of no slots stacks to no rows of the type it was declared with") {
  const LoDTensor none = built([] { return b::TensorArray::typed(b::constant(0), VarType(DType::f64, {3})).stack(); });
  CHECK(none.dtype() == DType::f64);
  CHECK(none.dims() == DDim{0, 3});
}

TEST_CASE("the steps of sequences are packed to what they were, under both names of the ops") {
  const LoDTensor x(six(), LoD::from_lengths({{1, 3, 2}}));
  for (const bool sorted : {true, false}) {
    const LoDTensor y = built(
        [sorted] {
          const auto [steps, order] = b::unpack(rows({DDim::unknown}, 1), 0, sorted);
          return b::pack(steps, 0, order);
        },
        {{"x", x}});
    CHECK(floats(y) == floats(x));
    CHECK(y.lod() == x.lod());
  }
  const LoDTensor z = built(
      [] {
        const std::vector<b::Var> made = b::call("split_lod_tensor_to_timesteps", {rows({DDim::unknown}, 1)});
        return b::call1("restore_lod_tensor_from_timesteps", {made[0], made[1]});
      },
      {{"x", x}});
  CHECK(z.lod() == x.lod());
}

TEST_CASE("a boot is re-ordered, and a carried state shrinks with the steps") {
  // h += x on [1], [2, 3, 4], [5, 6] with boots 10, 20, 30, the state carried in a variable, and in an array.
  const LoDTensor x(six(), LoD::from_lengths({{1, 3, 2}}));
  const Tensor boots = Tensor::from<float>({10, 20, 30});
  for (const bool sorted : {true, false}) {
    for (const bool carried : {true, false}) {
      CAPTURE(sorted);
      CAPTURE(carried);
      const LoDTensor y = built(
          [&] {
            const auto [steps, order] = b::unpack(rows({DDim::unknown}, 1), 0, sorted);
            const b::Var boot = b::input("boot", VarType(DType::f32, {DDim::unknown}));
            const b::Var n = steps.size();
            const b::TensorArray sums(n, order, "sums");
            b::Var step = b::constant(0);
            b::Var h = b::Var::of(boot.id());
            b::WhileLoop loop = b::while_loop({step, h});
            {
              const auto frame = loop.frame();
              loop.break_if(b::equal(step, n));
              const b::Var item = steps.read(step);
              const b::Var before = carried ? h : sums.read(step - b::constant(1), boot);
              const b::Var sum = b::shrink(before, item) + item;
              sums.write(step, sum);
              h.update(sum);
              step.update(step + b::constant(1));
            }
            return b::pack(sums, 0, order);
          },
          {{"x", x}, {"boot", boots}});
      CHECK(floats(y) == std::vector<float>{11, 22, 25, 29, 35, 41});
      CHECK(y.lod() == x.lod());
    }
  }
}

TEST_CASE("an op waits only for what is not yet there") {
  const TensorArray array(2);
  CHECK(waits("tensor_array_read", {array, place(0)}));
  CHECK(waits("tensor_array_stack", {array}));
  CHECK_FALSE(waits("tensor_array_size", {array}));
  CHECK_FALSE(waits("tensor_array_write", {array, place(0), six()}));
  array.write(0, six());
  CHECK_FALSE(waits("tensor_array_read", {array, place(0)}));
  CHECK_FALSE(waits("tensor_array_read", {array, place(-1), six()}));
  CHECK_FALSE(waits("tensor_array_gather", {array, Tensor::from<std::int64_t>({0, 0})}));
  CHECK(waits("tensor_array_gather", {array, Tensor::from<std::int64_t>({0, 1})}));
  CHECK(waits("pack", {array, SequenceOrder()}));
  array.write(1, six());
  CHECK_FALSE(waits("tensor_array_stack", {array}));
  CHECK_FALSE(waits("tensor_array_concat", {array}));
  const TensorArray open = TensorArray::growable();
  open.append(six());
  CHECK(waits("tensor_array_size", {open}));
  CHECK(waits("tensor_array_stack", {open}));
  open.close();
  CHECK_FALSE(waits("tensor_array_size", {open}));
  CHECK_FALSE(waits("tensor_array_stack", {open}));
  CHECK(waits("tensor_array_write", {TensorArray::window(1), place(0), six()}));
}
