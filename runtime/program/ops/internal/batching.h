// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/program/vectorize.h>

namespace millrace::ops {

/// Helpers of the rules of `OpDef::vectorize`. N is the new leading axis.

/// An i64 literal of the new program: a list, or a scalar.
VarId literal(Vectorizer& v, const std::vector<std::int64_t>& values);
VarId scalar_literal(Vectorizer& v, std::int64_t value);
/// The extents [begin, end) of a var of the new program, as a list that a run computes.
VarId extents(Vectorizer& v, VarId made, int begin, int end);
/// Lists of the new program, one behind the other.
VarId joined(Vectorizer& v, const std::vector<VarId>& lists);

/// The new var of `old` with the leading axis: repeated N times (N of `like`, a batched var of the new program) when it
/// is the same for all.
VarId batched_var(Vectorizer& v, VarId old, VarId like);
/// The first new var among the inputs of `op` that is batched.
VarId any_batched_var(const Vectorizer& v, const Op& op);

/// A batched [N, B, …] as [N·B, …], and [N·B, …] as [N, B, …] again with N and B of `like`. `old` is the var before
/// vectorisation whose leading axis is B.
VarId merge_leading(Vectorizer& v, VarId batched, VarId old);
VarId split_leading(Vectorizer& v, VarId merged, VarId like);

/// `attributes` with one of them changed.
Attributes with(Attributes attributes, const std::string& name, Attribute value);
/// `axis` of the old var (negative counts from its end) in the new one.
std::int64_t moved_axis(std::int64_t axis, int old_rank);
std::vector<std::int64_t> moved_axes(const std::vector<std::int64_t>& axes, int old_rank);
/// UnsupportedError: `what` must not depend on the sequence.
void expect_shared(const Vectorizer& v, const Op& op, std::size_t input, const std::string& what);

/// Elementwise ops: every batched input gets the rank of the result behind the leading axis.
void vectorize_elementwise(Vectorizer& v, const Op& op);
/// Emits `op` with other attributes on its new inputs (input 0 batched) and binds all outputs as batched.
void vectorize_with(Vectorizer& v, const Op& op, Attributes attributes);

}  // namespace millrace::ops
