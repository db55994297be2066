// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace::importing {

/// One number of a list that a graph computes: known, the extent of an axis of a var, or neither.
struct Element {
  std::optional<std::int64_t> number;
  VarId of = no_var;
  int axis = -1;
  friend bool operator==(const Element&, const Element&) = default;
};

/// Small values of a program before it runs, as far as the ops that make them say: exporters compute shapes, axes and pads in the
/// graph, mostly from what the file holds. Looks only where it is asked, and changes nothing.
class Values {
 public:
  explicit Values(const Program& program) : program_(program) {}
  /// Notes which op of which block makes a var.
  void made_by(VarId var, int block, std::size_t op) { makers_[var] = {block, op}; }
  void clear();

  /// The value of `var` in every run, or null: for few elements alone.
  const Tensor* tensor(VarId var) { return tensor(var, 0); }
  /// The numbers of a list (or one number), each as far as it is known; none where not even their count is.
  std::optional<std::vector<Element>> elements(VarId var) { return elements(var, 0); }
  /// The value that `var` is in another form: through copies, casts to i64 (or, with `casts`, those that keep every integer) and changes of rank.
  VarId source(VarId var, bool casts = false) const;
  /// The var that `var` is a copy of, or `var` itself.
  VarId copied(VarId var) const;
  /// The op that makes `var`, or null; a pointer until the next op is appended.
  const Op* maker(VarId var) const;
  /// Whether an op picks `var` from a list, or copies what one picked.
  bool picks(VarId var) const;
  /// The var and axis that an extent comes from, through ops that keep it.
  Element origin(VarId var, int axis) { return origin(var, axis, 0); }
  /// The places of the operands whose extents, broadcast, are that of `var` along an axis: those that may have more than one element there. Empty where the
  /// op that makes `var` does not broadcast, or a rank is not known.
  std::vector<Element> broadcast_from(VarId var, int axis) const;
  /// Takes the extent of `var` along an axis, a param of a block, for that of another place.
  void same_extent(VarId var, int axis, const Element& place) { same_[{var, axis}] = place; }

 private:
  struct Maker {
    int block = 0;
    std::size_t op = 0;
  };
  const Tensor* tensor(VarId var, int depth);
  /// Whether a cast gives every integer as it is.
  bool keeps_integers(const Op& cast) const;
  Element origin(VarId var, int axis, int depth);
  std::vector<Element> broadcast_places(const Op& op, VarId var, int axis) const;
  std::optional<Element> broadcast_axis(const Op& op, VarId var, int axis, int depth);
  std::optional<Element> listed_axis(const Op& op, VarId var, int axis, int depth);
  std::optional<Element> reshaped_axis(const Op& op, int axis) const;
  std::optional<Element> step_axis(const Op& op, int axis) const;
  std::optional<Element> counted_axis(const Op& op, int depth);
  std::optional<Element> kept_axis(const Op& op, VarId var, int axis, int depth);
  std::optional<Tensor> computed(VarId var, int depth);
  std::optional<Tensor> evaluated(VarId var, const Op& op, int depth);
  std::optional<Tensor> extents(const Op& op) const;
  std::optional<std::vector<Element>> elements(VarId var, int depth);
  const std::optional<std::vector<Element>>& structure(VarId var, int depth);
  std::optional<std::vector<Element>> structured(VarId var, int depth);
  std::optional<std::vector<Element>> picked(const Op& op, int depth);
  std::optional<std::vector<Element>> part(const Op& op, VarId var, int depth);
  std::optional<std::vector<Element>> joined(const Op& op, int depth);

  const Program& program_;
  std::map<VarId, Maker> makers_;
  std::map<VarId, std::optional<Tensor>> tensors_;  ///< each var is looked into once, however many read it
  std::map<VarId, std::optional<std::vector<Element>>> structures_;
  std::map<std::pair<VarId, int>, Element> origins_, same_;
};

}  // namespace millrace::importing
