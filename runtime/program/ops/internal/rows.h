// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <millrace/runtime/program/op_def.h>

namespace millrace::ops {

/// Rules of `OpDef::follow_rows`: from the axis of each input along which rows lie to that of each output, −1 for none.

using RowRule = std::function<std::vector<int>(const InferContext&, const std::vector<int>&)>;

/// UnsupportedError: the op `reason`, as in "reduces over the rows".
[[noreturn]] void refuse_rows(const std::string& reason);

/// The rules, by row and for many sequences, of an op that passes over whole runs make of others, which have rules of their own: both refuse.
void set_made_for_runs(OpDef& def);

/// A rule for ops of one output that treat the rows of input 0 (where = −1 is not asked); rows in any other input are
/// refused.
RowRule follow_first(std::function<int(const InferContext&, int axis)> where);
/// The axis stays; the op works on each element, or on the axes that are not the rows'.
RowRule follow_same();

/// Rank of an input; UnsupportedError when it is not known.
int known_rank(const InferContext& context, std::size_t input);

/// Elementwise with broadcasting over all inputs: rows must meet on one axis, and what does not carry rows must be the
/// same for each row.
std::vector<int> follow_elementwise(const InferContext& context, const std::vector<int>& axes);
/// Refuses an input whose extent along the rows' axis says that it holds rows of its own; `axis` is that of the input,
/// negative when it has none.
void check_same_for_each_row(const InferContext& context, std::size_t input, int axis, std::int64_t rows);

}  // namespace millrace::ops
