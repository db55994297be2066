// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// A while op that is to be run backwards: what its backward needs of it, and what it keeps for that.
///
/// The values that an iteration begins with are kept in growable arrays, one for each carried var that the backward reads. Counters are computed
/// again.
class ForwardLoop {
 public:
  /// UnsupportedError when the loop carries arrays or lists that change, or is left in the middle of an iteration with values of that iteration.
  /// `memory` says how values are kept.
  ForwardLoop(Program& program, int body, std::set<VarId>& active, MemoryPolicy memory);

  /// The number of iterations, in the loop's block. Adds a count to the loop when it is first asked for.
  VarId trips();
  /// Arrays around the loop that the body reads.
  std::set<VarId> arrays_read() const;
  /// Arrays around the loop that the body writes.
  std::set<VarId> arrays_written() const;
  /// Whether a carried var is the same in all iterations.
  bool invariant(std::size_t carried) const;
  /// Carried vars through which a gradient flows, given those of outputs and arrays that have one behind the loop.
  std::vector<bool> live_carried(const std::function<bool(VarId)>& has, const std::function<bool(VarId)>& has_array) const;

  /// Vars of block `back` for the parameters of the body, in `copies` too. An invariant parameter is the initial value.
  std::vector<VarId> stand_ins(int back, std::map<VarId, VarId>& copies);
  /// Takes out of `back` the copies of ops that read slots of lists which the loop carries and changes: `give_values` gives their values. `copies`: of
  /// the vars of the body.
  void take_list_reads(int back, const std::map<VarId, VarId>& copies);
  /// Puts in front of the ops of `back`: the stop at `left` = 0, and what gives the stand-ins that its ops read their values in iteration
  /// `iteration`.
  void give_values(int back, VarId left, VarId iteration, const std::vector<VarId>& values);

 private:
  /// A value of the body that is kept, and what stands for it in the backward loop.
  struct Kept {
    VarId var = no_var;
    VarId here = no_var;
  };

  Op& loop();
  const Op& loop() const;
  void check() const;
  void collect_arrays(int block, bool written, std::set<VarId>& arrays) const;
  std::vector<Op> value_of(std::size_t carried, int back, VarId iteration, VarId value);
  Op kept_value(const Kept& kept, VarId iteration);
  Op loose(int back, const std::string& type, std::vector<VarId> inputs, Attributes attributes, DType dtype);
  /// Inserts ops in front of the loop.
  std::vector<VarId> before(Op op, const std::string& name);
  /// The number that the carried var grows by in each iteration; null when it is no counter.
  const Tensor* stride(std::size_t carried) const;

  Program& program_;
  const int body_;
  std::set<VarId>& active_;
  const MemoryPolicy memory_;
  int block_ = 0;
  VarId iteration_ = no_var;  ///< of the body
  VarId trips_ = no_var;
  std::vector<Kept> list_reads_;
};

}  // namespace millrace::autodiff
