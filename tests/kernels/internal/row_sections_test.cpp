// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/row_sections.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <support/random.h>

namespace millrace {
namespace {

using Kind = RowOp::Kind;

constexpr std::int64_t parts = 4;
constexpr std::int64_t keys = 70;
constexpr std::int64_t values = 40;
constexpr std::int64_t matrix = keys * values;

RowRegister input(std::int64_t width, std::size_t place) { return {RowRegister::Kind::input, width, place}; }
RowRegister output(std::int64_t width, std::size_t place) { return {RowRegister::Kind::output, width, place}; }
RowRegister scratch(std::int64_t width) { return {RowRegister::Kind::scratch, width, 0}; }

/// Matrices S of `parts` parts, each with a vector v [values] of x, and a number of x for all: S becomes g·S + 2·v, and y twice its first row.
enum Reg : int { state_in, x, vectors, y, state_out, factor };
std::vector<RowRegister> registers() {
  return {input(parts * matrix, 0),  input(parts * values + 1, 1), scratch(parts * values),
          output(parts * values, 0), output(parts * matrix, 1),    scratch(1)};
}

RowOp twice() {
  RowOp op;
  op.kind = Kind::binary;
  op.binary = Binary::add;
  op.in[0] = {x, 0};
  op.in[1] = {x, 0};
  op.out = {vectors, 0};
  op.inner = parts * values;
  return op;
}
RowOp negated_factor() {
  RowOp op;
  op.kind = Kind::unary;
  op.unary = Unary::neg;
  op.in[0] = {x, parts * values};
  op.out = {factor, 0};
  op.inner = 1;
  return op;
}
RowOp update() {
  RowOp op;
  op.kind = Kind::function;
  op.in[0] = {state_in, 0, matrix};
  op.in[1] = {vectors, 0, values};
  op.in[2] = {factor, 0, 0};
  op.out = {y, 0, values};
  op.out2 = {state_out, 0, matrix};
  op.outer = parts;
  op.inner = matrix;
  op.in_place = true;
  return op;
}
RowOp doubled() {
  RowOp op = twice();
  op.in[0] = op.in[1] = op.out = {y, 0};
  return op;
}
RowDesc description() { return {DType::f32, registers(), {twice(), negated_factor(), update(), doubled()}}; }

void step(std::span<const RowView> in, std::span<const RowView> out, std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const from = in[0].row<float>(row);
    float* const next = out[1].row<float>(row);
    for (std::int64_t i = 0; i < matrix; ++i) next[i] = from[i] * in[2].row<float>(row)[0] + in[1].row<float>(row)[i % values];
    std::memcpy(out[0].row<float>(row), next, values * sizeof(float));
  }
}

}  // namespace

TEST_CASE("parts of a row are found where each op falls apart, and what all need is computed by each") {
  const auto found = internal::find_sections(description());
  REQUIRE(found.has_value());
  REQUIRE(found->ops.size() == parts);
  for (std::size_t s = 0; s < parts; ++s) {
    const std::vector<RowOp>& ops = found->ops[s];
    const auto at = static_cast<std::int64_t>(s);
    CHECK(ops[0].inner == values);
    CHECK(ops[0].out.begin == at * values);
    CHECK(ops[1].out.begin == 0);
    CHECK(ops[2].outer == 1);
    CHECK(ops[2].in[0].begin == at * matrix);
    CHECK(ops[2].in[2].begin == 0);
    CHECK(ops[3].in[0].begin == at * values);
  }
  REQUIRE(found->handed.size() == 1);
  CHECK(found->handed[0].input == state_in);
  CHECK(found->handed[0].output == state_out);
  REQUIRE(found->handed[0].in_place.has_value());
  CHECK(found->handed[0].in_place->outer_step == matrix);
}

TEST_CASE("a row has no parts where one reads another, where an op has its own number of them, or where the states are small") {
  RowDesc reversed = description();  // values go to another part
  reversed.ops.front().kind = Kind::copy;
  reversed.ops.front().in[0] = {x, parts * values - 1, 0, -1};
  CHECK(internal::find_sections(reversed).has_value());  // an input belongs to all
  reversed.ops.push_back(doubled());
  reversed.ops.back().kind = Kind::copy;
  reversed.ops.back().in[0] = {y, parts * values - 1, 0, -1};
  reversed.ops.back().out = {vectors, 0};
  CHECK_FALSE(internal::find_sections(reversed).has_value());

  RowDesc folded = description();  // all of a row is one sum
  RowOp sum;
  sum.kind = Kind::reduce;
  sum.in[0] = {y, 0};
  sum.out = {factor, 0};
  sum.inner = parts * values;
  folded.ops.push_back(sum);
  CHECK_FALSE(internal::find_sections(folded).has_value());

  RowDesc others = description();
  others.ops.push_back(update());
  others.ops.back().outer = parts / 2;
  CHECK_FALSE(internal::find_sections(others).has_value());

  RowDesc narrow = description();  // two parts may run on two threads, which would both write the number
  narrow.registers.push_back(output(1, 2));
  narrow.ops.push_back(negated_factor());
  narrow.ops.back().out = {factor + 1, 0};
  CHECK_FALSE(internal::find_sections(narrow).has_value());

  RowDesc borrowed = description();  // the number that all multiply by is a value of part 0
  borrowed.ops.erase(borrowed.ops.begin() + 1);
  borrowed.ops[1].in[2] = {vectors, 0, 0};
  CHECK_FALSE(internal::find_sections(borrowed).has_value());

  RowDesc twice_written = description();  // the later op has to win, whichever part comes last
  twice_written.ops.push_back(twice());
  twice_written.ops.back().out = {y, parts * values - 1, 0, -1};
  twice_written.ops.back().kind = Kind::copy;
  CHECK_FALSE(internal::find_sections(twice_written).has_value());

  RowDesc small = description();
  small.ops[2].in[0].outer_step = small.ops[2].out2.outer_step = 8;
  CHECK_FALSE(internal::find_sections(small).has_value());
}

TEST_CASE("a state that another op reads behind the function stays apart from the next one") {
  RowDesc read_again = description();
  read_again.ops.back().in[1] = {state_in, 0};
  read_again.ops.back().inner = parts * values;
  CHECK(internal::find_sections(read_again)->handed.empty());  // part 1 reads elements of the state of part 0

  RowDesc read_by_part = description();
  RowOp& behind = read_by_part.ops.back();
  behind.outer = parts;
  behind.inner = values;
  behind.in[0] = behind.out = {y, 0, values};
  behind.in[1] = {state_in, 0, matrix};
  const auto found = internal::find_sections(read_by_part);
  REQUIRE(found->handed.size() == 1);
  CHECK_FALSE(found->handed[0].in_place.has_value());
}

TEST_CASE("many runs, part by part, on one thread or two, have the bits of one run after another, wherever states lie") {
  const RowPlan plan(description());
  REQUIRE(plan.state().sections.has_value());
  RowWeights weights;
  weights.functions.emplace_back(step);
  std::vector<std::byte> memory(static_cast<std::size_t>(plan.workspace_bytes()) + 64);
  void* const workspace = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  place(plan, weights, workspace);
  testing::Random random(3);
  constexpr std::int64_t width = parts * values + 1;
  for (const std::int64_t rows : {1, 3})
    for (const std::int64_t runs : {1, 2, 5, 6})
      for (const int way : {0, 1, 2, 3}) {
        const bool kept = way % 2 != 0, helped = way > 1;
        INFO(rows, " rows, ", runs, " runs, states kept ", kept, ", helped ", helped);
        const auto numbers = [&](std::int64_t count) {
          std::vector<float> made(static_cast<std::size_t>(count));
          for (float& each : made) each = random.real();
          return made;
        };
        std::vector<float> given = numbers(runs * rows * width);
        const std::vector<float> initial = numbers(rows * parts * matrix);
        std::vector<float> state = initial, next(initial.size()), wanted(static_cast<std::size_t>(runs * rows * parts * values));
        std::vector<std::vector<float>> history{state};
        for (std::int64_t run = 0; run < runs; ++run) {
          const RowView from[] = {{state.data(), parts * matrix}, {given.data() + run * rows * width, width}};
          const RowView to[] = {{wanted.data() + run * rows * parts * values, parts * values}, {next.data(), parts * matrix}};
          run_placed(plan, weights, from, to, rows, workspace);
          std::swap(state, next);
          history.push_back(state);
        }
        std::vector<float> shown(wanted.size());
        const std::int64_t state_bytes = rows * parts * matrix * static_cast<std::int64_t>(sizeof(float));
        std::vector<float> slots(static_cast<std::size_t>(kept ? runs + 1 : 2) * initial.size());
        std::copy(initial.begin(), initial.end(), slots.begin());
        float* const second = slots.data() + initial.size();
        const RowTrack from[] = {
            kept ? RowTrack{{slots.data(), parts * matrix}, state_bytes} : RowTrack{{slots.data(), parts * matrix}, 0, second},
            {{given.data(), width}, rows * width * static_cast<std::int64_t>(sizeof(float))}};
        const RowTrack to[] = {
            {{shown.data(), parts * values}, rows * parts * values * static_cast<std::int64_t>(sizeof(float))},
            kept ? RowTrack{{second, parts * matrix}, state_bytes} : RowTrack{{second, parts * matrix}, 0, slots.data()}};
        SpinHelper helper;
        std::thread other;
        if (helped) {
          std::atomic<bool> here = false;
          other = std::thread([&] {
            here = true;
            helper.serve();
          });
          while (!here) std::this_thread::yield();
        }
        run_tracks(plan, weights, from, to, rows, runs, workspace, helped ? &helper : nullptr);
        helper.release();
        if (helped) other.join();
        CHECK(shown == wanted);
        for (std::int64_t run = kept ? 1 : runs; run <= runs; ++run) {
          const float* const found = slots.data() + (kept ? run : run % 2) * std::ssize(initial);
          CHECK(std::equal(found, found + initial.size(), history[static_cast<std::size_t>(run)].begin()));
        }
      }
}

}  // namespace millrace
