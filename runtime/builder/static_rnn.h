// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <millrace/runtime/builder/rnn_block.h>

namespace millrace::build {

struct StaticRNNOptions {
  /// From the last step to the first; outputs stand where the inputs stood.
  bool reverse = false;
  std::int64_t parallel_iterations = 8;
};

/// A loop over the steps of sequences of equal lengths: tensors [T, B, …], time first, without LoD. See RnnBlock for the calls.
///
/// step_input(x): [T, B, …] gives [B, …]. Several inputs must have as many steps and sequences: refused when the program is built where
/// extents are known then, else a ShapeError that names both.
/// static_input(x): x itself. memory(boot): boot [B, …]. outputs(): [T, B, …], also where T is 0; then what building did not know of the
/// other axes counts 0.
class StaticRNN : public RnnBlock {
 public:
  using Options = StaticRNNOptions;
  explicit StaticRNN(Options options = {});

  Var step_input(const Var& x) override;
  Var static_input(const Var& x) override;

 protected:
  ArrayVar make_array(const std::string& name) const override;
  Var alive(const Var& state) const override { return state; }
  Var boot_rows(DType dtype, const std::vector<std::int64_t>& row_shape, double value) const override;
  Var joined(const ArrayVar& array) const override;
  Var last_of(const Memory& memory) const override;

 private:
  Var turned(const Var& x) const;
  /// Their number, as a list of one number.
  Var sequences() const;

  Options options_;
  Var source_;     ///< the first step input, whole
  Var sequences_;  ///< where only a run knows it
};

}  // namespace millrace::build
