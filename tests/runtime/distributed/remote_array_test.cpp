// SPDX-License-Identifier: Apache-2.0
// Arrays whose slots live on another place or rank, and the wavefront of layers that follows from them.
#include <millrace/runtime/distributed/remote_array.h>

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <millrace/runtime/distributed/local.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>
#include <runtime/distributed/layer_arrays.h>
#include <support/random.h>
#include <support/sim_device.h>

using namespace millrace;
using namespace std::chrono_literals;
using testing::seeds, testing::SimDevice;

namespace {

/// The runs of steps: (layer, step), in the order of running, and as spans of a tracer.
struct Log {
  Tracer tracer;
  std::mutex mutex;
  std::vector<std::pair<int, std::int64_t>> ran;
};

/// Step 10 of a layer and step 0 of the layer above it wait for each other inside their kernels. They meet if the two layers can run at once, however slowly
/// their threads start; if the layers cannot, the waits end after a limit. A kernel that waits holds its rank's only thread: what the layer above needs by
/// then must be sent already, so it is the first step.
class Meetings {
 public:
  explicit Meetings(int layers) : layers_(layers), begun_(static_cast<std::size_t>(layers), -1) {}

  void attend(int layer, std::int64_t step) {
    std::unique_lock lock(mutex_);
    begun_[static_cast<std::size_t>(layer)] = step;
    changed_.notify_all();
    if (step == below && layer + 1 < layers_) wait(lock, layer + 1, above);
    if (step == above && layer > 0) wait(lock, layer - 1, below);
  }

 private:
  static constexpr std::int64_t below = 10;
  static constexpr std::int64_t above = 0;

  void wait(std::unique_lock<std::mutex>& lock, int layer, std::int64_t step) {
    static_cast<void>(changed_.wait_for(lock, 20s, [&] { return begun_[static_cast<std::size_t>(layer)] >= step; }));
  }

  const int layers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> begun_;
};

/// next = 0.5 · state + input + layer, as a kernel that says when it ran.
Tensor cell(const Tensor& state, const Tensor& input, int layer, std::int64_t step, Meetings* meetings, Log* log, StreamRef stream) {
  Tensor next(DType::f32, input.dims(), stream.memory());
  launch<2, 1>(
      {&state, &input}, {&next},
      [state, input, next, layer, step, meetings, log](ThreadTeam&) {
        const TraceSpan span(&log->tracer, "kernel", "layer " + std::to_string(layer), static_cast<std::uint64_t>(layer), step);
        if (meetings != nullptr) meetings->attend(layer, step);
        const auto* h = static_cast<const float*>(state.raw());
        const auto* x = static_cast<const float*>(input.raw());
        auto* y = static_cast<float*>(next.raw_mutable());
        for (std::int64_t i = 0; i < input.elements(); ++i) y[i] = 0.5f * h[i] + x[i] + static_cast<float>(layer);
        const std::lock_guard lock(log->mutex);
        log->ran.emplace_back(layer, step);
      },
      stream);
  return next;
}

/// One layer: reads step after step, writes step after step.
task<void> layer_loop(TensorArray in, TensorArray out, int layer, Meetings* meetings, Log* log, StreamRef stream) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = out.writer(me, "layer " + std::to_string(layer));
  Tensor state = clone(Tensor::from<float>({0, 0}), stream);
  for (std::int64_t step = 0; step < in.size(); ++step) {
    const SlotValue input = co_await in.read(step);
    state = cell(state, input.tensor(), layer, step, meetings, log, stream);
    static_cast<void>(writer.write(step, state));
    co_await this_task::yield();
  }
}

TensorArray rows(std::int64_t steps) {
  TensorArray made = TensorArray(steps).named("x");
  for (std::int64_t t = 0; t < steps; ++t) {
    const auto value = static_cast<float>(t);
    static_cast<void>(made.write(t, Tensor::from<float>({std::sin(value), value})));
  }
  return made;
}

/// The last layer's outputs, layer after layer in plain code.
std::vector<float> reference(std::int64_t steps, int layers) {
  std::vector<float> all;
  for (const int column : {0, 1}) {
    std::vector<float> x;
    for (std::int64_t t = 0; t < steps; ++t) x.push_back(column == 0 ? std::sin(static_cast<float>(t)) : static_cast<float>(t));
    for (int layer = 0; layer < layers; ++layer) {
      float h = 0;
      for (float& value : x) value = h = 0.5f * h + value + static_cast<float>(layer);
    }
    all.insert(all.end(), x.begin(), x.end());
  }
  return all;
}

task<std::vector<float>> columns(TensorArray array) {
  std::vector<float> all;
  std::vector<float> second;
  for (std::int64_t t = 0; t < array.size(); ++t) {
    const SlotValue value = co_await array.read(t);
    const Point there = value.ready();
    co_await ready(there);
    const std::vector<float> row = value.tensor().to_vector<float>();
    all.push_back(row[0]);
    second.push_back(row[1]);
  }
  all.insert(all.end(), second.begin(), second.end());
  co_return all;
}

/// The number of times that layer l ran step t after layer l − 1 had run step t + 1 and before that one was at its end: iterations overlap across devices.
std::size_t overlaps(const std::vector<std::pair<int, std::int64_t>>& ran, std::int64_t steps, int layers) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(layers), -1);
  std::size_t count = 0;
  for (const auto& [layer, step] : ran) {
    at[static_cast<std::size_t>(layer)] = step;
    if (layer == 0) continue;
    const std::int64_t below = at[static_cast<std::size_t>(layer) - 1];
    count += below > step && below < steps - 1;
  }
  return count;
}

// ---- Over places ----

task<std::vector<float>> over_places(std::vector<SimDevice*> devices, std::int64_t steps, Log* log) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  TensorArray in = rows(steps);
  for (std::size_t layer = 0; layer < devices.size(); ++layer) {
    const TensorArray here = in.on(OnPlace(scope, *devices[layer]));
    TensorArray out = TensorArray(steps).named("h" + std::to_string(layer));
    scope.spawn(layer_loop(here, out, static_cast<int>(layer), nullptr, log, devices[layer]->stream(0)));
    in = out;
  }
  Spawned<std::vector<float>> result = scope.start(columns(in), "result");
  co_await scope.join();
  std::vector<float> values = co_await result;
  co_return std::move(values);
}

// ---- Over ranks ----

/// Rank r holds layer r; the first has the input, the last gives the result.
task<std::vector<float>> on_rank(Communicator* communicator, std::int64_t steps, std::int64_t run, Meetings* meetings, Log* log,
                                 StreamRef stream) {
  TaskInfo& me = co_await this_task::info();
  const int rank = communicator->rank();
  Scope scope(me);
  const testing::LayerArrays arrays(rows(steps), scope, *communicator, run, stream);
  scope.spawn(layer_loop(arrays.in, arrays.out, rank, meetings, log, stream), "layer " + std::to_string(rank));
  Spawned<std::vector<float>> result = scope.start(columns(arrays.out), "result");
  co_await scope.join();
  std::vector<float> values = co_await result;
  co_return std::move(values);
}

template <class T>
std::string error_of(Running<T>& run) {
  try {
    static_cast<void>(run.get());
  } catch (const Error& error) {
    return error.what();
  }
  return "done";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Devices {
  Devices(int count, SeededExecutor& on, SimDevice::Options options = {}, int only = -1) : executor(on) {
    for (int i = 0; i < count; ++i) {
      SimDevice::Options own = only < 0 || only == i ? options : SimDevice::Options();
      own.index = i;
      all.push_back(std::make_unique<SimDevice>(own));
      executor.add_source(*all.back());
    }
  }
  ~Devices() {
    for (auto& one : all) executor.remove_source(*one);
  }
  std::vector<SimDevice*> pointers() const {
    std::vector<SimDevice*> found;
    for (const auto& one : all) found.push_back(one.get());
    return found;
  }
  SeededExecutor& executor;
  std::vector<std::unique_ptr<SimDevice>> all;
};

}  // namespace

TEST_CASE("layers on devices of their own run as a wavefront: layer l is at step t while layer l − 1 is at t + 1, with the same bits") {
  constexpr std::int64_t steps = 24;
  const std::vector<float> wanted = reference(steps, 3);
  std::size_t overlapped = 0;
  const std::vector<std::uint64_t> all = seeds(30);
  for (const std::uint64_t seed : all) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    SimDevice::Options options;
    options.late = seed % 2 == 0;
    const Devices devices(3, executor, options);
    Log log;
    {
      Running<std::vector<float>> run = start_run(executor, over_places(devices.pointers(), steps, &log), "places", &log.tracer);
      executor.run();
      CHECK(run.get() == wanted);
    }
    overlapped += overlaps(log.ran, steps, 3) > static_cast<std::size_t>(steps / 2);
    CHECK(log.tracer.events("kernel").size() == 3 * steps);
    CHECK(log.tracer.events("slot").size() == 3 * steps);  // each slot's arrival on its device
    for (const auto& device : devices.all) CHECK(device->sim_memory().live_bytes() == 0);
    CHECK(live_frames() == 0);
  }
  CHECK(overlapped * 10 >= all.size() * 9);
}

TEST_CASE("layers on ranks of their own run as a wavefront, whatever the length of runs, and leave nothing behind") {
  constexpr std::int64_t steps = 17;
  const std::vector<float> wanted = reference(steps, 3);
  for (const std::int64_t run : {1, 3, 17, 100}) {
    for (const std::uint64_t seed : seeds(8)) {
      INFO("seed ", seed, ", runs of ", run);
      SeededExecutor executor(seed);
      Log log;
      const Devices devices(3, executor);
      {
        const auto ranks = make_local_communicators(3);
        std::vector<Running<std::vector<float>>> runs;
        for (std::size_t r = 0; r < 3; ++r)
          runs.push_back(start_run(executor, on_rank(ranks[r].get(), steps, run, nullptr, &log, devices.all[r]->stream(0))));
        executor.run();
        CHECK(runs[2].get() == wanted);
        CHECK(runs[0].ended());
        CHECK(runs[1].ended());
      }
      if (run == 1) CHECK(overlaps(log.ran, steps, 3) > 0);
      for (const auto& device : devices.all) CHECK(device->sim_memory().live_bytes() == 0);
      CHECK(live_frames() == 0);
    }
  }
}

TEST_CASE("ranks on threads overlap in time: kernels of two layers run at once, as the trace shows") {
  constexpr std::int64_t steps = 30;
  Log log;
  Meetings meetings(3);
  const auto ranks = make_local_communicators(3);
  std::vector<std::unique_ptr<ThreadExecutor>> executors;
  std::vector<std::unique_ptr<CpuDevice>> devices;
  std::vector<Running<std::vector<float>>> runs;
  for (std::size_t r = 0; r < 3; ++r) {
    executors.push_back(std::make_unique<ThreadExecutor>(1));
    devices.push_back(std::make_unique<CpuDevice>(1, 2));
    runs.push_back(start_run(*executors[r], on_rank(ranks[r].get(), steps, 1, &meetings, &log, devices[r]->stream(0))));
  }
  CHECK(runs[2].get() == reference(steps, 3));
  static_cast<void>(runs[0].get());
  static_cast<void>(runs[1].get());
  std::size_t overlapping = 0;
  const std::vector<Tracer::Event> kernels = log.tracer.events("kernel");
  for (const Tracer::Event& upper : kernels) {
    for (const Tracer::Event& lower : kernels)
      overlapping +=
          upper.track == lower.track + 1 && lower.step > upper.step && lower.begin_ns < upper.end_ns && upper.begin_ns < lower.end_ns;
  }
  CHECK(overlapping >= 2);  // two pairs of layers; one layer after the other would have none
}

namespace {

task<void> produce_some(TensorArray array, std::int64_t count, StreamRef stream) {
  TaskInfo& me = co_await this_task::info();
  ArrayWriter writer = array.writer(me, "producer");
  for (std::int64_t t = 0; t < count; ++t) {
    const Tensor value = clone(Tensor::from<float>({static_cast<float>(t)}), stream);
    SlotWrite written = writer.write(t, value);
    if (array.is_window()) co_await written;
  }
  throw ShapeError("the producer gave up");
}

task<void> produce_on(Communicator* communicator, TensorArray array, std::int64_t count, StreamRef stream) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  static_cast<void>(OnRank(scope, *communicator, 0, 1, stream).carry(array));
  scope.spawn(produce_some(array, count, stream), "producer");
  co_await scope.join();
}

task<std::int64_t> consume_on(Communicator* communicator, TensorArray array, StreamRef stream, std::vector<std::string>* said) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  static_cast<void>(OnRank(scope, *communicator, 0, 1, stream).carry(array));
  std::int64_t count = 0;
  try {
    for (;; ++count) {
      bool more = true;
      if (!array.is_fixed()) more = co_await array.has(count);
      if (!more) break;
      const SlotValue value = co_await array.read(count);
      CHECK(value.tensor().item() == static_cast<double>(count));
    }
  } catch (const Error& error) {
    said->push_back(error.what());
  }
  co_await scope.join();
  co_return count;
}

}  // namespace

TEST_CASE("a producer that fails on another rank fails the slots that have not come, by name and with its words") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    const Devices devices(2, executor);
    const auto ranks = make_local_communicators(2);
    std::vector<std::string> said;
    Running<void> producer =
        start_run(executor, produce_on(ranks[0].get(), TensorArray(9).named("states"), 3, devices.all[0]->stream(0)), "producing");
    Running<std::int64_t> consumer =
        start_run(executor, consume_on(ranks[1].get(), TensorArray(9).named("states"), devices.all[1]->stream(0), &said), "consuming");
    executor.run();
    CHECK(error_of(producer) == "the producer gave up");
    CHECK(consumer.get() <= 3);
    REQUIRE(said.size() == 1);
    CHECK(has(said[0], "rank 0 said: "));
    CHECK(has(said[0], "(array 'states' of 9 slots from slot "));
    CHECK(has(said[0], "which come from rank 0)"));
  }
}

TEST_CASE("a rank that dies without a word fails the slots that it owed, and other runs go on") {
  SeededExecutor executor(3);
  const Devices devices(2, executor);
  auto ranks = make_local_communicators(2);
  std::vector<std::string> said;
  Running<std::int64_t> consumer =
      start_run(executor, consume_on(ranks[1].get(), TensorArray(2).named("states"), devices.all[1]->stream(0), &said), "consuming");
  executor.run();
  CHECK_FALSE(consumer.ended());
  ranks[0].reset();
  executor.run();
  CHECK(consumer.get() == 0);
  REQUIRE(said.size() == 1);
  CHECK(has(said[0], "a rank has left"));
  CHECK(has(said[0], "(array 'states' of 2 slots from slot 0 on, which come from rank 0)"));
  Log log;
  Running<std::vector<float>> other = start_run(executor, over_places(devices.pointers(), 5, &log));
  executor.run();
  CHECK(other.get() == reference(5, 2));
}

TEST_CASE("a fault on one device of a wavefront fails the run with one error that names it, and leaves nothing") {
  std::size_t failed = 0;
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    SeededExecutor executor(seed);
    SimDevice::Options broken;
    testing::Random random(seed);
    broken.late = random.coin();
    (seed % 2 == 0 ? broken.fail_work : broken.fail_allocation) = static_cast<std::size_t>(random.between(1, 30));
    Log log;
    const Devices devices(3, executor, broken, 1);
    {
      Running<std::vector<float>> run = start_run(executor, over_places(devices.pointers(), 8, &log));
      executor.run();
      REQUIRE(run.ended());
      const std::string said = error_of(run);
      failed += said != "done";
      CHECK((said == "done" || has(said, "on sim:1")));
    }
    const std::vector<SimDevice*> healthy{devices.all[0].get(), devices.all[2].get()};
    Running<std::vector<float>> other = start_run(executor, over_places(healthy, 5, &log));
    executor.run();
    CHECK(other.get() == reference(5, 2));
    for (const auto& device : devices.all) {
      CHECK(device->idle());
      CHECK(device->sim_memory().live_bytes() == 0);
    }
    CHECK(live_frames() == 0);
  }
  CHECK(4 * failed >= seeds(40).size());
}

namespace {

task<void> produce_windowed(Communicator* communicator, std::int64_t count, StreamRef stream, std::int64_t* written) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray array = OnRank(scope, *communicator, 0, 1, stream, 2).carry(TensorArray::window(2).named("endless"));
  for (std::int64_t t = 0; t < count; ++t) {
    const Tensor value = clone(Tensor::from<float>({static_cast<float>(t)}), stream);
    SlotWrite placed = array.write(t, value);
    co_await placed;
    ++*written;
  }
  array.close();
  co_await scope.join();
}

task<void> with_levels(Communicator* communicator, StreamRef stream, std::string* seen) {
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  const TensorArray array = OnRank(scope, *communicator, 0, 1, stream, 3).carry(TensorArray::growable().named("ragged"));
  if (communicator->rank() == 0) {
    static_cast<void>(array.append(LoDTensor(Tensor::from<float>({1, 2, 3}), LoD::from_lengths({{2, 1}}))));
    static_cast<void>(array.append(Tensor::from<float>({7})));
    static_cast<void>(array.append(LoDTensor(Tensor(DType::f32, DDim{0}), LoD::from_lengths({{1, 0}, {0}}))));
    array.close();
  } else {
    std::vector<SlotValue> values = co_await array.values();
    for (const SlotValue& value : values) *seen += value.LoDTensor::to_string() + "; ";
    *seen += std::to_string(values.at(0).tensor().to_vector<float>()[2]);
  }
  co_await scope.join();
}

}  // namespace

TEST_CASE("a window holds its writer back across ranks while nobody reads, and ends when it is closed") {
  SeededExecutor executor(5);
  const auto ranks = make_local_communicators(2);
  CpuDevice device;
  std::int64_t written = 0;
  Running<void> producer = start_run(executor, produce_windowed(ranks[0].get(), 40, device.stream(0), &written), "producing");
  executor.run();
  CHECK(written < 8);
  std::vector<std::string> said;
  Running<std::int64_t> consumer =
      start_run(executor, consume_on(ranks[1].get(), TensorArray::window(2).named("endless"), device.stream(0), &said), "consuming");
  executor.run();
  CHECK(consumer.get() == 40);
  CHECK(written == 40);
  CHECK(said.empty());
  producer.get();
}

TEST_CASE("levels and extents of slots go along, also of slots without rows") {
  SeededExecutor executor(5);
  const auto ranks = make_local_communicators(2);
  CpuDevice device;
  std::string seen;
  std::vector<Running<void>> runs;
  for (const auto& rank : ranks) runs.push_back(start_run(executor, with_levels(rank.get(), device.stream(0), &seen)));
  executor.run();
  for (auto& run : runs) run.get();
  CHECK(seen == "f32[3] on cpu with [[2,1]]; f32[1] on cpu; f32[0] on cpu with [[1,0],[0]]; 3.000000");
}

TEST_CASE("two ends that do not fit are refused by name") {
  SeededExecutor executor(1);
  auto ranks = make_local_communicators(3);
  CpuDevice device;
  const auto refused = [&](int from, int to, std::int64_t run) {
    struct Try {
      static task<void> once(Communicator* communicator, int from, int to, std::int64_t run, StreamRef stream) {
        TaskInfo& me = co_await this_task::info();
        Scope scope(me);
        static_cast<void>(OnRank(scope, *communicator, from, to, stream, run).carry(TensorArray(1).named("a")));
        co_await scope.join();
      }
    };
    Running<void> one = start_run(executor, Try::once(ranks[1].get(), from, to, run, device.stream(0)));
    executor.run();
    return error_of(one);
  };
  CHECK(refused(0, 2, 1) == "array 'a' from rank 0 to rank 2: expected two ranks, this one (1) among them");
  CHECK(has(refused(1, 1, 1), "expected two ranks"));
  CHECK(refused(1, 2, 0) == "array 'a' from rank 1 to rank 2: expected runs of at least 1 step, found 0");
}
