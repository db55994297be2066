// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/binder.h>

#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/array/unpack.h>
#include <millrace/runtime/program/errors.h>
#include <millrace/tensor/device.h>

#include "runtime/loops/cpu_fused/fused_cells.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t c = 3, h = 4;

/// The form of the only loop of a program.
LoopForm form_of(const Program& program) {
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops)
      if (op.type == "while") return find_loop_form(program, block.idx, op);
  throw ProgramError("expected a loop");
}

struct Bound {
  CpuDevice device;
  Random random;
  Program program;
  LoopForm form;
  LoD lod;
  LoopOperands operands;
  SequenceOrder order;

  Bound(std::uint64_t seed, const std::vector<std::int64_t>& lengths)
      : random(seed), program(booted_rnn(random, c, h)), form(form_of(program)), lod(LoD::from_lengths({lengths})), order(bind()) {}

  SequenceOrder bind() {
    auto [steps, made] = unpack(LoDTensor(random_tensor(random, {lod.rows(), c}), lod), 0, true, device.stream(0));
    operands.iterations = steps.size();
    operands.inputs = {steps};
    operands.read = {{0, 1}};
    operands.states = {SlotValue(LoDTensor(random_tensor(random, {lod.sequences(0), h})))};
    for (std::size_t i = 0; i < form.outputs.size(); ++i) {
      operands.outputs.emplace_back(steps.size(), made);
      operands.written.push_back({0, 1});
    }
    return made;
  }
  LoopBinder binder() { return LoopBinder(form, operands, device.stream(0)); }
};

}  // namespace

TEST_CASE("the binder gives the rows of each iteration, the states of the first one, and finds room in the outputs") {
  Bound bound(41, {2, 5, 0, 3});
  LoopBinder binder = bound.binder();
  const BoundInput input = binder.input(0);
  CHECK(input.rows == std::vector<std::int64_t>{3, 3, 2, 1, 1});
  binder.set_rows({input.rows});
  CHECK(binder.ragged());
  CHECK_FALSE(binder.moves());
  CHECK(binder.ordered().first == 0);
  CHECK(binder.state(0).dims() == DDim{3, h});
  binder.check_outputs();
  for (std::int64_t t = 0; t < bound.operands.iterations; ++t) CHECK(binder.slot(0, t).dim(0) == input.rows[static_cast<std::size_t>(t)]);
  CHECK(binder.expected_rows(0) == input.rows);
}

TEST_CASE("sequences of one length are no ragged loop") {
  Bound bound(42, {4, 4});
  LoopBinder binder = bound.binder();
  binder.set_rows({binder.input(0).rows});
  CHECK_FALSE(binder.ragged());
  CHECK(binder.rows() == std::vector<std::int64_t>(4, 2));
}

TEST_CASE("the binder refuses by reason") {
  const auto refused = [](auto&& change, const char* why) {
    Bound bound(43, {2, 4, 1});
    change(bound);
    const auto bind = [&] {
      LoopBinder binder = bound.binder();
      binder.set_rows({binder.input(0).rows});
      (void)binder.state(0);
      binder.check_outputs();
    };
    CHECK_THROWS_WITH_AS(bind(), doctest::Contains(why), UnsupportedError);
  };
  refused([](Bound& bound) { bound.operands.read[0].first = 1; }, "does not have its slots yet");
  refused([](Bound& bound) { bound.operands.read[0].first = -1; }, "is read before its first slot");
  refused([](Bound& bound) { bound.operands.inputs[0] = millrace::TensorArray(bound.operands.iterations, bound.order); },
          "does not have its slots yet");
  refused([](Bound& bound) { bound.operands.states[0] = SlotValue(LoDTensor(random_tensor(bound.random, {3, h + 1}))); },
          "expected slots of");
  refused([](Bound& bound) { bound.operands.states[0] = SlotValue(LoDTensor(random_tensor(bound.random, {1, h}))); },
          "has 1 rows for 3 sequences");
  refused([](Bound& bound) { bound.operands.written[0].first = 1; }, "has no room");
  refused([](Bound& bound) { bound.operands.written[0].stride = 0; }, "has no room");
  refused([](Bound& bound) { bound.operands.outputs[0].write(0, LoDTensor(random_tensor(bound.random, {3, h}))); }, "was written before");
}
