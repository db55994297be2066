// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include <millrace/runtime/program/op_def.h>

namespace millrace {

/// Rewrites a straight-line program for one sequence into one for N sequences: every var that depends on a sequence gets a new leading axis
/// of extent N, the others stay. Each op rewrites itself (`OpDef::vectorize`) by reading `batched`/`get` and calling `emit` and `bind`. Row
/// i of each result has the bits that the original gives for sequence i.
class Vectorizer {
 public:
  Vectorizer(const Program& from, Program& to) : from_(from), to_(to) {}

  const Program& from() const noexcept { return from_; }
  Program& to() noexcept { return to_; }

  /// Whether a var of the old program has the leading axis in the new one.
  bool batched(VarId old) const { return old != no_var && bound_.at(old).batched; }
  /// Any input of the op.
  bool any_batched(const Op& op) const;
  /// The new var; `no_var` for `no_var`.
  VarId get(VarId old) const { return old == no_var ? no_var : bound_.at(old).var; }
  /// The new var with the leading axis and `rank` axes behind it (ones are put in after the leading axis), so that trailing axes broadcast.
  /// For an unbatched var: unchanged.
  VarId aligned(VarId old, int rank);
  /// Rank of the old var; UnsupportedError when it is not known.
  int rank(VarId old) const;

  /// Appends an op to the new program and returns its outputs.
  std::vector<VarId> emit(const std::string& type, const std::vector<VarId>& inputs, Attributes attributes = {});
  void bind(VarId old, VarId made, bool batched) { bound_[old] = {made, batched}; }
  void bind_all(const std::vector<VarId>& olds, const std::vector<VarId>& made, bool batched);

  /// Rewrites one op: copied as it is when nothing it reads is batched. UnsupportedError names the op that has no rule.
  void rewrite(const Op& op);

 private:
  struct Bound {
    VarId var = no_var;
    bool batched = false;
  };
  const Program& from_;
  Program& to_;
  std::map<VarId, Bound> bound_;
};

/// The straight-line `program` for N sequences: every input and output gets a leading axis of unknown extent. UnsupportedError names an op
/// that has no rule, or an output that depends on no input.
Program vectorize(const Program& program);

}  // namespace millrace
