// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/program/op_def.h>

namespace millrace::ops {

/// The names of an op and of all that it takes and gives (`OpDef`). It refuses attributes that are not named here.
inline OpDef define(std::string name, std::vector<std::string> inputs, std::vector<std::string> outputs,
                    std::vector<std::string> attributes = {}) {
  OpDef def;
  def.name = std::move(name);
  def.inputs = std::move(inputs);
  def.outputs = std::move(outputs);
  def.attributes = std::move(attributes);
  return def;
}

}  // namespace millrace::ops
