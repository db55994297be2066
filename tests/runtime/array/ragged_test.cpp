// SPDX-License-Identifier: Apache-2.0
// unpack, pack, shrink and reorder over arrays: cases 1–6 and 9.
#include <millrace/runtime/array/unpack.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <millrace/runtime/array/pack.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/array/shrink.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/tensor/copy.h>
#include <support/drive.h>
#include <support/random.h>

namespace millrace {
namespace {

using testing::run_fifo;
using testing::Schedule;
using Rows = std::vector<float>;

Tensor counting(std::int64_t rows) {
  Rows values;
  for (std::int64_t i = 0; i < rows; ++i) values.push_back(static_cast<float>(i));
  return Tensor::from(values, {rows, 1});
}

LoDTensor ragged(const std::vector<LoD::Level>& lengths) {
  const LoD lod = LoD::from_lengths(lengths);
  return LoDTensor(counting(lod.rows()), lod);
}

task<std::vector<Rows>> rows_of(TensorArray steps) {
  std::vector<SlotValue> values = co_await steps.values();
  std::vector<Rows> all;
  for (const SlotValue& value : values) all.push_back(value.tensor().to_vector<float>());
  co_return all;
}

task<std::vector<std::string>> lods_of(TensorArray steps) {
  std::vector<SlotValue> values = co_await steps.values();
  std::vector<std::string> all;
  for (const SlotValue& value : values) all.push_back(value.lod().to_string());
  co_return all;
}

void check_restored(const LoDTensor& x, const TensorArray& steps, const SequenceOrder& order, StreamRef stream) {
  const LoDTensor back = run_fifo(pack(steps, order.level(), order, stream));
  CHECK(back.lod() == x.lod());
  CHECK(back.tensor().to_vector<float>() == x.tensor().to_vector<float>());
}

TEST_CASE("rows 0 to 9 of lengths 3, 6 and 1 become six steps, longest first, and come back") {
  CpuDevice cpu;
  const LoDTensor x = ragged({{3, 6, 1}});
  const auto [steps, order] = unpack(x, 0, true, cpu.stream(0));
  CHECK(run_fifo(rows_of(steps)) == std::vector<Rows>{{3, 0, 9}, {4, 1}, {5, 2}, {6}, {7}, {8}});
  check_restored(x, steps, order, cpu.stream(0));
  const LoDTensor gap = ragged({{3, 6, 0, 1}});
  const auto [same, gap_order] = unpack(gap, 0, true, cpu.stream(0));
  CHECK(run_fifo(rows_of(same)) == run_fifo(rows_of(steps)));
  check_restored(gap, same, gap_order, cpu.stream(0));
}

TEST_CASE("empty sequences alone give no steps and no rows back") {
  CpuDevice cpu;
  const LoDTensor x = ragged({{0, 0}});
  const auto [steps, order] = unpack(x, 0, true, cpu.stream(0));
  CHECK(steps.size() == 0);
  const LoDTensor back = run_fifo(pack(steps, 0, order, cpu.stream(0)));
  CHECK(back.rows() == 0);
  CHECK(back.dtype() == DType::f32);
  CHECK(back.dims() == DDim{0, 1});
  CHECK(back.lod() == x.lod());
}

TEST_CASE("above the last level a step is made of sub-sequences that keep their levels") {
  CpuDevice cpu;
  const LoDTensor x = ragged({{2, 3}, {3, 6, 2, 6, 3}});
  const auto [steps, order] = unpack(x, 0, true, cpu.stream(0));
  CHECK(run_fifo(rows_of(steps)) == std::vector<Rows>{{9, 10, 0, 1, 2}, {11, 12, 13, 14, 15, 16, 3, 4, 5, 6, 7, 8}, {17, 18, 19}});
  CHECK(run_fifo(lods_of(steps)) == std::vector<std::string>{"[[2,3]]", "[[6,6]]", "[[3]]"});
  check_restored(x, steps, order, cpu.stream(0));
}

TEST_CASE("unsorted, each step keeps the caller's order, and inner levels can be taken") {
  CpuDevice cpu;
  const LoDTensor x = ragged({{1, 3, 2}});
  const auto [steps, order] = unpack(x, 0, false, cpu.stream(0));
  CHECK(run_fifo(rows_of(steps)) == std::vector<Rows>{{0, 1, 4}, {2, 5}, {3}});
  check_restored(x, steps, order, cpu.stream(0));
  const LoDTensor deep = ragged({{2, 1}, {3, 1, 2}});
  const auto [inner, inner_order] = unpack(deep, 1, true, cpu.stream(0));
  CHECK(run_fifo(rows_of(inner)) == std::vector<Rows>{{0, 4, 3}, {1, 5}, {2}});
  check_restored(deep, inner, inner_order, cpu.stream(0));
}

TEST_CASE("any ragged input comes back from its steps, on streams that complete in any order") {
  for (const std::uint64_t seed : testing::seeds(200)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    std::vector<LoD::Level> levels(static_cast<std::size_t>(random.between(1, 3)));
    std::int64_t count = random.between(0, 4);
    for (LoD::Level& level : levels) {
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < count; ++i) next += level.emplace_back(random.between(0, 3));
      count = next;
    }
    Schedule schedule(seed);
    const LoDTensor host = ragged(levels);
    const LoDTensor x(clone(host.tensor(), schedule.device.stream(0)), host.lod());
    const int level = static_cast<int>(random.between(0, x.lod().depth() - 1));
    const auto [steps, order] = unpack(x, level, random.coin(), schedule.device.stream(0));
    const LoDTensor back = schedule.run(pack(steps, level, order, schedule.device.stream(1)));
    schedule.device.drain(seed);
    CHECK(back.lod() == host.lod());
    CHECK(back.tensor().to_vector<float>() == host.tensor().to_vector<float>());
  }
}

TEST_CASE("steps that already lie in order are neither gathered nor copied") {
  CpuDevice cpu;
  const LoDTensor one = ragged({{5}});
  const auto [steps, order] = unpack(one, 0, true, cpu.stream(0));
  CHECK(run_fifo(pack(steps, 0, order, cpu.stream(0))).tensor().raw() == one.tensor().raw());
}

task<std::vector<Rows>> shrink_through(TensorArray steps, TensorArray states, LoDTensor boot, StreamRef stream) {
  std::vector<Rows> seen;
  for (std::int64_t t = 0; t < steps.size(); ++t) {
    SlotValue input = co_await steps.read(t);
    SlotValue last = co_await states.read(t - 1, boot, stream);
    const SlotValue living = shrink(last, input, stream);
    CHECK(living.iteration() == t);
    seen.push_back(living.tensor().to_vector<float>());
    states.write(t, living);
  }
  co_return seen;
}

TEST_CASE("a boot is re-ordered like the batch and shrinks with it, empty sequences included") {
  CpuDevice cpu;
  const LoDTensor x = ragged({{1, 2, 0, 3}});
  const Tensor boot = Tensor::from<float>({10, 20, 30, 40}).reshape({4, 1});
  const auto [sorted, order] = unpack(x, 0, true, cpu.stream(0));
  CHECK(run_fifo(shrink_through(sorted, TensorArray(3, order), boot, cpu.stream(0))) == std::vector<Rows>{{40, 20, 10}, {40, 20}, {40}});
  const auto [unsorted, plain] = unpack(x, 0, false, cpu.stream(0));
  CHECK(run_fifo(shrink_through(unsorted, TensorArray(3, plain), boot, cpu.stream(0))) == std::vector<Rows>{{10, 20, 40}, {20, 40}, {40}});
}

TEST_CASE("a static input with levels shrinks by whole sequences") {
  CpuDevice cpu;
  const auto [steps, order] = unpack(ragged({{2, 1, 3}}), 0, true, cpu.stream(0));
  const SlotValue fixed = reorder(ragged({{1, 2, 3}}), order, cpu.stream(0));
  CHECK(fixed.iteration() == -1);
  const std::vector<SlotValue> inputs = run_fifo(steps.values());
  CHECK(shrink(fixed, inputs[0], cpu.stream(0)).lod().to_string() == "[[3,1,2]]");
  CHECK(shrink(fixed, inputs[1], cpu.stream(0)).lod().to_string() == "[[3,1]]");
  CHECK(shrink(fixed, inputs[2], cpu.stream(0)).lod().to_string() == "[[3]]");
  CHECK(shrink(fixed, inputs[2], cpu.stream(0)).tensor().to_vector<float>() == Rows{3, 4, 5});
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("shrink without an order, or with two, is an error that names both values") {
  CpuDevice cpu;
  const auto [steps, order] = unpack(ragged({{2, 1}}), 0, true, cpu.stream(0));
  const auto [other, other_order] = unpack(ragged({{1, 1}}), 0, true, cpu.stream(0));
  const SlotValue input = run_fifo(steps.values())[0];
  const SlotValue foreign = run_fifo(other.values())[0];
  const SlotValue bare(LoDTensor(counting(2)));
  const std::string what = message_of([&] { shrink(bare, input, cpu.stream(0)); });
  CHECK(what.find("without an order") != std::string::npos);
  CHECK(what.find("[[2,1]]") != std::string::npos);
  CHECK_THROWS_AS(shrink(foreign, input, cpu.stream(0)), ArgumentError);
  CHECK_THROWS_AS((void)bare.order(), ArgumentError);
}

TEST_CASE("a slot with other rows than sequences live is an error that names shrink") {
  CpuDevice cpu;
  const auto [steps, order] = unpack(ragged({{2, 1}}), 0, true, cpu.stream(0));
  const TensorArray states(2, order);
  const std::string what = message_of([&] { states.write(1, counting(2)); });
  CHECK(what.find("expected 1 rows") != std::string::npos);
  CHECK(what.find("shrink") != std::string::npos);
  CHECK_THROWS_AS(TensorArray(3, order), ArgumentError);
}

TEST_CASE("what is packed or joined of no slots has the levels that a slot was said to have") {
  CpuDevice cpu;
  const StreamRef stream = cpu.stream(0);
  const auto empty = [&](const std::vector<LoD::Level>& lengths) { return unpack(ragged(lengths), 0, true, stream); };
  const auto [sentences, of_two] = empty({{0, 0}, {}});
  const auto slots = [&](const SequenceOrder& order, int levels) {
    return TensorArray(0, order).of(DType::f32, DDim{DDim::unknown, 1}, levels);
  };
  CHECK(run_fifo(pack(sentences, 0, of_two, stream)).lod().to_string() == "[[0,0],[]]");
  CHECK(run_fifo(pack(slots(of_two, 0), 0, of_two, stream)).lod().to_string() == "[[0,0]]");
  CHECK(run_fifo(pack(slots(of_two, 2), 0, of_two, stream)).lod().to_string() == "[[0,0],[],[]]");
  const auto [words, of_one] = empty({{0, 0, 0}});
  CHECK(run_fifo(pack(slots(of_one, 1), 0, of_one, stream)).lod().to_string() == "[[0,0,0],[]]");
  const LoDTensor joined = run_fifo(slots(of_one, 1).concat(stream));
  CHECK(joined.lod().depth() == 1);
  CHECK(joined.rows() == 0);
}

TEST_CASE("a missing level, another level and an open array are refused by name") {
  CpuDevice cpu;
  CHECK_THROWS_AS(unpack(ragged({{2, 1}}), 1, true, cpu.stream(0)), LoDError);
  CHECK_THROWS_AS(unpack(LoDTensor(counting(3)), 0, true, cpu.stream(0)), LoDError);
  const auto [steps, order] = unpack(ragged({{2, 1}}), 0, true, cpu.stream(0));
  CHECK_THROWS_AS(run_fifo(pack(steps, 1, order, cpu.stream(0))), LoDError);
  const std::string what = message_of([] { unpack(TensorArray::growable().named("live"), true); });
  CHECK(what.find("'live'") != std::string::npos);
  CHECK(what.find("sorted") != std::string::npos);
  CHECK(unpack(TensorArray::growable(), false).size() == 0);
}

}  // namespace
}  // namespace millrace
