// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/check.h>

#include <fmt/format.h>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/program/internal/check_at.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

class Checker {
 public:
  Checker(const Program& program, const std::function<void(int, std::size_t)>& at)
      : program_(program), at_(at), written_(program.vars().size(), false) {}

  void run() {
    for (const Program::Port& port : program_.inputs()) write(port.var, "an input");
    for (const auto& [var, value] : program_.parameters()) write(var, "a weight");
    owners_.assign(program_.blocks().size(), 0);
    owners_[0] = 1;
    at_(0, program_.block(0).ops.size());
    if (!program_.block(0).params.empty() || !program_.block(0).results.empty())
      throw ProgramError("block 0: expected neither parameters nor results, which are for the blocks that ops own");
    check_block(0);
    for (const Block& block : program_.blocks()) {
      at_(block.idx, block.ops.size());
      const int owners = owners_[static_cast<std::size_t>(block.idx)];
      if (owners != 1) throw ProgramError(fmt::format("block {}: expected one op that owns it, found {}", block.idx, owners));
    }
    for (const Program::Port& port : program_.outputs()) hand_back(port.var, 0, "output " + internal::printable(port.name));
  }

 private:
  void write(VarId id, const std::string& by) {
    if (id < 0 || std::cmp_greater_equal(id, written_.size())) throw ProgramError(by + ": expected a var of this program");
    if (written_[static_cast<std::size_t>(id)])
      throw ProgramError(fmt::format("var '{}': written twice, the second time by {}", program_.var(id).name, by));
    written_[static_cast<std::size_t>(id)] = true;
  }
  void see(VarId id, const std::string& by) {
    if (id == no_var) return;
    if (id < 0 || std::cmp_greater_equal(id, written_.size())) throw ProgramError(by + ": expected a var of this program");
    if (!written_[static_cast<std::size_t>(id)])
      throw ProgramError(fmt::format("{}: reads '{}', which is not written before it", by, program_.var(id).name));
  }

  /// The results of a block: vars that it sees.
  void hand_back(VarId id, int block, const std::string& by) {
    if (id == no_var) throw ProgramError(by + ": expected a var, found none");
    see(id, by);
    if (!program_.visible(id, block))
      throw ProgramError(
          fmt::format("{}: '{}' belongs to block {} and is not visible here", by, program_.var(id).name, program_.var(id).block));
  }

  void check_block(int index) {
    const Block& block = program_.block(index);
    for (const VarId param : block.params) write(param, fmt::format("block {}", index));
    for (std::size_t op = 0; op < block.ops.size(); ++op) check_op(index, op);
    at_(index, block.ops.size());
    for (const VarId result : block.results) hand_back(result, index, fmt::format("results of block {}", index));
  }

  void check_op(int block, std::size_t place) {
    const Op& op = program_.block(block).ops[place];
    const std::string where = fmt::format("block {}, op {}", block, op.type);
    at_(block, place);
    for (const VarId input : op.inputs) see(input, where);
    for (const auto& [name, attribute] : op.attributes) {
      if (const auto* sub = std::get_if<BlockId>(&attribute)) check_sub_block(block, sub->index, where);
      at_(block, place);
    }
    const std::vector<VarType> types = program_.infer(block, op);
    if (types.size() != op.outputs.size())
      throw ProgramError(fmt::format("{}: expected {} outputs, found {}", where, types.size(), op.outputs.size()));
    for (std::size_t i = 0; i < types.size(); ++i) {
      write(op.outputs[i], where);
      const VarDef& var = program_.var(op.outputs[i]);
      if (!fits(types[i], var.type))
        throw ProgramError(
            fmt::format("{}: '{}' is declared {}, expected {}", where, var.name, var.type.to_string(), types[i].to_string()));
    }
  }

  void check_sub_block(int parent, int index, const std::string& where) {
    if (index <= parent || std::cmp_greater_equal(index, program_.blocks().size()) || program_.block(index).parent_idx != parent)
      throw ProgramError(fmt::format("{}: block {} is not a child of block {}", where, index, parent));
    if (++owners_[static_cast<std::size_t>(index)] == 1) check_block(index);
  }

  const Program& program_;
  const std::function<void(int, std::size_t)>& at_;
  std::vector<bool> written_;
  std::vector<int> owners_;
};

}  // namespace

void internal::check_at(const Program& program, const std::function<void(int block, std::size_t op)>& at) { Checker(program, at).run(); }

void check(const Program& program) {
  internal::check_at(program, [](int, std::size_t) {});
}

}  // namespace millrace
