// SPDX-License-Identifier: Apache-2.0
// Loops over any cell run as one generated kernel on a device, with the bits of the same loops iteration by iteration there.
#include <millrace/runtime/loops/cuda_recurrent/device_cell.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>

#include <millrace/kernels/fill.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <reference/reference.h>
#include <support/test_place.h>
#include <support/user_cells.h>

namespace millrace::testing {
namespace {

using build::Var;

Tensor random_of(Random& random, const DDim& dims) {
  reference::Values made{dims, {}};
  for (std::int64_t i = 0; i < dims.elements(); ++i) made.at.push_back(static_cast<double>(random.real()));
  return reference::tensor(made, DType::f32);
}

Program over_rows(Random& random, const UserCell& cell, std::int64_t input, std::int64_t hidden, bool sorted = true) {
  Program program;
  const build::Guard guard(program);
  const UserCell::Built built = cell.build(random, input, hidden);
  const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, input}, 1));
  std::vector<Var> initial;
  for (std::size_t i = 0; i < built.states.size(); ++i)
    initial.push_back(build::input("s" + std::to_string(i), VarType(DType::f32, {DDim::unknown, built.states[i].width})));
  build::DynamicRNN rnn({.sort_by_length = sorted});
  std::vector<Var> memories;
  {
    const auto block = rnn.block();
    const Var row = rnn.step_input(x);
    for (const Var& one : initial) memories.push_back(rnn.memory(one));
    const layers::CellStep next = built.cell(row, memories);
    for (std::size_t i = 0; i < memories.size(); ++i) rnn.update_memory(memories[i], next.states[i]);
    rnn.output(next.output);
  }
  build::output("y", rnn.outputs()[0]);
  for (std::size_t i = 0; i < memories.size(); ++i) build::output("last" + std::to_string(i), rnn.last(memories[i]));
  return program;
}

struct Batch {
  std::vector<Tensor> rows;                 // by sequence
  std::vector<std::vector<Tensor>> states;  // by sequence, then state: one row
};

Batch drawn(Random& random, std::int64_t sequences, std::int64_t input, std::size_t states, const std::vector<std::int64_t>& widths) {
  Batch made;
  for (std::int64_t i = 0; i < sequences; ++i) {
    made.rows.push_back(random_of(random, DDim{i == 0 ? 5 : random.coin() ? random.between(0, 9) : random.between(0, 3), input}));
    made.states.emplace_back();
    for (std::size_t s = 0; s < states; ++s) made.states.back().push_back(random_of(random, DDim{1, widths[s]}));
  }
  return made;
}

Tensor joined(const std::vector<Tensor>& parts, std::int64_t columns) {
  std::int64_t rows = 0;
  for (const Tensor& part : parts) rows += part.dim(0);
  Tensor made(DType::f32, DDim{rows, columns});
  auto* to = made.mutable_data<float>();
  for (const Tensor& part : parts) to = std::copy_n(part.data<float>(), part.elements(), to);
  return made;
}

Feeds feeds_of(const Batch& batch, std::int64_t input, const std::vector<std::int64_t>& widths) {
  std::vector<std::int64_t> lengths;
  for (const Tensor& rows : batch.rows) lengths.push_back(rows.dim(0));
  Feeds feeds;
  feeds.insert_or_assign("x", LoDTensor(joined(batch.rows, input), LoD::from_lengths({lengths})));
  for (std::size_t s = 0; s < widths.size(); ++s) {
    std::vector<Tensor> parts;
    for (const std::vector<Tensor>& states : batch.states) parts.push_back(states[s]);
    feeds.insert_or_assign("s" + std::to_string(s), LoDTensor(joined(parts, widths[s])));
  }
  return feeds;
}

RunResult run_in(Backend backend, const Program& program, const Feeds& feeds, const std::shared_ptr<Device>& device) {
  ThreadExecutor executor(2);
  RunOptions options;
  options.backend = backend;
  return sync_wait(executor, run(Executable(program, device), feeds, options));
}

std::vector<float> values(const RunResult& result, const std::string& name) {
  const Tensor there = result.value(name).tensor().tensor().copy_to(CpuPlace{});
  return there.to_vector<float>();
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<std::int64_t> widths_of(const Program& program) {
  std::vector<std::int64_t> made;
  for (const Program::Port& port : program.inputs())
    if (port.name != "x") made.push_back((*program.var(port.var).type.shape)[1]);
  return made;
}

std::shared_ptr<Device> device_here(bool tf32 = false) { return make_device(Place::parse(test_place()), 1, 2, tf32); }

}  // namespace

TEST_CASE("cells that users write have the same bits iteration by iteration and as one generated kernel") {
  const std::shared_ptr<Device> devices[] = {device_here(), device_here(true)};
  for (const std::uint64_t seed : seeds(1)) {
    Random random(seed);
    for (const UserCell& cell : user_cells()) {
      const std::int64_t input = random.between(1, 7), hidden = 2 * random.between(1, 16);
      const bool sorted = random.coin();
      INFO(cell.name, ", seed ", seed, ", C ", input, ", H ", hidden, std::string(sorted ? "" : ", unsorted"));
      const Program program = over_rows(random, cell, input, hidden, sorted);
      const std::vector<std::int64_t> widths = widths_of(program);
      const Batch batch = drawn(random, random.between(1, 20), input, widths.size(), widths);
      const Feeds feeds = feeds_of(batch, input, widths);
      const std::shared_ptr<Device>& device = devices[random.coin() ? 1 : 0];
      const RunResult expected = run_in(Backend::interpreted, program, feeds, device);
      const RunResult found = run_in(Backend::fused, program, feeds, device);
      const RunResult on_host = run_in(Backend::interpreted, program, feeds, make_cpu_device());
      CHECK(expected.fused_loops == 0);
      CHECK(found.fused_loops == 1);
      CHECK(found.iterations == expected.iterations);
      for (const auto& [name, value] : expected.outputs()) {
        INFO(name);
        CHECK(found.value(name).tensor().lod() == value.tensor().lod());
        CHECK(same_bits(values(found, name), values(expected, name)));
        const std::vector<float> there = values(found, name), here = values(on_host, name);
        REQUIRE(there.size() == here.size());
        const double tolerance = device == devices[1] || cell.narrow ? 5e-2 : 1e-4;
        for (std::size_t i = 0; i < here.size(); ++i)
          CHECK(std::fabs(there[i] - here[i]) <= tolerance * (1 + std::fabs(static_cast<double>(here[i]))));
      }
    }
  }
}

TEST_CASE("a sequence has the same bits alone, in a crowd, and in pieces whose states are handed on") {
  const auto device = device_here();
  Random random(7);
  for (const UserCell& cell : user_cells()) {
    if (cell.name != "layer norm lstm" && cell.name != "gru, reset before" && cell.name != "slstm") continue;
    INFO(cell.name);
    constexpr std::int64_t input = 3, hidden = 12;
    const Program program = over_rows(random, cell, input, hidden);
    const std::vector<std::int64_t> widths = widths_of(program);
    const Batch crowd = drawn(random, 19, input, widths.size(), widths);
    const RunResult together = run_in(Backend::fused, program, feeds_of(crowd, input, widths), device);
    CHECK(together.fused_loops == 1);
    const std::vector<float> all = values(together, "y");
    std::int64_t row = 0;
    for (std::size_t i = 0; i < crowd.rows.size(); ++i) {
      const std::int64_t length = crowd.rows[i].dim(0);
      const std::vector<float> own(all.begin() + row * hidden, all.begin() + (row + length) * hidden);
      row += length;
      if (i > 3 || length == 0) continue;
      Batch alone{{crowd.rows[i]}, {crowd.states[i]}};
      CHECK(same_bits(values(run_in(Backend::fused, program, feeds_of(alone, input, widths), device), "y"), own));
      std::vector<float> pieces;
      for (std::int64_t begin = 0; begin < length;) {
        const std::int64_t end = std::min(length, begin + random.between(1, 3));
        const Batch piece{{crowd.rows[i].rows(begin, end)}, alone.states};
        const RunResult made = run_in(Backend::fused, program, feeds_of(piece, input, widths), device);
        const std::vector<float> y = values(made, "y");
        pieces.insert(pieces.end(), y.begin(), y.end());
        for (std::size_t s = 0; s < widths.size(); ++s)
          alone.states[0][s] = made.value("last" + std::to_string(s)).tensor().tensor().copy_to(CpuPlace{});
        begin = end;
      }
      CHECK(same_bits(pieces, own));
    }
  }
}

TEST_CASE("no bit of a generated kernel depends on how the blocks of the device share its work") {
  const Place place = Place::parse(test_place());
  const auto device = device_here();
  const StreamRef stream = device->stream(0);
  Random random(3);
  for (const UserCell& cell : user_cells()) {
    if (cell.name != "layer norm lstm" && cell.name != "projected lstm") continue;
    INFO(cell.name);
    constexpr std::int64_t hidden = 40, sequences = 21;
    const Program program = over_rows(random, cell, 3, hidden);
    std::optional<CellLoop> loop;
    for (const Op& op : program.block(0).ops)
      if (op.type == "while") loop.emplace(program, 0, op, false);
    REQUIRE(loop);
    const CellPlan& plan = loop->plan();
    const CellSequence kernel = make_cell_sequence(plan, place, compile_cell(plan, place));
    const auto there = [&](const Tensor& value) {
      Tensor made(value.dtype(), value.dims(), stream.memory());
      copy(value, made, stream);
      return made;
    };
    std::vector<Tensor> matrices;
    for (const CellLoop::Matrix& one : loop->matrices()) matrices.push_back(there(*one.value));
    const PackedCell weights = pack(kernel, matrices, stream);
    CellRows rows;
    rows.offsets = {0, 21, 40, 57, 66, 66};
    const std::int64_t count = rows.offsets.back();
    for (const std::size_t input : plan.input_rows) {
      const std::int64_t width =
          loop->inputs()[input].from == passes::Source::From::input
              ? 3
              : (*loop->phases().ahead.program.var(loop->phases().ahead.program.outputs()[loop->inputs()[input].place].var).type.shape)[1];
      rows.inputs.push_back(there(random_of(random, DDim{count, width})));
    }
    for (const CellPlan::Shared& one : plan.shared) {
      REQUIRE(one.constant);
      rows.shared.push_back(there(loop->constants()[one.place]));
    }
    for (const std::int64_t width : plan.state_widths) rows.states.push_back(there(random_of(random, DDim{sequences, width})));
    std::vector<std::vector<float>> first;
    using Group = LstmSchedule::Group;
    for (const auto& [group, blocks, groups] : {std::tuple{Group::block, 1, 1},
                                                {Group::block, 1, 3},
                                                {Group::cluster, 2, 2},
                                                {Group::cluster, 4, 1},
                                                {Group::grid, 2, 2},
                                                {Group::grid, 3, 1}})
      for (const auto& [staged, warps, resident, at_once] : {std::tuple{1, 8, 0, 2}, {3, 3, 2, 0}, {2, 1, 1, 0}}) {
        const CellSchedule schedule{group, blocks, groups, warps, staged, std::vector<std::int64_t>(plan.products.size(), resident), 0};
        INFO(schedule.to_string());
        rows.steps_a_launch = at_once;
        rows.outputs.clear();
        rows.states_out.clear();
        for (const std::int64_t width : plan.output_widths) rows.outputs.emplace_back(DType::f32, DDim{count, width}, stream.memory());
        for (const Tensor& state : rows.states) rows.states_out.emplace_back(DType::f32, state.dims(), stream.memory());
        run(kernel, weights, rows, stream, &schedule);
        std::vector<std::vector<float>> all;
        for (const auto* tensors : {&rows.outputs, &rows.states_out})
          for (const Tensor& one : *tensors) all.push_back(one.copy_to(CpuPlace{}).to_vector<float>());
        if (first.empty()) first = all;
        for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_bits(all[i], first[i]));
      }
    // From the last rows to the first: as forwards over the steps the other way around, some rows left alone in front.
    constexpr std::int64_t front = 3, each = 7, steps = 3, all_rows = front + steps * each;
    const auto turned = [](std::vector<float> of) {
      const std::size_t width = of.size() / all_rows, block = each * width;
      const std::vector<float> from = of;
      for (std::size_t t = 0; t < steps; ++t)
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(front * width + (steps - 1 - t) * block), block,
                    of.begin() + static_cast<std::ptrdiff_t>(front * width + t * block));
      return of;
    };
    const auto numbers = [](const Tensor& of) { return of.copy_to(CpuPlace{}).to_vector<float>(); };
    CellRows forwards = rows, backwards = rows;
    forwards.offsets = backwards.offsets = {front, front + each, front + 2 * each, all_rows};
    backwards.reversed = true;
    for (std::size_t i = 0; i < rows.inputs.size(); ++i) {
      backwards.inputs[i] = rows.inputs[i].rows(0, all_rows);
      forwards.inputs[i] = there(Tensor::from(turned(numbers(backwards.inputs[i])), backwards.inputs[i].dims()));
    }
    for (const auto& [group, blocks, groups] : {std::tuple{Group::block, 1, 1}, {Group::cluster, 2, 2}, {Group::grid, 2, 2}})
      for (const std::int64_t at_once : {0, 2}) {
        const CellSchedule schedule{group, blocks, groups, 4, 1, std::vector<std::int64_t>(plan.products.size(), 1), 0};
        INFO(schedule.to_string(), ", ", at_once, " steps a launch");
        for (CellRows* one : {&forwards, &backwards}) {
          one->steps_a_launch = at_once;
          one->outputs.clear();
          one->states_out.clear();
          for (const std::int64_t width : plan.output_widths) one->outputs.push_back(zeros(DDim{all_rows, width}, DType::f32, stream));
          for (const Tensor& state : rows.states) one->states_out.push_back(zeros(state.dims(), DType::f32, stream));
          run(kernel, weights, *one, stream, &schedule);
        }
        for (std::size_t i = 0; i < forwards.outputs.size(); ++i)
          CHECK(same_bits(turned(numbers(forwards.outputs[i])), numbers(backwards.outputs[i])));
        for (std::size_t i = 0; i < forwards.states_out.size(); ++i)
          CHECK(same_bits(numbers(forwards.states_out[i]), numbers(backwards.states_out[i])));
      }
    rows.reversed = true;
    CHECK_THROWS_WITH_AS(run(kernel, weights, rows, stream), "cell sequence: expected reversed steps of 21 rows, found 19 in step 1",
                         ArgumentError);
  }
}

TEST_CASE("rows, schedules and weights that do not fit a cell are refused by name") {
  const Place place = Place::parse(test_place());
  const auto device = device_here();
  Random random(1);
  const Program program = over_rows(random, user_cells()[0], 3, 8);
  for (const Op& op : program.block(0).ops) {
    if (op.type != "while") continue;
    const CellLoop loop(program, 0, op, false);
    const CellSequence made = make_cell_sequence(loop.plan(), place, compile_cell(loop.plan(), place));
    CHECK_THROWS_WITH_AS(pack(made, {}, device->stream(0)), "cell sequence: expected 1 matrices, found 0", ArgumentError);
    CHECK_THROWS_WITH_AS(run(made, PackedCell{}, CellRows{}, device->stream(0)), "cell sequence: expected 1 products, found 0",
                         ArgumentError);
    CHECK_THROWS_WITH_AS(make_cell_sequence(loop.plan(), CpuPlace{}, {}), doctest::Contains("expected a CUDA device, found cpu"),
                         PlaceError);
  }
}

}  // namespace millrace::testing
