// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/join_runs.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <support/drive.h>

namespace millrace {
namespace {

using testing::run_fifo;
using Rows = std::vector<float>;

TensorArray slots(const std::vector<LoDTensor>& runs) {
  const TensorArray made(static_cast<std::int64_t>(runs.size()));
  for (std::size_t i = 0; i < runs.size(); ++i) made.write(static_cast<std::int64_t>(i), runs[i]);
  return made;
}
LoDTensor run_of(const Rows& rows, const std::vector<std::int64_t>& lengths) {
  return LoDTensor(Tensor::from(rows, {static_cast<std::int64_t>(rows.size()), 1}), LoD::from_lengths({lengths}));
}

/// Rows 0, 1, 2 of a sequence, none of the next, rows 3 … 7 of the last: by rank the last comes first, and runs of two end with the sequences.
const LoD lod = LoD::from_lengths({{3, 0, 5}});
const std::vector<LoDTensor> runs{run_of({3}, {1, 0, 0}), run_of({4, 5, 0}, {2, 1, 0}), run_of({6, 7, 1, 2}, {2, 2, 0})};

TEST_CASE("runs of ragged sequences become the sequences in the caller's order") {
  CpuDevice cpu;
  const SequenceOrder order(lod, 0, true);
  const LoDTensor made = run_fifo(join_runs(slots(runs), order, cpu.stream(0)));
  CHECK(made.lod() == lod);
  CHECK(made.tensor().to_vector<float>() == Rows{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("runs of an order from the ends of sequences are joined from their ends") {
  CpuDevice cpu;
  const SequenceOrder order(lod, 0, true, true);
  const std::vector<LoDTensor> turned{run_of({7}, {1, 0, 0}), run_of({5, 6, 2}, {2, 1, 0}), run_of({3, 4, 0, 1}, {2, 2, 0})};
  const LoDTensor made = run_fifo(join_runs(slots(turned), order, cpu.stream(0)));
  CHECK(made.tensor().to_vector<float>() == Rows{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("sequences are cut into the runs that they were joined of, from either end") {
  CpuDevice cpu;
  for (const bool reversed : {false, true}) {
    CAPTURE(reversed);
    const SequenceOrder order(lod, 0, true, reversed);
    const std::vector<LoDTensor> of =
        reversed ? std::vector<LoDTensor>{run_of({7}, {1, 0, 0}), run_of({5, 6, 2}, {2, 1, 0}), run_of({3, 4, 0, 1}, {2, 2, 0})} : runs;
    const LoDTensor whole = run_fifo(join_runs(slots(of), order, cpu.stream(0)));
    const std::vector<Tensor> made = run_fifo(split_runs(whole.tensor(), slots(of), order, cpu.stream(0)));
    REQUIRE(made.size() == of.size());
    for (std::size_t i = 0; i < of.size(); ++i) CHECK(made[i].to_vector<float>() == of[i].tensor().to_vector<float>());
    CHECK_THROWS_AS(run_fifo(split_runs(whole.tensor().rows(0, 7), slots(of), order, cpu.stream(0))), ShapeError);
  }
}

TEST_CASE("runs of other sequences, too few rows, and no runs are refused with both sides") {
  CpuDevice cpu;
  const SequenceOrder order(lod, 0, true);
  CHECK_THROWS_WITH_AS(run_fifo(join_runs(slots({run_of({1}, {1})}), order, cpu.stream(0))), doctest::Contains("found in slot 0"),
                       LoDError);
  CHECK_THROWS_AS(run_fifo(join_runs(slots({runs[0], runs[1]}), order, cpu.stream(0))), LoDError);
  CHECK_THROWS_AS(run_fifo(join_runs(slots({runs[0], runs[1], runs[2], runs[2]}), order, cpu.stream(0))), LoDError);
  CHECK_THROWS_AS(run_fifo(join_runs(slots({}), order, cpu.stream(0))), ArgumentError);
  const SequenceOrder inner(LoD::from_lengths({{1, 1}, {3, 5}}), 1, true);
  CHECK_THROWS_WITH_AS(run_fifo(join_runs(slots(runs), inner, cpu.stream(0))), doctest::Contains("outermost"), LoDError);
}

}  // namespace
}  // namespace millrace
