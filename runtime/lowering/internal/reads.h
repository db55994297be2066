// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include <millrace/runtime/program/program.h>

namespace millrace::lowering {

/// The number of reads of each var: by ops, as a result of a block, and as an output of the program.
inline std::map<VarId, int> reads_of(const Program& program) {
  std::map<VarId, int> reads;
  for (const Program::Port& port : program.outputs()) ++reads[port.var];
  for (const Block& block : program.blocks()) {
    for (const VarId result : block.results) ++reads[result];
    for (const Op& op : block.ops)
      for (const VarId input : op.inputs)
        if (input != no_var) ++reads[input];
  }
  return reads;
}

}  // namespace millrace::lowering
