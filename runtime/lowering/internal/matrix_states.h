// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// The ops of an iteration that read and update matrices of [.., keys, values], found by their data flow, as linear attention and its like spell them.
/// Each op alone would take the whole matrix through memory; together they take it once (kernels/cpu/matrix_state_kernels.h).
///
///     read    Σ over the keys of (S · decay) · key
///     update  next = S · decay + key · added, and the same sum of next · query; where `added` is rate · (value − read) of the same S, decay and key, the
///             read is part of the update
///
/// Leading axes are those of matrices. `decay` and the vectors over keys have an extent of 1 in place of the values, `added` in place of the keys; a decay
/// may have it in place of both, and be missing. Several queries may read one matrix: an axis of S is then 1 where that of the queries is not.
class MatrixStates {
 public:
  MatrixStates(const Program& step, DType dtype);

  struct Member {
    VarId state = no_var;
    VarId decay = no_var;
    VarId key = no_var;
    VarId added = no_var;  ///< of an update; the value, where it is corrected
    bool corrected = false;
    VarId rate = no_var;  ///< of a corrected one; none: 1
    VarId query = no_var;
    VarId next = no_var;
    VarId read = no_var;
  };
  /// A row plan has the op itself in its place (`op`), a read or an update of several ops (`member`), or nothing (`none`).
  enum class Place { op, member, none };
  Place place(std::size_t op) const;
  const Member& member(std::size_t op) const { return members_.at(op); }

 private:
  /// The fold of a product: a matrix by a vector over its keys.
  struct Fold {
    std::size_t product = 0;
    std::size_t reduce = 0;
    std::optional<std::size_t> reshape;  ///< an axis of queries comes into the matrix
    VarId matrix = no_var;
    VarId vector = no_var;
  };
  const Op& op(std::size_t at) const { return step_.block(0).ops[at]; }
  const DDim* dims(VarId var) const;
  std::optional<std::size_t> made_by(VarId var, const char* type) const;
  bool read_once(VarId var) const;
  std::optional<Fold> fold_at(std::size_t reduce) const;
  /// The product of a vector over keys and one over values, the term of a matrix that nothing else reads.
  struct Outer {
    std::size_t product = 0;
    VarId key = no_var;
    VarId added = no_var;
  };
  std::optional<Outer> outer_of(VarId term, const DDim& form) const;
  void find_update(std::size_t add, const std::vector<Fold>& folds);
  void join_decays();
  void join_reads();

  const Program& step_;
  const DType dtype_;
  std::map<VarId, std::size_t> makers_;
  std::map<VarId, std::vector<std::size_t>> readers_;  ///< an output of the program is read behind all ops
  std::map<std::size_t, Member> members_;              ///< by the op in whose place it stands
  std::set<std::size_t> gone_;
};

}  // namespace millrace
