// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/drop_unread.h>

#include <algorithm>
#include <set>

namespace millrace {

void drop_unread(Program& program) {
  std::set<VarId> read;
  for (const Program::Port& port : program.outputs()) read.insert(port.var);
  for (const Block& block : program.blocks()) {
    read.insert(block.results.begin(), block.results.end());
    for (const Op& op : block.ops) read.insert(op.inputs.begin(), op.inputs.end());
  }
  for (const Block& block : program.blocks())
    std::erase_if(program.block(block.idx).ops, [&](const Op& op) { return op.type == "last_rows" && !read.contains(op.outputs.at(0)); });
}

}  // namespace millrace
