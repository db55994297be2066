// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/reorder_steps.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <millrace/runtime/array/pack.h>
#include <millrace/runtime/array/unpack.h>
#include <support/drive.h>
#include <support/random.h>

namespace millrace {
namespace {

using testing::run_fifo;
using Rows = std::vector<float>;

LoDTensor counted(const LoD& lod) {
  Rows values;
  for (std::int64_t i = 0; i < 2 * lod.rows(); ++i) values.push_back(static_cast<float>(i));
  return LoDTensor(Tensor::from(values, {lod.rows(), 2}), lod);
}

task<std::vector<Rows>> rows_of(TensorArray steps) {
  std::vector<SlotValue> values = co_await steps.values();
  std::vector<Rows> all;
  for (const SlotValue& value : values) all.push_back(value.tensor().to_vector<float>());
  co_return all;
}

/// The same slots, written one by one.
TensorArray written(const TensorArray& steps, const SequenceOrder& order) {
  const std::vector<SlotValue> values = run_fifo(steps.values());
  const TensorArray made(SlotIndex(steps.size()), order);
  for (std::size_t i = 0; i < values.size(); ++i) made.write(static_cast<std::int64_t>(i), values[i].tensor());
  return made;
}

TEST_CASE("slots of sequences from their beginnings become those from their ends") {
  CpuDevice cpu;
  const LoD lod = LoD::from_lengths({{3, 0, 6, 1}});
  const LoDTensor x = counted(lod);
  const auto [steps, order] = unpack(x, 0, true, cpu.stream(0));
  const auto [turned, reverse] = unpack(x, 0, true, cpu.stream(0), true);
  const TensorArray made = run_fifo(reorder_steps(steps, order, reverse, cpu.stream(0)));
  CHECK(run_fifo(rows_of(made)) == run_fifo(rows_of(turned)));
  CHECK(*made.order() == reverse);
  CHECK(made.filled() != nullptr);
}

TEST_CASE("rows of ragged sequences stay where they are until somebody reads their slots") {
  CpuDevice cpu;
  const LoDTensor x = counted(LoD::from_lengths({{3, 0, 6, 1}}));
  const auto [steps, order] = unpack(x, 0, true, cpu.stream(0));
  const auto [turned, reverse] = unpack(x, 0, true, cpu.stream(0), true);
  const TensorArray made = run_fifo(reorder_steps(steps, order, reverse, cpu.stream(0)));
  const auto picked = made.picked();
  REQUIRE(picked != nullptr);
  CHECK(picked->picked->from.raw() == steps.filled()->whole.raw());
  const Rows all = picked->picked->from.to_vector<float>();
  const std::vector<Rows> wanted = run_fifo(rows_of(turned));
  for (std::size_t step = 0; step < wanted.size(); ++step) {
    Rows rows;
    for (std::int64_t at = picked->offsets[step]; at < picked->offsets[step + 1]; ++at) {
      const std::int64_t row = picked->picked->rows[static_cast<std::size_t>(at)];
      rows.insert(rows.end(), all.begin() + 2 * row, all.begin() + 2 * row + 2);
    }
    CHECK(rows == wanted[step]);
  }
  CHECK(made.peek(2)->tensor().to_vector<float>() == wanted[2]);
  CHECK(made.picked() == nullptr);
  CHECK(run_fifo(rows_of(made)) == wanted);
  CHECK(run_fifo(made.concat(cpu.stream(0))).tensor().to_vector<float>() == turned.filled()->whole.to_vector<float>());
}

TEST_CASE("large steps of sequences of one length are views of the slots they were") {
  CpuDevice cpu;
  const LoD lod = LoD::from_lengths({{5, 5, 5}});
  constexpr std::int64_t width = 1 << 10;
  Rows values;
  for (std::int64_t i = 0; i < width * lod.rows(); ++i) values.push_back(static_cast<float>(i));
  const LoDTensor x(Tensor::from(values, {lod.rows(), width}), lod);
  const auto [steps, order] = unpack(x, 0, true, cpu.stream(0));
  const auto [turned, reverse] = unpack(x, 0, true, cpu.stream(0), true);
  const TensorArray made = run_fifo(reorder_steps(steps, order, reverse, cpu.stream(0)));
  CHECK(run_fifo(rows_of(made)) == run_fifo(rows_of(turned)));
  CHECK(*made.order() == reverse);
  const std::vector<SlotValue> from = run_fifo(steps.values()), to = run_fifo(made.values());
  CHECK(to[0].tensor().raw() == from[4].tensor().raw());
}

TEST_CASE("the slots are those of unpack behind pack for any two orders of the same sequences") {
  const std::uint64_t seed = 17;
  CAPTURE(seed);
  testing::Random random(seed);
  CpuDevice cpu;
  for (int trial = 0; trial < 60; ++trial) {
    LoD::Level lengths(static_cast<std::size_t>(random.between(0, 6)));
    for (auto& length : lengths) length = random.between(0, 5);
    LoD lod = LoD::from_lengths({lengths});
    if (random.between(0, 2) == 0) lod = LoD::from_lengths({{static_cast<std::int64_t>(lengths.size())}, lengths});
    const int level = lod.depth() - 1;
    const LoDTensor x = counted(lod);
    INFO("lengths ", lod.to_string());
    const auto sorted = [&] { return random.between(0, 1) == 0; };
    const auto [steps, from] = unpack(x, level, sorted(), cpu.stream(0), sorted());
    const auto [wanted, to] = unpack(x, level, sorted(), cpu.stream(0), sorted());
    const TensorArray given = sorted() ? steps : written(steps, from);
    const TensorArray made = run_fifo(reorder_steps(given, from, to, cpu.stream(0)));
    CHECK(run_fifo(rows_of(made)) == run_fifo(rows_of(wanted)));
  }
}

TEST_CASE("orders of other sequences are refused, with both") {
  CpuDevice cpu;
  const auto [steps, from] = unpack(counted(LoD::from_lengths({{2, 1}})), 0, true, cpu.stream(0));
  const SequenceOrder other(LoD::from_lengths({{1, 2}}), 0, true, true);
  CHECK_THROWS_WITH_AS(run_fifo(reorder_steps(steps, from, other, cpu.stream(0))), doctest::Contains("[[1,2]]"), LoDError);
}

}  // namespace
}  // namespace millrace
