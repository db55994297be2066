// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>

#include <millrace/runtime/program/program.h>

namespace millrace::autodiff {

/// Puts a loop over runs of `every` iterations (0: of 1, 2, 3 …, so that no number of them has to be known) in the place of the loop whose body is block `body`: each of its iterations is a loop of at most
/// so many iterations of the body. All values keep their bits. The backward of the outer loop keeps what its iterations begin with, and makes
/// the rest of a run again. Gives the outer loop's op; the inner one has the attribute `segment`, and is not cut again.
Op segment_loop(Program& program, int body, std::int64_t every, std::set<VarId>& active);

}  // namespace millrace::autodiff
