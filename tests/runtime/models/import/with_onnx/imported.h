// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/models/import/onnx.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>
#include <runtime/models/import/with_onnx/model_builder.h>

/// Graphs that are imported, and a look at what they became.
namespace millrace::testing {

using Ints = std::vector<std::int64_t>;

/// The program of a graph: one that checks, and reads back as it prints.
inline Program parse(const GraphBuilder& graph, int opset = 17, const OnnxOptions& options = {}) {
  Program program = parse_onnx(graph.bytes(opset), "m.onnx", options);
  check(program);
  CHECK(print(parse_program(print(program), [&] {
          std::map<std::string, Tensor> weights;
          for (const auto& [var, value] : program.parameters()) weights.emplace(program.var(var).name, value);
          return weights;
        }())) == print(program));
  return program;
}

inline std::vector<std::string> ops_of(const Program& program, int block = 0) {
  std::vector<std::string> names;
  for (const Op& op : program.block(block).ops) names.push_back(op.type);
  return names;
}

inline const Op& find_op(const Program& program, const std::string& type, int block = 0) {
  for (const Op& op : program.block(block).ops)
    if (op.type == type) return op;
  FAIL("no op ", type, " in ", program.to_string());
  return program.block(block).ops.front();
}

inline Tensor ones(const DDim& dims) { return make_darray(dims, 1.0f); }
inline Tensor list(const Ints& values) { return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}); }

/// The inputs, weights and outputs of an LSTM of two units over [5, N, 3]; its node is added by the test.
inline GraphBuilder lstm(std::int64_t directions = 1) {
  GraphBuilder graph;
  graph.input("x", {5, -1, 3}).initializer("W", ones({directions, 8, 3})).initializer("R", ones({directions, 8, 2}));
  graph.initializer("B", ones({directions, 16})).output("y").output("yh").output("yc");
  return graph;
}

}  // namespace millrace::testing
