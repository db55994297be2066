// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/row_plan.h>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

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
