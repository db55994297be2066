// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/executable.h>

#include <algorithm>
#include <map>
#include <set>

#include <millrace/runtime/loops/device_form.h>
#include <millrace/runtime/lowering/array_classes.h>
#include <millrace/runtime/lowering/drop_unread.h>
#include <millrace/runtime/lowering/fold_constants.h>
#include <millrace/runtime/lowering/loop_groups.h>
#include <millrace/runtime/lowering/skip_repacking.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/array_ops.h>
#include <millrace/tensor/copy.h>

namespace millrace {

/// Resolves a program for a device, block by block.
class Compiler {
 public:
  using Source = Executable::Source;
  using Kind = Executable::Kind;

  explicit Compiler(Executable::State& state) : state_(state), program_(state.program) {}

  void run() {
    number_vars();
    find_host_vars();
    state_.on_host = host_;
    arrays_ = ArrayClasses(program_);
    for (const Block& block : program_.blocks()) state_.blocks.push_back(compile(block));
    for (std::size_t block = state_.blocks.size(); block-- > 0;) find_stores(static_cast<int>(block));
  }

 private:
  void number_vars() {
    std::vector<std::size_t> next(program_.blocks().size(), 0);
    for (const VarDef& var : program_.vars()) state_.index.push_back(next[static_cast<std::size_t>(var.block)]++);
    vars_ = std::move(next);
  }

  int depth(int block) const {
    int up = 0;
    for (; block > 0; block = program_.block(block).parent_idx) ++up;
    return up;
  }

  Source source(VarId var, int block) {
    if (var == no_var) return {};
    if (const Tensor* value = program_.constant(var)) return {Source::constant, constant_index(var, *value), var};
    return {depth(block) - depth(program_.var(var).block), state_.index[static_cast<std::size_t>(var)], var};
  }

  std::size_t constant_index(VarId var, const Tensor& value) {
    const auto [at, fresh] = constants_.emplace(var, state_.constants.size());
    if (fresh) state_.constants.push_back(placed(value, host_[static_cast<std::size_t>(var)]));
    return at->second;
  }
  Value placed(const Tensor& value, bool on_host) const {
    if (on_host || state_.device->place() == value.place()) return value;
    Tensor there(value.dtype(), value.dims(), state_.device->memory());
    copy(value, there, state_.device->stream(0));
    return there;
  }

  /// Integers and booleans that steer a loop: no larger than a shape.
  bool small_integer(VarId var) const {
    const VarType& type = program_.var(var).type;
    return type.is_tensor() && !is_floating(type.dtype) && type.is_static() && type.lod_depth == 0 && type.shape->elements() <= 16;
  }

  /// The greatest set of vars that can be computed on the host from each other alone. What a loop carries may turn out not to be: then
  /// again.
  void find_host_vars() {
    host_.assign(program_.vars().size(), false);
    for (std::size_t var = 0; var < host_.size(); ++var) host_[var] = small_integer(static_cast<VarId>(var));
    // A straight-line program computes where it is fed; one with loops is steered by small inputs too.
    if (program_.blocks().size() == 1)
      for (const Program::Port& port : program_.inputs()) host_[static_cast<std::size_t>(port.var)] = false;
    bool changed = true;
    while (changed) {
      changed = false;
      for (const Block& block : program_.blocks())
        for (const Op& op : block.ops) changed = demote(op) || changed;
    }
  }
  bool demote(const Op& op) {
    if (op.type == "while") return demote_carried(op);
    static const std::set<std::string> told_on_host{"tensor_array_size", "list_length", "optional_has", "break_if", "constant"};
    if (told_on_host.contains(op.type)) return false;
    const bool computed = program_.registry().at(op.type).prepare != nullptr;
    const bool steered = computed && std::all_of(op.inputs.begin(), op.inputs.end(),
                                                 [&](VarId in) { return in == no_var || host_[static_cast<std::size_t>(in)]; });
    return !steered && take(op.outputs);
  }
  bool demote_carried(const Op& op) {
    const Block& body = program_.block(op.attributes.get<BlockId>("sub_block").index);
    bool changed = false;
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      std::vector<VarId> same{op.inputs[i], body.params[i], body.results[i], op.outputs[i]};
      for (const Op& inner : body.ops)
        if (inner.type == "break_if") same.push_back(inner.inputs[i + 1]);
      const bool all = std::all_of(same.begin(), same.end(), [&](VarId id) { return host_[static_cast<std::size_t>(id)]; });
      if (!all) changed = take({body.params[i], op.outputs[i]}) || changed;
    }
    return changed;
  }
  bool take(const std::vector<VarId>& vars) {
    bool changed = false;
    for (const VarId var : vars) {
      changed = changed || host_[static_cast<std::size_t>(var)];
      host_[static_cast<std::size_t>(var)] = false;
    }
    return changed;
  }

  Executable::CompiledBlock compile(const Block& block) {
    Executable::CompiledBlock made;
    made.block = &block;
    made.vars = vars_[static_cast<std::size_t>(block.idx)];
    for (const VarId param : block.params) made.params.push_back(state_.index[static_cast<std::size_t>(param)]);
    std::map<VarId, std::size_t> streams;
    for (const Op& op : block.ops)
      if (op.type != "constant") made.ops.push_back(compile(op, block.idx, streams));
    for (const VarId result : block.results) made.results.push_back(source(result, block.idx));
    for (auto at = block.results.begin(); at != block.results.end(); ++at) {
      const bool again = std::find(at + 1, block.results.end(), *at) != block.results.end();
      made.last_of_var.push_back(!again && program_.var(*at).block == block.idx && program_.constant(*at) == nullptr);
    }
    find_last_uses(made);
    find_test(made);
    return made;
  }

  void find_test(Executable::CompiledBlock& made) const {
    std::set<VarId> unused;  // computed, and needed by no break_if so far
    for (std::size_t i = 0; i < made.ops.size(); ++i) {
      const Op& op = *made.ops[i].op;
      if (op.type == "break_if") {
        take_needed(made, i, unused);
        if (!unused.empty() || !std::equal(op.inputs.begin() + 1, op.inputs.end(), made.block->params.begin(), made.block->params.end()))
          return;
        made.test = i + 1;
        continue;
      }
      if (made.ops[i].def->stores || made.ops[i].sub_block >= 0) return;
      unused.insert(op.outputs.begin(), op.outputs.end());
    }
  }
  /// Takes out of `unused` what the break_if at `at` needs. Outputs of an op that yields one that is needed are needed too.
  static void take_needed(const Executable::CompiledBlock& made, std::size_t at, std::set<VarId>& unused) {
    std::set<VarId> needed{made.ops[at].op->inputs[0]};
    while (at-- > 0) {
      const Op& op = *made.ops[at].op;
      if (std::none_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) { return needed.contains(output); })) continue;
      needed.insert(op.inputs.begin(), op.inputs.end());
      for (const VarId output : op.outputs) unused.erase(output);
    }
  }

  Executable::CompiledOp compile(const Op& op, int block, std::map<VarId, std::size_t>& streams) {
    Executable::CompiledOp made;
    made.op = &op;
    made.def = &program_.registry().at(op.type);
    made.passes_lod = made.def->passes_lod;
    for (const VarId input : op.inputs) made.inputs.push_back(source(input, block));
    for (const VarId output : op.outputs) made.outputs.push_back(state_.index[static_cast<std::size_t>(output)]);
    made.on_host = !op.outputs.empty() &&
                   std::all_of(op.outputs.begin(), op.outputs.end(), [&](VarId id) { return host_[static_cast<std::size_t>(id)]; });
    choose_kind(made, op);
    made.copies_inputs = !made.on_host && !state_.device->place().is_cpu();
    choose_stream(made, op, streams);
    const auto never_changes = [&](std::size_t input) {
      return input >= made.inputs.size() || made.inputs[input].var == no_var || made.inputs[input].up == Source::constant;
    };
    const auto& read_on_host = made.def->host_inputs;
    const bool waits = !std::all_of(read_on_host.begin(), read_on_host.end(), never_changes);
    state_.straight_line = state_.straight_line && made.kind == Kind::kernel && !waits;
    return made;
  }

  void choose_kind(Executable::CompiledOp& made, const Op& op) {
    if (made.def->prepare) {
      made.kernel = made.def->prepare(PrepareContext(program_, op, state_.device.get()));
    } else if (op.type == "while") {
      made.kind = Kind::while_loop;
      made.fused = std::make_shared<FusedForm>();
      if (std::holds_alternative<CudaPlace>(state_.device->place())) made.captured = std::make_shared<CapturedGraphs>();
      if (std::holds_alternative<CudaPlace>(state_.device->place())) made.on_device = std::make_shared<DeviceForm>(state_.device);
      made.sub_block = op.attributes.get<BlockId>("sub_block").index;
    } else if (op.type == "break_if") {
      made.kind = Kind::break_if;
    } else if (op.type == "if") {
      made.kind = Kind::branch;
      made.sub_block = op.attributes.get<BlockId>("then_block").index;
      made.else_block = op.attributes.get<BlockId>("else_block").index;
    } else {
      made.kind = Kind::task;
      made.run_task = find_async_op(op.type);
      if (made.run_task == nullptr) throw ProgramError("op " + op.type + ": expected a way to run it, found none in its definition");
    }
  }

  /// An op goes on where its first input was made, unless another op went on there before: chains share a stream, independent chains do
  /// not.
  void choose_stream(Executable::CompiledOp& made, const Op& op, std::map<VarId, std::size_t>& streams) {
    for (const VarId input : op.inputs) {
      const auto at = streams.find(input);
      if (at == streams.end()) continue;
      made.stream = at->second;
      streams.erase(at);
      for (const VarId output : op.outputs) streams[output] = made.stream;
      return;
    }
    made.stream = next_stream_++;
    for (const VarId output : op.outputs) streams[output] = made.stream;
  }

  /// Which vars of the block each op is the last to read. What a sub-block sees, and what the block hands back, stays.
  void find_last_uses(Executable::CompiledBlock& made) {
    std::map<std::size_t, std::size_t> last;
    for (std::size_t i = 0; i < made.ops.size(); ++i)
      for (const Source& input : made.ops[i].inputs)
        if (input.up == 0 && input.var != no_var) last[input.index] = i;
    const auto keep = [&](VarId var) {
      if (var != no_var) last.erase(state_.index[static_cast<std::size_t>(var)]);
    };
    for (const VarId result : made.block->results) keep(result);
    if (made.block->idx == 0)
      for (const Program::Port& port : program_.outputs()) keep(port.var);
    for (const Block& other : program_.blocks()) {
      if (other.idx == made.block->idx) continue;
      for (const Op& op : other.ops)
        for (const VarId input : op.inputs)
          if (input != no_var && program_.var(input).block == made.block->idx) keep(input);
      for (const VarId result : other.results)
        if (program_.var(result).block == made.block->idx) keep(result);
    }
    for (const auto& [var, op] : last) made.ops[op].last_uses.push_back(var);
  }

  /// Arrays that a block or what is below it writes or appends to. Children were done before.
  void find_stores(int index) {
    Executable::CompiledBlock& block = state_.blocks[static_cast<std::size_t>(index)];
    std::map<VarId, std::size_t> last;
    for (std::size_t i = 0; i < block.ops.size(); ++i) {
      Executable::CompiledOp& op = block.ops[i];
      if (op.def->stores) {
        const VarId array = op.op->inputs.at(op.def->stores->first);
        for (const VarId maker : arrays_.makers(array)) {
          op.stores_to.push_back(source(maker, index));
          last[maker] = i;
        }
        if (op.op->type == "tensor_array_append") add_append(block, op, arrays_.id(array));
      }
      for (const int sub : {op.sub_block, op.else_block}) {
        if (sub < 0) continue;
        const Executable::CompiledBlock& inner = state_.blocks[static_cast<std::size_t>(sub)];
        for (const auto& written : inner.written)
          if (written.array.up > 0) last[written.array.var] = i;
        for (const std::size_t array : inner.appended)
          if (arrays_.home(array) != sub) add_append(block, op, array);
      }
    }
    for (const auto& [array, op] : last) block.written.push_back({source(array, index), op});
    if (index == 0)
      for (const Program::Port& port : program_.inputs()) block.inputs.push_back(state_.index[static_cast<std::size_t>(port.var)]);
  }
  static void add_append(Executable::CompiledBlock& block, Executable::CompiledOp& op, std::size_t array) {
    auto at = std::find(block.appended.begin(), block.appended.end(), array);
    if (at == block.appended.end()) at = block.appended.insert(at, array);
    const auto place = static_cast<std::size_t>(at - block.appended.begin());
    if (std::find(op.appends.begin(), op.appends.end(), place) == op.appends.end()) op.appends.push_back(place);
  }

  Executable::State& state_;
  const Program& program_;
  ArrayClasses arrays_;
  std::vector<std::size_t> vars_;
  std::vector<bool> host_;
  std::map<VarId, std::size_t> constants_;
  std::size_t next_stream_ = 0;
};

Executable::Executable(Program program, std::shared_ptr<Device> device) {
  auto state = std::make_shared<State>(std::move(program), device ? std::move(device) : make_cpu_device());
  state->host = state->device->place().is_cpu() ? state->device : std::make_shared<CpuDevice>();
  fold_constants(state->program);
  drop_unread(state->program);
  skip_repacking(state->program);
  Compiler(*state).run();
  state->loop_groups = find_loop_groups(state->program);
  if (!state->loop_groups.empty()) state->stacked_views = StackedViews(state->program);
  for (const LoopGroup& group : state->loop_groups) state->behind_groups.push_back(state->stacked_views.behind(state->program, group));
  state_ = std::move(state);
}

}  // namespace millrace
