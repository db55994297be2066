// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <vector>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/straight_program.h>

namespace millrace::testing {

/// Runs a recurrence one step after the other for several sequences at once, all of one length: rows[s][t] are the rows of sequence s for
/// its inputs, given[s] what it is given. Returns, per output, the rows of sequence s one behind the other.
class StepByStep {
 public:
  explicit StepByStep(const Recurrence& recurrence) : recurrence_(recurrence), batched_(recurrence.batched), start_(recurrence.start) {}

  /// x: [steps, row] of one live input; gives output 0 as [steps, …] bytes.
  std::vector<std::byte> run(const Tensor& x, const std::vector<Value>& given = {}) const { return run_all({x}, {given})[0]; }

  std::vector<std::vector<std::byte>> run_all(const std::vector<Tensor>& xs, const std::vector<std::vector<Value>>& given) const {
    const auto n = static_cast<std::int64_t>(xs.size());
    std::vector<std::vector<Value>> states;
    for (std::size_t s = 0; s < xs.size(); ++s) states.push_back(start_.run(given[s]));
    std::vector<std::vector<std::byte>> outputs(xs.size());
    const std::int64_t steps = xs[0].dim(0);
    for (std::int64_t t = 0; t < steps; ++t) {
      std::vector<Value> inputs{joined(xs, t, recurrence_.inputs[0].dims)};
      for (std::size_t i = 0; i < recurrence_.states.size(); ++i) inputs.emplace_back(joined_states(states, i, n));
      const std::vector<Value> results = batched_.run(inputs);
      append(results[0].tensor().tensor(), outputs);
      std::size_t next = recurrence_.outputs.size();
      for (std::size_t i = 0; i < recurrence_.states.size(); ++i) {
        if (!recurrence_.states[i].changes) continue;
        const Tensor all = results[next++].tensor().tensor().copy_to(CpuPlace{});
        for (std::int64_t s = 0; s < n; ++s) states[static_cast<std::size_t>(s)][i] = all.select(0, s);
      }
    }
    return outputs;
  }

 private:
  static Tensor joined(const std::vector<Tensor>& xs, std::int64_t t, const DDim& dims) {
    std::vector<Tensor> rows;
    for (const Tensor& x : xs) rows.push_back(x.rows(t, t + 1).reshape(dims));
    return stacked(rows);
  }
  static Tensor joined_states(const std::vector<std::vector<Value>>& states, std::size_t i, std::int64_t) {
    std::vector<Tensor> rows;
    for (const auto& state : states) rows.push_back(state[i].tensor().tensor());
    return stacked(rows);
  }
  static Tensor stacked(const std::vector<Tensor>& rows) {
    Tensor all(rows[0].dtype(), rows[0].dims().inserted(0, static_cast<std::int64_t>(rows.size())));
    all.storage()->mark_written();
    auto* to = static_cast<std::byte*>(all.raw_mutable());
    for (const Tensor& row : rows) {
      const Tensor dense = row.copy_to(CpuPlace{});
      std::memcpy(to, dense.raw(), dense.bytes());
      to += dense.bytes();
    }
    return all;
  }
  static void append(const Tensor& result, std::vector<std::vector<std::byte>>& outputs) {
    const Tensor all = result.copy_to(CpuPlace{});
    const std::size_t bytes = all.bytes() / outputs.size();
    const auto* from = static_cast<const std::byte*>(all.raw());
    for (std::size_t s = 0; s < outputs.size(); ++s) outputs[s].insert(outputs[s].end(), from + s * bytes, from + (s + 1) * bytes);
  }

  const Recurrence& recurrence_;
  StraightProgram batched_;
  StraightProgram start_;
};

inline std::vector<std::byte> bytes_of(const Tensor& tensor) {
  const Tensor dense = tensor.copy_to(CpuPlace{});
  const auto* from = static_cast<const std::byte*>(dense.raw());
  return {from, from + dense.bytes()};
}

}  // namespace millrace::testing
