// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/internal/matrix_states.h>

#include <doctest/doctest.h>

#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/built.h"
#include "support/random_lod.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

using build::sum;

/// Extents of the matrices of a row.
struct Form {
  std::int64_t heads, queries, keys, values;
};

/// The parts of a row that are vectors over keys or values, and numbers.
struct Vectors {
  Var q, k, v, by_key, by_head;
  Vectors(const Form& f, const Var& row) {
    std::int64_t at = 0;
    const auto next = [&](std::int64_t count, const std::vector<std::int64_t>& shape) {
      at += count;
      return reshape(slice(row, 1, at - count, at), shape);
    };
    q = next(f.heads * f.queries * f.keys, {0, f.heads, f.queries, f.keys, 1});
    k = next(f.heads * f.keys, {0, f.heads, f.keys, 1});
    v = next(f.heads * f.values, {0, f.heads, 1, f.values});
    by_key = next(f.heads * f.keys, {0, f.heads, f.keys, 1});
    by_head = next(f.heads, {0, f.heads, 1, 1});
  }
  static std::int64_t width(const Form& f) { return f.heads * (f.queries * f.keys + 2 * f.keys + f.values + 1); }
};

/// Reads and updates the matrix of each head in one of several spellings.
using Spelling = Var (*)(Vectors& in, const Var& state, Var& next);
Var linear(Vectors& in, const Var& state, Var& next) {
  next = state + in.k * in.v;
  return next;
}
Var gated(Vectors& in, const Var& state, Var& next) {
  next = in.v * in.k + in.by_key * state;
  return next;
}
Var corrected(Vectors& in, const Var& state, Var& next) {
  const Var kept = state * in.by_head;
  next = kept + (in.v - sum(in.k * kept, {2}, true)) * in.k;
  return next;
}
/// The correction counts by a number of each matrix, or of all.
Var rated(Vectors& in, const Var& state, Var& next) {
  const Var kept = state * in.by_key;
  next = kept + (in.v - sum(kept * in.k, {2}, true)) * in.by_head * in.k;
  return next;
}
Var rated_as_one(Vectors& in, const Var& state, Var& next) {
  const Var rate = reshape(slice(reshape(in.by_head, {0, -1}), 1, 0, 1), {0, 1, 1, 1});
  next = state + in.k * (rate * (in.v - sum(in.k * state, {2}, true)));
  return next;
}
/// The correction is no product with one number, so the read stands alone.
Var squared(Vectors& in, const Var& state, Var& next) {
  const Var missing = in.v - sum(in.k * state, {2}, true);
  next = state + in.k * (missing * missing);
  return next;
}
/// Something else needs the sum that the correction takes.
Var read_twice(Vectors& in, const Var& state, Var& next) {
  const Var found = sum(in.k * state, {2}, true);
  next = state + in.k * (in.v - found);
  in.q = in.q * reshape(build::reduce(found, "max", {3}, true), {0, (*found.type().shape)[1], 1, 1, 1});
  return next;
}
/// The decayed matrix is read in another way, too, so it has to be there.
Var doubled(Vectors& in, const Var& state, Var& next) {
  const Var kept = state * in.by_key;
  next = kept + in.v * in.k;
  return next - kept;
}
/// The queries depend on the new matrix, so it has to be there before them.
Var read_first(Vectors& in, const Var& state, Var& next) {
  next = state + in.k * in.v;
  in.q = in.q * build::reduce(reshape(next, {0, (*next.type().shape)[1], 1, (*next.type().shape)[2], (*next.type().shape)[3]}), "max",
                              {3, 4}, true);
  return next;
}

struct Spelled {
  std::string name;
  Spelling spelling;
  std::size_t members;  ///< that stand in the place of several ops
};
const Spelled spellings[] = {{"linear", linear, 1},
                             {"gated", gated, 1},
                             {"corrected", corrected, 1},
                             {"rated", rated, 1},
                             {"rated as one", rated_as_one, 1},
                             {"squared", squared, 2},
                             {"read twice", read_twice, 2},
                             {"doubled", doubled, 1},
                             {"read first", read_first, 1}};

CellCase cell_of(const Form& f, const Spelled& spelled) {
  return {spelled.name,
          Vectors::width(f),
          {f.heads * f.keys * f.values},
          [f, spelling = spelled.spelling](const Var& row, const std::vector<Var>& states) {
            Vectors in(f, row);
            Var next;
            const Var shown = spelling(in, reshape(states[0], {0, f.heads, f.keys, f.values}), next);
            const Var read = sum(reshape(shown, {0, f.heads, 1, f.keys, f.values}) * in.q, {3});
            return CellStep{reshape(read, {0, f.heads * f.queries * f.values}), {reshape(next, {0, f.heads * f.keys * f.values})}};
          }};
}

/// One iteration of a cell as a straight-line program over rows.
Program iteration(const CellCase& each) {
  Program program;
  const Guard guard(program);
  const Var row = input("row", VarType(DType::f32, {DDim::unknown, each.c}));
  const CellStep step = each.cell(row, {input("state", VarType(DType::f32, {DDim::unknown, each.widths[0]}))});
  output("y", step.output);
  output("next", step.states[0]);
  return program;
}

}  // namespace

TEST_CASE("reads and updates of matrices are found in each spelling, and what else reads them keeps its ops") {
  for (const Spelled& each : spellings) {
    INFO(each.name);
    const Program step = iteration(cell_of({2, 1, 3, 5}, each));
    const MatrixStates found(step, DType::f32);
    std::size_t members = 0;
    for (std::size_t i = 0; i < step.block(0).ops.size(); ++i) members += found.place(i) == MatrixStates::Place::member ? 1U : 0U;
    CHECK(members == each.members);
    CHECK(MatrixStates(step, DType::f64).place(0) == MatrixStates::Place::op);
  }
}

TEST_CASE("matrices of all extents that are read and updated at once have the bits of their ops one by one") {
  const Form forms[] = {{1, 1, 1, 1}, {2, 1, 3, 5}, {3, 2, 4, 17}, {1, 3, 7, 80}, {1, 1, 600, 3}, {2, 2, 16, 64}};
  for (const Spelled& each : spellings)
    for (const Form& form : forms)
      for (const DType dtype : {DType::f32, DType::f64}) {
        INFO(each.name, ", keys ", form.keys, ", values ", form.values, ", queries ", form.queries);
        Random random(7);
        const CellCase cell = cell_of(form, each);
        const LoD lod = LoD::from_lengths({{3, 0, 2, 1}});
        const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), cell.c}, .5, dtype), lod)},
                          {"boot0", random_tensor(random, {4, cell.widths[0]}, 1, dtype)}};
        CHECK(compare(over_rows(cell, true, false, dtype), feeds) == 1);
      }
}

/// The cell over ragged rows, or over dense [T, N, C], where nothing reads the last states: only two slots of a state are there.
Program without_last(const CellCase& each, bool dense) {
  Program program;
  const Guard guard(program);
  const auto rows = [](std::int64_t width) { return VarType(DType::f32, {DDim::unknown, width}); };
  const Var x = dense ? input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, each.c}))
                      : input("x", VarType(DType::f32, {DDim::unknown, each.c}, 1));
  std::vector<CellState> states;
  for (std::size_t i = 0; i < each.widths.size(); ++i)
    states.push_back({each.widths[i], input("boot" + std::to_string(i), rows(each.widths[i]))});
  output("y", layers::unroll(each.cell, {x}, states).output);
  return program;
}

/// Runs a cell in each form, with last states and without, ragged and dense; gives how many forms ran in one piece.
std::int64_t fused_forms(const CellCase& cell) {
  Random random(8);
  std::int64_t fused = 0;
  for (const LoD& lod : {LoD::from_lengths({{41}}), LoD::from_lengths({{12, 12, 12}}), LoD::from_lengths({{30, 7}})}) {
    INFO(cell.name, ", rows ", lod.rows());
    Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), cell.c}, .5), lod)}};
    for (std::size_t i = 0; i < cell.widths.size(); ++i)
      feeds.emplace("boot" + std::to_string(i), random_tensor(random, {lod.sequences(0), cell.widths[i]}, 1));
    fused += compare(over_rows(cell, true, false), feeds) + compare(without_last(cell, false), feeds);
  }
  for (const std::int64_t sequences : {1, 3}) {
    INFO(cell.name, ", dense, ", sequences, " sequences");
    Feeds feeds{{"x", random_tensor(random, {15, sequences, cell.c}, .5)}};
    for (std::size_t i = 0; i < cell.widths.size(); ++i)
      feeds.emplace("boot" + std::to_string(i), random_tensor(random, {sequences, cell.widths[i]}, 1));
    fused += compare(without_last(cell, true), feeds);
  }
  return fused;
}
constexpr std::int64_t forms = 8;

TEST_CASE("matrices too large for the first cache go through many iterations one after the other, with the bits of ops one by one") {
  for (const Spelled& each : spellings)
    for (const Form& form : {Form{6, 1, 48, 64}, Form{3, 2, 40, 130}}) {
      INFO("keys ", form.keys, ", values ", form.values);
      CHECK(fused_forms(cell_of(form, each)) == forms);
    }
}

/// A correction by a rate that `rate` makes of a row [width] and of a second state [width], of which it leaves the next one.
CellCase with_rate(const std::string& name, std::int64_t width, Var (*rate)(const Var& row, Var& state)) {
  constexpr Form f{6, 1, 48, 64};
  return {name,
          f.heads * (2 * f.keys + f.values) + width,
          {f.heads * f.keys * f.values, width},
          [=](const Var& row, const std::vector<Var>& states) {
            std::int64_t at = 0;
            const auto next = [&](std::int64_t count, const std::vector<std::int64_t>& shape) {
              at += count;
              return reshape(slice(row, 1, at - count, at), shape);
            };
            const Var q = next(f.heads * f.keys, {0, f.heads, 1, f.keys, 1}), k = next(f.heads * f.keys, {0, f.heads, f.keys, 1});
            const Var v = next(f.heads * f.values, {0, f.heads, 1, f.values});
            Var second = states[1];
            const Var by = rate(next(width, {0, width}), second);
            const Var matrix = reshape(states[0], {0, f.heads, f.keys, f.values});
            const Var after = matrix + k * (by * (v - sum(k * matrix, {2}, true)));
            const Var read = sum(reshape(after, {0, f.heads, 1, f.keys, f.values}) * q, {3});
            return CellStep{reshape(read, {0, f.heads * f.values}), {reshape(after, {0, f.heads * f.keys * f.values}), second}};
          }};
}

TEST_CASE("a rate that a small state of all heads, or a value of one of them, makes has the bits of ops one by one") {
  const auto counted = [](const Var& row, Var& state) {
    state = state * row + row;
    return reshape(slice(state, 1, 0, 1), {0, 1, 1, 1});
  };
  const auto of_first = [](const Var& row, Var& state) {
    state = sigmoid(row + state);
    return reshape(slice(state, 1, 0, 1), {0, 1, 1, 1});
  };
  CHECK(fused_forms(with_rate("a state of one number", 1, counted)) == forms);
  CHECK(fused_forms(with_rate("a state of three numbers", 3, counted)) == forms);
  CHECK(fused_forms(with_rate("a number of the first head", 6, of_first)) == forms);
}

TEST_CASE("a rate of fewer axes than the matrices is no number of a row, and leaves the loop interpreted") {
  const auto of_sequences = [](const Var& row, Var& state) {
    state = state + row;
    return reshape(row, {0, 1, 1});
  };
  const CellCase cell = with_rate("an axis less", 1, of_sequences);
  const LoD lod = LoD::from_lengths({{7, 7, 7, 7, 7, 7}});
  Random random(1);
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), cell.c}, .5), lod)},
                    {"boot0", random_tensor(random, {6, cell.widths[0]}, 1)},
                    {"boot1", random_tensor(random, {6, 1}, 1)}};
  CHECK(compare(without_last(cell, false), feeds) == 0);
}
