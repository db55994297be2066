// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/sequence_pool.h>

#include "reference/reference.h"

/// The plainest form of the sequence kernels. Sequence i of x [T, …] is the rows [offsets[i], offsets[i + 1]).
namespace millrace::reference {

using Offsets = std::vector<std::int64_t>;

Values sequence_pool(SequencePool kind, const Values& x, const Offsets& offsets, double empty);
Values sequence_softmax(const Values& x, const Offsets& offsets);
/// filter [length·C, M] over the rows start … start + length − 1 from each row on, zeros outside its sequence.
Values sequence_conv(const Values& x, const Values& filter, const Offsets& offsets, std::int64_t start, std::int64_t length);
Values row_conv(const Values& x, const Values& w, const Offsets& offsets);

}  // namespace millrace::reference
