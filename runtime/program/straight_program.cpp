// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/straight_program.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/program/fold_constants.h>
#include <millrace/runtime/program/internal/few.h>
#include <millrace/runtime/program/prepared_op.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/caller_devices.h>
#include <millrace/tensor/kernel_floats.h>

namespace millrace {

/// A var's value stands at the var's id; those of constants are there before the first op.
struct StraightProgram::State {
  State(Program source, std::shared_ptr<Device> target)
      : program(std::move(source)),
        device(std::move(target)),
        host(device->place().is_cpu() ? device : std::make_shared<CpuDevice>()),
        callers(device),
        host_callers(host) {}

  struct StraightOp : PreparedOp {
    std::vector<VarId> last_uses;  ///< vars that nothing reads after this op
  };
  Program program;
  std::shared_ptr<Device> device;
  std::shared_ptr<Device> host;
  mutable CallerDevices callers;       // any number of threads may run at the same time
  mutable CallerDevices host_callers;  // of another place than the host
  std::vector<StraightOp> ops;
  std::vector<Value> constants;

  void prepare();
  void find_last_uses();
  /// The streams of one call.
  struct Call {
    explicit Call(const State& state) : device(state.callers.take()) {
      if (state.host != state.device) host.emplace(state.host_callers.take());
    }
    StreamRef stream(const StraightOp& op) const {
      return op.on_host && host ? (*host)->stream(0) : device->stream(op.on_host ? 0 : op.stream);
    }
    CallerDevices::Lease device;
    std::optional<CallerDevices::Lease> host;
  };
  void run(const StraightOp& op, const Call& call, std::vector<Value>& values, Tracer* tracer,
           const std::vector<std::uint64_t>& tracks) const;
  std::vector<std::uint64_t> tracks(Tracer* tracer) const;
};

namespace {

/// The origin of an op's work, for streams that keep it for later.
class OfOp final : public WorkOrigin {
 public:
  explicit OfOp(const Op& op) noexcept : op_(op) {}
  std::string describe() const override { return millrace::describe(op_, 0); }

 private:
  const Op& op_;
};

/// UnsupportedError where an op may have to wait.
void expect_no_wait(const Program& program, const PreparedOp& op) {
  if (!op.kernel) throw UnsupportedError(fmt::format("{}: expected a program without loops, branches and arrays", describe(*op.op, 0)));
  for (const std::size_t input : op.def->host_inputs)
    if (input < op.op->inputs.size() && op.op->inputs[input] != no_var && program.constant(op.op->inputs[input]) == nullptr)
      throw UnsupportedError(fmt::format("{}: the host reads '{}' each time", describe(*op.op, 0), program.var(op.op->inputs[input]).name));
}

}  // namespace

void StraightProgram::State::prepare() {
  OpPreparer preparer(program, device);
  OpPreparer::Chains chains;
  constants.resize(program.vars().size());
  for (const Op& op : program.block(0).ops) {
    if (op.type == "constant") continue;
    ops.push_back({preparer.prepare(op, chains), {}});
    expect_no_wait(program, ops.back());
  }
  std::vector<VarId> read;
  for (const StraightOp& op : ops) read.insert(read.end(), op.op->inputs.begin(), op.op->inputs.end());
  for (const Program::Port& port : program.outputs()) read.push_back(port.var);
  for (const VarId var : read) {
    if (var == no_var || !constants[static_cast<std::size_t>(var)].empty()) continue;
    if (const Tensor* value = program.constant(var)) constants[static_cast<std::size_t>(var)] = preparer.placed(var, *value);
  }
  // An output is handed on as the program holds it.
  find_last_uses();
}

void StraightProgram::State::find_last_uses() {
  std::map<VarId, std::size_t> last;
  for (std::size_t i = 0; i < ops.size(); ++i)
    for (const VarId input : ops[i].op->inputs)
      if (input != no_var && program.constant(input) == nullptr) last[input] = i;
  for (const Program::Port& port : program.outputs()) last.erase(port.var);
  for (const auto& [var, op] : last) ops[op].last_uses.push_back(var);
}

/// The host, then the device's ring. Empty when nobody traces.
std::vector<std::uint64_t> StraightProgram::State::tracks(Tracer* tracer) const {
  std::vector<std::uint64_t> made;
  if (tracer == nullptr) return made;
  made.push_back(tracer->add_track("ops on the host"));
  for (std::size_t i = 0; i < device->stream_count(); ++i) made.push_back(tracer->add_track(fmt::format("ops on stream {}", i)));
  return made;
}

void StraightProgram::State::run(const StraightOp& op, const Call& call, std::vector<Value>& values, Tracer* tracer,
                                 const std::vector<std::uint64_t>& tracks) const {
  const std::vector<VarId>& from = op.op->inputs;
  Few<const Value*, 8> inputs(from.size());
  Few<Value, 3> outputs(op.op->outputs.size());
  std::vector<Value> copied(op.copies_inputs ? from.size() : 0);
  const OfOp origin(*op.op);
  const StreamRef stream(call.stream(op), origin);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] == no_var) continue;
    const auto at = static_cast<std::size_t>(from[i]);
    inputs[i] = constants[at].empty() ? &values[at] : &constants[at];
    if (op.copies_inputs) inputs[i] = input_in_place(op, i, inputs[i], stream, copied[i]);
  }
  OpContext context(*op.op, inputs.span(), outputs.span(), stream);
  const std::size_t track = op.on_host || tracks.empty() ? 0 : 1 + op.stream % (tracks.size() - 1);
  try {
    const TraceSpan span(tracer, "op", op.op->type, tracks.empty() ? 0 : tracks[track]);
    op.kernel(context);
    finish_outputs(op, inputs.span(), outputs.span());
  } catch (Error& error) {
    error.add_context(" (" + describe(*op.op, 0) + ")");
    throw;
  }
  for (std::size_t i = 0; i < op.op->outputs.size(); ++i)
    values[static_cast<std::size_t>(op.op->outputs[i])] = std::move(outputs.span()[i]);
  for (const VarId dead : op.last_uses) values[static_cast<std::size_t>(dead)] = Value();
}

StraightProgram::StraightProgram(Program program, std::shared_ptr<Device> device) {
  auto state = std::make_shared<State>(std::move(program), device ? std::move(device) : make_cpu_device());
  fold_constants(state->program);
  state->prepare();
  state_ = std::move(state);
}

const Program& StraightProgram::program() const noexcept { return state_->program; }

std::vector<Value> StraightProgram::run(const std::vector<Value>& inputs, Tracer* tracer) const {
  const Program& program = state_->program;
  if (inputs.size() != program.inputs().size())
    throw ArgumentError(
        fmt::format("straight-line program '{}': expected {} inputs, found {}", program.title(), program.inputs().size(), inputs.size()));
  const std::vector<std::uint64_t> tracks = state_->tracks(tracer);
  std::vector<Value> values(program.vars().size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[static_cast<std::size_t>(program.inputs()[i].var)] = inputs[i];
  const State::Call call(*state_);
  const KernelFloats floats;  // once for all ops
  for (const State::StraightOp& op : state_->ops) state_->run(op, call, values, tracer, tracks);
  std::vector<Value> outputs;
  for (const Program::Port& port : program.outputs()) {
    const Tensor* constant = program.constant(port.var);
    outputs.push_back(constant != nullptr ? Value(*constant) : values[static_cast<std::size_t>(port.var)]);
  }
  return outputs;
}

}  // namespace millrace
