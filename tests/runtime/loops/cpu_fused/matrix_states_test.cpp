// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cpu_fused/internal/matrix_states.h>

#include <algorithm>

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

TEST_CASE("matrices too large for the first cache go through many iterations one after the other, with the bits of ops one by one") {
  const Form forms[] = {{6, 1, 48, 64}, {3, 2, 40, 130}};
  const LoD lengths[] = {LoD::from_lengths({{41}}), LoD::from_lengths({{12, 12, 12}}), LoD::from_lengths({{30, 7}})};
  for (const Spelled& each : spellings)
    for (const Form& form : forms)
      for (const LoD& lod : lengths) {
        INFO(each.name, ", keys ", form.keys, ", values ", form.values, ", rows ", lod.rows());
        Random random(8);
        const CellCase cell = cell_of(form, each);
        const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), cell.c}, .5), lod)},
                          {"boot0", random_tensor(random, {lod.sequences(0), cell.widths[0]}, 1)}};
        CHECK(compare(over_rows(cell, true, false, DType::f32), feeds) == 1);
      }
}
