// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/partition.h>

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/distributed/internal/placement.h>
#include <millrace/runtime/lowering/drop_unread.h>
#include <millrace/runtime/lowering/skip_repacking.h>
#include <millrace/runtime/program/fold_constants.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

/// The name of a value on its way: by its var and the rank that makes it, and like no input or output of the program.
class Names {
 public:
  explicit Names(const Program& program) : program_(program) {
    for (const auto* ports : {&program.inputs(), &program.outputs()})
      for (const Program::Port& port : *ports) taken_.insert(port.name);
  }
  const std::string& of(VarId var, int rank) {
    std::string& name = names_[var];
    if (!name.empty()) return name;
    name = fmt::format("{} of rank {}", program_.var(var).name, rank);
    while (!taken_.insert(name).second) name += "'";
    return name;
  }

 private:
  const Program& program_;
  std::set<std::string> taken_;
  std::map<VarId, std::string> names_;
};

/// Builds the part of one rank: copies of its ops and of what they read.
class PartBuilder {
 public:
  PartBuilder(const Program& whole, int rank) : whole_(whole), rank_(rank), part_(whole.shared_registry()) {
    part_.set_title(fmt::format("{}, rank {}", whole.title(), rank));
  }

  void add_input(const Program::Port& port) { vars_[port.var] = part_.add_input(port.name, whole_.var(port.var).type); }
  void add_arriving(VarId var, const std::string& name) { vars_[var] = part_.add_input(name, whole_.var(var).type); }
  void add_output(const std::string& name, VarId var) { part_.add_output(name, at(var)); }
  void add_op(const Op& op) { copy_op(op, 0); }
  bool has(VarId var) const { return vars_.contains(var); }
  Program take() { return std::move(part_); }

 private:
  /// Weights and literals come along when they are first read; all else is there.
  VarId at(VarId var) {
    if (var == no_var) return no_var;
    if (const auto found = vars_.find(var); found != vars_.end()) return found->second;
    const VarDef& def = whole_.var(var);
    if (const Tensor* weight = whole_.parameter(var)) return vars_[var] = part_.add_parameter(def.name, *weight);
    const Tensor* literal = def.block == 0 ? whole_.constant(var) : nullptr;
    if (literal == nullptr) throw ProgramError(fmt::format("part of rank {}: var '{}' is not there", rank_, def.name));
    const VarId made = make(var, 0);
    part_.append_raw(0, {"constant", {}, {made}, {{"value", *literal}}, {}});
    return made;
  }
  VarId make(VarId var, int block) { return vars_[var] = part_.add_var(whole_.var(var).name, whole_.var(var).type, block); }

  int copy_block(const Block& from, int parent) {
    const int to = part_.add_block(parent);
    for (const VarId param : from.params) {
      const VarId made = make(param, to);
      part_.block(to).params.push_back(made);
    }
    for (const Op& op : from.ops) copy_op(op, to);
    for (const VarId result : from.results) {
      const VarId handed = at(result);
      part_.block(to).results.push_back(handed);
    }
    return to;
  }

  void copy_op(const Op& op, int block) {
    Op made{op.type, {}, {}, {}, op.label};
    for (const VarId input : op.inputs) made.inputs.push_back(at(input));
    for (const auto& [name, value] : op.attributes) {
      const auto* sub = std::get_if<BlockId>(&value);
      if (sub != nullptr)
        made.attributes.set(name, BlockId{copy_block(whole_.block(sub->index), block)});
      else
        made.attributes.set(name, value);
    }
    for (const VarId output : op.outputs) made.outputs.push_back(make(output, block));
    part_.append_raw(block, std::move(made));
  }

  const Program& whole_;
  const int rank_;
  Program part_;
  std::map<VarId, VarId> vars_;
};

/// Cuts a program along the ranks of its ops.
class Cutter {
 public:
  Cutter(const Program& whole, const std::vector<int>& rank_of_op, Partition& made)
      : whole_(whole), ranks_(rank_of_op), made_(made), uses_(detail::uses_of_ops(whole)), names_(whole) {
    const std::vector<Op>& ops = whole.block(0).ops;
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (rank_of_op[i] >= 0)
        for (const VarId output : ops[i].outputs) maker_[output] = rank_of_op[i];
    for (int rank = 0; rank < made.ranks; ++rank) builders_.emplace_back(whole, rank);
  }

  void run() {
    for (int rank = 0; rank < made_.ranks; ++rank) cut(rank);
    // Every part is there: now what leaves it is an output.
    std::set<std::string> leaving;
    for (const auto& [var, transfer] : transferred_) {
      if (leaving.insert(transfer.name).second) builders_[static_cast<std::size_t>(transfer.from)].add_output(transfer.name, var);
      made_.transfers.push_back(transfer);
    }
    for (PartBuilder& builder : builders_) made_.parts.push_back(builder.take());
  }

 private:
  void cut(int rank) {
    PartBuilder& builder = builders_[static_cast<std::size_t>(rank)];
    const std::vector<Op>& ops = whole_.block(0).ops;
    std::set<VarId> used;
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (ranks_[i] == rank) used.insert(uses_[i].begin(), uses_[i].end());
    if (rank == 0)
      for (const Program::Port& port : whole_.outputs()) used.insert(port.var);
    for (const Program::Port& port : whole_.inputs())
      if (rank == 0 || used.contains(port.var)) builder.add_input(port);
    for (const VarId var : used) {
      const auto maker = maker_.find(var);
      if (maker == maker_.end() || maker->second == rank) continue;
      const std::string& name = names_.of(var, maker->second);
      builder.add_arriving(var, name);
      transferred_.emplace_back(var, Partition::Transfer{name, maker->second, rank});
    }
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (ranks_[i] == rank) builder.add_op(ops[i]);
    if (rank == 0)
      for (const Program::Port& port : whole_.outputs()) builder.add_output(port.name, port.var);
  }

  const Program& whole_;
  const std::vector<int>& ranks_;
  Partition& made_;
  const std::vector<std::vector<VarId>> uses_;
  Names names_;
  std::map<VarId, int> maker_;
  std::vector<PartBuilder> builders_;
  std::vector<std::pair<VarId, Partition::Transfer>> transferred_;
};

std::string text_of(const Partition::Loop& loop) {
  std::string text = fmt::format("rank {}: {}, the {} of block{} {}", loop.rank, loop.name, loop.blocks.size() > 1 ? "loops" : "loop",
                                 loop.blocks.size() > 1 ? "s" : "", fmt::join(loop.blocks, ", "));
  return text + fmt::format(", stage {}, {} elements of weights", loop.stage, loop.weights);
}

}  // namespace

std::vector<std::string> Partition::kept() const {
  std::vector<std::string> lines;
  for (const Loop& loop : loops)
    if (!loop.kept.empty()) lines.push_back(fmt::format("{} is on rank {}: {}", loop.name, loop.rank, loop.kept));
  std::vector<int> idle;
  for (int rank = 1; rank < ranks; ++rank)
    if (std::none_of(loops.begin(), loops.end(), [&](const Loop& loop) { return loop.rank == rank; })) idle.push_back(rank);
  if (loops.empty() && ranks > 1)
    lines.push_back(fmt::format("all of '{}' is on rank 0: it has no loop to share out", title));
  else if (!idle.empty())
    lines.push_back(fmt::format("no loop is left for rank{} {}", idle.size() > 1 ? "s" : "", fmt::join(idle, ", ")));
  return lines;
}

std::string Partition::to_string() const {
  std::string text = fmt::format("'{}' on {} rank{}\n", title, ranks, ranks > 1 ? "s" : "");
  for (const Loop& loop : loops) text += text_of(loop) + "\n";
  for (const std::string& line : kept()) text += line + "\n";
  for (const Transfer& transfer : transfers) text += fmt::format("rank {} to rank {}: {}\n", transfer.from, transfer.to, transfer.name);
  return text;
}

Partition partition_over_ranks(Program program, int ranks) {
  if (ranks < 1) throw ArgumentError(fmt::format("partition: expected at least 1 rank, found {}", ranks));
  fold_constants(program);
  drop_unread(program);
  skip_repacking(program, true);
  detail::Placement placement = detail::place_ops(program, ranks);
  Partition made;
  made.ranks = ranks;
  made.title = program.title();
  made.loops = std::move(placement.loops);
  Cutter(program, placement.rank_of_op, made).run();
  return made;
}

}  // namespace millrace
