// SPDX-License-Identifier: Apache-2.0
// Ticks of live sessions on a device: as one graph, with the bits of the step op by op and of whole runs there.
#include <millrace/streaming/live/state_slab.h>

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <optional>

#include <gpu/scenario.h>
#include <gpu/spin.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/recurrent.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/sanitized.h>
#include <millrace/tensor/work_failure.h>
#include <support/random_lstm.h>
#include <support/same_bits.h>
#include <support/test_place.h>

namespace millrace::testing {
namespace {

using namespace build;

enum class Kind { two_layers, between_ops, peeks, no_lstm };

/// Live rows x of [5]; y, and with `peeks` what the states were and become.
Program program_of(Random& random, Kind kind, DType dtype) {
  constexpr std::int64_t input = 5;
  const std::int64_t hidden = random.between(1, 20);
  Program program;
  const Guard guard(program);
  const Var x = build::input("x", VarType(dtype, {DDim::unknown, input}, 1));
  if (kind == Kind::two_layers) {
    build::output(
        "y",
        layers::lstm({x}, {random_lstm_weights(random, dtype, input, hidden), random_lstm_weights(random, dtype, hidden, hidden)}, {}).y);
    return program;
  }
  if (kind == Kind::no_lstm) {
    const layers::Cell decay = [](const Var& row, const std::vector<Var>& state) {
      const Var next = tanh(add(row, state[0]));
      return layers::CellStep{next, {next}};
    };
    build::output("y", layers::unroll(decay, {x}, {{input, Var()}}).output);
    return program;
  }
  const layers::Cell cell = layers::lstm_cell(random_lstm_weights(random, dtype, input, hidden));
  const layers::Cell around = [&](const Var& row, const std::vector<Var>& state) {
    layers::CellStep next = cell(tanh(row), {state[0], state[1]});
    if (kind == Kind::between_ops) return layers::CellStep{relu(next.output), next.states};
    next.states.push_back(add(state[2], mul(state[0], next.states[1])));  // looks at h as it was, and at the next c
    return layers::CellStep{add(next.output, state[2]), next.states};
  };
  std::vector<layers::CellState> states{{hidden, Var()}, {hidden, Var()}};
  if (kind == Kind::peeks) states.push_back({hidden, Var()});
  build::output("y", layers::unroll(around, {x}, states).output);
  return program;
}

}  // namespace

TEST_CASE("ticks of live sessions on a device have the bits of whole runs there, whatever the slot and the company") {
  const auto fine = make_device(Place::parse(test_place()), 1, 3);
  const auto coarse = make_device(Place::parse(test_place()), 1, 3, true);  // tf32
  for (const std::uint64_t seed : seeds(2)) {
    for (const Kind kind : {Kind::two_layers, Kind::between_ops, Kind::peeks, Kind::no_lstm})
      for (const auto& [dtype, device] : {std::pair{DType::f32, fine}, {DType::f32, coarse}, {DType::f16, fine}, {DType::bf16, fine}}) {
        if (sanitized && (dtype == DType::f32) != (kind == Kind::two_layers || kind == Kind::no_lstm)) continue;
        Random random(seed);
        INFO("seed ", seed, ", kind ", static_cast<int>(kind), ", ", name_of(dtype));
        const Program program = program_of(random, kind, dtype);
        constexpr std::size_t sessions = sanitized ? 8 : 20;
        std::vector<Tensor> rows, whole;
        ThreadExecutor executor(1);
        const Executable executable(program, device);
        for (std::size_t i = 0; i < sessions; ++i) {
          rows.push_back(random_of(random, dtype, DDim{random.between(1, 4), 5}));
          Feeds feeds;
          feeds.insert_or_assign("x", LoDTensor(rows.back(), LoD::from_lengths({{rows.back().dim(0)}})));
          RunOptions options;
          options.backend = i % 2 == 0 ? Backend::interpreted : Backend::automatic;
          whole.push_back(sync_wait(executor, run(executable, feeds, options))["y"].tensor().copy_to(CpuPlace{}));
        }
        const auto recurrence = std::make_shared<const Recurrence>(make_recurrence(program));
        StateSlab slab(recurrence, device), apart(recurrence, device, Backend::interpreted);
        CHECK(slab.backend().find(kind == Kind::no_lstm ? "captured" : "fused") == 0);
        CHECK(apart.backend().find("interpreted") == 0);
        std::vector<std::int64_t> at(sessions, 0);
        std::vector<bool> begun(sessions, false);
        std::vector<std::string> got(sessions);
        std::vector<std::size_t> left(sessions);
        for (std::size_t i = 0; i < sessions; ++i) left[i] = i;
        bool same = true;
        while (!left.empty()) {
          Tick tick;
          std::vector<std::size_t> who;
          const bool few = random.coin();
          for (const std::size_t i : left)
            if (random.between(0, few ? 9 : 1) == 0) who.push_back(i);
          if (who.empty()) continue;
          Tensor input(dtype, recurrence->inputs[0].dims.inserted(0, static_cast<std::int64_t>(who.size())));
          input.storage()->mark_written();
          const std::size_t bytes = input.bytes() / who.size();
          for (std::size_t n = 0; n < who.size(); ++n) {
            const std::size_t i = who[n];
            const Slot slot = static_cast<Slot>((i * 7) % sessions);
            if (!begun[i]) tick.starts.push_back({slot, {}});
            begun[i] = true;
            tick.slots.push_back(slot);
            std::memcpy(static_cast<std::byte*>(input.raw_mutable()) + n * bytes,
                        static_cast<const std::byte*>(rows[i].raw()) + static_cast<std::size_t>(at[i]++) * bytes, bytes);
          }
          tick.inputs.push_back(input);
          const TickResult result = slab.run(tick), wanted = apart.run(tick);
          REQUIRE(result.failures.empty());
          same = same && same_bits(result.outputs.at(0), wanted.outputs.at(0));
          const std::size_t out = result.outputs[0].bytes() / who.size();
          for (std::size_t n = 0; n < who.size(); ++n) got[who[n]].append(static_cast<const char*>(result.outputs[0].raw()) + n * out, out);
          std::erase_if(left, [&](std::size_t i) { return at[i] == rows[i].dim(0); });
        }
        CHECK(same);
        for (std::size_t i = 0; i < sessions; ++i) CHECK(got[i] == std::string(static_cast<const char*>(whole[i].raw()), whole[i].bytes()));
        for (std::size_t state = 0; state < recurrence->states.size(); ++state)
          for (Slot slot = 0; slot < static_cast<Slot>(sessions); ++slot)
            CHECK(same_bits(slab.state(state, slot), apart.state(state, slot)));
      }
  }
}

TEST_CASE("a backend of live steps that is named is had or refused with the reason, and has the same bits") {
  const auto device = make_device(Place::parse(test_place()), 1, 2);
  Random random(2);
  const auto recurrence = [](const Program& program) { return std::make_shared<const Recurrence>(make_recurrence(program)); };
  const auto none = recurrence(program_of(random, Kind::no_lstm, DType::f32));
  try {
    const StateSlab slab(none, device, Backend::fused);
    FAIL("expected UnsupportedError");
  } catch (const UnsupportedError& error) {
    CHECK(std::string(error.what()).find("lstm_cell") != std::string::npos);
  }
  const auto cells = recurrence(program_of(random, Kind::peeks, DType::f32));
  CHECK(DeviceStepForm(*cells).to_string().find("backend: fused: a graph of 1 cell with its own kernel") == 0);
  StateSlab fused(cells, device, Backend::fused), captured(cells, device, Backend::captured);
  CHECK(captured.backend() == "captured: the captured backend was asked for");
  Tick tick;
  tick.starts = {{3, {}}, {50, {}}};
  tick.slots = {50, 3};
  for (int step = 0; step < 3; ++step) {
    tick.inputs = {random_of(random, DType::f32, cells->inputs[0].dims.inserted(0, 2))};
    CHECK(same_bits(fused.run(tick).outputs.at(0), captured.run(tick).outputs.at(0)));
    tick.starts.clear();
  }
  StateSlab apart(cells, device, Backend::interpreted);
  tick.starts = {{3, {}}, {50, {}}};
  std::vector<Tensor> wanted;
  for (int step = 0; step < 6; ++step) {
    tick.inputs = {random_of(random, DType::f32, cells->inputs[0].dims.inserted(0, 2))};
    for (StateSlab* slab : {&fused, &apart}) slab->start(tick);
    wanted.push_back(captured.run(tick).outputs.at(0));
    tick.starts.clear();
    if (step == 3) tick.starts = {{3, {}}};
  }
  for (const Tensor& one : wanted)
    for (StateSlab* slab : {&fused, &apart}) CHECK(same_bits(slab->finish().outputs.at(0), one));
  CHECK_THROWS_AS(fused.finish(), UninitializedError);
}

TEST_CASE("ticks that were started end as if each had been run when the stream fails, but for those that the device had begun") {
  Random random(3);
  const Program program = program_of(random, Kind::peeks, DType::f32);
  const auto cells = std::make_shared<const Recurrence>(make_recurrence(program));
  const auto device = make_device(Place::parse(test_place()), 1, 2);
  StateSlab slab(cells, device), wanted(cells, make_device(Place::parse(test_place()), 1, 2), Backend::interpreted);
  const auto tick_of = [&](const std::vector<Slot>& slots, bool begins) {
    Tick tick;
    for (const Slot slot : slots)
      if (begins) tick.starts.push_back({slot, {}});
    tick.slots = slots;
    tick.inputs = {random_of(random, DType::f32, cells->inputs[0].dims.inserted(0, static_cast<std::int64_t>(slots.size())))};
    return tick;
  };
  const auto same = [&](const TickResult& result, const Tick& tick) {
    CHECK(result.failures.empty());
    CHECK(same_bits(result.outputs.at(0), wanted.run(tick).outputs.at(0)));
  };
  const Tick first = tick_of({1, 2, 3, 4}, true), second = tick_of({1, 2}, false), third = tick_of({2, 3, 4}, false);
  slab.start(first);
  slab.start(second);
  const auto host = std::make_shared<Timeline>();
  device->stream(0).wait(Point(host, 1));
  slab.start(third);
  slab.start(second);
  same(slab.finish(), first);
  same(slab.finish(), second);
  host->fail(std::make_exception_ptr(IndexError("the host gave up")));
  same(slab.finish(), third);
  same(slab.finish(), second);

  const StreamRef stream = device->stream(0);
  const Tensor table = clone(Tensor::from<float>({1, 2, 3}), stream);
  const Tensor wrong = gather(table, clone(Tensor::from<std::int64_t>({99}), stream), 0, stream);
  const Tick pair = tick_of({2, 3}, false), alone = tick_of({4}, false), other = tick_of({1}, false), anew = tick_of({2, 3, 4}, true);
  slab.start(pair);
  slab.start(alone);
  for (const std::size_t rows : {2u, 1u}) {
    const TickResult result = slab.finish();
    CHECK(result.lost == nullptr);
    REQUIRE(result.failures.size() == rows);
    for (const TickResult::Failure& failure : result.failures) CHECK_THROWS_AS(std::rethrow_exception(failure.error), IndexError);
  }
  CHECK_THROWS_AS(slab.state(0, 2), IndexError);
  slab.start(other);
  slab.start(anew);
  same(slab.finish(), other);
  same(slab.finish(), anew);
}

namespace {

void trap_under_way() {
  Random random(4);
  const auto device = make_device(Place::parse(test_place()), 1, 2);
  StateSlab slab(std::make_shared<const Recurrence>(make_recurrence(program_of(random, Kind::two_layers, DType::f32))), device);
  Tick tick;
  tick.starts = {{0, {}}};
  tick.slots = {0};
  tick.inputs = {random_of(random, DType::f32, slab.recurrence().inputs[0].dims.inserted(0, 1))};
  CHECK(slab.run(tick).failures.empty());
  tick.starts.clear();
  trap(device->stream(0));
  for (int step = 0; step < 3; ++step) slab.start(tick);
  for (int step = 0; step < 3; ++step) {
    const TickResult result = slab.finish();
    REQUIRE(result.lost != nullptr);
    CHECK_THROWS_AS(std::rethrow_exception(result.lost), PlaceLostError);
    CHECK(result.failures.size() == 1);
  }
}

const Scenario scenarios[] = {{"a kernel traps before ticks that were started", trap_under_way}};

}  // namespace

TEST_CASE("ticks that were started on a device that is lost say so, each of them") {
  CHECK(ScenarioProcess("a kernel traps before ticks that were started").ended_with() == 0);
}

}  // namespace millrace::testing
