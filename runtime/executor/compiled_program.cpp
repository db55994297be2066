// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/compiled_program.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include <fmt/format.h>

#include <millrace/runtime/executor/executable.h>
#include <millrace/runtime/executor/extent_values.h>
#include <millrace/runtime/executor/join_ops.h>
#include <millrace/runtime/executor/var_scope.h>
#include <millrace/runtime/loops/loop_backends.h>
#include <millrace/runtime/lowering/array_classes.h>
#include <millrace/runtime/lowering/join_filters.h>
#include <millrace/runtime/lowering/join_matrices.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/runtime/program/fold_constants.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/ops/array_ops.h>

namespace millrace {

namespace {

/// Resolves a program for a device, block by block.
class Compiler {
 public:
  using Kind = CompiledOp::Kind;

  explicit Compiler(CompiledProgram& made) : made_(made), program_(made.program), preparer_(made.program, made.device) {}

  void run() {
    number_vars();
    for (std::size_t var = 0; var < program_.vars().size(); ++var) {
      const Tensor* const constant = program_.constant(static_cast<VarId>(var));
      made_.held.push_back(constant == nullptr ? nullptr : std::make_unique<const Value>(*constant));
    }
    made_.on_host = preparer_.on_host();
    arrays_ = ArrayClasses(program_);
    if (!made_.device->place().is_cpu()) set_loops_apart();
    for (const Block& block : program_.blocks()) made_.blocks.push_back(compile(block));
    for (std::size_t block = made_.blocks.size(); block-- > 0;) {
      find_stores(static_cast<int>(block));
      find_plain(made_.blocks[block]);
    }
    made_.joined.resize(made_.blocks.size());
    if (made_.device->place().is_cpu()) join_interpreted(0);
  }

 private:
  /// A scope has room for the vars that a run sets: constants have none there, nor results that nobody computes any more.
  void number_vars() {
    made_.index.assign(program_.vars().size(), CompiledProgram::unset);
    vars_.assign(program_.blocks().size(), 0);
    const auto number = [this](VarId var) {
      made_.index[static_cast<std::size_t>(var)] = vars_[static_cast<std::size_t>(program_.var(var).block)]++;
    };
    for (const Program::Port& port : program_.inputs()) number(port.var);
    for (const Block& block : program_.blocks()) {
      std::for_each(block.params.begin(), block.params.end(), number);
      for (const Op& op : block.ops)
        if (op.type != "constant") std::for_each(op.outputs.begin(), op.outputs.end(), number);
    }
  }

  int depth(int block) const {
    int up = 0;
    for (; block > 0; block = program_.block(block).parent_idx) ++up;
    return up;
  }

  ValueSource source(VarId var, int block) {
    if (var == no_var) return {};
    if (const Tensor* value = program_.constant(var)) return {ValueSource::constant, constant_index(var, *value), var};
    return {depth(block) - depth(program_.var(var).block), made_.index[static_cast<std::size_t>(var)], var};
  }

  std::size_t constant_index(VarId var, const Tensor& value) {
    const auto [at, fresh] = constants_.emplace(var, made_.constants.size());
    if (fresh) made_.constants.push_back(preparer_.placed(var, value));
    return at->second;
  }

  CompiledBlock compile(const Block& block) {
    CompiledBlock made;
    made.block = &block;
    made.vars = vars_[static_cast<std::size_t>(block.idx)];
    for (const VarId param : block.params) made.params.push_back(made_.index[static_cast<std::size_t>(param)]);
    OpPreparer::Chains chains;
    for (const Op& op : block.ops)
      if (op.type != "constant") made.ops.push_back(compile(op, block.idx, chains));
    for (const VarId result : block.results) made.results.push_back(source(result, block.idx));
    for (auto at = block.results.begin(); at != block.results.end(); ++at) {
      const bool again = std::find(at + 1, block.results.end(), *at) != block.results.end();
      made.last_of_var.push_back(!again && program_.var(*at).block == block.idx && program_.constant(*at) == nullptr);
    }
    find_last_uses(made);
    find_test(made);
    return made;
  }

  void find_test(CompiledBlock& made) const {
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
  static void take_needed(const CompiledBlock& made, std::size_t at, std::set<VarId>& unused) {
    std::set<VarId> needed{made.ops[at].op->inputs[0]};
    while (at-- > 0) {
      const Op& op = *made.ops[at].op;
      if (std::none_of(op.outputs.begin(), op.outputs.end(), [&](VarId output) { return needed.contains(output); })) continue;
      needed.insert(op.inputs.begin(), op.inputs.end());
      for (const VarId output : op.outputs) unused.erase(output);
    }
  }

  CompiledOp compile(const Op& op, int block, OpPreparer::Chains& chains) {
    CompiledOp made;
    const auto apart = apart_.find(&op);
    static_cast<PreparedOp&>(made) = preparer_.prepare(op, chains, apart == apart_.end() ? std::nullopt : std::optional(apart->second));
    for (const VarId input : op.inputs) made.inputs.push_back(source(input, block));
    for (const VarId output : op.outputs) made.outputs.push_back(made_.index[static_cast<std::size_t>(output)]);
    choose_kind(made, op, block);
    made.name = name_of(made, op);
    return made;
  }

  std::string name_of(const CompiledOp& made, const Op& op) const {
    const bool loop = made.kind == Kind::while_loop;
    if (op.outputs.empty()) return loop ? fmt::format("while {}", made.sub_block) : op.type;
    const std::string& first = program_.var(op.outputs[0]).name;
    return loop ? fmt::format("while {} ({})", made.sub_block, first) : first;
  }

  struct InGroup {
    int loops = 1, place = 0;  // the number of loops in the group, and which of them it is; a loop in no group is alone
  };
  InGroup in_group(const Op& op) const {
    for (const LoopGroup& group : made_.loop_groups)
      for (std::size_t i = 0; i < group.size(); ++i)
        if (&program_.block(0).ops[group[i]] == &op) return {static_cast<int>(group.size()), static_cast<int>(i)};
    return {};
  }

  /// Loops of a group that run on a device at the same time have a stream each. The ops that a loop needs, and none before it does, stand in its stream:
  /// behind another loop they would wait for its end.
  void set_loops_apart() {
    for (const LoopGroup& group : made_.loop_groups) {
      const std::vector<std::set<std::size_t>> before = ops_before_each(program_, group);
      for (std::size_t i = 0; i < group.size(); ++i) {
        apart_.try_emplace(&program_.block(0).ops[group[i]], i);
        for (const std::size_t place : before[i])
          if (i > 0) apart_.try_emplace(&program_.block(0).ops[place], i);
      }
    }
  }

  void choose_kind(CompiledOp& made, const Op& op, int block) {
    if (made.kernel) return;
    if (op.type == "while") {
      expect_files(op);
      made.kind = Kind::while_loop;
      const InGroup found = in_group(op);
      made.backends = make_loop_backends({&program_, block, &op, made_.device, made.stream, found.loops, found.place});
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
      made.run_now = find_immediate_op(op.type);
      if (made.run_task == nullptr) throw ProgramError("op " + op.type + ": expected a way to run it, found none in its definition");
    }
  }

  /// The pages of files are memory of the host: a loop of another device has nothing to spill to.
  void expect_files(const Op& loop) const {
    const Place place = made_.device->place();
    const int body = loop.attributes.get<BlockId>("sub_block").index;
    for (const Op& op : program_.block(body).ops)
      if (op.type == "tensor_array_write" && op.attributes.has("spill") && !place.is_cpu())
        throw UnsupportedError("op while, the loop of block " + std::to_string(body) +
                               ": memory policy spill: expected a loop on the host, found '" + program_.var(op.inputs[2]).name + "' on " +
                               place.to_string() + ": take keep or recompute there");
  }

  /// The vars of the block that each op is the last to read. Values that a sub-block sees, or that the block hands back, stay.
  void find_last_uses(CompiledBlock& made) {
    std::map<std::size_t, std::size_t> last;
    for (std::size_t i = 0; i < made.ops.size(); ++i)
      for (const ValueSource& input : made.ops[i].inputs)
        if (input.up == 0 && input.var != no_var) last[input.index] = i;
    const auto keep = [&](VarId var) {
      if (var != no_var) last.erase(made_.index[static_cast<std::size_t>(var)]);
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
    CompiledBlock& block = made_.blocks[static_cast<std::size_t>(index)];
    std::map<VarId, std::size_t> last;
    for (std::size_t i = 0; i < block.ops.size(); ++i) {
      CompiledOp& op = block.ops[i];
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
        const CompiledBlock& inner = made_.blocks[static_cast<std::size_t>(sub)];
        for (const auto& written : inner.written)
          if (written.array.up > 0) last[written.array.var] = i;
        for (const std::size_t array : inner.appended)
          if (arrays_.home(array) != sub) add_append(block, op, array);
      }
    }
    for (const auto& [array, op] : last) block.written.push_back({source(array, index), op});
    for (CompiledOp& op : block.ops)
      op.makes_written = std::any_of(op.op->outputs.begin(), op.op->outputs.end(), [&](VarId output) { return last.contains(output); });
    if (index == 0)
      for (const Program::Port& port : program_.inputs()) block.inputs.push_back(made_.index[static_cast<std::size_t>(port.var)]);
  }
  /// Children were done before.
  void find_plain(CompiledBlock& block) const {
    const auto is_plain = [this](const CompiledOp& op) {
      if (op.kind != Kind::branch) return op.kind == Kind::kernel && op.def->pure;
      return made_.block(op.sub_block).plain && made_.block(op.else_block).plain;
    };
    block.plain = std::all_of(block.ops.begin(), block.ops.end(), is_plain);
  }

  /// Joins ops of the branches below `block`, and of loops below it that no backend takes.
  void join_interpreted(int block) {
    for (const CompiledOp& op : made_.block(block).ops) {
      const auto fits = [](const std::shared_ptr<LoopBackend>& backend) { return backend->form() != nullptr; };
      if (std::any_of(op.backends.begin(), op.backends.end(), fits)) continue;
      for (const int sub : {op.sub_block, op.else_block}) {
        if (sub < 0) continue;
        made_.joined[static_cast<std::size_t>(sub)] = join_ops(made_, made_.block(sub));
        join_interpreted(sub);
      }
    }
  }
  static void add_append(CompiledBlock& block, CompiledOp& op, std::size_t array) {
    auto at = std::find(block.appended.begin(), block.appended.end(), array);
    if (at == block.appended.end()) at = block.appended.insert(at, array);
    const auto place = static_cast<std::size_t>(at - block.appended.begin());
    if (std::find(op.appends.begin(), op.appends.end(), place) == op.appends.end()) op.appends.push_back(place);
  }

  CompiledProgram& made_;
  const Program& program_;
  OpPreparer preparer_;
  std::map<const Op*, std::size_t> apart_;  // ops whose stream is not left to their inputs
  ArrayClasses arrays_;
  std::vector<std::size_t> vars_;
  std::map<VarId, std::size_t> constants_;
};

/// `join_loops`: whether loops become ops where they can.
std::shared_ptr<CompiledProgram> compile(Program program, std::shared_ptr<Device> device, bool join_loops) {
  auto made = std::make_shared<CompiledProgram>(std::move(program), std::move(device));
  made->host = made->device->place().is_cpu() ? made->device : std::make_shared<CpuDevice>();
  made->for_runs = std::make_unique<CallerDevices>(made->device);
  if (made->host != made->device) made->hosts_for_runs = std::make_unique<CallerDevices>(made->host);
  std::optional<Program> given;
  fold_constants(made->program);
  if (join_loops && made->device->place().is_cpu() && (may_filter(made->program) || may_join_matrices(made->program)))
    given = made->program;
  if (lower_for_runs(made->program, made->device->place(), join_loops)) made->given = std::move(given);
  made->loop_groups = find_loop_groups(made->program);
  Compiler(*made).run();
  made->root_scopes = std::make_shared<ScopePool>(made->block(0).vars);
  if (made->device->place().is_cpu()) made->extent_ops = find_extent_ops(*made);
  if (!made->extent_ops.empty()) made->extent_values = std::make_shared<ExtentValuesPool>();
  if (!made->loop_groups.empty()) made->stacked_views = StackedViews(made->program);
  for (const LoopGroup& group : made->loop_groups) made->behind_groups.push_back(made->stacked_views.behind(made->program, group));
  return made;
}

}  // namespace

Executable::Executable(Program program, std::shared_ptr<Device> device)
    : compiled_(compile(std::move(program), device ? std::move(device) : make_cpu_device(), true)) {}

Executable Executable::with_loops() const {
  const CompiledProgram& all = compiled();
  if (!all.given) return *this;
  std::call_once(all.compiles_given, [&] { all.with_loops = compile(*all.given, all.device, false); });
  return Executable(all.with_loops);
}

const Program& Executable::program() const { return compiled().program; }
Device& Executable::device() const { return *compiled().device; }
const std::vector<LoopGroup>& Executable::loop_groups() const { return compiled().loop_groups; }
void Executable::fail_moved() { throw ArgumentError("executable: expected a compiled program, found one that was moved from"); }

}  // namespace millrace
