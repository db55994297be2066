// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/recurrent.h>

#include "support/program_runs.h"
#include "support/random.h"
#include "support/random_tensor.h"

/// Cells as programs, run in both gears.
namespace millrace::testing {

using namespace millrace::build;
using layers::CellState, layers::CellStep;

/// A cell over rows of `c` features, with states of some widths.
struct CellCase {
  std::string name;
  std::int64_t c;
  std::vector<std::int64_t> widths;
  layers::Cell cell;
};

/// Ragged rows through the cell.
inline Program over_rows(const CellCase& each, bool boots, bool reverse, DType dtype = DType::f32) {
  Program program;
  program.set_title(each.name);
  const Guard guard(program);
  const Var x = input("x", VarType(dtype, {DDim::unknown, each.c}, 1));
  std::vector<CellState> states;
  for (std::size_t i = 0; i < each.widths.size(); ++i) {
    states.push_back({each.widths[i]});
    if (boots) states.back().initial = input("boot" + std::to_string(i), VarType(dtype, {DDim::unknown, each.widths[i]}));
  }
  const layers::Unrolled made = layers::unroll(each.cell, {x}, states, reverse);
  output("y", made.output);
  for (std::size_t i = 0; i < made.last.size(); ++i) output("last" + std::to_string(i), made.last[i]);
  return program;
}

inline Feeds feeds_for(Random& random, const CellCase& each, const LoD& lod, bool boots, DType dtype = DType::f32) {
  Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), each.c}, 1, dtype), lod)}};
  for (std::size_t i = 0; boots && i < each.widths.size(); ++i)
    feeds.emplace("boot" + std::to_string(i), random_tensor(random, {lod.sequences(0), each.widths[i]}, 1, dtype));
  return feeds;
}

inline RunOptions interpreted() {
  RunOptions options;
  options.gear = Gear::interpreted;
  return options;
}

/// Runs in both gears, with one thread and with two: equal bits and turns. Gives how many loops ran in one piece.
inline std::int64_t compare(const Program& program, const Feeds& feeds) {
  const RunResult wanted = on_cpu(program, feeds, interpreted());
  CHECK(wanted.fused_loops == 0);
  std::int64_t fused = 0;
  for (const int threads : {1, 2}) {
    INFO("threads ", threads);
    const RunResult found = run_fifo(run(Executable(program, make_cpu_device(threads)), feeds));
    CHECK(bits(found) == bits(wanted));
    CHECK(found.turns == wanted.turns);
    fused = found.fused_loops;
  }
  return fused;
}

/// Weights for cells: parameters of the program that is being built, drawn anew in each.
struct Weights {
  Random random;
  DType dtype = DType::f32;
  explicit Weights(std::uint64_t seed, DType of = DType::f32) : random(seed), dtype(of) {}
  Var operator()(const DDim& dims) { return parameter("w", random_tensor(random, dims, 1, dtype)); }
};

}  // namespace millrace::testing
