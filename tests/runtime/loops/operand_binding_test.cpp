// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/operand_binding.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/array/unpack.h>
#include <millrace/runtime/loops/cpu_fused/fused_backend.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/tensor/device.h>

#include "runtime/loops/cpu_fused/fused_cells.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

/// Values by var, of which one is under way until somebody waits for it.
class GivenValues final : public LoopValues {
 public:
  explicit GivenValues(const Program& program) : program_(program) {}

  std::map<VarId, Value> values;
  VarId under_way = no_var;
  std::vector<VarId> awaited;

  const Program& program() const override { return program_; }
  const Value* find(VarId var) override { return var == under_way ? nullptr : &values.at(var); }
  task<void> wait(VarId var) override {
    awaited.push_back(var);
    under_way = no_var;
    co_return;
  }
  const PreparedOp* maker(VarId) const override { return nullptr; }
  StreamRef stream(const PreparedOp&) const override { throw std::logic_error("no op runs here"); }
  const StackedView* stacked_view(VarId) const override { return nullptr; }
  bool arrives(VarId) const override { return false; }
  bool leaves(VarId) const override { return false; }

 private:
  const Program& program_;
};

/// A recurrent cell of `h` units over one sequence of `steps` rows, and all that its loop finds outside.
struct Site {
  static constexpr std::int64_t c = 3;

  std::shared_ptr<CpuDevice> device = std::make_shared<CpuDevice>();
  Random random{7};
  Program program;
  const Op* loop = nullptr;
  std::shared_ptr<LoopBackend> backend;
  GivenValues given{program};

  Site(std::int64_t steps, std::int64_t h) : program(booted_rnn(random, c, h)) {
    for (const Block& block : program.blocks())
      for (const Op& op : block.ops)
        if (op.type == "while") {
          loop = &op;
          backend = make_fused_backend({&program, block.idx, &op, device, 0});
        }
    REQUIRE(backend != nullptr);
    REQUIRE_MESSAGE(backend->form() != nullptr, backend->reason());
    give(steps, h);
  }

  void give(std::int64_t steps, std::int64_t h) {
    const LoopForm& form = *backend->form();
    const LoDTensor x(random_tensor(random, {steps, c}), LoD::from_lengths({{steps}}));
    auto [slots, order] = unpack(x, 0, true, device->stream(0));
    for (const auto& input : form.inputs) given.values.emplace(input.array, slots);
    for (const auto& output : form.outputs) given.values.emplace(output.array, millrace::TensorArray(steps, order));
    const Tensor first = random_tensor(random, {1, h});
    for (const auto& state : form.states) {
      if (state.initial != no_var) given.values.emplace(state.initial, first);
      if (state.boot != no_var) given.values.emplace(state.boot, first);
    }
    for (const VarId number : form.counted) given.values.emplace(number, Tensor::scalar(steps));
  }

  OperandBinding binding() { return {*backend, given, {}, device->stream(0)}; }
};

}  // namespace

TEST_CASE("operands are bound at once where all values are there") {
  Site site(5, 4);
  const std::optional<LoopOperands> made = site.binding().bind();
  REQUIRE(made);
  CHECK(made->iterations == 5);
  CHECK(made->inputs.size() == 1);
  CHECK(made->states.size() == 1);
  CHECK(site.given.awaited.empty());
}

TEST_CASE("operands of which one is under way are bound once it was waited for") {
  Site site(5, 4);
  for (const auto& [var, value] : std::map<VarId, Value>(site.given.values)) {
    site.given.under_way = var;
    site.given.awaited.clear();
    OperandBinding binding = site.binding();
    CHECK_FALSE(binding.bind());
    sync_wait(binding.await_missing());
    CHECK(site.given.awaited == std::vector<VarId>{var});
    const std::optional<LoopOperands> made = binding.bind();
    REQUIRE(made);
    CHECK(made->iterations == 5);
  }
}

TEST_CASE("a loop is brief as long as nobody would want to interrupt it") {
  const auto brief = [](std::int64_t steps, std::int64_t h) {
    Site site(steps, h);
    std::optional<LoopOperands> operands = site.binding().bind();
    REQUIRE(operands);
    std::string why;
    const std::unique_ptr<LoopRun> run = site.backend->prepare(std::move(*operands), site.device->stream(0), why);
    REQUIRE_MESSAGE(run != nullptr, why);
    return run->brief();
  };
  CHECK(brief(1, 4));
  CHECK(brief(100, 256));
  CHECK(brief(600, 256));
  CHECK_FALSE(brief(1000, 256));
}
