// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/row_plan.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <millrace/kernels/cpu/row_plan.h>
#include <millrace/tensor/error.h>

using namespace millrace;

namespace {

RowRegister input(std::int64_t width, std::size_t place) { return {RowRegister::Kind::input, width, place}; }
RowRegister output(std::int64_t width, std::size_t place) { return {RowRegister::Kind::output, width, place}; }
RowRegister scratch(std::int64_t width) { return {RowRegister::Kind::scratch, width, 0}; }

RowOp unary(Unary kind, int in, int out, std::int64_t width) {
  RowOp op;
  op.kind = RowOp::Kind::unary;
  op.unary = kind;
  op.inner = width;
  op.in[0] = {in};
  op.out = {out};
  return op;
}

RowOp binary(Binary kind, int a, int b, int out, std::int64_t width) {
  RowOp op;
  op.kind = RowOp::Kind::binary;
  op.binary = kind;
  op.inner = width;
  op.in[0] = {a};
  op.in[1] = {b};
  op.out = {out};
  return op;
}

/// Runs with rows that lie `stride` elements apart in and out.
std::vector<float> run_rows(const RowPlan& plan, std::vector<float> in, std::int64_t rows, std::int64_t in_stride,
                            std::int64_t out_stride) {
  std::vector<float> out(static_cast<std::size_t>(rows * out_stride), -7.0f);
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes()) + 64);
  void* aligned = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
  const RowView from[] = {{in.data(), in_stride}};
  const RowView to[] = {{out.data(), out_stride}};
  run(plan, {}, from, to, rows, aligned);
  return out;
}

TEST_CASE("a chain runs on rows that lie apart, and touches nothing between them") {
  const RowPlan plan({DType::f32, {input(3, 0), scratch(3), output(3, 0)}, {unary(Unary::neg, 0, 1, 3), binary(Binary::mul, 1, 0, 2, 3)}});
  std::vector<float> in;
  for (int i = 0; i < 100 * 5; ++i) in.push_back(static_cast<float>(i));
  const std::vector<float> out = run_rows(plan, in, 100, 5, 4);
  for (std::size_t row = 0; row < 100; ++row) {
    for (std::size_t i = 0; i < 3; ++i) CHECK(out[row * 4 + i] == -in[row * 5 + i] * in[row * 5 + i]);
    CHECK(out[row * 4 + 3] == -7.0f);
  }
}

TEST_CASE("more rows than a block holds, and wide rows, give what a row alone gives") {
  const std::int64_t width = 5000;
  RowDesc desc{DType::f32, {input(width, 0), scratch(width), scratch(width), output(width, 0)}, {}};
  desc.ops = {unary(Unary::abs, 0, 1, width), unary(Unary::neg, 1, 2, width), binary(Binary::add, 2, 1, 1, width),
              binary(Binary::sub, 0, 1, 3, width)};
  const RowPlan plan(desc);
  CHECK(plan.block_rows() >= 8);
  std::vector<float> in(static_cast<std::size_t>(width) * 130);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 977) - 400.0f;
  CHECK(run_rows(plan, in, 130, width, width) == in);
}

TEST_CASE("a plan that is placed once gives, run after run, what runs that place give") {
  for (const std::int64_t width : {1, 3, 8, 12, 16, 17, 31, 33}) {
    CAPTURE(width);
    const RowPlan plan({DType::f32,
                        {input(width, 0), scratch(width), scratch(width), output(width, 0)},
                        {unary(Unary::sigmoid, 0, 1, width), binary(Binary::mul, 1, 0, 2, width), unary(Unary::tanh, 2, 3, width)}});
    std::vector<std::byte> memory(static_cast<std::size_t>(plan.workspace_bytes()) + 64);
    void* workspace = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    place(plan, {}, workspace);
    for (int run = 0; run < 3; ++run) {
      std::vector<float> in(static_cast<std::size_t>(4 * width));
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(static_cast<int>(i) + run - 20) / 7;
      const std::vector<float> expected = run_rows(plan, in, 4, width, width + 1);
      for (const std::int64_t rows : {4, 1}) {  // together, and each alone
        std::vector<float> out(expected.size(), -7.0f);
        for (std::int64_t row = 0; row < 4; row += rows) {
          const RowView from[] = {{in.data() + row * width, width}};
          const RowView to[] = {{out.data() + row * (width + 1), width + 1}};
          run_placed(plan, {}, from, to, rows, workspace);
        }
        CHECK(out == expected);
      }
    }
  }
}

TEST_CASE("runs on tracks give what runs one behind the other give, with states that alternate or lie in the output") {
  // state and h behind a step: h = tanh(x + state), state = h · x
  const std::int64_t width = 5, rows = 3, steps = 6;
  for (const std::int64_t count : {rows, std::int64_t{1}}) {
    CAPTURE(count);
    const RowPlan plan({DType::f32,
                        {input(width, 0), input(width, 1), scratch(width), output(width, 0), output(width, 1)},
                        {binary(Binary::add, 0, 1, 2, width), unary(Unary::tanh, 2, 3, width), binary(Binary::mul, 3, 0, 4, width)}});
    std::vector<std::byte> memory(static_cast<std::size_t>(plan.workspace_bytes()) + 64);
    void* workspace = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    place(plan, {}, workspace);
    const std::int64_t each = count * width;
    std::vector<float> x(static_cast<std::size_t>(steps * each));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i) % 13 - 6) / 5;
    std::vector<float> h(x.size()), expected(x.size());
    std::vector<float> first(static_cast<std::size_t>(each), 0.25f), second(first.size());
    float* states[] = {first.data(), second.data()};
    for (std::int64_t step = 0; step < steps; ++step) {
      const RowView from[] = {{x.data() + step * each, width}, {states[step % 2], width}};
      const RowView to[] = {{expected.data() + step * each, width}, {states[1 - step % 2], width}};
      run_placed(plan, {}, from, to, count, workspace);
    }
    const std::vector<float> last = first;
    std::fill(first.begin(), first.end(), 0.25f);
    const auto bytes = static_cast<std::int64_t>(sizeof(float)) * each;
    const RowTrack from[] = {{{x.data(), width}, bytes}, {{first.data(), width}, 0, second.data()}};
    const RowTrack to[] = {{{h.data(), width}, bytes}, {{second.data(), width}, 0, first.data()}};
    run_tracks(plan, {}, from, to, count, steps, workspace);
    CHECK(h == expected);
    CHECK(first == last);
    // From the last step on, each state behind the other.
    std::vector<float> line(static_cast<std::size_t>((steps + 1) * each), 0.25f);
    const RowTrack line_from[] = {{{x.data() + (steps - 1) * each, width}, -bytes}, {{line.data(), width}, bytes}};
    const RowTrack line_to[] = {{{h.data() + (steps - 1) * each, width}, -bytes}, {{line.data() + each, width}, bytes}};
    run_tracks(plan, {}, line_from, line_to, count, steps, workspace);
    std::vector<float> state(static_cast<std::size_t>(each), 0.25f), next(state.size()), shown(state.size());
    for (std::int64_t step = steps; step-- > 0; std::swap(state, next)) {
      const RowView one_from[] = {{x.data() + step * each, width}, {state.data(), width}};
      const RowView one_to[] = {{shown.data(), width}, {next.data(), width}};
      run_placed(plan, {}, one_from, one_to, count, workspace);
      CHECK(std::equal(shown.begin(), shown.end(), h.begin() + static_cast<std::ptrdiff_t>(step * each)));
    }
    CHECK(std::equal(state.begin(), state.end(), line.end() - static_cast<std::ptrdiff_t>(each)));
    CHECK_THROWS_AS(run_tracks(plan, {}, from, to, plan.block_rows() + 1, 1, workspace), ArgumentError);
  }
}

namespace {

/// The gates of a GRU over inputs h·R, x·W, h and a bias of the candidate. `shows`: r·(…) is an output too, so that the ops stay what they are.
RowDesc gru(std::int64_t hidden, bool turned, bool shows) {
  RowDesc desc{DType::f32,
               {input(3 * hidden, 0), input(3 * hidden, 1), input(hidden, 2), input(hidden, 3), input(1, 4), scratch(2 * hidden),
                scratch(2 * hidden), scratch(hidden), shows ? output(hidden, 1) : scratch(hidden), scratch(hidden), scratch(hidden),
                scratch(hidden), scratch(hidden), scratch(hidden), output(hidden, 0)},
               {}};
  const auto part = [&](RowOp op, int k, std::int64_t begin) {
    op.in[k].begin = begin;
    return op;
  };
  const std::int64_t h = hidden;
  RowOp rest = part(binary(Binary::sub, 4, 6, 11, h), 1, h);
  rest.in[0].inner_step = 0;
  desc.ops = {binary(Binary::add, 0, 1, 5, 2 * h),
              unary(Unary::sigmoid, 5, 6, 2 * h),
              part(binary(Binary::add, 0, 3, 7, h), 0, 2 * h),
              binary(Binary::mul, 6, 7, 8, h),
              part(binary(Binary::add, 1, 8, 9, h), 0, 2 * h),
              unary(Unary::tanh, 9, 10, h)};
  if (turned) {
    desc.ops.insert(desc.ops.end(), {rest, binary(Binary::mul, 11, 2, 12, h), part(binary(Binary::mul, 6, 10, 13, h), 0, h)});
  } else {
    desc.ops.insert(desc.ops.end(), {part(binary(Binary::mul, 6, 2, 12, h), 0, h), rest, binary(Binary::mul, 11, 10, 13, h)});
  }
  desc.ops.push_back(binary(Binary::add, 12, 13, 14, h));
  return desc;
}

}  // namespace

TEST_CASE("the gates of a GRU that stand together have the bits of their ops, whatever the number of rows") {
  for (const std::int64_t hidden : {1, 7, 8, 20, 33}) {
    for (const bool turned : {false, true}) {
      CAPTURE(hidden);
      CAPTURE(turned);
      const RowPlan together(gru(hidden, turned, false)), apart(gru(hidden, turned, true));
      CHECK(together.state().gru.size() == 1);
      CHECK(apart.state().gru.empty());
      const std::int64_t rows = 9;
      std::vector<float> given(static_cast<std::size_t>(rows * 3 * hidden * 3));
      for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<float>(static_cast<int>(i * 7) % 41 - 20) / 6;
      const float one = 1;
      const auto in = [&](int k) { return given.data() + static_cast<std::ptrdiff_t>(rows * 3 * hidden) * k; };
      const RowView from[] = {
          {in(0), 3 * hidden}, {in(1), 3 * hidden}, {in(2), hidden}, {in(2) + rows * hidden, 0}, {const_cast<float*>(&one), 0}};
      std::vector<float> expected(static_cast<std::size_t>(rows * hidden)), shown(expected.size()), found(expected.size());
      std::vector<std::byte> memory(static_cast<std::size_t>(std::max(together.workspace_bytes(), apart.workspace_bytes())) + 64);
      void* workspace = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
      const RowView to_apart[] = {{expected.data(), hidden}, {shown.data(), hidden}}, to[] = {{found.data(), hidden}};
      run(apart, {}, from, to_apart, rows, workspace);
      run(together, {}, from, to, rows, workspace);
      CHECK(found == expected);
      std::fill(found.begin(), found.end(), -7.0f);
      place(together, {}, workspace);
      const auto line = [&](int k, std::int64_t width) {
        return RowTrack{{in(k), width}, static_cast<std::int64_t>(sizeof(float)) * width};
      };
      const RowTrack tracks[] = {line(0, 3 * hidden), line(1, 3 * hidden), line(2, hidden), {from[3]}, {from[4]}};
      const RowTrack out[] = {{{found.data(), hidden}, static_cast<std::int64_t>(sizeof(float)) * hidden}};
      run_tracks(together, {}, tracks, out, 1, rows, workspace);
      CHECK(found == expected);
    }
  }
}

TEST_CASE("a choice by one number of its row takes all elements of one side") {
  RowOp choice;
  choice.kind = RowOp::Kind::where;
  choice.inner = 9;
  choice.in[0] = {0, 0, 0, 0};
  choice.in[1] = {1};
  choice.in[2] = {2};
  choice.out = {3};
  const RowPlan plan({DType::f32, {input(1, 0), input(9, 1), input(9, 2), output(9, 0)}, {choice}});
  const float nan = std::nanf("");
  float conditions[] = {0, 2, nan, -0.0f};
  std::vector<float> a(36), b(36), out(36), expected;
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i), b[i] = -a[i];
  for (std::size_t i = 0; i < a.size(); ++i) expected.push_back(i / 9 == 1 || i / 9 == 2 ? a[i] : b[i]);
  std::vector<std::byte> memory(static_cast<std::size_t>(plan.workspace_bytes()) + 64);
  void* workspace = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  const RowView from[] = {{conditions, 1}, {a.data(), 9}, {b.data(), 9}}, to[] = {{out.data(), 9}};
  run(plan, {}, from, to, 4, workspace);
  CHECK(out == expected);
}

TEST_CASE("an op that repeats a number of its row, or folds it") {
  RowOp fold;
  fold.kind = RowOp::Kind::reduce;
  fold.reduction = Reduction::max;
  fold.outer = 2;
  fold.inner = 2;
  fold.in[0] = {0, 0, 2, 1};
  fold.out = {1, 0, 1, 1};
  RowOp stretch = binary(Binary::sub, 0, 1, 2, 2);
  stretch.outer = 2;
  stretch.in[0] = {0, 0, 2, 1};
  stretch.in[1] = {1, 0, 1, 0};
  stretch.out = {2, 0, 2, 1};
  const RowPlan plan({DType::f32, {input(4, 0), scratch(2), output(4, 0)}, {fold, stretch}});
  CHECK(run_rows(plan, {1, 5, 7, 3, 0, -1, 2, 2}, 2, 4, 4) == std::vector<float>{-4, 0, 0, -4, 0, -1, 0, 0});
}

TEST_CASE("an op that reads a register whole and a stretched part of it does not overwrite that register") {
  // u := −x of [2, 3]; y := u − (the first row of u, repeated), in either order, and −y behind it.
  for (const bool first : {true, false}) {
    INFO("the whole register is operand ", first ? 0 : 1);
    RowOp op = binary(Binary::sub, 1, 1, 2, 3);
    op.outer = 2;
    op.out.outer_step = 3;
    op.in[first ? 0 : 1].outer_step = 3;
    const RowPlan plan(
        {DType::f32, {input(6, 0), scratch(6), scratch(6), output(6, 0)}, {unary(Unary::neg, 0, 1, 6), op, unary(Unary::neg, 2, 3, 6)}});
    std::vector<float> in;
    for (int i = 0; i < 100 * 6; ++i) in.push_back(static_cast<float>(i * i));
    const std::vector<float> out = run_rows(plan, in, 100, 6, 6);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const float repeated = in[i / 6 * 6 + i % 3];
      CHECK(out[i] == (first ? in[i] - repeated : repeated - in[i]));
    }
  }
}

TEST_CASE("a function from outside runs on rows between other ops, whatever the number of rows") {
  RowOp twice;
  twice.kind = RowOp::Kind::function;
  twice.in[0] = {1, 1};
  twice.in[1] = {0};
  twice.out = {2};
  twice.out2 = {3, 1};
  const RowPlan plan({DType::f32,
                      {input(3, 0), scratch(4), scratch(2), output(3, 0)},
                      {unary(Unary::neg, 0, 1, 3), twice, binary(Binary::add, 2, 0, 3, 1)}});
  RowWeights weights;
  weights.functions.push_back([](std::span<const RowView> in, std::span<const RowView> out, std::int64_t rows) {
    CHECK(in.size() == 2);
    CHECK(out.size() == 2);
    for (std::int64_t row = 0; row < rows; ++row) {
      out[0].row<float>(row)[0] = 10 * in[0].row<float>(row)[0];
      out[1].row<float>(row)[0] = in[1].row<float>(row)[0];
      out[1].row<float>(row)[1] = in[1].row<float>(row)[2];
    }
  });
  std::vector<float> in;
  for (int i = 0; i < 1000 * 3; ++i) in.push_back(static_cast<float>(i));
  std::vector<float> out(3000);
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes()) + 64);
  void* aligned = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
  const RowView from[] = {{in.data(), 3}};
  const RowView to[] = {{out.data(), 3}};
  run(plan, weights, from, to, 1000, aligned);
  for (std::size_t row = 0; row < 1000; ++row) {
    CHECK(out[row * 3] == in[row * 3] - 10 * in[row * 3 + 1]);
    CHECK(out[row * 3 + 1] == in[row * 3]);
    CHECK(out[row * 3 + 2] == in[row * 3 + 2]);
  }
}

TEST_CASE("descriptions that make no sense are refused") {
  const auto make = [](std::vector<RowRegister> registers, RowOp op) { RowPlan({DType::f32, std::move(registers), {op}}); };
  CHECK_THROWS_AS(make({scratch(2), output(2, 0)}, unary(Unary::neg, 0, 1, 2)), ArgumentError);   // nothing wrote it
  CHECK_THROWS_AS(make({input(2, 0), output(2, 0)}, unary(Unary::neg, 0, 1, 3)), ArgumentError);  // leaves the register
  CHECK_THROWS_AS(make({input(2, 0), output(2, 0)}, unary(Unary::neg, 1, 0, 2)), ArgumentError);  // writes an input
  CHECK_THROWS_AS(make({input(2, 0), output(2, 0)}, unary(Unary::neg, 0, 9, 2)), ArgumentError);  // no such register
  CHECK_THROWS_AS(make({input(2, 0), output(2, 0)}, unary(Unary::is_nan, 0, 1, 2)), ArgumentError);
  CHECK_THROWS_AS(RowPlan({DType::i32, {input(2, 0), output(2, 0)}, {unary(Unary::neg, 0, 1, 2)}}), DTypeError);
}

}  // namespace
