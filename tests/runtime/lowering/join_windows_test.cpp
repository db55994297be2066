// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_windows.h>

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/kernels/cast.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/program/fold_constants.h>
#include <millrace/runtime/program/straight_program.h>

#include "support/random.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

using Ints = std::vector<std::int64_t>;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// One axis of windows, as the import of ONNX writes a pool.
struct Windows {
  std::int64_t axis, kernel, stride, dilation = 1, before = 0, after = 0;
};
Var pooled(Var x, const char* fold, const Windows& windows, double padding) {
  Ints pads(8, 0);
  pads[static_cast<std::size_t>(windows.axis)] = windows.before;
  pads[static_cast<std::size_t>(windows.axis) + 4] = windows.after;
  if (windows.before + windows.after > 0) x = call1("pad", {x}, {{"pads", pads}, {"mode", std::string("constant")}, {"value", padding}});
  std::optional<Var> total;
  for (std::int64_t tap = 0; tap < windows.kernel; ++tap) {
    const std::int64_t behind = (windows.kernel - 1 - tap) * windows.dilation;
    const std::int64_t end = behind == 0 ? std::numeric_limits<std::int64_t>::max() : -behind;
    const Var slice = call1(
        "slice", {x},
        {{"starts", Ints{tap * windows.dilation}}, {"ends", Ints{end}}, {"axes", Ints{windows.axis}}, {"steps", Ints{windows.stride}}});
    total = total ? call1(fold, {*total, slice}) : slice;
  }
  return *total;
}
Program pools(const char* fold, const std::vector<Windows>& all, double padding, bool shows_middle = false) {
  Program program;
  const Guard guard(program);
  Var y = input("x", VarType(DType::f32, {DDim::unknown, 2, DDim::unknown, 21}));
  for (const Windows& windows : all) {
    y = pooled(y, fold, windows, padding);
    if (shows_middle) output("middle" + std::to_string(windows.axis), y);
  }
  output("y", y);
  return program;
}

/// A convolution with a kernel 3 × 3, stride (2, 1), dilation (2, 1) and pads along both axes, as the import of ONNX writes it.
struct Parts {
  DDim dims = {DDim::unknown, 2, 9, 7};
  Ints starts = {0, 2, 4};
  bool constant_weights = true;
  bool shows_windows = false;
  DType dtype = DType::f32;
};

Program in_parts(const Parts& parts, const Tensor& w, const Tensor& b) {
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(parts.dtype, parts.dims));
  const Var turned = call1("transpose", {x}, {{"perm", Ints{0, 2, 1, 3}}});
  const Var wide = call1("pad", {turned}, {{"pads", Ints{0, 1, 0, 0, 0, 2, 0, 0}}, {"mode", std::string("constant")}, {"value", 0.0}});
  std::vector<Var> apart;
  for (const std::int64_t start : parts.starts) {
    const std::int64_t end = start == 4 ? std::numeric_limits<std::int64_t>::max() : start - 4;
    const Var slice = call1("slice", {wide}, {{"starts", Ints{start}}, {"ends", Ints{end}}, {"axes", Ints{1}}, {"steps", Ints{2}}});
    apart.push_back(call1("unsqueeze", {slice}, {{"axes", Ints{3}}}));
  }
  const Var windows = concat(apart, 3);
  const std::int64_t height = 4;  // (9 + 1 + 2 − 4 − 1) / 2 + 1
  const Var rows = call1("reshape", {windows}, {{"shape", Ints{-1, 6, 7}}});
  const Var weights = parts.constant_weights ? build::parameter("w", w) : input("w", VarType(DType::f32, w.dims()));
  const Var made = conv1d(rows, weights, build::parameter("b", b), 1, 1, {1, 0}, 1);
  const Var parted = call1("reshape", {made}, {{"shape", Ints{-1, height, 5, 6}}});
  output("y", call1("relu", {call1("transpose", {parted}, {{"perm", Ints{0, 2, 1, 3}}})}));
  if (parts.shows_windows) output("windows", windows);
  return program;
}

std::size_t count(const Program& program, const std::string& type) {
  std::size_t found = 0;
  for (const Op& op : program.block(0).ops) found += op.type == type ? 1 : 0;
  return found;
}

struct Joined {
  Random random{4};
  Tensor x = random_tensor(random, {3, 2, 9, 7}), w = random_tensor(random, {5, 6, 3}), b = random_tensor(random, {5});

  Program program(const Parts& parts) const {
    Program made = in_parts(parts, w, b);
    fold_constants(made);
    join_windows(made);
    return made;
  }
};

}  // namespace

TEST_CASE("a convolution that stands in parts becomes one op with its relu, and has the same bits, of f16 and bf16 too") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    INFO(name_of(dtype));
    CpuDevice device;
    Joined joined;
    for (Tensor* tensor : {&joined.x, &joined.w, &joined.b}) *tensor = cast(*tensor, dtype, device.stream(0));
    Parts parts;
    parts.dtype = dtype;
    const Program one = joined.program(parts);
    CHECK(one.block(0).ops.size() == 1);
    REQUIRE(count(one, "conv") == 1);
    CHECK(one.block(0).ops[0].attributes.get_or("relu", false));
    const std::vector<Value> expected = StraightProgram(in_parts(parts, joined.w, joined.b)).run({Value(LoDTensor(joined.x))});
    const std::vector<Value> found = StraightProgram(one).run({Value(LoDTensor(joined.x))});
    const Tensor& a = expected[0].tensor().tensor();
    const Tensor& b = found[0].tensor().tensor();
    REQUIRE(a.dims() == b.dims());
    CHECK(a.dims() == DDim{3, 5, 4, 6});
    CHECK(std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
  }
}

TEST_CASE("windows that something else reads stay, beside the one op") {
  const Joined joined;
  Parts parts;
  parts.shows_windows = true;
  const Program one = joined.program(parts);
  CHECK(count(one, "conv") == 1);
  CHECK(count(one, "conv1d") == 0);
  CHECK(count(one, "concat") == 1);
}

TEST_CASE("what is no convolution of windows stays as it is: weights of a run, windows in another order, few places") {
  const Joined joined;
  Parts late;
  late.constant_weights = false;
  CHECK(count(joined.program(late), "conv") == 0);
  Parts uneven;
  uneven.starts = {0, 4, 2};
  CHECK(count(joined.program(uneven), "conv") == 0);
  Program short_rows;
  {
    const Guard guard(short_rows);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 6, 20}));
    output("y", conv1d(x, build::parameter("w", joined.w), build::parameter("b", joined.b), 1, 1, {0, 0}, 1));
  }
  join_windows(short_rows);
  CHECK(count(short_rows, "conv1d") == 1);
}

TEST_CASE("a product and the known bias behind it become one op with the same bits, unless something else reads the product") {
  Random random(6);
  const Tensor x = random_tensor(random, {7, 2, 5}), w = random_tensor(random, {5, 37}), b = random_tensor(random, {37}),
               number = random_tensor(random, {1});
  const auto dense = [&](const Tensor& bias, bool shows) {
    Program program;
    const Guard guard(program);
    const Var product = matmul(input("x", VarType(DType::f32, {DDim::unknown, 2, 5})), build::parameter("w", w));
    output("y", product + build::parameter("b", bias));
    if (shows) output("product", product);
    return program;
  };
  Program one = dense(b, false), shown = dense(b, true), spread = dense(number, false);
  for (Program* program : {&one, &shown, &spread}) join_windows(*program);
  CHECK(count(one, "matmul_bias") == 1);
  CHECK(one.block(0).ops.size() == 1);
  CHECK(count(shown, "matmul_bias") == 0);
  CHECK(count(spread, "matmul_bias") == 0);
  const std::vector<Value> expected = StraightProgram(dense(b, false)).run({Value(LoDTensor(x))});
  const std::vector<Value> found = StraightProgram(one).run({Value(LoDTensor(x))});
  REQUIRE(found[0].tensor().tensor().dims() == DDim{7, 2, 37});
  CHECK(std::memcmp(expected[0].tensor().tensor().raw(), found[0].tensor().tensor().raw(), expected[0].tensor().tensor().bytes()) == 0);
}

TEST_CASE("a pool along several axes that stands in parts becomes one op, and has the same bits") {
  Random random(5);
  const Tensor x = random_tensor(random, {3, 2, 13, 21});
  for (const auto& [fold, padding] : {std::pair("maximum", -infinity), std::pair("minimum", infinity), std::pair("add", 0.0)}) {
    for (const std::vector<Windows>& all :
         {std::vector<Windows>{{2, 2, 2}, {3, 2, 2}}, std::vector<Windows>{{2, 3, 2, 2, 1, 2}, {3, 4, 1, 1, 2, 1}},
          std::vector<Windows>{{3, 4, 4}}, std::vector<Windows>{{2, 4, 1}}, std::vector<Windows>{{1, 2, 1}, {2, 2, 1}, {3, 5, 5}}}) {
      INFO(fold, " along axes ", all.front().axis, " to ", all.back().axis);
      Program one = pools(fold, all, padding);
      join_windows(one);
      CHECK(one.block(0).ops.size() == 1);
      REQUIRE(count(one, "pool") == 1);
      const std::vector<Value> expected = StraightProgram(pools(fold, all, padding)).run({Value(LoDTensor(x))});
      const std::vector<Value> found = StraightProgram(one).run({Value(LoDTensor(x))});
      const Tensor a = expected[0].tensor().tensor().copy_to(CpuPlace{});
      const Tensor& b = found[0].tensor().tensor();
      REQUIRE(a.dims() == b.dims());
      CHECK(std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
    }
  }
}

TEST_CASE("pools are joined with nothing that something else reads, and padding of another value stays an op") {
  const std::vector<Windows> both{{2, 2, 2}, {3, 2, 2}};
  Program shown = pools("maximum", both, -infinity, true);
  join_windows(shown);
  CHECK(count(shown, "pool") == 2);
  CHECK(count(shown, "slice") == 0);
  Program zeros = pools("maximum", {{3, 3, 2, 1, 1, 1}}, 0);
  join_windows(zeros);
  CHECK(count(zeros, "pool") == 1);
  CHECK(count(zeros, "pad") == 1);
}

TEST_CASE("folds of other slices stay as they are: along rows, of uneven distance, of several tensors") {
  const auto unjoined = [](Program program) {
    join_windows(program);
    return count(program, "pool") == 0;
  };
  CHECK(unjoined(pools("maximum", {{0, 2, 2}}, -infinity)));
  const auto maxima = [](const std::vector<Ints>& starts_and_ends, bool two) {
    Program program;
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {4, 9})), z = input("z", VarType(DType::f32, {4, 9}));
    std::optional<Var> total;
    for (const Ints& at : starts_and_ends) {
      const Var slice =
          call1("slice", {two && total ? z : x}, {{"starts", Ints{at[0]}}, {"ends", Ints{at[1]}}, {"axes", Ints{1}}, {"steps", Ints{1}}});
      total = total ? call1("maximum", {*total, slice}) : slice;
    }
    output("y", *total);
    return program;
  };
  constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
  CHECK_FALSE(unjoined(maxima({{0, -2}, {1, -1}, {2, last}}, false)));
  CHECK(unjoined(maxima({{0, -2}, {1, -1}, {2, last}}, true)));
  CHECK(unjoined(maxima({{0, -3}, {1, -2}, {3, last}}, false)));
  CHECK(unjoined(maxima({{1, last}, {0, -1}}, false)));
}
