// SPDX-License-Identifier: Apache-2.0
#include <soak/scenario.h>

#include <utility>

#include <millrace/runtime/array/pack.h>
#include <millrace/runtime/array/shrink.h>
#include <millrace/runtime/array/unpack.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace::soak {
namespace {

constexpr std::int64_t width = 3;

Tensor source(float seed, StreamRef stream) {
  Tensor out(DType::f32, DDim{1, width}, stream.memory());
  launch<0, 1>(
      {}, {&out},
      [out, seed](ThreadTeam&) {
        auto* to = static_cast<float*>(out.raw_mutable());
        for (std::int64_t i = 0; i < width; ++i) to[i] = seed + 0.25f * static_cast<float>(i);
      },
      stream);
  return out;
}

/// a·0.6 + b·0.3 + c, row by row: rounds at every step, so that order and wrong inputs show in the bits. Extents of a; b has as many
/// elements.
Tensor blend(const Tensor& a, const Tensor& b, float c, StreamRef stream) {
  Tensor out(DType::f32, a.dims(), stream.memory());
  launch<2, 1>(
      {&a, &b}, {&out},
      [a, b, out, c](ThreadTeam&) {
        const auto* x = static_cast<const float*>(a.raw());
        const auto* y = static_cast<const float*>(b.raw());
        auto* to = static_cast<float*>(out.raw_mutable());
        for (std::int64_t i = 0; i < out.elements(); ++i) to[i] = x[i] * 0.6f + y[i] * 0.3f + c;
      },
      stream);
  return out;
}

StreamRef stream_of(Device* device, std::int64_t number) { return device->stream(static_cast<std::size_t>(number)); }

task<Values> values_on_host(Tensor tensor) {
  co_await ready(tensor.ready());
  co_return tensor.to_vector<float>();
}

task<Values> concat_on_host(TensorArray array, StreamRef stream) {
  LoDTensor all = co_await array.concat(stream);
  Values values = co_await values_on_host(all.tensor());
  co_return values;
}

// ---- Pipelines over open arrays and windows ----

task<void> produce(TensorArray to, std::int64_t items, float seed, Device* device) {
  for (std::int64_t i = 0; i < items; ++i) {
    const Tensor item = source(seed + static_cast<float>(i), stream_of(device, i));
    if (to.is_window())
      co_await to.append(item);
    else
      to.append(item);
  }
  if (!to.is_fixed()) to.close();
}

/// Adds each item to its own last output: a loop with state, on streams of its own choice.
task<void> relay(TensorArray from, TensorArray to, float c, std::int64_t lane, Device* device) {
  Tensor state = source(c, stream_of(device, lane));
  for (std::int64_t i = 0;; ++i) {
    const bool more = co_await from.has(i);
    if (!more) break;
    SlotValue item = co_await from.read(i);
    state = blend(item.tensor(), state, c, stream_of(device, i + lane));
    if (to.is_window())
      co_await to.append(state);
    else
      to.append(state);
  }
  to.close();
}

task<void> merge(TensorArray left, TensorArray right, TensorArray to, Device* device) {
  for (std::int64_t i = 0;; ++i) {
    const bool more = co_await left.has(i);
    if (!more) break;
    SlotValue a = co_await left.read(i);
    SlotValue b = co_await right.read(i);
    const Tensor merged = blend(a.tensor(), b.tensor(), 0.5f, stream_of(device, i));
    to.append(merged);
  }
  to.close();
}

task<Values> pipelines(Device* device) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray a = TensorArray::growable().named("a");
  const TensorArray b = TensorArray::growable().named("b");
  const TensorArray a2 = TensorArray::growable().named("a2");
  const TensorArray b2 = TensorArray::growable().named("b2");
  const TensorArray out = TensorArray::growable().named("out");
  scope.spawn(produce(a, 7, 1.0f, device), "produce a");
  scope.spawn(produce(b, 7, 2.0f, device), "produce b");
  scope.spawn(relay(a, a2, 0.1f, 0, device), "relay a");
  scope.spawn(relay(b, b2, 0.2f, 1, device), "relay b");
  scope.spawn(merge(a2, b2, out, device), "merge");
  Values values = co_await concat_on_host(out, stream_of(device, 1));
  co_await scope.join();
  co_return values;
}

task<Values> windows(Device* device) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray a = TensorArray::window(2).named("a");
  const TensorArray b = TensorArray::window(1).named("b");
  const TensorArray a2 = TensorArray::window(3).named("a2");
  const TensorArray b2 = TensorArray::window(2).named("b2");
  const TensorArray out = TensorArray::growable().named("out");
  scope.spawn(produce(a, 9, 1.0f, device), "produce a");
  scope.spawn(produce(b, 9, 2.0f, device), "produce b");
  scope.spawn(relay(a, a2, 0.1f, 0, device), "relay a");
  scope.spawn(relay(b, b2, 0.2f, 1, device), "relay b");
  scope.spawn(merge(a2, b2, out, device), "merge");
  Values values = co_await concat_on_host(out, stream_of(device, 0));
  co_await scope.join();
  co_return values;
}

// ---- Loops that read each other's previous iteration ----

constexpr std::int64_t mutual_iterations = 6;

task<void> mutual(TensorArray mine, TensorArray other, float c, std::int64_t lane, Device* device) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = mine.writer(me, mine.name());
  const LoDTensor boot(source(c, stream_of(device, lane)));
  for (std::int64_t t = 0; t < mutual_iterations; ++t) {
    const StreamRef stream = stream_of(device, t + lane);
    SlotValue own = co_await mine.read(t - 1, boot, stream);
    SlotValue theirs = co_await other.read(t - 1, boot, stream);
    writer.write(t, blend(own.tensor(), theirs.tensor(), c, stream));
  }
}

task<Values> mutual_loops(Device* device) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  TensorArray arrays[6];
  for (int i = 0; i < 6; ++i) arrays[i] = TensorArray(mutual_iterations).named("loop " + std::to_string(i));
  for (int i = 0; i < 6; ++i)
    scope.spawn(mutual(arrays[i], arrays[(i + 1) % 6], 0.1f * static_cast<float>(i), i, device), arrays[i].name());
  Values all;
  for (int i = 0; i < 6; ++i) {
    const Values more = co_await concat_on_host(arrays[i], stream_of(device, i));
    all.insert(all.end(), more.begin(), more.end());
  }
  co_await scope.join();
  co_return all;
}

// ---- Layers as a wavefront: a task for each layer and iteration ----

constexpr std::int64_t layer_iterations = 6;

task<void> cell(TensorArray below, TensorArray states, std::int64_t t, float c, Device* device) {
  const StreamRef stream = stream_of(device, t);
  const LoDTensor boot(source(c, stream));
  SlotValue input = co_await below.read(t);
  SlotValue last = co_await states.read(t - 1, boot, stream);
  const Tensor state = blend(input.tensor(), last.tensor(), c, stream);
  const Tensor kept = states.prepare(t, DType::f32, state.dims(), stream);
  copy(state, kept, stream);
  states.write(t, kept);
}

task<Values> wavefront(Device* device) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  TensorArray below = TensorArray(layer_iterations).named("input");
  scope.spawn(produce(below, layer_iterations, 1.0f, device), "input");
  for (int layer = 0; layer < 3; ++layer) {
    const TensorArray states = TensorArray(layer_iterations).named("layer " + std::to_string(layer));
    for (std::int64_t t = layer_iterations - 1; t >= 0; --t)
      scope.spawn(cell(below, states, t, 0.1f + static_cast<float>(layer), device), "cell");
    below = states;
  }
  Values values = co_await concat_on_host(below, stream_of(device, 1));
  co_await scope.join();
  co_return values;
}

// ---- The ragged loop: a task for each iteration ----

task<void> ragged_iteration(TensorArray steps, TensorArray states, std::int64_t t, LoDTensor boot, Device* device) {
  const StreamRef stream = stream_of(device, t);
  SlotValue step_input = co_await steps.read(t);
  SlotValue last = co_await states.read(t - 1, boot, stream);
  SlotValue pre_state = shrink(last, step_input, stream);
  states.write(t, blend(pre_state.tensor(), step_input.tensor(), 0.7f, stream));
}

Tensor rows(std::int64_t count, StreamRef stream) {
  Tensor out(DType::f32, DDim{count, 1}, stream.memory());
  launch<0, 1>(
      {}, {&out},
      [out](ThreadTeam&) {
        for (std::int64_t i = 0; i < out.elements(); ++i) static_cast<float*>(out.raw_mutable())[i] = 1.0f + 0.3f * static_cast<float>(i);
      },
      stream);
  return out;
}

task<Values> ragged(Device* device) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const LoDTensor x(rows(14, stream_of(device, 0)), LoD::from_lengths({{2, 0, 6, 1, 5}}));
  const LoDTensor boot(rows(5, stream_of(device, 1)));
  const std::pair<TensorArray, SequenceOrder> steps = unpack(x, 0, true, stream_of(device, 0));
  const TensorArray states = TensorArray(steps.first.size(), steps.second).named("states");
  for (std::int64_t t = steps.first.size() - 1; t >= 0; --t)
    scope.spawn(ragged_iteration(steps.first, states, t, boot, device), "iteration " + std::to_string(t));
  LoDTensor y = co_await pack(states, 0, steps.second, stream_of(device, 1));
  Values values = co_await values_on_host(y.tensor());
  co_await scope.join();
  co_return values;
}

// ---- A circle of waits beside loops that go on ----

task<void> waits_for(TensorArray mine, TensorArray other) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = mine.writer(me, mine.name());
  SlotValue value = co_await other.read(0);
  writer.write(0, value);
}

task<Values> circle(Device* device) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  TensorArray arrays[3];
  for (int i = 0; i < 3; ++i) arrays[i] = TensorArray(1).named("circle " + std::to_string(i));
  for (int i = 0; i < 3; ++i) scope.spawn(waits_for(arrays[i], arrays[(i + 1) % 3]), arrays[i].name());
  const TensorArray a = TensorArray::window(2).named("a");
  const TensorArray out = TensorArray::growable().named("out");
  scope.spawn(produce(a, 7, 1.0f, device), "produce a");
  scope.spawn(relay(a, out, 0.1f, 0, device), "relay a");
  scope.spawn(relay(out, TensorArray::growable(), 0.1f, 1, device), "relay out");
  co_await scope.join();
  co_return Values();
}

}  // namespace

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all{
      {"pipelines", pipelines}, {"windows", windows}, {"mutual loops", mutual_loops},
      {"wavefront", wavefront}, {"ragged", ragged},   {"circle", circle, true},
  };
  return all;
}

}  // namespace millrace::soak
