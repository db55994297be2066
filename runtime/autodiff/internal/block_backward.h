// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/autodiff/internal/array_gradients.h>
#include <millrace/runtime/autodiff/internal/gradient_sums.h>
#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// State that the backward of all blocks shares.
struct Transform {
  Program& program;
  std::set<VarId> active;
  const BackwardOptions& options;
};

/// The backward of one block. It is appended to the same block, behind the block's ops: all forward values are at hand there. The backward of a
/// loop or branch is a block that first computes the forward values of its iteration again (clone_block.h), so that this holds for all
/// blocks.
///
/// An array's gradient is a list, whose element i is the gradient of slot i; what `pack` and `last_rows` say of all slots at once is kept as it is
/// for a recurrence to take.
class BlockBackward {
 public:
  /// `outer`: the backward of the block around; null for block 0.
  BlockBackward(Transform& transform, int block, BlockBackward* outer);

  void add(VarId var, VarId gradient) { sums_.add(var, gradient); }
  VarId sum(VarId var) { return sums_.sum(var); }
  VarId sum_with_lod(VarId var) { return sums_.sum_with_lod(var); }
  bool has(VarId var) const { return sums_.has(var); }
  void walk(const std::vector<Op>& ops);

 private:
  /// The gradients that a block of an op gives the block around it.
  struct Inner {
    int block = 0;
    std::vector<std::pair<VarId, VarId>> tensors;  ///< outer var, gradient in the block
    std::vector<std::pair<VarId, VarId>> lists;    ///< outer array, list in the block
  };

  /// A gradient that comes from the block around: a list that goes on being added to, or of a loop the sum over iterations so far.
  struct Import {
    VarId var = no_var;
    VarId here = no_var;     ///< in this block; of a loop a parameter
    VarId initial = no_var;  ///< in the block around; of a sum: none yet
    bool sum = false;
  };

  Program& program() const { return transform_.program; }
  bool active(VarId var) const { return sums_.active(var); }
  bool local(VarId var) const { return program().var(var).block == block_; }
  const std::string& name(VarId var) const { return program().var(var).name; }
  [[noreturn]] void refuse(const Op& op, const std::string& why) const;

  // ---- Arrays ----
  bool has_array(VarId array) const;
  void add_array(VarId array, const ArrayGradient& gradient);
  void set_list(VarId array, VarId list) { arrays_[array] = {{ArrayGradient::Kind::list, list}}; }
  /// The gradient of an array, as one list.
  VarId list(VarId array);
  VarId list_of(const ArrayGradient& gradient);
  const Import* find_import(VarId var) const;
  VarId import_param(VarId var, const VarType& type);
  void import_list(VarId array);
  VarId as_array(VarId gradients, VarId like);
  VarId as_array(VarId array) { return as_array(list(array), array); }
  /// The gradient of an array or list without terms.
  VarId no_gradients(VarId array);
  bool has_list(VarId var) const { return arrays_.contains(var) && has_array(var); }

  bool visit_array(const Op& op);
  /// Ops that backward loops are made of, for second derivatives.
  bool visit_list(const Op& op);
  bool stacked_gradient(const Op& unstack);
  void visit_write(const Op& op);
  void visit_read(const Op& op);
  void visit_unpack(const Op& op);
  void visit_reorder_steps(const Op& op);
  void visit_last_rows(const Op& op);
  bool visit_rows(const Op& op);
  /// Ops of which `recompute` makes loops over runs (runs_backward.h), for another loss and for second derivatives.
  bool visit_runs(const Op& op);
  void visit_whole_blocks(const Op& op);
  void visit_row_products(const Op& op);
  VarId gather(VarId x, VarId rows);

  // ---- Blocks ----
  bool wanted(const Op& op, int block) const;
  void visit_while(const Op& op);
  bool visit_recurrence(const Op& op, int body);
  void visit_any_while(const Op& op, int body);
  void visit_if(const Op& op);
  Inner branch(const Op& op, const char* attribute);
  Inner take_inner();
  VarId cut(VarId gradient, VarId like);
  /// Where a loop in this block begins to sum the gradient of `var`, and what its end means.
  VarId begin_sum(VarId var);
  void end_sum(VarId var, VarId total);

  Transform& transform_;
  const int block_;
  BlockBackward* const outer_;
  GradientSums sums_;
  ArrayGradients arrays_;
  std::set<VarId> own_reads_;    ///< arrays that the loop reads itself: they get gradients iteration by iteration
  std::vector<Import> imports_;  ///< in the order in which they were first needed
  bool in_loop_ = false;
  VarId boundary_ = no_var;     ///< truth: nothing flows to the iteration before this one
  std::set<VarId> own_writes_;  ///< arrays that the loop writes, where gradients are cut
};

}  // namespace millrace::autodiff
