// SPDX-License-Identifier: Apache-2.0
// The backend of docs/adding_a_backend.md, in full.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/kernels/elementwise.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/loops/binder.h>
#include <millrace/runtime/loops/loop_backend.h>
#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/task/sync_wait.h>
#include <support/program_runs.h>
#include <support/random.h>
#include <support/random_tensor.h>
#include <support/same_bits.h>

namespace millrace {

// [contract]
/// The backend that runs a loop whose iteration adds its input to its state, on the CPU.
std::shared_ptr<LoopBackend> make_accumulate_backend(LoopSite site);
// [contract]

namespace {

// [run]
/// Iterations after which timers and other runs get their turn.
constexpr std::int64_t piece = 64;

class AccumulateRun final : public LoopRun {
 public:
  AccumulateRun(const LoopForm& form, LoopOperands operands, StreamRef stream)
      : form_(form), operands_(std::move(operands)), stream_(stream) {
    LoopBinder binder(form_, operands_, stream_);
    input_ = binder.input(0);
    binder.set_rows({input_.rows});
    if (binder.ragged()) throw UnsupportedError("iterations differ in their rows");
    state_ = binder.state(0);
    binder.check_outputs();
    order_ = binder.order();
    ordered_ = binder.ordered();
  }

  const LoopForm& form() const noexcept override { return form_; }
  std::int64_t iterations() const noexcept override { return operands_.iterations; }
  std::int64_t iterations_done() const noexcept override { return static_cast<std::int64_t>(made_.size()); }
  Point position() const override { return stream_.position(); }

  bool advance(std::int64_t end) override {
    end = std::min({end, iterations(), iterations_done() + piece});
    if (end <= iterations_done()) return false;
    while (iterations_done() < end) {
      state_ = add(state_, rows_of(made_.size()), stream_);
      made_.push_back(state_);
    }
    return true;
  }

  std::vector<SlotValue> finish() override {
    const auto [first, stride] = operands_.written[0];
    for (std::int64_t t = 0; t < iterations_done(); ++t)
      operands_.outputs[0].write(first + stride * t, LoDTensor(made_[static_cast<std::size_t>(t)]));
    if (!order_ || ordered_.stride != 1) return {SlotValue(LoDTensor(state_))};
    return {SlotValue(LoDTensor(state_), order_, ordered_.first + iterations_done() - 1)};
  }

 private:
  Tensor rows_of(std::size_t iteration) const {
    if (!input_.whole || input_.begin[iteration] < 0) return input_.slots[iteration];
    return input_.whole->rows(input_.begin[iteration], input_.begin[iteration] + input_.rows[iteration]);
  }

  const LoopForm& form_;
  LoopOperands operands_;
  StreamRef stream_;
  BoundInput input_;
  Tensor state_;
  std::vector<Tensor> made_;  // by iteration
  std::optional<SequenceOrder> order_;
  LoopOperands::Slots ordered_;
};
// [run]

// [backend]
class AccumulateBackend final : public LoopBackend {
 public:
  using LoopBackend::LoopBackend;

  Backend kind() const noexcept override { return Backend::fused; }
  bool on_host() const noexcept override { return true; }

 private:
  const LoopForm& analyse() override {
    form_ = find_loop_form(*site().program, site().block, *site().op);
    const std::vector<Op>& ops = form_.step.block(0).ops;
    if (form_.inputs.size() != 1 || form_.states.size() != 1 || form_.outputs.size() != 1 || !form_.shared.empty() || ops.size() != 1 ||
        form_.step.registry().at(ops[0].type).traits.arithmetic != OpTraits::Arithmetic::add || ops[0].inputs[0] == ops[0].inputs[1])
      throw UnsupportedError("an iteration is more than the sum of a state and an input");
    for (const Program::Port& output : form_.step.outputs())
      if (output.var != ops[0].outputs[0]) throw UnsupportedError("an iteration gives more than its sum");
    const VarType &x = form_.step.var(ops[0].inputs[0]).type, &h = form_.step.var(ops[0].inputs[1]).type;
    if (!form_.states[0].changes || x.rank() != h.rank()) throw UnsupportedError("the sum stretches an operand");
    return form_;
  }
  std::unique_ptr<LoopRun> make_run(LoopOperands operands, StreamRef stream) override {
    return std::make_unique<AccumulateRun>(form_, std::move(operands), stream);
  }

  LoopForm form_;
};
// [backend]

}  // namespace

// [factory]
std::shared_ptr<LoopBackend> make_accumulate_backend(LoopSite site) { return std::make_shared<AccumulateBackend>(std::move(site)); }
// [factory]

}  // namespace millrace

namespace millrace::testing {
namespace {

/// y[t] = f(y[t - 1], x[t]) from h on.
Program sums_over_time(const std::function<build::Var(const build::Var&, const build::Var&)>& f) {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {5, 3, 4}));
  const build::Var h = build::input("h", VarType(DType::f32, {3, 4}));
  build::output("y", build::scan(f, x, h));
  return program;
}

/// The only loop of a program.
LoopSite site_of(const Program& program, std::shared_ptr<Device> device) {
  for (const Op& op : program.block(0).ops)
    if (op.type == "while") return {&program, 0, &op, std::move(device)};
  throw ProgramError("expected a loop");
}

}  // namespace

// [test]
TEST_CASE("a sum over time has the bits of the interpreter") {
  Random random(31);
  const Tensor x = random_tensor(random, {5, 3, 4}), h = random_tensor(random, {3, 4});
  const Program program = sums_over_time([](const build::Var& sum, const build::Var& row) { return sum + row; });
  const auto device = std::make_shared<CpuDevice>();
  const auto backend = make_accumulate_backend(site_of(program, device));
  REQUIRE_MESSAGE(backend->form() != nullptr, backend->reason());

  LoopOperands operands;
  operands.iterations = 5;
  operands.inputs = {TensorArray::unstack(x)};
  operands.read = {{0, 1}};  // slot t in iteration t
  operands.states = {SlotValue(LoDTensor(h))};
  operands.outputs = {TensorArray(5)};
  operands.written = {{0, 1}};
  const TensorArray sums = operands.outputs[0];
  std::string why;
  const std::unique_ptr<LoopRun> made = backend->prepare(std::move(operands), device->stream(0), why);
  REQUIRE_MESSAGE(made != nullptr, why);
  while (made->advance(made->iterations())) made->position().wait();
  const std::vector<SlotValue> last = made->finish();

  RunOptions options;
  options.backend = Backend::interpreted;
  const RunResult expected = on_cpu(program, {{"x", x}, {"h", h}}, options);
  CHECK(same_bits(sync_wait(sums.stack(device->stream(0))), expected["y"].tensor()));
  CHECK(same_bits(last[0].tensor(), expected["y"].tensor().select(0, 4)));
}

TEST_CASE("a loop that is more than a sum is refused with the reason, and stays the next backend's") {
  const Program program = sums_over_time([](const build::Var& sum, const build::Var& row) { return tanh(sum) + row; });
  const auto backend = make_accumulate_backend(site_of(program, std::make_shared<CpuDevice>()));
  CHECK(backend->form() == nullptr);
  CHECK(backend->reason() == "an iteration is more than the sum of a state and an input");
}
// [test]

}  // namespace millrace::testing
