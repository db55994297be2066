// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/tensor_array.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/launch.h>
#include <support/drive.h>
#include <support/random.h>

namespace millrace {
namespace {

using testing::run_fifo;
using testing::Schedule;

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Tensor range(std::int64_t rows, std::int64_t columns) {
  Tensor made(DType::f32, DDim{rows, columns});
  float* to = made.mutable_data<float>();
  for (std::int64_t i = 0; i < made.elements(); ++i) to[i] = static_cast<float>(i);
  return made;
}

task<std::vector<float>> read_into(TensorArray array, std::int64_t index) {
  SlotValue value = co_await array.read(index);
  co_return value.tensor().to_vector<float>();
}

task<void> scatter_rows(TensorArray array) {
  array.scatter({1, 0}, range(2, 2));
  co_return;
}

task<void> read_while_scattered(Scope& scope, TensorArray array) {
  scope.spawn(scatter_rows(array), "scatter");
  CHECK(array.state(0) == SlotState::empty);
  const std::vector<float> values = co_await read_into(array, 0);
  CHECK(values == std::vector<float>{2, 3});
}

task<void> write_float(TensorArray array, std::int64_t index, float value) {
  array.write(index, Tensor::scalar(value));
  co_return;
}

// ---- Case 10, 12: values ----

TEST_CASE("unstack of 16 by 32 gives 16 slots that are views, and stack gives them back without a copy") {
  CpuDevice cpu;
  const Tensor x = range(16, 32);
  const TensorArray array = TensorArray::unstack(x);
  CHECK(array.size() == 16);
  const std::vector<float> third = run_fifo(read_into(array, 3));
  CHECK(third == x.select(0, 3).to_vector<float>());
  const Tensor stacked = run_fifo(array.stack(cpu.stream(0)));
  CHECK(stacked.dims() == DDim{16, 32});
  CHECK(stacked.raw() == x.raw());
  CHECK(stacked.is_read_only());
  const TensorArray columns = TensorArray::unstack(x, 1);
  CHECK(columns.size() == 32);
  const Tensor turned = run_fifo(columns.stack(cpu.stream(0)));
  CHECK(turned.dims() == DDim{32, 16});
  CHECK(turned.to_vector<float>() == x.permute({1, 0}).to_vector<float>());
}

TEST_CASE("a shared write aliases and freezes, a copied one does neither") {
  CpuDevice cpu;
  const TensorArray array(2);
  Tensor shared = Tensor::from<float>({1, 2});
  Tensor copied = Tensor::from<float>({3, 4});
  array.write(0, shared, share);
  array.write(1, copied, TensorArray::copy, cpu.stream(0));
  CHECK_THROWS_AS(shared.mutable_data<float>(), ReadOnlyError);
  copied.mutable_data<float>()[0] = 9;
  CHECK(run_fifo(read_into(array, 0)) == std::vector<float>{1, 2});
  CHECK(run_fifo(read_into(array, 1)) == std::vector<float>{3, 4});
  CHECK_THROWS_AS(array.write(0, shared, TensorArray::copy), ArgumentError);
}

TEST_CASE("stack of three of extents 0 and 1, concat of 3 + 2 + 1 rows, split by 2, 0 and 1") {
  CpuDevice cpu;
  TensorArray empties(3);
  for (int i = 0; i < 3; ++i) empties.write(i, Tensor(DType::f32, DDim{0, 1}));
  CHECK(run_fifo(empties.stack(cpu.stream(0))).dims() == DDim{3, 0, 1});

  TensorArray parts(3);
  parts.write(0, range(3, 2));
  parts.write(1, range(2, 2));
  parts.write(2, range(1, 2));
  const LoDTensor joined = run_fifo(parts.concat(cpu.stream(0)));
  CHECK(joined.dims() == DDim{6, 2});
  CHECK(joined.tensor().to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1});
  CHECK(contains(message_of([&] { run_fifo(parts.stack(cpu.stream(0))); }), "slot 0"));

  const Tensor x = Tensor::from<float>({1, 2, 3});
  const TensorArray split = TensorArray::split(x, {2, 0, 1});
  CHECK(run_fifo(read_into(split, 0)) == std::vector<float>{1, 2});
  CHECK(run_fifo(read_into(split, 1)).empty());
  CHECK(run_fifo(read_into(split, 2)) == std::vector<float>{3});
  CHECK(run_fifo(split.concat(cpu.stream(0))).tensor().raw() == x.raw());
  CHECK(contains(message_of([&] { TensorArray::split(x, {1}); }), "a sum of 1"));
}

TEST_CASE("stack of no slots has the shape that was given, and without one is an error") {
  CpuDevice cpu;
  CHECK(run_fifo(TensorArray(0).of(DType::i64, DDim{3, DDim::unknown}).stack(cpu.stream(0))).dims() == DDim{0, 3, 0});
  CHECK(contains(message_of([&] { run_fifo(TensorArray(0).named("steps").stack(cpu.stream(0))); }),
                 "array 'steps' of 0 slots: stack expected"));
}

TEST_CASE("gather stacks the named slots and scatter writes them") {
  CpuDevice cpu;
  const TensorArray array(3);
  array.scatter({2, 0, 1}, range(3, 2));
  const Tensor chosen = run_fifo(array.gather({0, 0, 2}, cpu.stream(0)));
  CHECK(chosen.to_vector<float>() == std::vector<float>{2, 3, 2, 3, 0, 1});
  CHECK_THROWS_AS(TensorArray(3).scatter({0}, range(3, 2)), ShapeError);
}

TEST_CASE("a scatter that cannot write each of its slots writes none and leaves the array as it was") {
  const auto untouched = [](const TensorArray& array) {
    for (std::int64_t slot = 0; slot < 3; ++slot)
      if (slot != 1 && array.state(slot) != SlotState::empty) return false;
    return true;
  };
  const TensorArray taken(3);
  taken.write(1, range(1, 2).select(0, 0));
  CHECK_THROWS_AS(taken.scatter({0, 1, 2}, range(3, 2)), WrittenTwiceError);
  CHECK(untouched(taken));
  taken.scatter({2, 0}, range(2, 2));
  CHECK(taken.peek(0)->tensor().to_vector<float>() == std::vector<float>{2, 3});

  const TensorArray array(3);
  CHECK_THROWS_AS(array.scatter({0, 2, 3}, range(3, 2)), IndexError);
  CHECK_THROWS_WITH_AS(array.scatter({0, 2, 0}, range(3, 2)),
                       doctest::Contains("slot 0 of array 'array' of 3 slots: expected each slot once"), WrittenTwiceError);
  CHECK(untouched(array));
  array.write(0, Tensor::from<double>({1}));  // the scatters said nothing of the type of slots

  const TensorArray window = TensorArray::window(2);
  CHECK_THROWS_WITH_AS(window.scatter({0, 1, 2}, range(3, 2)), doctest::Contains("expected room for all slots of a scatter"), WindowError);
  CHECK(window.size() == 0);
  window.scatter({0, 1}, range(2, 2));
  CHECK(run_fifo(read_into(window, 1)) == std::vector<float>{2, 3});
}

TEST_CASE("a scatter wakes those who wait for its slots") { run_fifo(with_scope(read_while_scattered, TensorArray(2))); }

TEST_CASE("a writer that was moved from says so") {
  const TensorArray array(2);
  ArrayWriter moved = array.feeder("socket");
  ArrayWriter writer = std::move(moved);
  const char* const why = "array writer: expected a writer, found one that was moved from";
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_THROWS_WITH_AS(moved.name(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.write(0, Tensor::scalar(1.0f)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.append(Tensor::scalar(1.0f)), why, ArgumentError);
  // NOLINTEND(bugprone-use-after-move)
  CHECK(writer.name() == "socket");
  writer.write(0, Tensor::scalar(1.0f));
  moved = std::move(writer);
  CHECK(moved.name() == "socket");
}

TEST_CASE("each member of an array that was moved from is refused") {
  CpuDevice cpu;
  TensorArray moved(2);
  const TensorArray array = std::move(moved);
  const char* const why = "array: expected an array, found one that was moved from";
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.size()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.name()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.to_string()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.named("other")), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.of(DType::f32, {2})), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.expect(DType::f32, {2}), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.slot_levels()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.state(0)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.order()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.is_window()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.is_fixed()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.closed()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.peek(0)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.read(-1, LoDTensor(range(1, 2)), cpu.stream(0))), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.write(0, range(1, 2), TensorArray::copy, cpu.stream(0)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.fill(range(2, 2), {0, 1, 2}), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.fill_items(range(2, 2)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.begin_fill(range(2, 2), {0, 1, 2}, nullptr, 1), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.issue(1), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.filled()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.filling()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.issued()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.picked()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.untouched()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.prepare(0, DType::f32, {2}, cpu.stream(0))), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.writer("w")), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.feeder("w")), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.has_writers()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.close(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.fail(std::make_exception_ptr(ArgumentError("mine"))), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.cancel(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.watermark(1)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(run_fifo(moved.values())), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(run_fifo(moved.stack(cpu.stream(0)))), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(run_fifo(moved.concat(cpu.stream(0)))), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(run_fifo(moved.gather({}, cpu.stream(0)))), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(run_fifo(moved.once_filled())), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.scatter({0}, range(1, 2)), why, ArgumentError);
  CHECK_FALSE(moved == array);
  // NOLINTEND(bugprone-use-after-move)
}

TEST_CASE("reads and writes by an array that was moved from, and writes of a tensor that was, are refused") {
  TensorArray moved(2);
  const TensorArray array = std::move(moved);
  const char* const why = "array: expected an array, found one that was moved from";
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_THROWS_WITH_AS(moved.write(0, Tensor::scalar(1.0f)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(moved.append(Tensor::scalar(1.0f)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.read(0)), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(moved.has(0)), why, ArgumentError);
  Tensor value = Tensor::scalar(1.0f);
  const Tensor taken = std::move(value);
  CHECK_THROWS_WITH_AS(array.write(1, value), "array 'array' of 2 slots: expected a tensor for slot 1, found one that was moved from",
                       UninitializedError);
  // NOLINTEND(bugprone-use-after-move)
  array.write(1, taken);
  CHECK(array.peek(1)->tensor().item() == 1);
}

TEST_CASE("a gather of no slots has the extents of the slots") {
  CpuDevice cpu;
  const TensorArray array(3);
  array.write(1, range(2, 2));
  CHECK(run_fifo(array.gather({}, cpu.stream(0))).dims() == DDim{0, 2, 2});
  CHECK(run_fifo(TensorArray::unstack(range(4, 3)).gather({}, cpu.stream(0))).dims() == DDim{0, 3});
  CHECK(run_fifo(TensorArray(2).of(DType::i64, DDim{5, 2}).gather({}, cpu.stream(0))).dims() == DDim{0, 5, 2});
}

TEST_CASE("slots of several shapes, or with levels, are neither stacked nor gathered") {
  CpuDevice cpu;
  const TensorArray shapes(2), levels(1);
  shapes.write(0, range(3, 1));
  shapes.write(1, range(2, 1));
  levels.write(0, LoDTensor(range(3, 1), LoD::parse("[[1,2]]")));
  CHECK_THROWS_AS(run_fifo(shapes.gather({1, 0}, cpu.stream(0))), ShapeError);
  CHECK(contains(message_of([&] { run_fifo(shapes.gather({1, 0}, cpu.stream(0))); }), "[2, 1] in slot 1 and [3, 1] in slot 0"));
  CHECK_THROWS_AS(run_fifo(levels.stack(cpu.stream(0))), LoDError);
  CHECK_THROWS_AS(run_fifo(levels.gather({0}, cpu.stream(0))), LoDError);
  CHECK(run_fifo(levels.concat(cpu.stream(0))).lod() == LoD::parse("[[1,2]]"));
}

TEST_CASE("levels are kept by peel and concat, and refused where they would be lost") {
  CpuDevice cpu;
  const LoDTensor x(range(6, 1), LoD::parse("[[2,1],[3,1,2]]"));
  const TensorArray sequences = TensorArray::peel(x);
  CHECK(sequences.size() == 2);
  const LoDTensor back = run_fifo(sequences.concat(cpu.stream(0)));
  CHECK(back.lod() == LoD::parse("[[3,1,2]]"));
  CHECK(back.tensor().raw() == x.tensor().raw());
  CHECK(contains(message_of([&] { TensorArray array(x); }), "unpack"));
}

TEST_CASE("an index and a size may be scalar tensors") {
  const TensorArray array(Tensor::scalar<std::int64_t>(2));
  CHECK(array.size() == 2);
  array.write(Tensor::scalar<std::int32_t>(1), Tensor::from<float>({5}));
  CHECK(run_fifo(read_into(array, 1)) == std::vector<float>{5});
}

task<void> through_proxy(TensorArray states) {
  states[0] = Tensor::scalar(2.0f);
  SlotValue first = co_await states[0];
  states[1] = first;
  SlotValue second = co_await states[1];
  CHECK(second.tensor().item() == 2.0);
}

TEST_CASE("square brackets read and write a slot") { run_fifo(through_proxy(TensorArray(2))); }

// ---- Case 11: errors ----

TEST_CASE("an index outside a fixed array is an error that states index and size") {
  CpuDevice cpu;
  const TensorArray array = TensorArray(3).named("states");
  const Tensor value = Tensor::scalar(1.0f);
  for (const std::int64_t index : {std::int64_t{-1}, std::int64_t{3}}) {
    CHECK_THROWS_AS(array.write(index, value), IndexError);
    const std::string what = message_of([&] { array.write(index, value); });
    CHECK(contains(what, "'states' of 3 slots"));
    CHECK(contains(what, "found " + std::to_string(index)));
  }
  CHECK_THROWS_AS(run_fifo(read_into(array, 3)), IndexError);
  CHECK(contains(message_of([&] { run_fifo(read_into(array, 3)); }), "3 slots"));
  CHECK_THROWS_AS(run_fifo(read_into(array, -1)), IndexError);
  CHECK(contains(message_of([&] { run_fifo(read_into(array, -1)); }), "boot"));
  CHECK_THROWS_AS(run_fifo(read_into(array, -2)), IndexError);
  CHECK_THROWS_AS(TensorArray(-1), ArgumentError);
}

TEST_CASE("the largest integer numbers no slot, and a window of any capacity goes on behind its first slots") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Tensor value = Tensor::scalar(1.0f);
  for (const TensorArray& array : {TensorArray::growable(), TensorArray::window(4), TensorArray(most)}) {
    CHECK_THROWS_AS(array.write(most, value), IndexError);
    CHECK_THROWS_AS(run_fifo(read_into(array, most)), IndexError);
  }
  const TensorArray long_one;
  long_one.write(most - 1, value);
  CHECK(long_one.size() == most);
  CHECK_THROWS_AS(long_one.append(value), IndexError);
  CHECK_THROWS_AS(TensorArray(most).fill(range(1, 1), {}), ShapeError);

  const TensorArray window = TensorArray::window(most);
  window.append(value);
  CHECK(run_fifo(read_into(window, 0)) == std::vector<float>{1});
  window.append(value);
  CHECK(run_fifo(read_into(window, 1)) == std::vector<float>{1});
}

TEST_CASE("the state of a slot that the array does not have is an error") {
  CHECK_THROWS_AS(TensorArray::growable().state(-7), IndexError);
  CHECK_THROWS_AS(TensorArray(2).state(2), IndexError);
  CHECK(TensorArray::growable().state(2) == SlotState::empty);
}

TEST_CASE("a type that is given behind the first write fits the slots that are written") {
  const TensorArray array(3), filled(2), declared = TensorArray(1).of(DType::i64, DDim{2});
  array.write(1, range(2, 3));
  CHECK_THROWS_AS(array.of(DType::i64, DDim{2, 3}), DTypeError);
  for (const DDim& other : {DDim{2, 4}, DDim{1, 3}, DDim{2, 3, 1}}) CHECK_THROWS_AS(array.of(DType::f32, other), ShapeError);
  CHECK_NOTHROW(array.of(DType::f32, DDim{DDim::unknown, DDim::unknown}));
  CHECK_NOTHROW(array.of(DType::f32, DDim{2, 3}));
  filled.fill(range(3, 2), {0, 1, 3});
  CHECK_THROWS_AS(filled.of(DType::f32, DDim{1, 2}), ShapeError);
  CHECK_NOTHROW(filled.of(DType::f32, DDim{DDim::unknown, 2}));
  // Before any write the last call counts.
  CHECK_NOTHROW(declared.of(DType::f32, DDim{3, 1}).write(0, range(3, 1)));
}

TEST_CASE("slots that no memory holds are refused, and so are lengths that no integer holds") {
  constexpr std::int64_t many = std::int64_t{1} << 40;
  const Tensor nothing(DType::f32, DDim{many, 0}), turned(DType::f32, DDim{0, many});
  CHECK_THROWS_AS(TensorArray::unstack(nothing), ArgumentError);
  CHECK_THROWS_AS(TensorArray::unstack(turned, 1), ArgumentError);
  CHECK_THROWS_AS(TensorArray(many).fill_items(nothing), ArgumentError);
  CHECK(TensorArray::unstack(turned).size() == 0);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS(TensorArray::split(range(3, 1), {most, most, 5}), OverflowError);
}

TEST_CASE("a growable array written at 10 has length 11") {
  const TensorArray array;
  CHECK(array.size() == 0);
  array.write(10, Tensor::scalar(1.0f));
  CHECK(array.size() == 11);
  array.append(Tensor::scalar(2.0f));
  CHECK(array.size() == 12);
  CHECK(array.state(3) == SlotState::empty);
  CHECK(array.state(10) == SlotState::written);
}

TEST_CASE("a second write, a write after close and a mismatch are errors that name both sides") {
  const TensorArray array = TensorArray::growable().named("outputs");
  array.write(0, Tensor::from<float>({1, 2}).reshape({1, 2}));
  CHECK_THROWS_AS(array.write(0, Tensor::from<float>({1, 2}).reshape({1, 2})), WrittenTwiceError);
  CHECK(contains(message_of([&] { array.write(0, Tensor::from<float>({1, 2})); }), "a slot is written once"));

  const std::string dtype = message_of([&] { array.write(1, Tensor::from<double>({1, 2}).reshape({1, 2})); });
  CHECK(contains(dtype, "expected f32"));
  CHECK(contains(dtype, "found f64"));
  const std::string shape = message_of([&] { array.write(1, range(1, 3)); });
  CHECK(contains(shape, "[?, 2]"));
  CHECK(contains(shape, "[1, 3]"));
  CHECK(array.state(1) == SlotState::empty);

  const TensorArray declared = TensorArray(1).of(DType::f32, DDim{2, 2});
  CHECK_THROWS_AS(declared.write(0, range(3, 2)), ShapeError);
  CHECK_THROWS_AS(TensorArray(1).write(0, Tensor(DType::f32, DDim{2})), UninitializedError);

  array.close();
  CHECK_THROWS_AS(array.write(1, range(1, 2)), ClosedError);
  CHECK(contains(message_of([&] { array.write(1, range(1, 2)); }), "'outputs'"));
}

TEST_CASE("rows that are picked are those of a tensor that lies on the host, whole and contiguous") {
  const TensorArray array(2);
  CHECK_THROWS_AS(array.fill_picked({range(3, 2), {0, 3}, host_memory()}, {0, 1, 2}), ArgumentError);
  CHECK_THROWS_AS(array.fill_picked({range(3, 2), {0, -1}, host_memory()}, {0, 1, 2}), ArgumentError);
  CHECK_THROWS_AS(array.fill_picked({range(3, 4).slice(1, 0, 2), {0, 1}, host_memory()}, {0, 1, 2}), ArgumentError);
  CHECK_THROWS_AS(array.fill_picked({range(3, 2), {0, 1}, host_memory()}, {0, 2}), ShapeError);
  CHECK(array.picked() == nullptr);
  array.fill_picked({range(3, 2), {2, 0, 2}, host_memory()}, {0, 1, 3});
  CHECK(array.picked() != nullptr);
  CHECK(array.state(1) == SlotState::written);
  CHECK_THROWS_AS(array.write(0, range(1, 2)), WrittenTwiceError);
  CHECK(array.filled()->whole.to_vector<float>() == std::vector<float>{4, 5, 0, 1, 4, 5});
  CHECK(array.picked() == nullptr);
}

TEST_CASE("a fill that is issued piece by piece has its first slots, and the others may still be written one by one") {
  const Tensor rows = range(6, 2);
  const TensorArray array = TensorArray(3).named("outputs");
  CHECK(array.filling() == nullptr);
  CHECK_THROWS_AS(array.issue(1), ArgumentError);
  for (const std::int64_t wrong : {0, 4}) CHECK_THROWS_AS(array.begin_fill(rows, {0, 1, 3, 6}, nullptr, wrong), ArgumentError);
  CHECK_THROWS_AS(array.begin_fill(rows, {0, 1, 6}, nullptr, 1), ShapeError);
  CHECK(array.untouched());
  array.begin_fill(rows, {0, 1, 3, 6}, nullptr, 1);
  CHECK(array.filled() == nullptr);
  CHECK(array.filling()->whole.dims() == rows.dims());
  CHECK(array.issued() == 1);
  CHECK(array.peek(0)->dims() == DDim{1, 2});
  CHECK(!array.peek(1));
  CHECK(array.state(1) == SlotState::empty);
  CHECK(contains(message_of([&] { array.write(0, range(1, 2)); }), "a slot is written once"));
  CHECK_THROWS_AS(array.begin_fill(rows, {0, 1, 3, 6}, nullptr, 3), WrittenTwiceError);
  CHECK(!rows.storage()->frozen());
  // A reader may freeze its slot; the writer of the others goes on.
  const LoDTensor first = *array.peek(0);
  TensorArray(1).write(0, first);
  CHECK(first.tensor().is_read_only());
  CHECK(!rows.storage()->frozen());

  SUBCASE("all of them are issued") {
    array.issue(2);
    CHECK_THROWS_AS(array.issue(1), ArgumentError);
    CHECK_THROWS_AS(array.issue(4), ArgumentError);
    CHECK(array.peek(1)->dims() == DDim{2, 2});
    array.issue(3);
    CHECK(array.filled() == array.filling());
    CHECK(rows.storage()->frozen());
  }
  SUBCASE("others are written") {
    array.write(2, range(1, 2));
    CHECK_THROWS_AS(array.issue(3), WrittenTwiceError);
    array.issue(2);
    CHECK(array.peek(2)->dims() == DDim{1, 2});
    CHECK(array.filled() == nullptr);
    CHECK(array.state(1) == SlotState::written);
  }
  SUBCASE("the others fail") {
    array.close();
    CHECK(array.state(0) == SlotState::written);
    CHECK(array.state(1) == SlotState::failed);
    CHECK_THROWS_AS(array.issue(2), ClosedError);
    CHECK_NOTHROW(array.issue(1));
    CHECK(array.state(1) == SlotState::failed);
  }
  SUBCASE("the others are given up") {
    array.cancel();
    CHECK_THROWS_AS(array.issue(3), CancelledError);
    CHECK(array.state(1) == SlotState::cancelled);
  }
}

TEST_CASE("a count of slots that a fill cannot have leaves the array as it was") {
  const TensorArray array(3);
  CHECK_THROWS_AS(array.begin_fill(range(6, 2), {0, 1, 3, 6}, nullptr, 4), ArgumentError);
  CHECK(contains(message_of([&] { array.begin_fill(range(6, 4).slice(1, 0, 2), {0, 1, 3, 6}, nullptr, 1); }), "expected contiguous rows"));
  CHECK(contains(message_of([&] { TensorArray::growable().begin_fill(range(1, 1), {0, 1}, nullptr, 1); }), "only a fixed array"));
  CHECK_NOTHROW(array.write(0, Tensor::from<double>({1, 2})));
}

TEST_CASE("the point of all slots fails when the array of a fill under way is closed, also behind slots that are not ready yet") {
  const auto gate = std::make_shared<Timeline>();
  const Tensor rows = range(3, 1);
  const TensorArray array = TensorArray(3).named("outputs");
  rows.storage()->set_ready(Point(gate, 1));
  array.begin_fill(rows, {0, 1, 2, 3}, nullptr, 2);
  const Point second = array.watermark(2), all = array.watermark(3);
  array.close();
  CHECK(!second.reached());
  CHECK(all.error() == nullptr);
  gate->advance(1);
  CHECK(second.reached());
  CHECK(contains(message_of([&] { all.check(); }), "slot 2 of array 'outputs' of 3 slots was never written"));
}

task<Tensor> stacked_without_slots(StreamRef stream) {
  const Tensor nothing(DType::f32, DDim{0, 2});
  Tensor made = co_await TensorArray::unstack(nothing).stack(stream);
  const auto filled = co_await TensorArray::unstack(nothing).once_filled();
  CHECK(filled != nullptr);
  LoDTensor rows = co_await TensorArray::unstack(nothing).concat(stream);
  CHECK(rows.dims()[0] == 0);
  co_return made;
}

TEST_CASE("an array of no slots that was filled is stacked and joined") {
  CpuDevice device;
  Tensor made;
  run_fifo([](Tensor* to, StreamRef stream) -> task<void> { *to = co_await stacked_without_slots(stream); }(&made, device.stream(0)));
  CHECK(made.dims() == DDim{0, 2});
}

// ---- Case 14: waiting ----

task<void> fill_by_pieces(TensorArray array, std::vector<std::int64_t>* events) {
  array.begin_fill(range(4, 1), {0, 1, 2, 3, 4}, nullptr, 2);
  for (int i = 0; i < 3; ++i) co_await this_task::yield();
  events->push_back(-1);
  array.issue(3);
  for (int i = 0; i < 3; ++i) co_await this_task::yield();
  events->push_back(-2);
  array.issue(4);
}

task<void> read_slot(TensorArray array, std::int64_t index, std::vector<std::int64_t>* events) {
  SlotValue value = co_await array.read(index);
  CHECK(value.tensor().to_vector<float>() == std::vector<float>{static_cast<float>(index)});
  events->push_back(index);
}

task<void> await_all(TensorArray array, std::vector<std::int64_t>* events) {
  const auto filled = co_await array.once_filled();
  CHECK(filled != nullptr);
  events->push_back(100);
}

task<void> readers_of_pieces(std::vector<std::int64_t>* events) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray array(4);
  scope.spawn(await_all(array, events), "all");
  for (std::int64_t slot = 3; slot >= 0; --slot) scope.spawn(read_slot(array, slot, events), "reader");
  for (int i = 0; i < 3; ++i) co_await this_task::yield();
  CHECK(events->empty());
  scope.spawn(fill_by_pieces(array, events), "writer");
  co_await scope.join();
  CHECK(array.watermark(4).reached());
}

TEST_CASE("readers of slots go on as the fill is issued, and who wants the whole with the last of them") {
  std::vector<std::int64_t> events;
  run_fifo(readers_of_pieces(&events));
  REQUIRE(events.size() == 7);
  std::sort(events.begin(), events.begin() + 2);
  CHECK(std::vector<std::int64_t>(events.begin(), events.begin() + 5) == std::vector<std::int64_t>{0, 1, -1, 2, -2});
  std::sort(events.begin() + 5, events.end());
  CHECK(std::vector<std::int64_t>(events.begin() + 5, events.end()) == std::vector<std::int64_t>{3, 100});
  CHECK(live_frames() == 0);
}

task<void> reader_first(std::vector<float>* seen) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  TensorArray array(1);
  Spawned<std::vector<float>> reader = scope.start(read_into(array, 0), "reader");
  for (int i = 0; i < 3; ++i) co_await this_task::yield();
  CHECK(array.state(0) == SlotState::waited);
  CHECK(!reader.ended());
  scope.spawn(write_float(array, 0, 7), "writer");
  co_await scope.join();
  *seen = co_await reader;
  CHECK(array.state(0) == SlotState::written);
}

TEST_CASE("a read before the write suspends and resumes with the value") {
  std::vector<float> seen;
  run_fifo(reader_first(&seen));
  CHECK(seen == std::vector<float>{7});
  CHECK(live_frames() == 0);
}

TEST_CASE("a slot that nobody writes is a deadlock that names array, slot and waiter") {
  try {
    run_fifo(read_into(TensorArray(3).named("states"), 2), "loop");
    FAIL("expected a DeadlockError");
  } catch (const DeadlockError& error) {
    const std::string what = error.what();
    CHECK(contains(what, "slot 2"));
    CHECK(contains(what, "'states'"));
    CHECK(contains(what, "'loop'"));
    REQUIRE(error.waiters().size() == 1);
    CHECK(error.waiters()[0].task == "loop");
  }
  CHECK(live_frames() == 0);
}

task<void> registered(TensorArray array, std::int64_t slots, std::string name) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = array.writer(me, std::move(name));
  for (std::int64_t i = 0; i < slots; ++i) {
    writer.write(i, Tensor::scalar(static_cast<float>(i)));
    co_await this_task::yield();
  }
}

task<void> last_writer_goes(std::string* what) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  TensorArray array = TensorArray(5).named("states");
  scope.spawn(registered(array, 3, "encoder loop"), "writer");
  Spawned<std::vector<float>> reader = scope.start(read_into(array, 4), "decoder");
  try {
    co_await scope.join();
  } catch (const NeverWrittenError& error) {
    *what = error.what();
  }
  CHECK(array.state(2) == SlotState::written);
  CHECK(array.state(3) == SlotState::failed);
}

TEST_CASE("a slot fails by name once its last registered writer is gone") {
  std::string what;
  run_fifo(last_writer_goes(&what));
  INFO(what);
  CHECK(contains(what, "slot 4 of array 'states' of 5 slots"));
  CHECK(contains(what, "'encoder loop'"));
  CHECK(contains(what, "slot 2"));
  CHECK(contains(what, "'decoder'"));
  CHECK(live_frames() == 0);
}

task<void> copies_other(TensorArray mine, TensorArray other, std::string name) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = mine.writer(me, std::move(name));
  for (std::int64_t i = 0; i < 3; ++i) {
    SlotValue value = co_await other.read(i);
    writer.write(i, value);
  }
}

task<void> ticks(bool* stop) {
  while (!*stop) co_await this_task::yield();
}

task<void> circle(bool* stop) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray a = TensorArray(3).named("a");
  const TensorArray b = TensorArray(3).named("b");
  scope.spawn(copies_other(a, b, "loop a"), "loop a");
  scope.spawn(copies_other(b, a, "loop b"), "loop b");
  scope.spawn(ticks(stop), "ticks");
  co_await scope.join();
}

/// The error of a run of `circle`, found while the clock stands still and a third task never stops.
std::string deadlock_of_circle(std::size_t* waiters) {
  bool stop = false;
  SeededExecutor executor(1);
  Running<void> running = start_run(executor, circle(&stop), "circle");
  for (int i = 0; i < 1000; ++i) executor.step();
  stop = true;
  executor.run();
  CHECK(executor.now() == TimePoint{});
  try {
    running.get();
  } catch (const DeadlockError& error) {
    *waiters = error.waiters().size();
    return error.what();
  }
  return "no deadlock";
}

TEST_CASE("two loops that read each other's unwritten slots are a named deadlock, found while another task still runs") {
  std::size_t waiters = 0;
  const std::string what = deadlock_of_circle(&waiters);
  INFO(what);
  CHECK(contains(what, "'loop a'"));
  CHECK(contains(what, "'loop b'"));
  CHECK(contains(what, "slot 0 of array 'a'"));
  CHECK(contains(what, "slot 0 of array 'b'"));
  CHECK(waiters == 2);
  CHECK(live_frames() == 0);
}

// ---- Open arrays ----

task<std::int64_t> count_while_open(TensorArray array) {
  std::int64_t count = 0;
  for (;;) {
    const bool more = co_await array.has(count);
    if (!more) break;
    SlotValue value = co_await array.read(count);
    CHECK(value.tensor().item() == static_cast<double>(count));
    ++count;
  }
  co_return count;
}

task<void> feed(TensorArray array, std::int64_t slots) {
  for (std::int64_t i = 0; i < slots; ++i) {
    co_await array.append(Tensor::scalar(static_cast<float>(i)));
    co_await this_task::yield();
  }
  array.close();
}

task<std::int64_t> open_loop(TensorArray array, std::int64_t slots) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  Spawned<std::int64_t> reader = scope.start(count_while_open(array), "reader");
  scope.spawn(feed(array, slots), "feed");
  co_await scope.join();
  const std::int64_t count = co_await reader;
  co_return count;
}

TEST_CASE("on an open array the question whether slot i exists is awaited") {
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    Schedule schedule(seed);
    CHECK(schedule.run(open_loop(TensorArray::growable(), 20)) == 20);
    CHECK(schedule.run(open_loop(TensorArray::window(3), 20)) == 20);
  }
  TensorArray closed;
  closed.append(Tensor::scalar(0.0f));
  closed.close();
  CHECK(run_fifo(count_while_open(closed)) == 1);
  CHECK_THROWS_AS(run_fifo(read_into(closed, 1)), ClosedError);
  CHECK(run_fifo(count_while_open(TensorArray::unstack(Tensor::from<float>({0, 1, 2})))) == 3);
  CHECK(live_frames() == 0);
}

TEST_CASE("slots that were left out fail when the array is closed or fails") {
  const TensorArray gaps;
  gaps.write(2, Tensor::scalar(1.0f));
  gaps.close();
  CHECK(contains(message_of([&] { run_fifo(read_into(gaps, 0)); }), "slot 0"));
  CHECK_THROWS_AS(run_fifo(read_into(gaps, 0)), NeverWrittenError);
  const TensorArray failed(2);
  failed.fail(std::make_exception_ptr(ShapeError("bad row")));
  CHECK_THROWS_AS(failed.fail(nullptr), ArgumentError);
  CHECK_THROWS_AS(run_fifo(read_into(failed, 0)), ShapeError);
  CHECK_THROWS_AS(TensorArray(2).fail(nullptr), ArgumentError);
  const TensorArray cancelled(2);
  cancelled.cancel();
  CHECK(cancelled.state(0) == SlotState::cancelled);
  CHECK_THROWS_AS(cancelled.write(0, Tensor::scalar(1.0f)), CancelledError);
}

task<void> cancelled_read(TensorArray array) {
  TaskInfo& me = co_await this_task::info();
  {
    Scope scope(me);
    Spawned<std::vector<float>> reader = scope.start(read_into(array, 0), "reader");
    for (int i = 0; i < 3; ++i) co_await this_task::yield();
    CHECK(array.state(0) == SlotState::waited);
    scope.cancel();
    co_await scope.join();
    CHECK(reader.ended());
  }
  CHECK(array.state(0) == SlotState::empty);
  array.write(0, Tensor::scalar(1.0f));
}

TEST_CASE("a cancelled wait leaves no trace in its slot") {
  run_fifo(cancelled_read(TensorArray(1)));
  CHECK(live_frames() == 0);
}

}  // namespace
}  // namespace millrace
