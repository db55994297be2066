// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/check.h>

#include <fmt/format.h>

#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

class Checker {
 public:
  explicit Checker(const Program& program) : program_(program), written_(program.vars().size(), false) {}

  void run() {
    for (const Program::Port& port : program_.inputs()) write(port.var, "an input");
    for (const auto& [var, value] : program_.parameters()) write(var, "a weight");
    owners_.assign(program_.blocks().size(), 0);
    owners_[0] = 1;
    check_block(0);
    for (std::size_t block = 0; block < owners_.size(); ++block)
      if (owners_[block] != 1) throw ProgramError(fmt::format("block {}: expected one op that owns it, found {}", block, owners_[block]));
    for (const Program::Port& port : program_.outputs()) see(port.var, fmt::format("output '{}'", port.name));
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

  void check_block(int index) {
    const Block& block = program_.block(index);
    for (const VarId param : block.params) write(param, fmt::format("block {}", index));
    for (const Op& op : block.ops) check_op(index, op);
    for (const VarId result : block.results) see(result, fmt::format("results of block {}", index));
  }

  void check_op(int block, const Op& op) {
    const std::string where = fmt::format("block {}, op {}", block, op.type);
    for (const VarId input : op.inputs) see(input, where);
    for (const auto& [name, attribute] : op.attributes) {
      if (const auto* sub = std::get_if<BlockId>(&attribute)) check_sub_block(block, sub->index, where);
    }
    const std::vector<VarType> types = program_.infer(block, op);
    if (types.size() != op.outputs.size())
      throw ProgramError(fmt::format("{}: expected {} outputs, found {}", where, types.size(), op.outputs.size()));
    for (std::size_t i = 0; i < types.size(); ++i) {
      const VarDef& var = program_.var(op.outputs[i]);
      if (!fits(types[i], var.type))
        throw ProgramError(
            fmt::format("{}: '{}' is declared {}, expected {}", where, var.name, var.type.to_string(), types[i].to_string()));
      write(op.outputs[i], where);
    }
  }

  void check_sub_block(int parent, int index, const std::string& where) {
    if (index <= parent || std::cmp_greater_equal(index, program_.blocks().size()) || program_.block(index).parent_idx != parent)
      throw ProgramError(fmt::format("{}: block {} is not a child of block {}", where, index, parent));
    if (++owners_[static_cast<std::size_t>(index)] == 1) check_block(index);
  }

  const Program& program_;
  std::vector<bool> written_;
  std::vector<int> owners_;
};

}  // namespace

void check(const Program& program) { Checker(program).run(); }

}  // namespace millrace
